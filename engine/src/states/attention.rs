//! Keys and values of the positions that later queries can see.

use registry::dtype::Dtype;
use registry::graph::State;

use super::history::History;

/// The memory of one attention.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// `[position, kv_heads * key_dim]`.
    pub keys: History,
    /// `[position, kv_heads * value_dim]`.
    pub values: History,
}

impl Attention {
    /// Creates an empty memory. The state's parts are `k` and `v`, as `Slot::new` has checked.
    pub fn new(state: &State, dtype: Dtype, rollback: usize) -> Self {
        // A query sees itself, so a window of W needs W - 1 earlier positions.
        let needed = state.window.map(|w| w.saturating_sub(1));
        let keys = history(state, 0, dtype, needed, rollback);
        let values = history(state, 1, dtype, needed, rollback);
        Self { keys, values }
    }
}

/// Creates the empty history of a part of a state.
fn history(
    state: &State,
    part: usize,
    dtype: Dtype,
    needed: Option<usize>,
    rollback: usize,
) -> History {
    let shape = &state.parts[part].shape;
    let width: usize = shape.iter().product();
    if let (Some(scales), Some(_)) = (state.fixed, state.eight) {
        return History::fixed(width, (scales[part], dtype), needed, rollback);
    }
    match state.eight {
        None => History::new(dtype, width, needed, rollback),
        Some(scales) => History::fp8(width, width / scales.count(shape).max(1), needed, rollback),
    }
}
