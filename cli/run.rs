//! `onboard run`: continues a prompt.

use anyhow::{Result, ensure};
use clap::Args;
use engine::sample::{Sampler, Sampling};
use engine::{Chunk, NoProbe, Options, Want};
use registry::dtype::Dtype;

use crate::coverage::Coverage;
use crate::specs::{engine_error, warn};
use crate::target::{self, Choice, Which, parse_dtype};
use crate::voice::Voice;
use crate::{Ended, term};

/// Continues a prompt with a model
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard run MODEL --prompt 'Once upon a time' -n 64
  onboard run MODEL --tokens 1,17,4 -n 8             token ids in and out; needs no tokenizer
  onboard run MODEL --prompt Hi --temperature 0.7 --top-p 0.9 --seed 1")]
pub(crate) struct Run {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    choice: Choice,
    /// The text to continue
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
    /// How many tokens to add
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
    /// What activations are kept in; default: what the checkpoint says
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    dtype: Option<Dtype>,
    /// Worker threads
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

impl Run {
    pub(crate) fn run(self) -> Result<Ended> {
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
        if !target.is_gguf() {
            let coverage = Coverage::of(&target.model, &target.checkpoint()?);
            // What another program's codes are is said by its name, and not by their shapes.
            if coverage.foreign.is_some() {
                coverage.refuse(&target.dir)?;
            }
        }
        let mut voice = match &self.prompt {
            Some(_) => Voice::of(&target)?,
            None => Voice::Ids { first: true },
        };
        let prompt = voice.prompt(self.prompt.as_deref(), &self.tokens)?;
        let dtype = self.dtype.unwrap_or_else(|| target.dtype());
        target.check_dtypes(&[dtype])?;
        warn(&target.nonfinite()?);
        let options = Options { dtype, threads: self.threads, ..Options::default() };
        let mut session = crate::engines::engine("native")?
            .open(&target.source(), &options)
            .map_err(engine_error)?;
        let slot = session.open_slot();
        let sampling = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            seed: self.seed,
        };
        let mut sampler = Sampler::new(sampling);
        let ends = voice.ends(target.home());
        let mut next = prompt;
        let room = target.model.context.map_or(usize::MAX, |most| most.saturating_sub(next.len()));
        if room < self.n {
            term::note(&format!("note: the model handles {} more tokens, not {}", room, self.n));
        }
        if self.n.min(room) == 0 {
            // Nothing to say, but the prompt is still judged: ids in range, within the context.
            session.step(&[Chunk { slot, tokens: &next, want: Want::None }], &mut NoProbe)?;
        }
        for _ in 0..self.n.min(room) {
            let chunk = Chunk { slot, tokens: &next, want: Want::Last };
            let logits = session.step(&[chunk], &mut NoProbe)?;
            let token = sampler.choose(logits[0].row(0));
            if ends.contains(&token) {
                break;
            }
            term::stream(&voice.say(token)?)?;
            next = vec![token];
        }
        term::print(&voice.rest())?;
        Ok(Ended::Well)
    }
}
