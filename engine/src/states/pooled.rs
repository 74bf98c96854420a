//! Keys of the last positions, and a pooled key of each complete block before.

use registry::dtype::Dtype;
use registry::graph::State;

use super::history::History;
use super::past::{self, Past};
use crate::device::DeviceQueue;

/// The memory of an attention to a window and to pooled keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Pooled {
    /// `[position, size]`; keys are values too.
    pub keys: History,
    /// `[block, size]`.
    pub blocks: Blocks,
}

impl Pooled {
    /// Creates an empty memory. The state's parts are `k` and `pooled`, as `Slot::new` has checked.
    pub fn new(state: &State, dtype: Dtype, rollback: usize) -> Self {
        let [width, pooled] = [0, 1].map(|part: usize| state.parts[part].shape.iter().product());
        let needed = state.window.map(|window| window.saturating_sub(1));
        Self {
            keys: History::new(dtype, width, needed, rollback),
            blocks: Blocks {
                rows: History::new(dtype, pooled, None, rollback),
                size: state.block.unwrap_or(1).max(1),
            },
        }
    }

    /// Moves an empty memory to a device.
    pub fn place_on(&mut self, queue: &DeviceQueue) {
        self.keys.place_on(queue);
        self.blocks.rows.place_on(queue);
    }
}

/// One row for each complete block of positions.
#[derive(Debug, Clone, PartialEq)]
pub struct Blocks {
    /// `[block, size]`.
    pub rows: History,
    /// Positions of a block.
    pub size: usize,
}

impl Blocks {
    /// Returns the positions from `start` on, of `count`, that end a block.
    pub fn ends(&self, start: usize, count: usize) -> impl Iterator<Item = usize> + use<> {
        let size = self.size;
        let first = (start + 1).next_multiple_of(size) - 1;
        (first..start + count).step_by(size)
    }
}

impl Past for Blocks {
    fn floor(&self) -> usize {
        0
    }

    fn commit(&mut self) {
        self.rows.commit();
    }

    fn shortest(&self) -> usize {
        0
    }

    fn truncate(&mut self, length: usize) {
        self.rows.truncate(length / self.size);
    }

    fn clear(&mut self, poison: bool) {
        self.rows.clear(poison);
    }

    fn to_bytes(&self, out: &mut Vec<u8>) {
        self.rows.to_bytes(out);
    }

    fn set_bytes(&mut self, floor: usize, end: usize, bytes: &[u8]) -> Result<(), past::Error> {
        if floor != 0 {
            return Err(past::Error::Positions { floor, end });
        }
        self.rows.set_bytes(0, end / self.size, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_cut_and_saved_by_positions() {
        let blocks = |rows: &[f32]| {
            let mut history = History::new(Dtype::F32, 1, None, 2);
            history.append(rows);
            Blocks { rows: history, size: 3 }
        };
        let mut held = blocks(&[1.0, 2.0, 3.0]);
        assert_eq!(held.ends(0, 3).collect::<Vec<_>>(), [2]);
        assert_eq!(held.ends(2, 4).collect::<Vec<_>>(), [2, 5]);
        assert_eq!(held.ends(3, 2).count(), 0);
        held.truncate(8);
        assert_eq!(held.rows.tail(0), [1.0, 2.0]);
        let mut bytes = Vec::new();
        held.to_bytes(&mut bytes);
        let mut copy = blocks(&[]);
        copy.set_bytes(0, 7, &bytes).unwrap();
        assert_eq!(copy.rows.tail(0), held.rows.tail(0));
        assert!(blocks(&[]).set_bytes(0, 9, &bytes).is_err());
        assert!(blocks(&[]).set_bytes(3, 7, &bytes).is_err());
    }
}
