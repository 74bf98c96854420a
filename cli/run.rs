//! Implements `onboard run`, which continues a prompt.

use std::io::Read as _;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use engine::sample::{Sampler, Sampling};
use engine::{Chunk, NoProbe, OutputRows, SessionOptions};
use registry::dtype::Dtype;
use serde_json::json;

use crate::arithmetic::ArithmeticArgs;
use crate::engines::DeviceArgs;
use crate::findings::{engine_error, warn};
use crate::target::{self, ModelArgs, SpecArgs, parse_dtype};
use crate::token_io::TokenIo;
use crate::{CommandOutcome, term};

/// Continues a prompt with a model
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard run MODEL --prompt 'Once upon a time' -n 64
  onboard run MODEL --tokens 1,17,4 -n 8             token ids in and out; needs no tokenizer
  onboard run MODEL --prompt Hi --temperature 0.7 --top-p 0.9 --seed 1
  onboard run MODEL --prompt - < prompt.txt          the prompt from standard input
  onboard run MODEL --prompt Hi --json               tokens and text as one object")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    which: ModelArgs,
    #[command(flatten)]
    choice: SpecArgs,
    /// The text to continue; `-` reads it from standard input, without a newline at its end
    #[arg(
        long,
        value_name = "TEXT",
        required_unless_present = "tokens",
        conflicts_with = "tokens"
    )]
    prompt: Option<String>,
    /// The token ids to continue, with commas
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    tokens: Vec<u32>,
    /// Number of tokens to add
    #[arg(short, value_name = "N", default_value_t = 32)]
    n: usize,
    /// 0 takes the likeliest token; higher is more varied
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,
    /// Choose among the K likeliest only
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Choose among the likeliest that together reach this probability only
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// The same seed gives the same tokens
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Dtype of activations; default: as the checkpoint declares
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    dtype: Option<Dtype>,
    #[command(flatten)]
    arithmetic: ArithmeticArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Worker threads
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print JSON, when the last token is there
    #[arg(long)]
    json: bool,
}

/// Maximum size of a prompt on standard input, in bytes.
const MOST: u64 = 64 << 20;

impl RunArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        ensure!(
            self.temperature >= 0.0 && self.temperature.is_finite(),
            "--temperature must be 0 or more"
        );
        ensure!(self.top_k != Some(0), "--top-k must be at least 1");
        ensure!(
            self.top_p.is_none_or(|p| p > 0.0 && p <= 1.0),
            "--top-p must be above 0 and at most 1"
        );
        let target = target::open(&self.which, &self.choice)?;
        target::explained(&target, &self.choice)?;
        let mut output = match &self.prompt {
            Some(_) => TokenIo::of(&target)?,
            None => TokenIo::Ids { first: true },
        };
        let text = match self.prompt.as_deref() {
            Some("-") => Some(standard_input()?),
            text => text.map(str::to_owned),
        };
        let prompt = output.prompt(text.as_deref(), &self.tokens)?;
        let dtype = self.dtype.unwrap_or_else(|| target.dtype());
        target::check_dtypes(&target, &[dtype])?;
        warn(&target.nonfinite()?);
        let arithmetic = self.arithmetic.of(&target, self.device.is_cpu())?;
        let options = SessionOptions {
            dtype,
            threads: self.threads,
            arithmetic,
            ..SessionOptions::default()
        };
        let mut session =
            self.device.native()?.open(&target::source(&target), &options).map_err(engine_error)?;
        let slot = session.open_slot();
        let sampling = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: None,
            seed: self.seed,
        };
        let mut sampler = Sampler::new(sampling);
        let ends = output.ends(target.home());
        let mut next = prompt.clone();
        let room = target.model.context.map_or(usize::MAX, |most| most.saturating_sub(next.len()));
        if room < self.n {
            term::note(&format!("note: the model handles {} more tokens, not {}", room, self.n));
        }
        if self.n.min(room) == 0 {
            // No tokens to add, but the prompt is still checked: ids in range, within the context.
            session.step(&[Chunk { slot, tokens: &next, rows: OutputRows::None }], &mut NoProbe)?;
        }
        let (mut made, mut said, mut ended) = (Vec::new(), String::new(), "length");
        if room < self.n {
            ended = "context";
        }
        for _ in 0..self.n.min(room) {
            let chunk = Chunk { slot, tokens: &next, rows: OutputRows::Last };
            let logits = session.step(&[chunk], &mut NoProbe)?;
            let token = sampler.choose(logits[0].row(0));
            if ends.contains(&token) {
                ended = "end token";
                break;
            }
            let piece = output.next_text(token);
            if self.json {
                said.push_str(&piece);
            } else {
                term::stream(&piece)?;
            }
            made.push(token);
            next = vec![token];
        }
        if !self.json {
            term::print(&output.remaining_text())?;
            return Ok(CommandOutcome::Ok);
        }
        said.push_str(&output.remaining_text());
        let whole = json!({
            "schema": "onboard-run/1",
            "model": target.name,
            "dtype": dtype.name(),
            "prompt_tokens": prompt,
            "tokens": made,
            "text": self.prompt.is_some().then_some(said),
            "ended": ended,
        });
        term::print(&serde_json::to_string_pretty(&whole)?)?;
        Ok(CommandOutcome::Ok)
    }
}

/// Reads the text on standard input.
fn standard_input() -> Result<String> {
    let mut bytes = Vec::new();
    std::io::copy(&mut std::io::stdin().take(MOST + 1), &mut bytes)
        .context("cannot read standard input")?;
    ensure!(
        bytes.len() as u64 <= MOST,
        "standard input has more than {MOST} bytes, the most of a prompt"
    );
    let mut text = String::from_utf8(bytes).context("standard input is not UTF-8")?;
    let end = text.strip_suffix('\n').map(|text| text.strip_suffix('\r').unwrap_or(text).len());
    text.truncate(end.unwrap_or(text.len()));
    Ok(text)
}
