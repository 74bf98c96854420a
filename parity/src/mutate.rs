//! Measures a check. Mistakes are injected into a model and its engine, one at a time, and those that are
//! caught are counted.
//!
//! The list of mistakes is derived from the resolved graph: edits of the graph itself, and faults of the
//! engine that runs it. [`mutate`] runs the same check for each. A mutant whose results are bit-identical
//! to those of the unchanged model is not reached by the prompts of the dump, and counts neither as caught
//! nor as missed.

mod attributes;
mod counts;
mod diagnosis;
mod faults;
mod faulty;
mod judge;
mod outcomes;
mod show;
mod slots;
mod structure;
mod tables;
mod workers;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use engine::{Engine, ModelSource};
use registry::dtype::Dtype;
use registry::model::Model;
use registry::ops::OpSet;

use crate::check::{self, CheckOptions, check_engine};
use crate::diagnose::{DiagnoseOptions, diagnose};
use crate::dump::{Dump, Phase, Prompt};
use crate::edit::Change;
use crate::gate::Verdict;
use crate::order::ExecutionOrder;
use crate::places::{DumpTaps, Places};
use crate::report::Report;
use diagnosis::blame;
use faults::EngineFault;
use faulty::FaultyEngine;
use judge::{judge, named};

pub use counts::{ClassCounts, counts};
pub use diagnosis::MutantDiagnosis;
pub use outcomes::{ClosestGate, Fate, MistakeClass, MutantOutcome, MutationReport, SCHEMA};
pub use show::text;

/// Mistake to inject.
enum Mistake {
    /// A change of the graph.
    Graph(Change),
    /// A fault of the engine.
    Fault(EngineFault),
}

/// Mutant of a model: one mistake to inject.
pub struct Mutant {
    /// Name that is unique within the model.
    pub name: String,
    /// Class of the mistake.
    pub class: MistakeClass,
    mistake: Mistake,
    /// Taps and states that a check should name first; empty if unknown.
    right: BTreeSet<String>,
    /// True if only rounding changes: f32 runs then agree up to f32 noise.
    neutral: bool,
    /// Reason why the mistake may change nothing.
    reach: &'static str,
    /// True if no edit of a spec undoes the mistake.
    incurable: bool,
}

impl std::fmt::Debug for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mutant")
            .field("name", &self.name)
            .field("class", &self.class)
            .finish_non_exhaustive()
    }
}

impl Mutant {
    fn edit(
        name: String,
        class: MistakeClass,
        right: BTreeSet<String>,
        reach: &'static str,
        change: Change,
    ) -> Self {
        let neutral = class == MistakeClass::Rounding;
        Self {
            name,
            class,
            mistake: Mistake::Graph(change),
            right,
            neutral,
            reach,
            incurable: false,
        }
    }

    fn fault(
        name: String,
        class: MistakeClass,
        right: BTreeSet<String>,
        reach: &'static str,
        fault: EngineFault,
    ) -> Self {
        Self {
            name,
            class,
            mistake: Mistake::Fault(fault),
            right,
            neutral: false,
            reach,
            incurable: true,
        }
    }

    /// Marks a mistake that no edit of a spec undoes.
    fn without_edit(self) -> Self {
        Self { incurable: true, ..self }
    }

    /// True if the mistake only shows with other schedules.
    fn needs_schedules(&self) -> bool {
        matches!(self.class, MistakeClass::State | MistakeClass::Slot)
    }
}

/// Mutants and dtypes to run.
#[derive(Debug, Clone, Default)]
pub struct MutateOptions {
    /// Dtypes; all runs of the dump when empty.
    pub dtypes: Vec<Dtype>,
    /// Filter: only mutants whose name or class contains this text.
    pub only: Option<String>,
    /// Number of mutants that are run at once, each on one thread; that of the machine's cores if none.
    pub threads: Option<usize>,
    /// True if each caught mutant is diagnosed.
    pub diagnose: bool,
}

/// Reason why a check could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The check of the unchanged model could not run.
    #[error(transparent)]
    Check(#[from] check::Error),
    /// The unchanged model fails.
    #[error(
        "the unchanged model does not pass in {dtype}, so nothing can be said of a changed one; first: {first}"
    )]
    Fails {
        /// The dtype.
        dtype: Dtype,
        /// The first finding.
        first: String,
    },
    /// No mutant has the name.
    #[error("no mutant has `{0}` in its name or class")]
    Nothing(String),
}

/// Derives the mistakes for a model.
fn mutants(model: &Model, recorded: &DumpTaps, prompts: &[Prompt]) -> Vec<Mutant> {
    let ops = OpSet::builtin();
    let places = Places::new(&model.graph, recorded);
    let mut all = attributes::mutants(model, &ops, &places);
    all.extend(structure::mutants(model, &places));
    all.extend(tables::mutants(model, &places));
    all.extend(faults::mutants(model, &places));
    all.extend(faults::place_mutants(model, &places, prompts));
    all
}

