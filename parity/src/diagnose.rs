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

use crate::check::{self, CheckOptions};
use crate::dump::Dump;
use crate::report::Report;

pub use crate::cause::{Cause, Described, Diagnosis, NOT_IN_BOOK};

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
