//! Division of long steps into parts.
//!
//! Values of a part stay in caches from op to op, while those of thousands of rows go through memory each time.
//! A division changes no bit: rows of a kernel do not depend on each other but through states, and every state
//! has to hold what the step computes with.
//!
//! Measurements are in [decision 90](../../docs/decisions/0090-long-steps-in-parts.md).

use std::collections::BTreeMap;
use std::ops::Range;

use registry::dtype::Dtype;
use registry::graph::StateKind;
use registry::ops::Trait;
use registry::rope::RopeTable;

use crate::Probe;
use crate::exec::PreparedGraph;
use crate::masks::SequenceMask;
use crate::ops::ChunkRows;
use crate::states::{Memory, Slot};

/// Divides `total` rows into parts of at least `least` and fewer than twice as many.
pub(crate) fn divide(total: usize, least: usize) -> Vec<Range<usize>> {
    let count = total.checked_div(least).unwrap_or(1).max(1);
    let size = total.div_ceil(count).max(1);
    (0..total).step_by(size).map(|from| from..total.min(from + size)).collect()
}

/// Returns the chunks of a part, whose rows are counted from its first.
pub(crate) fn chunks_of(chunks: &[ChunkRows], part: &Range<usize>) -> Vec<ChunkRows> {
    chunks.iter().filter_map(|chunk| chunk_in(chunk, part)).collect()
}

/// Returns what a part has of a chunk; none if it has no row of it.
fn chunk_in(chunk: &ChunkRows, part: &Range<usize>) -> Option<ChunkRows> {
    let rows = chunk.rows.start.max(part.start)..chunk.rows.end.min(part.end);
    (rows.start < rows.end).then(|| ChunkRows {
        start: chunk.start + rows.start - chunk.rows.start,
        rows: rows.start - part.start..rows.end - part.start,
        ..chunk.clone()
    })
}

/// Share of the rows of a part that an expert of a mixture should get: its weights are read for each part.
const EXPERT_SHARE: usize = 8;

impl PreparedGraph {
    /// Returns the rows of a part: `least`, or more for mixtures in which an expert would get few of them.
    pub(crate) fn rows_of_part(&self, least: usize) -> usize {
        let mixtures = self.graph.nodes.iter().filter(|node| node.op.is(Trait::Experts));
        let rows = mixtures.filter_map(|node| {
            let mut experts = BTreeMap::<&str, usize>::new();
            for role in node.weights.keys() {
                *experts.entry(role.split('.').next().unwrap_or_default()).or_default() += 1;
            }
            let chosen = node.inputs.get(1).map(|v| &self.graph.values[v.0].shape)?;
            let chosen = chosen.iter().product::<usize>() * EXPERT_SHARE;
            least.checked_mul(*experts.values().max()?)?.checked_div(chosen)
        });
        rows.fold(least, usize::max)
    }

    /// True if the states hold all that later rows of a step read of earlier ones, and no kernel needs a whole chunk.
    pub(crate) fn divides(&self, activation: Dtype) -> bool {
        let graph = &self.graph;
        let exact = graph.nodes.iter().all(|node| {
            let Some(state) = node.state.map(|state| &graph.states[state.0]) else { return true };
            let held = state.dtype.resolve(activation);
            let input = node.inputs.first().map(|v| graph.values[v.0].dtype.resolve(activation));
            match state.kind {
                // Keys and values are read from the state, whichever step they belong to.
                StateKind::Attention | StateKind::Latent | StateKind::Index | StateKind::Pooled => {
                    true
                }
                StateKind::Conv => held == Dtype::F32 || Some(held) == input,
                StateKind::Recurrent => held == Dtype::F32,
            }
        });
        exact && !self.needs_whole_chunks()
    }
}

/// True if a step of these chunks may be divided: its masks and angles are those of its parts, and nobody watches
/// whole values.
pub(crate) fn may_divide(
    graph: &PreparedGraph,
    chunks: &[ChunkRows],
    parts: &[Range<usize>],
    ropes: &[RopeTable],
    probe: &dyn Probe,
) -> bool {
    let watched =
        graph.graph.values.iter().filter_map(|v| v.tap.as_ref()).any(|tap| probe.wants(tap));
    let causal = chunks.iter().all(|chunk| chunk.start >= chunk.mask.prefix());
    !watched && causal && chunks.iter().all(|chunk| keeps_angles(chunk, parts, ropes))
}

/// True if every part of a chunk has the angles of the whole chunk.
fn keeps_angles(chunk: &ChunkRows, parts: &[Range<usize>], ropes: &[RopeTable]) -> bool {
    // Documents count positions anew, so the length that a part reaches says nothing.
    if ropes.iter().any(|table| table.long.is_some() || table.dynamic.is_some())
        && !chunk.mask.documents().is_empty()
    {
        return false;
    }
    let end = chunk.start + chunk.rows.len();
    parts.iter().filter_map(|part| chunk_in(chunk, part)).all(|part| {
        let reached = part.start + part.rows.len();
        ropes.iter().all(|table: &RopeTable| {
            table.frequencies(reached) == table.frequencies(end)
                && table.factor(reached).to_bits() == table.factor(end).to_bits()
        })
    })
}

