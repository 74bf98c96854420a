//! What can be wrong between a model and what it is run with, before anything runs.

mod dtypes;
mod fold;
mod weights;

pub use weights::{check_weights, has_head, head_weights, pairs, unmatched};
