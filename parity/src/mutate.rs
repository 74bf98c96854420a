//! Measures a check: injects mistakes into a model and its engine, one at a time, and counts those that are caught.
//!
//! The book of mistakes is derived from the resolved graph: edits of the graph itself, and faults of the engine
//! that runs it. [`mutate`] runs the same check for each. A mutant that gives bit for bit the numbers of the unchanged
//! model is not reached by the prompts of the dump, and counts neither as caught nor as missed.

mod attributes;
mod book;
mod faults;
mod faulty;
mod judge;
mod places;
mod slots;
mod structure;
mod tables;
mod tally;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use engine::{Engine, Source};
use registry::dtype::Dtype;
use registry::model::Model;
use registry::ops::OpSet;

use crate::check::{self, CheckOptions, check};
use crate::dump::{Dump, Phase};
use crate::gate::Verdict;
use crate::order::Order;
use crate::report::Report;
use faults::Fault;
use faulty::Faulty;
use judge::{judge, named};
use places::{Places, Recorded};

pub use book::{Book, Class, Closest, Fate, Outcome, SCHEMA};
pub use tally::{Tally, tally};

/// An edit of a resolved model.
type Edit = Box<dyn Fn(&mut Model)>;

/// The mistake itself.
enum Change {
    /// An edit of the graph.
    Edit(Edit),
    /// A fault of the engine.
    Fault(Fault),
}

/// One mistake to inject.
pub struct Mutant {
    /// A name that is unique in its book.
    pub name: String,
    /// Its kind.
    pub class: Class,
    change: Change,
    /// Taps and states that a check is right to name first; empty where nobody knows.
    right: BTreeSet<String>,
    /// True if only rounding changes: f32 runs then agree up to f32 noise.
    neutral: bool,
    /// The reason for which it may change nothing.
    reach: &'static str,
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
        class: Class,
        right: BTreeSet<String>,
        reach: &'static str,
        edit: impl Fn(&mut Model) + 'static,
    ) -> Self {
        let neutral = class == Class::Rounding;
        Self { name, class, change: Change::Edit(Box::new(edit)), right, neutral, reach }
    }

    fn fault(
        name: String,
        class: Class,
        right: BTreeSet<String>,
        reach: &'static str,
        fault: Fault,
    ) -> Self {
        Self { name, class, change: Change::Fault(fault), right, neutral: false, reach }
    }

    /// True if the engine has to be fed in other ways too.
    fn needs_schedules(&self) -> bool {
        matches!(self.class, Class::State | Class::Slot)
    }
}

/// Mutants and dtypes to run.
#[derive(Debug, Clone, Default)]
pub struct MutateOptions {
    /// Dtypes; all runs of the dump when empty.
    pub dtypes: Vec<Dtype>,
    /// Only mutants whose name or class contains this.
    pub only: Option<String>,
    /// Worker threads of the engine; its own choice when none.
    pub threads: Option<usize>,
}

/// The reason for which a check could not be measured.
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

/// Derives the book of mistakes of a model.
fn mutants(model: &Model, recorded: &Recorded) -> Vec<Mutant> {
    let ops = OpSet::builtin();
    let places = Places::new(&model.graph, recorded);
    let mut all = attributes::mutants(model, &ops, &places);
    all.extend(structure::mutants(model, &ops, &places));
    all.extend(tables::mutants(model, &places));
    all.extend(faults::mutants(model, &places));
    all
}

/// Injects every mistake and runs the check. `progress` is told the number of runs done, of all, and the one at hand.
pub fn mutate(
    engine: &dyn Engine,
    source: &Source<'_>,
    dump: &Dump,
    options: &MutateOptions,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<Book, Error> {
    let dtypes = if options.dtypes.is_empty() { dump.runs() } else { options.dtypes.clone() };
    let order = Order::of(&source.model.graph, |_| true);
    let mut recorded = Recorded::default();
    for (tap, info) in dump.manifest.taps.0.iter().filter(|(tap, _)| order.taps.contains_key(tap)) {
        recorded.all.insert(tap.clone());
        if info.has(Phase::Decode) {
            recorded.steps.insert(tap.clone());
        }
    }
    let mut book = mutants(&source.model, &recorded);
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
        let report = check(engine, source, dump, &plain)?;
        if report.verdict() == Verdict::Fail {
            return Err(Error::Fails { dtype, first: named(&report).unwrap_or_default() });
        }
        sound.push((dtype, report));
    }
    let mut outcomes = Vec::new();
    for mutant in &book {
        for (dtype, report) in &sound {
            progress(sound.len() + outcomes.len(), total, &mutant.name);
            let result = run(engine, source, dump, mutant, *dtype, options.threads);
            outcomes.push(judge(mutant, *dtype, report, result));
        }
    }
    progress(total, total, "");
    let reference = dump.dir.display().to_string();
    Ok(Book { schema: SCHEMA, spec: source.model.name.clone(), reference, outcomes })
}

/// Checks one mutant; gives the words of a refusal where the engine does not run it.
fn run(
    engine: &dyn Engine,
    source: &Source<'_>,
    dump: &Dump,
    mutant: &Mutant,
    dtype: Dtype,
    threads: Option<usize>,
) -> Result<Report, String> {
    let options = CheckOptions {
        dtypes: vec![dtype],
        schedules: mutant.needs_schedules(),
        // An op refuses a state of another dtype; what it would do to the numbers is measured all the same.
        allow_dtype_mismatch: matches!(mutant.class, Class::State | Class::Rounding),
        same_model: false,
        threads,
        ..CheckOptions::default()
    };
    let attempt = || match &mutant.change {
        Change::Edit(edit) => {
            let mut model = Model::clone(&source.model);
            edit(&mut model);
            check(engine, &Source { model: Arc::new(model), dir: source.dir }, dump, &options)
        }
        Change::Fault(fault) => check(&Faulty::new(engine, fault.clone()), source, dump, &options),
    };
    match catch_unwind(AssertUnwindSafe(attempt)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the engine panicked".to_owned()),
    }
}
