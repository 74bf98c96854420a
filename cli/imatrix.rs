//! `onboard imatrix`: how much each input of each weight matters on a text.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::Args;
use converters::imatrix::Imatrix;
use engine::importance::Importance;
use engine::{Chunk, NoProbe, Options, Want};
use registry::dtype::Dtype;

use crate::specs::engine_error;
use crate::target::{self, Choice, Target, Which, parse_dtype};
use crate::{Ended, run, term};

/// Measures on a text how much each input of each weight matters, for `convert --imatrix`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard imatrix MODEL --text calibration.txt -o model.imatrix.gguf
  convert MODEL --to gguf:iq2_xs --imatrix model.imatrix.gguf -o model.gguf

The text is cut into chunks of tokens; what is left over at its end is not used. The file is of
the form that llama.cpp's tools read.")]
pub(crate) struct MakeImatrix {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    choice: Choice,
    /// The text
    #[arg(long, value_name = "FILE", required_unless_present = "tokens")]
    text: Option<PathBuf>,
    /// Token ids instead of a text, with commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "text")]
    tokens: Vec<u32>,
    /// Where to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Tokens in a chunk
    #[arg(long, value_name = "N", default_value_t = 512)]
    chunk: usize,
    /// At most so many chunks
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Measure the output matrix too
    #[arg(long)]
    process_output: bool,
    /// What activations are kept in; default: what the checkpoint says
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    dtype: Option<Dtype>,
    /// Worker threads; default: one per core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

impl MakeImatrix {
    pub(crate) fn run(self) -> Result<Ended> {
        ensure!(self.chunk > 0, "--chunk must be at least 1");
        let target = target::open(&self.which, &self.choice)?;
        let context = target.model.context.unwrap_or(usize::MAX);
        ensure!(
            self.chunk <= context,
            "the model handles {context} tokens, fewer than a chunk of {}; give --chunk {context}",
            self.chunk
        );
        let Some(gguf) = target.model.gguf.clone() else {
            bail!("the spec has no `gguf:` section, so weights have no names in such a file");
        };
        let (tokens, begin) = self.read(&target)?;
        let count = (tokens.len() / self.chunk).min(self.chunks.unwrap_or(usize::MAX));
        ensure!(
            count > 0,
            "{} tokens are less than a chunk of {}; give a longer text, or --chunk",
            tokens.len(),
            self.chunk
        );
        let dtype = self.dtype.unwrap_or_else(|| target.dtype());
        target.check_dtypes(&[dtype])?;
        let watch = Arc::new(Importance::default());
        let options = Options {
            dtype,
            threads: self.threads,
            // Fused kernels do not show what they multiply.
            rewrites: false,
            watch: Some(watch.clone()),
            ..Options::default()
        };
        let mut session = crate::engines::engine("native")?
            .open(&target.source(), &options)
            .map_err(engine_error)?;
        let want = if self.process_output { Want::All } else { Want::None };
        let bar = term::count_bar(count as u64, "chunks");
        for chunk in tokens.chunks_exact(self.chunk).take(count) {
            let mut chunk = chunk.to_vec();
            // Every chunk begins as a text does.
            if let Some(begin) = begin {
                chunk[0] = begin;
            }
            let slot = session.open_slot();
            session.step(&[Chunk { slot, tokens: &chunk, want }], &mut NoProbe)?;
            session.release(slot)?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        let entries = watch
            .by_tensor(&gguf, &target.model.graph.weights)
            .map_err(|faults| anyhow!("{}", faults.join("\n")))?;
        let dataset = self.text.as_ref().map(|path| path.display().to_string());
        let made = Imatrix {
            entries,
            chunks: u32::try_from(count)?,
            chunk_size: u32::try_from(self.chunk)?,
            datasets: vec![dataset.unwrap_or_default()],
        };
        made.write(&self.output)?;
        term::print(&format!(
            "wrote {}: {} weights, measured on {count} chunks of {} tokens",
            self.output.display(),
            made.entries.len(),
            self.chunk
        ))?;
        Ok(Ended::Well)
    }

    /// The tokens, and the one that every chunk begins with.
    fn read(&self, target: &Target) -> Result<(Vec<u32>, Option<u32>)> {
        let Some(text) = &self.text else { return Ok((self.tokens.clone(), None)) };
        let tokenizer = run::tokenizer(target.home())?;
        let text = fs_err::read_to_string(text).context("the text has to be UTF-8")?;
        let ids = |text: &str, special| -> Result<Vec<u32>> {
            let made = tokenizer.encode(text, special).map_err(|error| anyhow!("{error}"))?;
            Ok(made.get_ids().to_vec())
        };
        // What stands before a text that has special tokens, and not before one that has none.
        let (with, without) = (ids("a", true)?, ids("a", false)?);
        let begin = with.first().copied().filter(|first| without.first() != Some(first));
        Ok((ids(&text, true)?, begin))
    }
}
