//! Memory of slots.

use engine::Session;
use registry::graph::{State, StateKind};

/// Memory of the slots of a session, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotMemory {
    /// Bytes of a position.
    pub(crate) position: u64,
    /// Bytes of a slot that do not grow with its length.
    pub(crate) fixed: u64,
}

impl SlotMemory {
    /// Computes the memory from the states of the model. Rows of 8 bits count as the dtype that they are
    /// read in, so the result is an upper bound.
    pub(crate) fn of(session: &dyn Session) -> Self {
        let mut position = 0_u64;
        let mut fixed = 0_u64;
        for state in &session.model().graph.states {
            let bytes = size(state) * state.dtype.resolve(session.dtype()).size() as u64;
            match (state.kind, state.window) {
                (StateKind::Attention | StateKind::Latent, Some(window)) => {
                    fixed = fixed.saturating_add(bytes.saturating_mul(2 * window as u64));
                }
                (StateKind::Attention | StateKind::Latent | StateKind::Index, _) => {
                    position = position.saturating_add(bytes);
                }
                (StateKind::Pooled, window) => {
                    let part = bytes / state.parts.len().max(1) as u64;
                    let window = window.unwrap_or(0) as u64;
                    fixed = fixed.saturating_add(part.saturating_mul(2 * window));
                    let block = state.block.unwrap_or(1).max(1);
                    position = position.saturating_add(part.div_ceil(block as u64));
                }
                (StateKind::Conv | StateKind::Recurrent, _) => {
                    fixed = fixed.saturating_add(bytes);
                }
            }
        }
        Self { position, fixed }
    }

    /// Returns the number of positions that fit in memory, beside the fixed part of so many slots.
    pub(crate) fn positions(self, bytes: u64, slots: usize) -> usize {
        let left = bytes.saturating_sub(self.fixed.saturating_mul(slots as u64));
        usize::try_from(left / self.position.max(1)).unwrap_or(usize::MAX)
    }

    /// Returns the bytes of so many positions and slots.
    pub(crate) fn bytes(self, positions: usize, slots: usize) -> u64 {
        let fixed = self.fixed.saturating_mul(slots as u64);
        self.position.saturating_mul(positions as u64).saturating_add(fixed)
    }
}

/// Counts the numbers of a state, of one position or in all.
fn size(state: &State) -> u64 {
    state
        .parts
        .iter()
        .map(|part| part.shape.iter().fold(1_u64, |n, dim| n.saturating_mul(*dim as u64)))
        .fold(0, u64::saturating_add)
}
