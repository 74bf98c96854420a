//! Causes of a difference: edits of a model, with their explained share.

use registry::dtype::Dtype;
use serde::Serialize;

use crate::edit::Change;
use crate::gate::dtype_name;

/// Description of one edit.
#[derive(Debug, Clone, Serialize)]
pub struct EditSummary {
    /// Edit in the terms of specs.
    pub edit: String,
    /// Call in the spec, layer, or number of nodes.
    pub place: String,
    /// Change of the model.
    #[serde(skip)]
    pub change: Change,
}

/// Edits that give the same results, with their explained share of the observed difference.
#[derive(Debug, Clone, Serialize)]
pub struct Cause {
    /// Edits, simplest first.
    pub edits: Vec<EditSummary>,
    /// Additional edits, if one alone does not explain everything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<EditSummary>,
    /// Share of the difference that the edit restores, 1 at most; less than 1 if noise is left.
    pub restored: f64,
    /// Root mean square of the remaining difference, in the unit of [`Diagnosis::before`].
    pub left: f64,
    /// True if the remaining difference is within noise everywhere.
    pub exact: bool,
    /// True if the whole check, or every observed prompt, agrees with the edit; none if that was not run.
    pub verified: Option<bool>,
}

/// Result of a search.
#[derive(Debug, Clone, Serialize)]
pub struct Diagnosis {
    /// The dtype of the run.
    #[serde(serialize_with = "dtype_name")]
    pub dtype: Dtype,
    /// Place whose values were compared, with its prompt and phase.
    pub observed: String,
    /// Root mean square of the difference without an edit: relative to the reference, or in nats for
    /// log-probabilities.
    pub before: f64,
    /// Root mean square that noise explains, in the same unit.
    pub noise: f64,
    /// Number of edits that were run.
    pub tried: usize,
    /// True if an edit explains the observed difference, up to noise.
    pub explained: bool,
    /// True if the time limit was reached before all edits were run.
    pub cut: bool,
    /// Tensors of the layer that differs first, or of the model if that is none, that the spec ignores, if no edit
    /// explains the difference. An op that the spec lacks may read them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
    /// Causes, best first. If none explains the difference, the best partial ones.
    pub causes: Vec<Cause>,
}

/// The phrase for a difference that no edit explains.
pub const UNEXPLAINED: &str = "unexplained";
