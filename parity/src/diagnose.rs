//! Counterfactual diagnosis: finds the edit of a model that explains observed values.
//!
//! [`diagnose`] searches for the edit of our own model that restores the reference's values: a mistake of
//! the spec. [`explain`] searches for the edit of a correct model that reproduces another engine's values:
//! a setting that the engine ignores. Candidates come from [`crate::edit`]. Each is run on one short
//! prompt, with the reference's inputs for ops if single ops differ; the best are then run in full.
//!
//! A cause is named only after its edit was run ([decision 48](../../docs/decisions/0048-causes-by-running-edits.md)).

mod case;
mod edit_trials;
mod fit;
mod foreign;
mod phase_trial;
mod score;
mod search;
mod suspects;

use std::time::Duration;

use engine::{Engine, ModelSource};

use crate::check::{self, CheckOptions};
use crate::diverge;
use crate::dump::Dump;
use crate::edit::ConfigReader;
use crate::gate::Mode;
use crate::hints::suspected;
use crate::report::Report;

pub use crate::cause::{Cause, Diagnosis, EditSummary, UNEXPLAINED};

pub use foreign::{ObservedPrompt, explain, noise, observe};

/// Limits of a search.
#[derive(Debug, Clone)]
pub struct DiagnoseOptions {
    /// Time limit after which no further edit is started.
    pub budget: Duration,
    /// Maximum number of groups of edits that are run in full, and of reported causes.
    pub most: usize,
    /// Options of the check that failed.
    pub check: CheckOptions,
    /// Config of the model, of which another engine may read a value otherwise.
    pub config: Option<ConfigReader>,
}

impl Default for DiagnoseOptions {
    fn default() -> Self {
        Self {
            budget: Duration::from_secs(120),
            most: 4,
            check: CheckOptions::default(),
            config: None,
        }
    }
}

/// Finds edits of a model that reproduce the results of another engine, whose check failed. `native` runs
/// the edits. Returns none if no run of the report differs.
pub fn explain_check(
    other: &dyn Engine,
    native: &dyn Engine,
    source: &ModelSource<'_>,
    dump: &Dump,
    report: &Report,
    options: &DiagnoseOptions,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<Option<Diagnosis>, check::Error> {
    let Some(run) = report.first_failing() else { return Ok(None) };
    let dtype = run.dtype;
    let gate = diverge::gate(&run.gates, Mode::Cumulative).filter(|_| run.part.is_none());
    let near = gate.map(|gate| suspected(&source.model.graph, gate, &run.gates));
    let observed = observe(other, source, dump, dtype, &options.check)?;
    let noise = noise(dump, dtype)?;
    let near = near.unwrap_or_default();
    let rows = (observed.as_slice(), noise);
    Ok(foreign::explain_near(native, source, dtype, rows, options, &near, progress)?)
}

/// Finds edits of a model that restore the reference's values, for a check that failed. Returns none if no
/// run differs, or only slots and schedules do, which no edit of a spec explains.
pub fn diagnose(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    dump: &Dump,
    report: &Report,
    options: &DiagnoseOptions,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<Option<Diagnosis>, check::Error> {
    case::run(engine, source, dump, report, options, progress)
}
