//! Implements `parity mutate`, which measures the mistakes that a check catches.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use engine::Engine;
use models::local_model::LocalModel;
use parity::Dump;
use parity::beside::open_dump;
use parity::mutate::{MutateOptions, MutationReport, mutate, text};
use registry::dtype::Dtype;

use crate::engines::DeviceArgs;
use crate::findings::check_error;
use crate::target::{self, ModelArgs, SpecArgs, parse_dtype};
use crate::{CommandOutcome, term, write};

/// Injects mistakes into a model and its engine, one at a time, and counts those that `parity check` catches
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  parity mutate MODEL                            all dtypes of MODEL/reference
  parity mutate MODEL --dtype f32 --only window  the mutants of one class, or with a word in their name
  parity mutate MODEL --json mutants.json

First the unchanged model has to pass. Each mutant is the same model with one mistake: an epsilon times 10, a
window of one position less, a flag or a word of an op changed, one head times 1.01, a state kept in bf16, a slot
that begins with what the last one left, ... The same check then runs:

  caught      a gate fails; `right` counts those whose first finding is the place of the mistake
  refused     the engine does not run the mutant
  missed      numbers change and every gate passes; the gate that came closest is shown
  unreached   no number changes, as with a window that is longer than every prompt; or only the order of
              rounding was edited, which f32 does not show

Exit codes: 0 nothing that changes a number is missed in f32, 1 something is, 2 could not run.")]
pub(crate) struct MutateArgs {
    #[command(flatten)]
    which: ModelArgs,
    #[command(flatten)]
    choice: SpecArgs,
    /// The dump; default: MODEL/reference, then MODEL/dump
    #[arg(long, value_name = "DUMP")]
    reference: Option<PathBuf>,
    /// Dtypes, with commas; default: all of the dump
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_dtype)]
    dtype: Vec<Dtype>,
    /// Only mutants of this class, or with this in their name
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
    /// Print the results as JSON, or write them to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Diagnose each mutant that is caught, and count those whose undoing edit is named first
    #[arg(long)]
    diagnose: bool,
    /// Mutants that are run at once, each on one thread
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    #[command(flatten)]
    device: DeviceArgs,
}

impl MutateArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let target = target::open(&self.which, &self.choice)?;
        target::explained(&target, &self.choice)?;
        let (_, dump) = open_dump(&target.dir, self.reference.as_deref())?;
        let options = MutateOptions {
            dtypes: self.dtype.clone(),
            only: self.only.clone(),
            threads: self.threads,
            diagnose: self.diagnose,
        };
        let engine = self.device.native()?;
        let book = measure(engine.as_ref(), &target, &dump, &options)?;
        self.show(&book)?;
        Ok(if book.misses() { CommandOutcome::Differs } else { CommandOutcome::Ok })
    }

    fn show(&self, book: &MutationReport) -> Result<()> {
        if let Some(path) = &self.json {
            let mut json =
                serde_json::to_string_pretty(book).context("cannot write the results as JSON")?;
            json.push('\n');
            if path.as_os_str() == "-" {
                term::print(&json)?;
                return Ok(());
            }
            write::atomic(path, json.as_bytes())?;
            term::note(&format!("wrote {}", path.display()));
        }
        term::print(&text(book))?;
        Ok(())
    }
}

/// Injects mistakes into a model and counts those that its check catches.
pub(crate) fn measure(
    engine: &dyn Engine,
    target: &LocalModel,
    dump: &Dump,
    options: &MutateOptions,
) -> Result<MutationReport> {
    let bar = term::count_bar(0, "mutants");
    let source = target::source(target);
    let result =
        mutate(engine, &source, dump, options, &mut |done: usize, all: usize, name: &str| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            bar.set_message(name.to_owned());
        });
    bar.finish_and_clear();
    result.map_err(|error| match error {
        parity::mutate::Error::Check(error) => check_error(error),
        other => other.into(),
    })
}
