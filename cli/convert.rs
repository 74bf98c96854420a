//! Implements `onboard convert`, which writes a checkpoint in another format, in one pass.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use clap::{Args, Subcommand};
use converter::ConvertOptions;
use registry::listing;

use crate::findings::converter_error;
use crate::progress::ConversionTerminal;
use crate::target::{self, ModelArgs, SpecArgs};
use crate::{CommandOutcome, term};

mod arguments;
mod compat;
mod format;
mod merge;

pub(crate) use format::parse_shard;

/// Writes a checkpoint in another format, in one pass and bounded memory
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  convert MODEL --to gguf:q4_k_m -o model.gguf          straight from the checkpoint, no file between
  convert MODEL --to gguf:q4_k_m --to gguf:q8_0 -o out  several files from one read: out/MODEL-q4_k_m.gguf, ...
  convert MODEL --to gguf:q4_k_m -o model.gguf --plan   what would be written, without writing
  convert MODEL --to gguf:q4_k_m -o model.gguf --resume go on where a stopped conversion was
  convert MODEL --to gguf:q8_0 -o model.gguf --shard 2/8    one of eight files; each machine writes its own
  convert MODEL --to gguf:q4_k_m -o model.gguf --target-kl 1e-2 --text FILE
                                                        the same, finer types where that costs more
  convert MODEL --to fp8 -o DIR                         a checkpoint of 8 bits that serving engines load
  convert MODEL --to fp8 -o DIR --target-kl 5e-3        the same, some matrices kept so that it costs no more
  convert MODEL --to fp8:tensor -o DIR --static-activations --kv-scales --calibrate text.txt
                                                        the same with scales for activations and the KV cache
  convert FILE.gguf --to hf -o DIR                      a folder for transformers, of a GGUF file
  convert FILE.gguf --to gguf:q4_k_m -o model.gguf      a GGUF file of f32, bf16 or f16 in another type
  convert MODEL --compat -o DIR/config.json             the config alone, with the keys that every engine reads
  convert merge-check model-00001-of-00008.gguf         whether a set of files is complete
  convert MODEL --verify model.gguf                     compare a file with the checkpoint, block by block
  onboard verify model.gguf                             compare a file with the hashes that were written with it

Files appear under their name when they are whole and were read back; until then there are
NAME.part and its journal, which --resume goes on with. The bytes do not depend on threads or slabs.
Their hashes are written beside them: NAME.hashes, or onboard.hashes in a folder."
)]
pub(crate) struct ConvertArgs {
    #[command(subcommand)]
    command: Option<ConvertCommand>,
    #[command(flatten)]
    weights: Option<ModelArgs>,
    #[command(flatten)]
    choice: SpecArgs,
    /// The format, gguf:TYPE (repeatable), fp8, nvfp4, ...; `convert --to help` lists them
    #[arg(long, value_name = "FORMAT", value_parser = format::FormatParser)]
    to: Vec<String>,
    /// Output path: a file for GGUF, a folder for several formats and for checkpoints
    #[arg(short, long, value_name = "PATH")]
    output: Vec<PathBuf>,
    /// Print what would be written and stop
    #[arg(long)]
    plan: bool,
    /// With --plan and --verify: as JSON
    #[arg(long)]
    json: bool,
    /// Go on with a conversion that was stopped
    #[arg(long)]
    resume: bool,
    /// Write over files that are there
    #[arg(long)]
    force: bool,
    /// Quantize the weights of a GGUF file again, which rounds them twice
    #[arg(long, conflicts_with = "verify")]
    requantize: bool,
    /// Compare a file or folder with the checkpoint, and write nothing; one made with --identity or
    /// --imatrix, with the same
    #[arg(long, value_name = "FILE|DIR", conflicts_with_all = ["to", "output", "plan", "resume"])]
    verify: Option<PathBuf>,
    /// Several files of at most so much each: 4G, 500M
    #[arg(long, value_name = "SIZE", value_parser = format::parse_size)]
    split_max_size: Option<u64>,
    /// Write file I of a set of N, and no other
    #[arg(long, value_name = "I/N", value_parser = format::parse_shard, conflicts_with = "split_max_size")]
    shard: Option<(usize, usize)>,
    /// With a checkpoint format: quantize the output matrix too, which stays as it is otherwise
    #[arg(long)]
    quantize_output: bool,
    /// Write the config keys too that engines read and transformers 5 leaves out (block_dim,
    /// rope_theta, ...); without --to, write that config and nothing else
    #[arg(long)]
    compat: bool,
    /// With a checkpoint format: copy the code of the checkpoint too (`.py` files), which is left out otherwise
    #[arg(long, conflicts_with = "verify")]
    copy_code: bool,
    #[command(flatten)]
    goal: arguments::DivergenceArgs,
    #[command(flatten)]
    calibration: arguments::CalibrationArgs,
    #[command(flatten)]
    types: arguments::TypeArgs,
    /// Worker threads; default: one per core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Numbers that a worker holds at a time, in thousands
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    slab: u32,
}

#[derive(Debug, Subcommand)]
enum ConvertCommand {
    /// Checks that a set of split files is complete and sound
    MergeCheck(merge::MergeCheckArgs),
}

impl ConvertArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        if let Some(ConvertCommand::MergeCheck(check)) = &self.command {
            return check.run();
        }
        let Some(which) = &self.weights else {
            bail!("which checkpoint? give its folder: convert MODEL --to gguf:q4_k_m -o FILE");
        };
        if let Some(file) = &self.verify {
            return self.verify(which, file);
        }
        if self.compat && self.to.is_empty() {
            return self.config_alone(which);
        }
        ensure!(self.plan || !self.json, "--json goes with --plan or --verify");
        ensure!(
            !self.to.is_empty(),
            "to which format? for example --to gguf:q4_k_m; `--to help` lists them"
        );
        self.output.iter().try_for_each(|output| crate::write::refuse_stdout(output))?;
        let options = self.options();
        options.check()?;
        let target = target::open(which, &self.choice)?;
        self.goal.prepare_device();
        converter::convert(&target, &options, &ConversionTerminal).map_err(converter_error)?;
        Ok(CommandOutcome::Ok)
    }

    fn options(&self) -> ConvertOptions {
        ConvertOptions {
            to: self.to.clone(),
            output: self.output.clone(),
            plan: self.plan,
            json: self.json,
            resume: self.resume,
            force: self.force,
            requantize: self.requantize,
            split_max_size: self.split_max_size,
            shard: self.shard,
            quantize_output: self.quantize_output,
            compat: self.compat,
            copy_code: self.copy_code,
            goal: self.goal.options(),
            calibration: self.calibration.options(),
            types: self.types.options(),
            opened: self.choice.options(),
            threads: self.threads,
            slab: self.slab as usize * 1000,
            disk: crate::write::disk(),
        }
    }

    /// Compares a file or a folder with the model.
    fn verify(&self, which: &ModelArgs, written: &Path) -> Result<CommandOutcome> {
        let target = target::open(which, &self.choice)?;
        let verified = converter::verify(&target, written, &self.options(), &ConversionTerminal);
        let faults = verified.map_err(converter_error)?;
        if faults.is_empty() {
            return Ok(CommandOutcome::Ok);
        }
        term::note(&listing::joined(&faults));
        Ok(CommandOutcome::Differs)
    }
}
