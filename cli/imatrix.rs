//! Implements `onboard imatrix`, which measures the importance of the inputs of each weight on a text.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use engine::OutputRows;
use engine::importance::Importance;
use formats::imatrix::Imatrix;
use registry::dtype::Dtype;

use crate::calibrate::ChunkedText;
use crate::convert::several;
use crate::target::{self, ModelArgs, SpecArgs, parse_dtype};
use crate::{CommandOutcome, term};

/// Measures on a text how much each input of each weight matters, for `convert --imatrix`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard imatrix MODEL --text calibration.txt -o model.imatrix.gguf
  convert MODEL --to gguf:iq2_xs --imatrix model.imatrix.gguf -o model.gguf

The text is cut into chunks of tokens; what is left over at its end is not used. The file is of
the form that llama.cpp's tools read.")]
pub(crate) struct ImatrixArgs {
    #[command(flatten)]
    which: ModelArgs,
    #[command(flatten)]
    choice: SpecArgs,
    /// The text
    #[arg(long, value_name = "FILE", required_unless_present = "tokens")]
    text: Option<PathBuf>,
    /// Token ids instead of a text, with commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "text")]
    tokens: Vec<u32>,
    /// Output file
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Write over a file that is there (never over one that is read)
    #[arg(long)]
    force: bool,
    /// Tokens in a chunk; default: 512, or all that the model handles
    #[arg(long, value_name = "N")]
    chunk: Option<usize>,
    /// At most so many chunks
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Measure the output matrix too
    #[arg(long)]
    process_output: bool,
    /// Dtype of activations; default: as the checkpoint declares
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    dtype: Option<Dtype>,
    /// Worker threads; default: one per core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

impl ImatrixArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let target = target::open(&self.which, &self.choice)?;
        let Some(gguf) = target.model.gguf.clone() else {
            bail!("the spec has no `gguf:` section, so weights have no names in such a file");
        };
        target::explained(&target, &self.choice)?;
        let mut inputs = target.inputs()?;
        inputs.extend(self.text.clone());
        crate::write::allowed(&self.output, &inputs, self.force)?;
        let ids = &self.tokens;
        let text = ChunkedText::read(&target, self.text.as_deref(), ids, self.chunk, self.chunks)?;
        let run = (self.dtype.unwrap_or_else(|| target.dtype()), self.threads);
        let watch = Arc::new(Importance::default());
        let want = if self.process_output { OutputRows::All } else { OutputRows::None };
        text.run(&target, watch.clone(), run, want)?;
        let entries = watch.by_tensor(&gguf, &target.model.graph.weights).map_err(several)?;
        let dataset = self.text.as_ref().map(|path| path.display().to_string());
        let made = Imatrix {
            entries,
            chunks: u32::try_from(text.count)?,
            chunk_size: u32::try_from(text.chunk)?,
            datasets: vec![dataset.unwrap_or_default()],
        };
        made.write(&self.output)?;
        term::print(&format!(
            "wrote {}: {} weights, measured on {} chunks of {} tokens",
            self.output.display(),
            made.entries.len(),
            text.count,
            text.chunk
        ))?;
        Ok(CommandOutcome::Ok)
    }
}
