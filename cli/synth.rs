//! Implements `onboard synth`, which writes a random checkpoint of any size from a spec and a config.

use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, ensure};
use checkpoints::random::write_random_checkpoint;
use clap::Args;
use formats::FileDtype;
use models::config::ConfigFile;
use registry::dtype::Dtype;

use crate::findings::model_error;
use crate::specs;
use crate::target::{SpecArgs, parse_dtype};
use crate::{CommandOutcome, interrupt, term, write};

/// Writes a checkpoint of random weights, from a spec and a config
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard synth SPEC --config config.json -o random --dtype bf16
  onboard synth my.yaml --config MODEL/config.json -o random && onboard bench random

The same seed, spec and config give the same bytes on every machine.")]
pub(crate) struct SynthArgs {
    /// A spec's name, as `onboard list` shows it, or its file
    spec: PathBuf,
    /// Config file with the dims
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The folder to write
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Dtype of stored weights; default: as the config declares
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    dtype: Option<Dtype>,
    /// Another seed gives other weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Look for specs in this folder too; default: ONBOARD_SPECS
    #[arg(long, value_name = "DIR")]
    specs: Option<PathBuf>,
    /// The size a file is cut at
    #[arg(long, value_name = "BYTES", default_value_t = 5_000_000_000)]
    shard: u64,
}

impl SynthArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let choice = SpecArgs { specs: self.specs.clone(), ..SpecArgs::default() };
        let mut specs = specs::open(choice.specs.as_deref())?;
        let spec = specs.named(&self.spec).map_err(model_error)?;
        let config = ConfigFile::read(&self.config).map_err(model_error)?;
        let model = specs::resolve(&specs, &spec, &config, &[])?;
        let dtype = self.dtype.or_else(|| config.dtype()).unwrap_or(Dtype::Bf16);
        ensure!(
            !self.output.join("config.json").exists(),
            "`{}` has a checkpoint already; give another folder or remove it",
            self.output.display()
        );
        let weights: Vec<(String, Vec<usize>)> = model
            .graph
            .weights
            .iter()
            .map(|weight| (weight.name.clone(), weight.shape.clone()))
            .collect();
        let numbers = weights.iter().try_fold(0_u64, |sum, (_, shape)| {
            let size = shape.iter().try_fold(1_u64, |size, &dim| size.checked_mul(dim as u64))?;
            sum.checked_add(size)
        });
        let numbers = numbers.ok_or_else(|| {
            anyhow!("the model of `{}` is larger than any disk", self.config.display())
        })?;
        let size = numbers.saturating_mul(dtype.size() as u64);
        write::refuse_stdout(&self.output)?;
        fs_err::create_dir_all(&self.output)?;
        // The folder of another model must not load until it holds this one.
        write::disk().remove(&self.output.join("config.json"))?;
        term::note(&format!(
            "writing {} parameters as {dtype}, {}",
            registry::quantity::count(numbers),
            registry::quantity::bytes(size)
        ));
        let _watched = interrupt::watch(&self.output);
        let file_dtype = match dtype {
            Dtype::F32 => FileDtype::F32,
            Dtype::Bf16 => FileDtype::Bf16,
            Dtype::F16 => FileDtype::F16,
        };
        let bar = term::spinner("writing");
        let files =
            write_random_checkpoint(&self.output, &weights, file_dtype, self.seed, self.shard)?;
        bar.finish_and_clear();
        // The config is written last: a folder without one is not yet a checkpoint.
        write::atomic(
            &self.output.join("config.json"),
            &config.with_dtype(dtype).context("cannot write the config")?,
        )?;
        for file in &files {
            term::print(&file.display().to_string())?;
        }
        Ok(CommandOutcome::Ok)
    }
}
