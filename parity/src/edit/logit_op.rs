//! Edits that put an op with one number behind the logits.

use registry::graph::ValueId;
use registry::scalar::Scalar;

use super::number::show;
use super::{Change, Edit};

/// An op with one number, behind the logits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogitOp {
    pub(super) op: String,
    /// Name of the number.
    pub(super) key: String,
    pub(super) output: ValueId,
    /// True if the tap of the logits shows the result.
    pub(super) tapped: bool,
}

impl LogitOp {
    /// Returns the edit with a value of the number.
    pub(super) fn edit(&self, x: f64) -> Edit {
        let Self { op, key, output, tapped } = self;
        let change = Change::Behind {
            value: *output,
            op: op.clone(),
            attrs: vec![(key.clone(), Scalar::Float(x))],
            tapped: *tapped,
        };
        let words = format!("`{op}` of the logits, with `{key}` = {}", show(x));
        Edit { words, place: "the head".to_owned(), change }
    }
}
