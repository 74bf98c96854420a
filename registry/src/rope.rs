//! Rotary tables as numbers: what a spec's `rope:` section resolves to.
//!
//! The formulas follow transformers' `modeling_rope_utils.py`; here stands
//! only what a table is, so that an engine can compute angles from it.

use std::borrow::Cow;

use crate::dtype::Dtype;

pub(crate) mod formulas;

/// One resolved rotary table.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// The name in the spec.
    pub name: String,
    /// Rotated dims of a head: pairs are `(i, i + dim/2)` or `(2i, 2i + 1)`.
    pub dim: usize,
    /// Inverse frequencies, `dim / 2` of them, computed in f32 as transformers does.
    pub inv_freq: Vec<f32>,
    /// Multiplies cos and sin.
    pub attention_factor: f64,
    /// The frequencies for long sequences (longrope). They hold for *all* positions of a forward pass once
    /// its sequence is longer than `original_context`.
    pub long: Option<LongRope>,
    /// Frequencies that are computed anew as a sequence grows (dynamic NTK).
    pub dynamic: Option<DynamicRope>,
    /// The dtype that cos and sin are rounded to in every run, if it is not that of the run.
    pub rounded: Option<Dtype>,
    /// Positions between a row and the earlier one whose angles it has; the first rows have those of position 0.
    pub behind: usize,
    /// The axis of positions that each frequency counts, `dim / 2` of them; empty if there is one axis.
    pub axes: Vec<usize>,
    /// The scheme, as `config.json` names it; for display.
    pub kind: String,
}

/// The largest number of axes that positions have.
pub const MAX_AXES: usize = 8;

impl RopeTable {
    /// Makes the unscaled table of a base.
    pub fn plain(name: &str, dim: usize, theta: f64) -> Self {
        Self {
            name: name.to_owned(),
            dim,
            inv_freq: formulas::default(dim, theta as f32),
            attention_factor: 1.0,
            long: None,
            dynamic: None,
            rounded: None,
            behind: 0,
            axes: Vec::new(),
            kind: "default".to_owned(),
        }
    }

    /// Returns the number of axes of positions that the table reads.
    pub fn axis_count(&self) -> usize {
        self.axes.iter().max().map_or(1, |last| last + 1)
    }

    /// Returns the frequencies of a forward pass whose last position is `length - 1`. They hold for all its
    /// positions.
    pub fn frequencies(&self, length: usize) -> Cow<'_, [f32]> {
        match (&self.long, &self.dynamic) {
            (Some(long), _) if length > long.original_context => Cow::Borrowed(&long.inv_freq),
            (_, Some(dynamic)) if length > dynamic.context => Cow::Owned(formulas::dynamic(
                self.dim,
                dynamic.theta,
                dynamic.factor,
                dynamic.context,
                length,
            )),
            _ => Cow::Borrowed(&self.inv_freq),
        }
    }

    /// Returns the factor on cos and sin in a forward pass whose last position is `length - 1`.
    pub fn factor(&self, length: usize) -> f64 {
        match &self.long {
            Some(long) if length > long.original_context => long.attention_factor,
            _ => self.attention_factor,
        }
    }
}

/// The frequencies beyond the original context.
#[derive(Debug, Clone, PartialEq)]
pub struct LongRope {
    /// Sequences longer than this use what is below.
    pub original_context: usize,
    /// Inverse frequencies, like [`RopeTable::inv_freq`].
    pub inv_freq: Vec<f32>,
    /// The factor on cos and sin, like [`RopeTable::attention_factor`].
    pub attention_factor: f64,
}

/// Frequencies whose base grows with the sequence once it is longer than `context`.
#[derive(Debug, Clone, PartialEq)]
pub struct DynamicRope {
    /// Sequences up to this length use [`RopeTable::inv_freq`].
    pub context: usize,
    /// The base of the frequencies, before it grows.
    pub theta: f64,
    /// The ratio of the longest sequence to `context`, as the config claims.
    pub factor: f64,
}