/// Returns a copy of a memory; none if truncation restores it.
fn copy_of(memory: &Memory) -> Option<Memory> {
    match memory {
        Memory::Attention(attention) if attention.keys.keeps_all() => None,
        Memory::Latent(latent) if latent.latent.keeps_all() => None,
        Memory::Index(_) => None,
        Memory::Attention(_)
        | Memory::Latent(_)
        | Memory::Conv(_)
        | Memory::Recurrent(_)
        | Memory::Pooled(_) => Some(memory.clone()),
    }
}

/// The states of a slot before a divided step, as far as truncation does not restore them.
#[derive(Debug)]
pub(crate) struct SlotMark {
    position: usize,
    mask: SequenceMask,
    /// Copies of the memories that drop old positions, by state.
    copies: Vec<Option<Memory>>,
}

impl SlotMark {
    pub(crate) fn of(slot: &Slot) -> Self {
        let copies = slot.memories.iter().map(copy_of).collect();
        Self { position: slot.position, mask: slot.mask.clone(), copies }
    }

    /// Takes a slot back to the time of the mark.
    pub(crate) fn restore(self, slot: &mut Slot) {
        (slot.position, slot.mask) = (self.position, self.mask);
        for (memory, copy) in slot.memories.iter_mut().zip(self.copies) {
            match copy {
                Some(copy) => *memory = copy,
                None => {
                    memory.pasts_mut().into_iter().for_each(|past| past.truncate(self.position));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::history::History;
    use crate::states::latent::Latent;
    use crate::states::past::Past as _;

    #[test]
    fn a_mark_restores_rows_that_a_window_drops() {
        for needed in [None, Some(3)] {
            let mut slot = latent_slot(needed);
            advance(&mut slot, 10);
            let mark = SlotMark::of(&slot);
            advance(&mut slot, 200);
            mark.restore(&mut slot);
            let Memory::Latent(Latent { latent, shared, .. }) = &slot.memories[0] else {
                panic!("the state is of another kind");
            };
            assert_eq!(slot.position, 10);
            for history in [latent, shared] {
                assert_eq!(history.end(), 10);
                assert_eq!(history.tail(7), [7.0, 8.0, 9.0]);
                assert_eq!(history.shortest(), needed.map_or(0, |_| 10));
            }
        }
    }

    /// Returns a slot with one state of latents, of one number each.
    fn latent_slot(needed: Option<usize>) -> Slot {
        let latent = History::new(Dtype::F32, 1, needed, 0);
        let memory = Latent { shared: latent.clone(), expanded: latent.clone(), latent };
        let memories = vec![Memory::Latent(memory)];
        Slot { position: 0, mask: SequenceMask::default(), memories }
    }

    /// Adds positions one by one, each with its own number.
    fn advance(slot: &mut Slot, count: usize) {
        for position in slot.position..slot.position + count {
            let Memory::Latent(memory) = &mut slot.memories[0] else { continue };
            memory.latent.append(&[position as f32]);
            memory.shared.append(&[position as f32]);
            memory.expanded.append(&[position as f32]);
            slot.commit(position + 1);
        }
    }

    #[test]
    fn parts_are_of_one_size_and_none_is_short() {
        for (total, least, sizes) in [
            (0, 4, vec![]),
            (7, 4, vec![7]),
            (8, 4, vec![4, 4]),
            (11, 4, vec![6, 5]),
            (12, 4, vec![4, 4, 4]),
            (3, 1, vec![1, 1, 1]),
            (3, 0, vec![3]),
        ] {
            let parts = divide(total, least);
            assert_eq!(parts.iter().map(Range::len).collect::<Vec<_>>(), sizes);
            assert_eq!(
                parts.iter().cloned().flatten().collect::<Vec<_>>(),
                (0..total).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn chunks_keep_their_positions() {
        let chunks = [chunk(3, 0..2, 7), chunk(1, 2..9, 0)];
        let part = chunks_of(&chunks, &(1..5));
        assert_eq!(part, [chunk(3, 0..1, 8), chunk(1, 1..4, 0)]);
        // The rest of the second chunk begins its sequence too, at a later position.
        let tail = chunks_of(&chunks, &(5..9));
        assert_eq!(tail, [ChunkRows { continued: false, ..chunk(1, 0..4, 3) }]);
    }

    fn chunk(slot: usize, rows: Range<usize>, start: usize) -> ChunkRows {
        ChunkRows { slot, rows, start, continued: start > 0, mask: SequenceMask::default() }
    }
}
