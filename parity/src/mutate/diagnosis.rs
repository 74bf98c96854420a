//! Diagnoses of mutants: checks that the edit that undoes a mistake is named first.

use engine::ModelSource;
use registry::dtype::Dtype;
use registry::model::Model;
use serde::Serialize;

use crate::diagnose::{Cause, Diagnosis};
use crate::edit::same;

/// Result of the diagnosis of a mutant.
#[derive(Debug, Clone, Serialize)]
pub struct MutantDiagnosis {
    /// True if an edit undoes the mistake; false for faults of the engine or of weights, which no edit
    /// describes.
    pub curable: bool,
    /// Rank of the edit that undoes the mistake among the causes, from 1; none if it is not reported.
    pub rank: Option<usize>,
    /// True if some edit makes the whole check pass.
    pub explained: bool,
    /// Description of the first cause.
    pub first: Option<String>,
    /// Share of the difference that the first cause explains.
    pub restored: f64,
    /// Number of edits that were run.
    pub tried: usize,
}

impl MutantDiagnosis {
    /// True if the diagnosis is right: the undoing edit is first, or nothing is blamed if there is none.
    pub fn is_right(&self) -> bool {
        if self.curable { self.rank == Some(1) } else { !self.explained }
    }
}

/// Finds the edit that undoes a mistake among the causes.
pub(super) fn blame(
    sound: &ModelSource<'_>,
    mutant: Option<&ModelSource<'_>>,
    dtype: Dtype,
    curable: bool,
    diagnosis: Option<&Diagnosis>,
) -> MutantDiagnosis {
    let causes = diagnosis.map_or(&[][..], |diagnosis| &diagnosis.causes);
    let undoing = mutant.and_then(|mutant| {
        causes.iter().position(|cause| undoes(cause, &mutant.model, &sound.model, dtype))
    });
    let first = causes.first();
    MutantDiagnosis {
        curable,
        rank: undoing.map(|n| n + 1),
        explained: diagnosis.is_some_and(|diagnosis| diagnosis.explained),
        first: first
            .and_then(|cause| cause.edits.first())
            .map(|e| format!("{} ({})", e.edit, e.place)),
        restored: first.map_or(0.0, |cause| cause.restored),
        tried: diagnosis.map_or(0, |diagnosis| diagnosis.tried),
    }
}

/// True if an edit of a cause makes the sound model of a mutant.
fn undoes(cause: &Cause, mutant: &Model, sound: &Model, dtype: Dtype) -> bool {
    cause.edits.iter().any(|edit| {
        let mut model = mutant.clone();
        cause.with.iter().for_each(|other| other.change.apply(&mut model));
        edit.change.apply(&mut model);
        same(&model, sound, dtype)
    })
}
