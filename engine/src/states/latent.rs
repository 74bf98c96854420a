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
        // A query sees itself, so a window of W needs W - 1 earlier positions.
        let needed = state.window.map(|w| w.saturating_sub(1));
        let [latent, shared] = [0, 1].map(|part: usize| {
            let width: usize = state.parts[part].shape.iter().product();
            History::new(dtype, width, needed, rollback)
        });
        let expanded = latent.beside(activation, 0);
        Self { latent, shared, expanded }
    }

    /// Makes `expanded` hold rows of `width` numbers, none from position `start` on, and none that lie apart from
    /// those of `latent`.
    pub fn rewind(&mut self, activation: Dtype, width: usize, start: usize) {
        let first = self.latent.first();
        let joins = self.expanded.first() <= start && self.expanded.end() >= first;
        if self.expanded.width() == width && joins {
            self.expanded.truncate(start);
            return;
        }
        self.expanded = self.latent.beside(activation, width);
        self.expanded.seed(first, &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(window: Option<usize>) -> Latent {
        let needed = window.map(|window| window - 1);
        let [latent, shared, expanded] =
            [1, 1, 0].map(|width| History::new(Dtype::F32, width, needed, 2));
        Latent { latent, shared, expanded }
    }

    /// Adds positions one by one, as the op does.
    fn advance(memory: &mut Latent, count: usize) {
        for _ in 0..count {
            let position = memory.latent.end();
            memory.latent.append(&[position as f32]);
            memory.shared.append(&[0.0]);
            memory.rewind(Dtype::F32, 2, position);
            for held in memory.latent.tail(memory.expanded.end()) {
                memory.expanded.append(&[held, -held]);
            }
            memory.latent.commit();
            memory.shared.commit();
            memory.expanded.commit();
        }
    }

    #[test]
    fn expanded_rows_are_those_of_the_latents() {
        for window in [None, Some(3)] {
            let mut memory = memory(window);
            advance(&mut memory, 500);
            assert_eq!(memory.latent.visible(), window.map_or(0, |window| 501 - window));
            assert_eq!(memory.expanded.tail(498), [498.0, -498.0, 499.0, -499.0]);
            memory.latent.truncate(498);
            memory.shared.truncate(498);
            advance(&mut memory, 1);
            assert_eq!(memory.expanded.tail(497), [497.0, -497.0, 498.0, -498.0]);
            // As after a restore, which has no expanded rows.
            memory.expanded = History::new(Dtype::F32, 0, None, 0);
            advance(&mut memory, 1);
            assert_eq!(memory.expanded.first(), memory.latent.first());
            assert_eq!(memory.expanded.tail(498), [498.0, -498.0, 499.0, -499.0]);
        }
    }
}
