//! Implements `onboard imatrix`, which measures the importance of the inputs of each weight on a text.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use converter::{ImatrixOptions, join_importance, measure_importance};
use registry::dtype::Dtype;

use crate::arithmetic::ArithmeticArgs;
use crate::convert::parse_shard;
use crate::engines::DeviceArgs;
use crate::findings::converter_error;
use crate::progress::ConversionTerminal;
use crate::target::{self, ModelArgs, SpecArgs, parse_dtype};
use crate::{CommandOutcome, write};

/// Measures on a text how much each input of a weight matters, for `convert`
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  onboard imatrix MODEL --text calibration.txt -o model.imatrix.gguf
  convert MODEL --to gguf:iq2_xs --imatrix model.imatrix.gguf -o model.gguf
  onboard imatrix MODEL --text calibration.txt --shard 2/8 -o 2.shard    the second of eight shares of the chunks
  onboard imatrix merge *.shard -o model.imatrix.gguf                    the file that one run would write

The text is cut into chunks of tokens; what is left over at its end is not used. The file has the form that
llama.cpp's tools read. After an interruption, the same command goes on where it stopped: OUTPUT.sums holds
what was measured."
)]
pub(crate) struct ImatrixArgs {
    #[command(subcommand)]
    command: Option<ImatrixCommand>,
    #[command(flatten)]
    which: Option<ModelArgs>,
    #[command(flatten)]
    choice: SpecArgs,
    /// The text
    #[arg(long, value_name = "FILE", required_unless_present = "tokens")]
    text: Option<PathBuf>,
    /// Token ids instead of a text, with commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "text")]
    tokens: Vec<u32>,
    /// Output file
    #[arg(short, long, value_name = "FILE", required = true)]
    output: Option<PathBuf>,
    /// Write over a file that is there (never over one that is read)
    #[arg(long)]
    force: bool,
    /// Tokens in a chunk; default: 512, or all that the model handles
    #[arg(long, value_name = "N")]
    chunk: Option<usize>,
    /// At most so many chunks
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Measure share I of N of the chunks, for `onboard imatrix merge`
    #[arg(long, value_name = "I/N", value_parser = parse_shard)]
    shard: Option<(usize, usize)>,
    /// Measure the output matrix too
    #[arg(long)]
    process_output: bool,
    /// Dtype of activations; default: as the checkpoint declares
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    dtype: Option<Dtype>,
    #[command(flatten)]
    arithmetic: ArithmeticArgs,
    /// Worker threads; default: one per core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    #[command(flatten)]
    device: DeviceArgs,
}

#[derive(Debug, Subcommand)]
enum ImatrixCommand {
    /// Joins the shards of a measurement, if they are complete
    Merge(MergeArgs),
}

/// Shards that are joined.
#[derive(Debug, Args)]
struct MergeArgs {
    /// The shards that `onboard imatrix --shard` wrote, in any order
    #[arg(value_name = "SHARD", required = true)]
    shards: Vec<PathBuf>,
    /// Output file
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Write over a file that is there (never over one that is read)
    #[arg(long)]
    force: bool,
}

impl ImatrixArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        if let Some(ImatrixCommand::Merge(merge)) = self.command {
            return merge.run();
        }
        let (Some(which), Some(output)) = (&self.which, &self.output) else {
            bail!("which model? onboard imatrix MODEL --text FILE -o FILE");
        };
        self.run_measurement(which, output)
    }

    fn run_measurement(&self, which: &ModelArgs, output: &Path) -> Result<CommandOutcome> {
        write::refuse_stdout(output)?;
        let target = target::open(which, &self.choice)?;
        target::explained(&target, &self.choice)?;
        self.device.prepare();
        let options = ImatrixOptions {
            text: self.text.clone(),
            tokens: self.tokens.clone(),
            force: self.force,
            chunk: self.chunk,
            chunks: self.chunks,
            shard: self.shard,
            process_output: self.process_output,
            dtype: self.dtype,
            arithmetic: self.arithmetic.of(&target, self.device.is_cpu())?,
            threads: self.threads,
            device: self.device.of_measurement(),
        };
        measure_importance(&target, output, &options, &ConversionTerminal)
            .map_err(converter_error)?;
        Ok(CommandOutcome::Ok)
    }
}

impl MergeArgs {
    fn run(self) -> Result<CommandOutcome> {
        write::refuse_stdout(&self.output)?;
        join_importance(&self.shards, &self.output, self.force, &ConversionTerminal)
            .map_err(converter_error)?;
        Ok(CommandOutcome::Ok)
    }
}
