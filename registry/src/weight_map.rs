//! How tensors on disk become the model's, as data that runs in both directions.
//!
//! A [`Rule`] pairs a pattern of disk names with a pattern of model names, and
//! lists the steps between them. Patterns know three holes: `{i}` is one or more
//! characters that are not dots, the same on both sides; `{q|k|v}` is one of the
//! words, in that order; `*` is any text. A hole that only one side has is what
//! a step gathers or spreads: `x.{gate|up}.weight` to `x.gate_up.weight` needs
//! `concat`, the other direction `split`.

mod algebra;
mod gather;
mod pattern;
mod step;

pub use algebra::{inverse, shapes};
pub use gather::{Gathered, beginning, gather, natural};
pub use pattern::{Holes, Pattern};
pub use step::{HeadLayout, Sizes, Step};

use crate::diag::Span;

/// One rule of a spec's `weights:` section.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Names on disk.
    pub disk: Pattern,
    /// Names in the model.
    pub weight: Pattern,
    /// From disk to model, in order.
    pub steps: Vec<Step>,
    /// Where it stands in the spec.
    pub at: Span,
}
