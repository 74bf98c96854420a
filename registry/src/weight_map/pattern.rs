//! Patterns of tensor names with holes.

use std::collections::BTreeMap;

/// What the holes of a pattern were filled with, by their text (`i`, `q|k|v`, `*`).
pub type Holes = BTreeMap<String, String>;

/// A pattern of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// As it was written.
    pub text: String,
}
