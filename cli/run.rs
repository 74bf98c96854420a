//! `onboard run`: continues a prompt.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail, ensure};
use clap::Args;
use engine::sample::{Sampler, Sampling};
use engine::{Chunk, NoProbe, Options, Want};
use registry::dtype::Dtype;
use tokenizers::Tokenizer;

use crate::specs::{engine_error, warn};
use crate::target::{self, Choice, Which, parse_dtype};
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
        let mut voice = self.voice(target.home())?;
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
        let ends = end_tokens(target.home());
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
            if ends.contains(&token) && !matches!(voice, Voice::Ids { .. }) {
                break;
            }
            term::stream(&voice.say(token)?)?;
            next = vec![token];
        }
        term::print(&voice.rest())?;
        Ok(Ended::Well)
    }

    fn voice(&self, dir: &Path) -> Result<Voice> {
        if self.prompt.is_none() {
            return Ok(Voice::Ids { first: true });
        }
        Ok(Voice::Text { tokenizer: Box::new(tokenizer(dir)?), tokens: Vec::new(), said: 0 })
    }
}

/// The tokenizer that lies beside a model.
pub(crate) fn tokenizer(dir: &Path) -> Result<Tokenizer> {
    let path: PathBuf = dir.join("tokenizer.json");
    if !path.is_file() {
        bail!(
            "`{}` has no tokenizer.json, so text cannot be read; save one with transformers' \
             AutoTokenizer.save_pretrained, or give token ids with --tokens 1,2,3",
            dir.display()
        );
    }
    Tokenizer::from_file(&path).map_err(|error| anyhow!("`{}`: {error}", path.display()))
}

/// How tokens are read and shown.
enum Voice {
    Ids { first: bool },
    Text { tokenizer: Box<Tokenizer>, tokens: Vec<u32>, said: usize },
}

impl Voice {
    fn prompt(&self, text: Option<&str>, ids: &[u32]) -> Result<Vec<u32>> {
        let tokens = match (self, text) {
            (Self::Text { tokenizer, .. }, Some(text)) => {
                let encoded = tokenizer
                    .encode(text, true)
                    .map_err(|error| anyhow!("cannot tokenize the prompt: {error}"))?;
                encoded.get_ids().to_vec()
            }
            _ => ids.to_vec(),
        };
        ensure!(!tokens.is_empty(), "the prompt has no tokens");
        Ok(tokens)
    }

    /// What a token adds to what was said. Bytes of one character can come in several tokens,
    /// so all of them are decoded again and what is not whole yet waits.
    fn say(&mut self, token: u32) -> Result<String> {
        match self {
            Self::Ids { first } => {
                let comma = if std::mem::take(first) { "" } else { "," };
                Ok(format!("{comma}{token}"))
            }
            Self::Text { tokenizer, tokens, said } => {
                tokens.push(token);
                let text = tokenizer
                    .decode(tokens, true)
                    .map_err(|error| anyhow!("cannot decode token {token}: {error}"))?;
                let whole = text.trim_end_matches('\u{fffd}');
                let new = whole.get(*said..).unwrap_or_default().to_owned();
                *said = whole.len().max(*said);
                Ok(new)
            }
        }
    }

    /// What was held back, at the end.
    fn rest(&self) -> String {
        match self {
            Self::Text { tokenizer, tokens, said } => {
                let text = tokenizer.decode(tokens, true).unwrap_or_default();
                text.get(*said..).unwrap_or_default().to_owned()
            }
            Self::Ids { .. } => String::new(),
        }
    }
}

/// Tokens that end a text, as `generation_config.json` or `config.json` says.
fn end_tokens(dir: &Path) -> Vec<u32> {
    for file in ["generation_config.json", "config.json"] {
        let Ok(bytes) = fs_err::read(dir.join(file)) else { continue };
        let Ok(json) = serde_json::from_slice::<serde_json::Value>(&bytes) else { continue };
        let number =
            |value: &serde_json::Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        match &json["eos_token_id"] {
            serde_json::Value::Array(ids) => return ids.iter().filter_map(number).collect(),
            one if one.is_u64() => return number(one).into_iter().collect(),
            _ => {}
        }
    }
    Vec::new()
}
