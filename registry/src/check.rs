//! Checks of a model against its checkpoint and run settings, before anything runs.

mod dtypes;
mod fold;
mod weights;

pub use weights::{check_weights, has_head, head_weights, pairs, unmatched};
