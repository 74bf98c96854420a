//! `parity diagnose` and `parity check --diagnose`: find the edit of a spec that explains a difference.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use engine::{Engine, ModelSource};
use models::config::ConfigFile;
use parity::diagnose::{self, DiagnoseOptions, Diagnosis, ObservedPrompt};
use parity::edit::ConfigReader;
use parity::{CheckOptions, Dump, Report};
use registry::dtype::Dtype;
use registry::scalar::Scalar;

use super::{BUDGET, ParityCheckArgs};
use crate::engines::EngineArgs;
use crate::findings::check_error;
use crate::target::{ModelArgs, SpecArgs, parse_dtype};
use crate::{CommandOutcome, specs, term};

/// Names the edit of a spec that explains a failing check
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  parity diagnose MODEL                           a spec against MODEL/reference
  parity diagnose MODEL --spec draft.yaml --dtype f32
  parity diagnose MODEL --engine ./my_engine.py   what another engine does otherwise

The check runs first. If our engine differs, edits of the resolved model are run (other bases of rotary tables,
windows, epsilons, activations, inputs in another order, ops left out, ...) and ranked by how much of the difference
they restore; the best have to pass the whole check. If another engine differs, the edits are those with which our
engine gives its numbers. A mistake without such an edit is `unexplained`.

Exit codes: 0 agree, 1 differ, 2 could not run.")]
pub(crate) struct DiagnoseArgs {
    #[command(flatten)]
    which: ModelArgs,
    #[command(flatten)]
    choice: SpecArgs,
    /// The dump; default: MODEL/reference, then MODEL/dump
    #[arg(long, value_name = "DUMP")]
    reference: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Dtypes, with commas; default: all of the dump
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_dtype)]
    dtype: Vec<Dtype>,
    /// Print the report as JSON, or write it to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Seconds after which no further edit is tried
    #[arg(long, value_name = "SECONDS", default_value_t = BUDGET, value_parser = clap::value_parser!(u64).range(1..))]
    budget: u64,
    /// Worker threads of the engine
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

impl DiagnoseArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let check = ParityCheckArgs::of_file(self.which, self.choice, &PathBuf::new(), false);
        ParityCheckArgs {
            reference: self.reference,
            engine: self.engine,
            dtype: self.dtype,
            json: self.json,
            budget: self.budget,
            threads: self.threads,
            diagnose: true,
            ..check
        }
        .run()
    }
}

impl ParityCheckArgs {
    fn diagnose_options(&self, check: &CheckOptions) -> DiagnoseOptions {
        DiagnoseOptions {
            budget: Duration::from_secs(self.budget),
            check: check.clone(),
            ..DiagnoseOptions::default()
        }
    }

    /// Returns the options of a search for what another engine does otherwise. The engine reads the config
    /// by itself.
    fn foreign_options(&self, check: &CheckOptions, dir: &Path) -> DiagnoseOptions {
        DiagnoseOptions { config: self.config_reader(dir), ..self.diagnose_options(check) }
    }

    /// Returns the config of a folder with the spec that was chosen for it; none for other places.
    fn config_reader(&self, dir: &Path) -> Option<ConfigReader> {
        let config = ConfigFile::of_folder(dir).ok()?;
        let mut specs = specs::open(self.choice.specs.as_deref()).ok()?;
        let spec = match &self.choice.spec {
            Some(word) => specs.named(word).ok()?,
            None => specs.matching(&config).ok()??,
        };
        let set = self.choice.set.clone();
        Some(ConfigReader {
            root: config.parsed().root().clone(),
            resolve: Arc::new(move |values: &Scalar| specs.resolve_values(&spec, values, &set)),
        })
    }

    /// Searches for the edit of our model that restores the reference.
    pub(super) fn diagnosis(
        &self,
        engine: &dyn Engine,
        source: &ModelSource<'_>,
        dump: &Dump,
        report: &Report,
        check: &CheckOptions,
    ) -> Result<Option<Diagnosis>> {
        let options = self.diagnose_options(check);
        with_progress(|progress| {
            diagnose::diagnose(engine, source, dump, report, &options, progress)
        })
        .map_err(check_error)
    }

    /// Searches for the edit with which our engine reproduces the values of another.
    pub(super) fn explanation(
        &self,
        other: &dyn Engine,
        source: &ModelSource<'_>,
        dump: &Dump,
        report: &Report,
        check: &CheckOptions,
    ) -> Result<Option<Diagnosis>> {
        let native = crate::engines::native()?;
        let options = self.foreign_options(check, source.dir);
        with_progress(|progress| {
            diagnose::explain_check(
                other,
                native.as_ref(),
                source,
                dump,
                report,
                &options,
                progress,
            )
        })
        .map_err(check_error)
    }

    /// Searches for the edit with which our engine reproduces the rows of a server.
    pub(super) fn diagnose_server(
        &self,
        source: &ModelSource<'_>,
        dtype: Dtype,
        observed: &[ObservedPrompt],
        noise: f64,
    ) -> Result<Option<Diagnosis>> {
        let options = self.foreign_options(&self.options(vec![dtype]), source.dir);
        let native = crate::engines::native()?;
        let diagnosis = with_progress(|progress| {
            diagnose::explain(native.as_ref(), source, dtype, observed, noise, &options, progress)
        });
        Ok(diagnosis?)
    }
}

/// Runs a search under a progress bar.
fn with_progress<T>(search: impl FnOnce(&mut dyn FnMut(usize, usize, &str)) -> T) -> T {
    let bar = term::count_bar(0, "edits");
    let result = search(&mut |done: usize, all: usize, name: &str| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
        bar.set_message(name.to_owned());
    });
    bar.finish_and_clear();
    result
}
