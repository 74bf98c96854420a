//! Causes of a difference: edits of a model, and how well they explain it.

use registry::dtype::Dtype;
use serde::Serialize;

use crate::edit::Change;
use crate::gate::dtype_name;

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
