//! Abilities of engines besides running a model.
//!
//! A feature that is missing is a finding, and never dropped ([decision 16](../../docs/decisions/0016-done-or-refused.md)).

/// Ability of an engine besides running a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    /// Drafts by a `nextn` head.
    Nextn,
    /// Matrices shared out to several ranks.
    TensorParallel,
    /// Sequences whose first tokens see each other.
    Prefix,
    /// Sequences of several packed documents.
    Documents,
    /// Sequences with tokens, as those of an image, that see each other.
    Spans,
    /// Rows in the place of embeddings, and their positions.
    Rows,
}

impl Feature {
    /// Returns the name of the feature in sheets.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nextn => "nextn",
            Self::TensorParallel => "tensor_parallel",
            Self::Prefix => "prefix",
            Self::Documents => "documents",
            Self::Spans => "spans",
            Self::Rows => "rows",
        }
    }
}
