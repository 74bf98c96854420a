//! Searches for the scales of a group of values.
//!
//! Each search tries several scales, solves for the best one given the rounded values, and keeps the one
//! with the least weighted error. Sums run in order and products associate as in ggml (ggml-quants.c):
//! another order would round differently and choose differently.
//!
//! The bytes are those of ggml ([decision 30](../../../../docs/decisions/0030-ggml-order-of-additions.md)).

mod affine;
mod descent;
mod positive;
mod signed;

pub(super) use affine::Ladder;
pub(super) use descent::descend;
pub(super) use positive::positive;
pub(super) use signed::signed;

/// Groups whose largest magnitude is below this count as zero (`GROUP_MAX_EPS`).
pub(super) const TINY: f32 = 1e-15;
