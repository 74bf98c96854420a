//! Conversion of tensors on disk to the model's weights, as data that runs in both directions.
//!
//! A [`WeightRule`] pairs a pattern of disk names with a pattern of model names, and
//! lists the steps between them. Patterns know four holes: `{i}` is one or more
//! characters that are not dots, the same on both sides; `{2 * i + 1}` is a number that
//! follows from that of `{i}`; `{q|k|v}` is one of the
//! words, in that order; `*` is any text. A hole that only one side has is what
//! a step gathers or spreads: `x.{gate|up}.weight` to `x.gate_up.weight` needs
//! `concat`, the other direction `split`.
//!
//! One set of rules writes files and reads them ([decision 18](../../docs/decisions/0018-reversible-gguf-rules.md)).

mod algebra;
mod find_rule;
mod gather;
mod numbered;
mod pattern;
mod step;

pub use algebra::{StepError, inverse, shapes};
pub use find_rule::find_rule;
pub use gather::{GatheredTensors, gather, names_with_prefix, natural_order_key};
pub use numbered::NumberedHole;
pub use pattern::{Holes, Pattern, PatternError, PatternPart};
pub use step::{HeadLayout, SplitSizes, WeightStep};

use crate::diag::Span;

/// One rule of a spec's `weights:` section.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightRule {
    /// Names on disk.
    pub disk: Pattern,
    /// Names in the model.
    pub weight: Pattern,
    /// Steps from disk to model, in order.
    pub steps: Vec<WeightStep>,
    /// The place of the rule in the spec.
    pub at: Span,
}

impl WeightRule {
    /// Returns the model's name of a tensor on disk, if the rule only replaces the beginning of the name.
    pub fn renamed(&self, name: &str) -> Option<String> {
        self.rename(&self.disk, &self.weight, name)
    }

    /// Returns the disk name of a tensor of the model, under the same condition.
    pub fn on_disk(&self, name: &str) -> Option<String> {
        self.rename(&self.weight, &self.disk, name)
    }

    fn rename(&self, from: &Pattern, to: &Pattern, name: &str) -> Option<String> {
        let from = from.beginning()?;
        let to = to.beginning()?;
        let suffix = name.strip_prefix(from).filter(|_| self.steps.is_empty())?;
        Some(format!("{to}{suffix}"))
    }
}

/// Replaces the numbers of layers and experts by `*`, which gives all tensors of one kind the same name.
pub fn without_numbers(name: &str) -> String {
    let parts = name.split('.').map(|part| if part.parse::<usize>().is_ok() { "*" } else { part });
    parts.collect::<Vec<_>>().join(".")
}