/// Injects every mistake and runs the check. `progress` receives the number of finished runs, of all runs,
/// and the current one.
pub fn mutate(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    dump: &Dump,
    options: &MutateOptions,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<MutationReport, Error> {
    let dtypes = if options.dtypes.is_empty() { dump.runs() } else { options.dtypes.clone() };
    let order = ExecutionOrder::of(&source.model.graph, |_| true);
    let mut recorded = DumpTaps::default();
    for (tap, info) in dump.manifest.taps.0.iter().filter(|(tap, _)| order.taps.contains_key(tap)) {
        recorded.all.insert(tap.clone());
        if info.has(Phase::Decode) {
            recorded.steps.insert(tap.clone());
        }
    }
    let mut book = mutants(&source.model, &recorded, &dump.manifest.prompts);
    book.extend(faults::mask_mutants(&dump.manifest.prompts));
    if let Some(word) = &options.only {
        book.retain(|mutant| mutant.name.contains(word.as_str()) || mutant.class.name() == word);
        if book.is_empty() {
            return Err(Error::Nothing(word.clone()));
        }
    }
    let mut sound = Vec::new();
    let total = dtypes.len() * (book.len() + 1);
    for &dtype in &dtypes {
        progress(sound.len(), total, "the unchanged model");
        let plain = CheckOptions {
            threads: options.threads,
            dtypes: vec![dtype],
            ..CheckOptions::default()
        };
        let report = check_engine(engine, source, dump, &plain)?;
        if report.verdict() == Verdict::Fail {
            return Err(Error::Fails { dtype, first: named(&report).unwrap_or_default() });
        }
        sound.push((dtype, report));
    }
    let runs: Vec<(&Mutant, &(Dtype, Report))> =
        book.iter().flat_map(|mutant| sound.iter().map(move |sound| (mutant, sound))).collect();
    // Only the CPU's engine runs several models at once.
    let threads = options.threads.unwrap_or_else(rayon::current_num_threads);
    let count = if engine.exact() { threads } else { 1 };
    let mut finished = sound.len();
    let outcomes = workers::run(
        runs.len(),
        count,
        &|n| {
            let (mutant, sound) = runs[n];
            outcome(engine, source, dump, options.diagnose, mutant, sound)
        },
        &mut |n| {
            finished += 1;
            progress(finished, total, &runs[n].0.name);
        },
    );
    let outcomes = outcomes.map_err(|why| check::Error::Engine(engine::Error::Threads(why)))?;
    progress(total, total, "");
    let reference = dump.dir.display().to_string();
    Ok(MutationReport { schema: SCHEMA, spec: source.model.name.clone(), reference, outcomes })
}

/// Checks and judges one mutant, and diagnoses it if `diagnose` and if it is caught. `sound` is the report of the
/// unchanged model in a dtype.
fn outcome(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    dump: &Dump,
    diagnose: bool,
    mutant: &Mutant,
    (dtype, sound): &(Dtype, Report),
) -> MutantOutcome {
    let result = run(engine, source, dump, mutant, *dtype);
    let caught = result.as_ref().ok().filter(|r| diagnose && r.verdict() == Verdict::Fail);
    let blame = caught.map(|report| diagnosed(engine, source, dump, mutant, report));
    MutantOutcome { blame, ..judge(mutant, *dtype, sound, result) }
}

/// Checks one mutant; returns the error text if the engine refuses to run it.
fn run(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    dump: &Dump,
    mutant: &Mutant,
    dtype: Dtype,
) -> Result<Report, String> {
    let options = check_options(mutant, dtype);
    let result = catch_unwind(AssertUnwindSafe(|| {
        check_with(engine, source, dump, &mutant.mistake, &options)
    }));
    match result {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the engine panicked".to_owned()),
    }
}

/// Checks the model with one mistake.
fn check_with(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    dump: &Dump,
    mistake: &Mistake,
    options: &CheckOptions,
) -> Result<Report, check::Error> {
    match mistake {
        Mistake::Graph(change) => {
            let mut model = Model::clone(&source.model);
            change.apply(&mut model);
            let edited = ModelSource { model: Arc::new(model), dir: source.dir };
            check_engine(engine, &edited, dump, options)
        }
        Mistake::Fault(fault) => {
            check_engine(&FaultyEngine::new(engine, fault.clone()), source, dump, options)
        }
    }
}

/// Returns the options of the check of a mutant.
fn check_options(mutant: &Mutant, dtype: Dtype) -> CheckOptions {
    CheckOptions {
        dtypes: vec![dtype],
        schedules: mutant.needs_schedules(),
        // An op refuses a state of another dtype; the effect on values is measured anyway.
        allow_dtype_mismatch: matches!(mutant.class, MistakeClass::State | MistakeClass::Rounding),
        same_model: false,
        // A fault of 16 bits alone is no remark.
        agrees_in_f32: true,
        ..CheckOptions::default()
    }
}

/// Diagnoses a mutant from the report of its check, without knowledge of the mistake.
fn diagnosed(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    dump: &Dump,
    mutant: &Mutant,
    report: &Report,
) -> MutantDiagnosis {
    let dtype = report.first_failing().map_or(Dtype::F32, |run| run.dtype);
    let check = check_options(mutant, dtype);
    let options = DiagnoseOptions { check, ..DiagnoseOptions::default() };
    match &mutant.mistake {
        Mistake::Graph(change) => {
            let mut model = Model::clone(&source.model);
            change.apply(&mut model);
            let edited = ModelSource { model: Arc::new(model), dir: source.dir };
            let result = diagnose(engine, &edited, dump, report, &options, &mut |_, _, _| {});
            let diagnosis = result.ok().flatten();
            blame(source, Some(&edited), dtype, !mutant.incurable, diagnosis.as_ref())
        }
        Mistake::Fault(fault) => {
            let faulty = FaultyEngine::new(engine, fault.clone());
            let result = diagnose(&faulty, source, dump, report, &options, &mut |_, _, _| {});
            blame(source, None, dtype, false, result.ok().flatten().as_ref())
        }
    }
}
