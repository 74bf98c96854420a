//! Implements `parity check`, which compares an engine with a reference dump.

mod chat;
mod child;
mod costs;
mod diagnosis;
mod endpoint;
mod file;
mod folder;
mod gguf;

pub(crate) use diagnosis::DiagnoseArgs;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use engine::{Engine, InputRounding, ModelSource};
use models::coverage::TensorCoverage;
use models::local_model::LocalModel;
use parity::quantized::has_other_weights;
use parity::{CheckOptions, Dump, Report, Verdict};
use registry::dtype::Dtype;
use registry::graph::StateKind;
use registry::model::Model;

use crate::arithmetic::ArithmeticArgs;
use crate::engines::{EngineArgs, ResolvedEngine};
use crate::findings::{check_error, warn};
use crate::target::parse_bound;
use crate::target::{self, ModelArgs, SpecArgs, parse_dtype};
use crate::{CommandOutcome, annotate, term, write};
use parity::beside::{is_of_encoder, open_part};

/// Compares an engine with a reference dump, tap by tap, in prefill and in decode
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[command(after_help = "\
Examples:
  parity check MODEL                                        against MODEL/reference
  parity check MODEL --reference DUMP --dtype f32,bf16
  parity check MODEL --json report.json --html report.html --junit report.xml
  parity check FILE.gguf --reference DUMP --source MODEL    what a quantization costs
  parity check FP8-MODEL --reference DUMP --source MODEL    the same for 8 or 4 bits in safetensors
  parity check FILE.gguf --engine llama.cpp --reference DUMP
  parity check MODEL --engine ./my_engine.py                an engine in a process of its own
  parity check MODEL --engine transformers --engine-option attention=sdpa
  parity check MODEL --engine http://127.0.0.1:8000         a server (onboard help endpoints)
  parity check MODEL --chat                                 its chat template and tokenizer alone
  parity check FILE.gguf --chat --reference DUMP            those of a file
  parity check MODEL --set states.conv.dtype=bf16 --allow-dtype-mismatch --dtype f16

Exit codes: 0 agree, 1 differ, 2 could not run.")]
pub(crate) struct ParityCheckArgs {
    #[command(flatten)]
    which: ModelArgs,
    #[command(flatten)]
    choice: SpecArgs,
    /// The dump; default: MODEL/reference, then MODEL/dump
    #[arg(long, value_name = "DUMP")]
    reference: Option<PathBuf>,
    /// The checkpoint that a GGUF file, or one of codes and scales, was made from, to compare tensors with
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Dtypes, with commas; default: all of the dump
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_dtype)]
    dtype: Vec<Dtype>,
    /// Most that a log-probability of an f32 run may differ, in nats; default: by the ensemble of
    /// the reference that the dump has, or 1e-3 for a file of f32 numbers in llama.cpp
    #[arg(long, value_name = "NATS", value_parser = parse_bound)]
    bound: Option<f64>,
    /// Run a spec whose state dtypes an op refuses, to see the effect
    #[arg(long)]
    allow_dtype_mismatch: bool,
    /// Print the report as JSON, or write it to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Write a page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write JUnit XML, for CI
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Compare the chat template and the tokenizer with the dump's record, and run no engine
    #[arg(long)]
    chat: bool,
    #[command(flatten)]
    arithmetic: ArithmeticArgs,
    /// Run the graph as the spec has it, without fused kernels
    #[arg(long)]
    plain_graph: bool,
    /// Round what matrices of codes multiply, as the checkpoint declares it; default: as the
    /// reference did, where the dump says so
    #[arg(long, conflicts_with = "w8a16")]
    w8a8: bool,
    /// Multiply what is not rounded by the dequantized weights, whatever the reference did
    #[arg(long)]
    w8a16: bool,
    /// Exit with 1, too, if a part of the model was not proven (onboard help report)
    #[arg(long)]
    strict: bool,
    /// Do not feed the engine in other ways (chunks, batches, forks, ...)
    #[arg(long)]
    no_schedules: bool,
    /// If the engine differs, look for the edit of the spec that explains it
    #[arg(long)]
    diagnose: bool,
    /// Seconds after which no further edit is tried
    #[arg(long, value_name = "SECONDS", default_value_t = BUDGET, value_parser = clap::value_parser!(u64).range(1..))]
    budget: u64,
    /// Worker threads of the engine
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// Default time limit of a search for causes, in seconds.
pub(crate) const BUDGET: u64 = 120;

impl ParityCheckArgs {
    /// Builds the arguments of `parity check FILE --reference DUMP`.
    pub(crate) fn of_file(
        which: ModelArgs,
        choice: SpecArgs,
        reference: &Path,
        json: bool,
    ) -> Self {
        Self {
            which,
            choice,
            reference: Some(reference.to_owned()),
            source: None,
            engine: EngineArgs::default(),
            dtype: Vec::new(),
            bound: None,
            allow_dtype_mismatch: false,
            json: json.then(|| PathBuf::from("-")),
            html: None,
            junit: None,
            chat: false,
            arithmetic: ArithmeticArgs::default(),
            plain_graph: false,
            w8a8: false,
            w8a16: false,
            strict: false,
            no_schedules: false,
            diagnose: false,
            budget: BUDGET,
            threads: None,
        }
    }

    /// Builds the arguments of `parity check MODEL --reference DUMP --engine ENGINE --dtype LIST`.
    pub(crate) fn of_engine(
        which: ModelArgs,
        choice: SpecArgs,
        reference: &Path,
        engine: EngineArgs,
        dtype: Vec<Dtype>,
    ) -> Self {
        Self { engine, dtype, ..Self::of_file(which, choice, reference, false) }
    }

    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let ended = self.check();
        if let (Err(error), Some(path)) = (&ended, &self.junit) {
            let xml = parity::junit::junit_error(
                &self.which.model.display().to_string(),
                &format!("{error:#}"),
            );
            write::report(path, &xml)?;
            term::note(&format!("wrote {}", path.display()));
        }
        ended
    }

    /// Returns the choice of the spec; the encoder's, if the dump is of an encoder.
    fn choice_for_dump(&self) -> SpecArgs {
        let mut choice = self.choice.clone();
        if choice.spec.is_none() && !choice.encoder && !models::is_gguf(&self.which.model) {
            choice.encoder = is_of_encoder(&self.which.model, self.reference.as_deref());
        }
        choice
    }

    fn check(&self) -> Result<CommandOutcome> {
        if self.chat {
            return self.run_chat();
        }
        if let Some(source) = &self.source {
            target::folder(&ModelArgs::at(source.clone()))
                .and_then(|folder| Ok(checkpoints::Checkpoint::open(&folder.dir)?))
                .context("cannot read the checkpoint given as --source")?;
        }
        if !self.engine.is_own() {
            self.arithmetic.refuse_for(self.engine.name())?;
        }
        match self.engine.find()? {
            ResolvedEngine::Child(child) => return self.run_child(&child),
            ResolvedEngine::Server(url) => return self.run_server(&url),
            ResolvedEngine::InProcess(driver) if driver.describe.is_some() => {
                self.refuse_rounding()?;
                return self.run_file(driver);
            }
            ResolvedEngine::InProcess(_) => {}
        }
        let mut target = target::open(&self.which, &self.choice_for_dump())?;
        if target.is_gguf() {
            self.refuse_rounding()?;
            return self.run_gguf(&target);
        }
        let (path, dump) = open_part(&target.dir, self.reference.as_deref())?;
        anyhow::ensure!(
            dump.manifest.encoder == target.model.graph.encoder.is_some(),
            "`{}` is the dump of {}, and `{}` describes {}",
            path.display(),
            if dump.manifest.encoder { "an encoder of images" } else { "a text model" },
            target.model.name,
            if target.model.graph.encoder.is_some() {
                "an encoder of images"
            } else {
                "a text model"
            }
        );
        target.model = parity::of_layers(target.model, &dump).map_err(check_error)?;
        let checkpoint = target.checkpoint()?;
        target::covered(&TensorCoverage::of(&target.model, &checkpoint), &target.dir)?;
        term::part("values that are not finite");
        let nonfinite = target.nonfinite();
        term::end_parts();
        warn(&nonfinite?);
        if has_other_weights(&checkpoint, &dump).map_err(check_error)? {
            return self.run_coded(&target, &checkpoint, (&path, &dump));
        }
        if self.rounds().is_none() && dump.manifest.rounds().is_none() && checkpoint.rounds_inputs()
        {
            term::note(
                "note: the config has what matrices multiply rounded (`input_activations` or its kin), and the \
                 dump does not say whether its reference did: it is not done; give --w8a8 if it did",
            );
        }
        let caches = caches(&target);
        let own_caches =
            caches.iter().any(|key| self.choice.set.iter().any(|set| set.starts_with(key)));
        if !own_caches && dump.manifest.caches().is_none() && checkpoint.rounds_caches() {
            let sets: Vec<String> =
                caches.iter().map(|key| format!("--set {key}f8_e4m3")).collect();
            term::note(&format!(
                "note: the config has keys and values rounded (`kv_cache_scheme`), and the dump does not say \
                 whether its reference did: it is not done; write the dump again with `parity dump`, or give {} \
                 to see how far it moves log-probabilities",
                sets.join(" ")
            ));
        }
        let dtypes = if self.dtype.is_empty() { dump.runs() } else { self.dtype.clone() };
        if !self.allow_dtype_mismatch {
            target::check_dtypes(&target, &dtypes)?;
        }
        let options = CheckOptions { own_caches, ..self.options(dtypes) };
        self.compare(&target, &dump, &options)
    }

    /// Returns the options that the flags select.
    fn options(&self, dtypes: Vec<Dtype>) -> CheckOptions {
        CheckOptions {
            dtypes,
            schedules: !self.no_schedules,
            allow_dtype_mismatch: self.allow_dtype_mismatch,
            rewrites: !self.plain_graph,
            threads: self.threads,
            logprob: self.bound,
            rounds: self.rounds(),
            arithmetic: self.arithmetic.of_check(),
            // A named source checkpoint may have other bytes.
            same_model: self.source.is_none(),
            ..CheckOptions::default()
        }
    }

    /// Returns the matrices whose input rows are rounded, if a flag selects them.
    fn rounds(&self) -> Option<InputRounding> {
        match (self.w8a8, self.w8a16) {
            (true, _) => Some(InputRounding::All),
            (_, true) => Some(InputRounding::None),
            _ => None,
        }
    }

    /// Returns an error for rounding flags: files declare no input rounding.
    fn refuse_rounding(&self) -> Result<()> {
        ensure!(
            !self.w8a8,
            "--w8a8 rounds what the config of a checkpoint declares, and a GGUF file declares nothing; leave it out"
        );
        Ok(())
    }

    /// Returns the requested dtypes, or f32, in which files are compared.
    fn dtypes_of_file(&self) -> Vec<Dtype> {
        if self.dtype.is_empty() { vec![Dtype::F32] } else { self.dtype.clone() }
    }

    /// Compares the engine with a dump and reports.
    fn compare(
        &self,
        target: &LocalModel,
        dump: &Dump,
        options: &CheckOptions,
    ) -> Result<CommandOutcome> {
        let mut report = self.judged(&target::source(target), dump, options)?;
        report.subject.sha256.spec = Some(target.spec.sha256.clone());
        self.conclude(&report, &target.model)
    }

    /// Compares the engine with a dump, and looks for the cause of a difference if that was asked for.
    fn judged(
        &self,
        source: &ModelSource<'_>,
        dump: &Dump,
        options: &CheckOptions,
    ) -> Result<Report> {
        let engine = self.engine.of_models()?;
        let mut report = check(engine.as_ref(), source, dump, options)?;
        if report.runs.iter().any(|run| run.verdict() == Verdict::Fail) {
            if self.diagnose {
                report.diagnosis =
                    self.diagnosis(engine.as_ref(), source, dump, &report, options)?;
            } else {
                term::note(&format!(
                    "hint: `parity diagnose {}`, with the same flags, looks for the edit of the spec that restores the reference",
                    self.which.model.display()
                ));
            }
        }
        Ok(report)
    }

    /// Prints a report and returns the outcome of the command.
    fn conclude(&self, report: &Report, model: &Model) -> Result<CommandOutcome> {
        self.show(report)?;
        annotate::report(report, model);
        Ok(match report.verdict() {
            Verdict::Fail => CommandOutcome::Differs,
            _ if self.strict && !report.limits.is_empty() => CommandOutcome::Differs,
            Verdict::Pass | Verdict::Skip => CommandOutcome::Ok,
        })
    }

    fn show(&self, report: &Report) -> Result<()> {
        for (path, make) in [
            (&self.html, parity::html::html as fn(&Report) -> String),
            (&self.junit, parity::junit::junit),
        ] {
            if let Some(path) = path {
                write::report(path, &make(report))?;
                term::note(&format!("wrote {}", path.display()));
            }
        }
        match &self.json {
            Some(path) if path.as_os_str() == "-" => term::print(&parity::json::json(report))?,
            json => {
                if let Some(path) = json {
                    write::report(path, &parity::json::json(report))?;
                    term::note(&format!("wrote {}", path.display()));
                }
                term::print(&parity::report::text(report))?;
            }
        }
        Ok(())
    }
}

/// Compares an engine with a dump and shows the progress.
fn check(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    dump: &Dump,
    options: &CheckOptions,
) -> Result<Report> {
    let options = CheckOptions { progress: Some(term::part), ..options.clone() };
    let report = parity::check_engine(engine, source, dump, &options);
    term::end_parts();
    report.map_err(check_error)
}

/// Returns the prefixes of `--set` options that set the dtypes of KV caches.
fn caches(target: &LocalModel) -> BTreeSet<String> {
    let states = target.model.graph.states.iter();
    let caches = states.filter(|state| state.kind == StateKind::Attention);
    caches.map(|state| format!("states.{}.dtype=", state.name)).collect()
}
