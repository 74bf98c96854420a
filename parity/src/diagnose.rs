//! Counterfactuals: finds the edit of a model that explains observed numbers.
//!
//! [`diagnose`] looks for the edit of our own model that restores the reference's numbers: a mistake of the spec.
//! [`explain`] looks for the edit of a right model that gives the numbers of another engine: what that engine ignores.
//! Candidates come from [`crate::edit`]. Each is run on one short prompt, where ops get the reference's own inputs if
//! the difference is one of ops; the best are then run in full.

mod case;
mod fit;
mod foreign;
mod scene;
mod score;
mod search;
mod suspects;

use std::time::Duration;

use engine::{Engine, Source};
use registry::dtype::Dtype;
use serde::Serialize;

use crate::check::{self, CheckOptions};
use crate::dump::Dump;
use crate::edit::Change;
use crate::gate::dtype_name;
use crate::report::Report;

pub use foreign::{Observed, explain, noise, observe};

/// Limits of a search.
#[derive(Debug, Clone)]
pub struct DiagnoseOptions {
    /// Time after which no further edit is begun.
    pub budget: Duration,
    /// Groups of edits that are run in full, and causes that are reported.
    pub most: usize,
    /// The check that failed.
    pub check: CheckOptions,
}

impl Default for DiagnoseOptions {
    fn default() -> Self {
        Self { budget: Duration::from_secs(120), most: 4, check: CheckOptions::default() }
    }
}

/// One edit, in words.
#[derive(Debug, Clone, Serialize)]
pub struct Described {
    /// The edit in the words of specs.
    pub edit: String,
    /// The call in the spec, the layer, or the number of nodes.
    pub place: String,
    #[serde(skip)]
    pub(crate) change: Change,
}

/// Edits that give the same numbers, and how well these explain what was observed.
#[derive(Debug, Clone, Serialize)]
pub struct Cause {
    /// The edits, simplest first.
    pub edits: Vec<Described>,
    /// Edits that have to be made besides, where one alone does not explain everything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<Described>,
    /// Share of the difference that the edit explains, 1 at most.
    pub restored: f64,
    /// Root mean square of the difference that is left, in the unit of [`Diagnosis::before`].
    pub left: f64,
    /// True if what is left is within noise everywhere.
    pub exact: bool,
    /// True if the whole check, or every observed prompt, agrees with the edit; none where that was not run.
    pub verified: Option<bool>,
}

/// Result of a search.
#[derive(Debug, Clone, Serialize)]
pub struct Diagnosis {
    /// The dtype of the run.
    #[serde(serialize_with = "dtype_name")]
    pub dtype: Dtype,
    /// The place whose numbers were compared, with its prompt and phase.
    pub observed: String,
    /// Root mean square of the difference without an edit: over that of the reference, or in nats for log-probabilities.
    pub before: f64,
    /// The same of what noise explains.
    pub noise: f64,
    /// Edits that were run.
    pub tried: usize,
    /// True if an edit explains what was observed, up to noise.
    pub explained: bool,
    /// True if the time ended before all edits were run.
    pub cut: bool,
    /// Causes, best first. Where nothing explains the numbers, the best partial ones.
    pub causes: Vec<Cause>,
}

/// The phrase for a difference that no edit explains.
pub const NOT_IN_BOOK: &str = "not in my book";

/// Finds edits of a model that restore the numbers of the reference, for a check that failed. None where no run
/// differs, or only slots and schedules do, which no edit of a spec explains.
pub fn diagnose(
    engine: &dyn Engine,
    source: &Source<'_>,
    dump: &Dump,
    report: &Report,
    options: &DiagnoseOptions,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<Option<Diagnosis>, check::Error> {
    case::run(engine, source, dump, report, options, progress)
}
