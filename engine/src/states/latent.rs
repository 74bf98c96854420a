//! Memory of latent attention: the rows it keeps of every position.

use registry::dtype::Dtype;
use registry::graph::State;

use super::history::History;
use super::past::Past as _;

/// The memory of one latent attention.
#[derive(Debug, Clone, PartialEq)]
pub struct Latent {
    /// `[position, rank]`.
    pub latent: History,
    /// `[position, rotated]`: the part of the key that all heads share.
    pub shared: History,
    /// `[position, heads * (nope + v_dim)]`: keys and values expanded from `latent`, so that a
    /// step expands its own rows alone. Follows from `latent`, so it is neither saved nor
    /// compared; the op cuts it to where the step begins and fills up what is missing.
    pub expanded: History,
}

impl Latent {
    /// Creates an empty memory. The state's parts are `k` and `v`, as `Slot::new` has checked. Only the op
    /// knows the width of an expanded row.
    pub fn new(state: &State, dtype: Dtype, activation: Dtype, rollback: usize) -> Self {
        let [latent, shared] = [0, 1].map(|part: usize| {
            let width: usize = state.parts[part].shape.iter().product();
            History::new(dtype, width, None, rollback)
        });
        Self { latent, shared, expanded: History::new(activation, 0, None, 0) }
    }

    /// Makes `expanded` hold rows of `width` numbers, and none from position `start` on.
    pub fn rewind(&mut self, activation: Dtype, width: usize, start: usize) {
        if self.expanded.width() == width {
            self.expanded.truncate(start);
        } else {
            let queue = self.latent.queue().cloned();
            self.expanded = History::new(activation, width, None, 0);
            if let Some(queue) = queue {
                self.expanded.place_on(&queue);
            }
        }
    }
}
