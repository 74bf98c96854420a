//! Loop that recurrences share. Units (heads, groups of channels) go through the rows of a chunk
//! independently of each other, each with its own part of the state.
#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for vectors")]

use rayon::prelude::*;

use super::Ctx;
use crate::Error;
use crate::kernels::wide::{Wide, wide};
use crate::states::Memory;
use crate::states::recurrent::RecurrentStep;

/// Numbers below which a task is not worth a thread.
const TASK: usize = 1 << 12;

/// The place of a recurrence in a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScanPosition {
    /// The unit.
    pub(super) unit: usize,
    /// The row of the step's values.
    pub(super) row: usize,
    /// True if the row is the first of its sequence.
    pub(super) begins: bool,
    /// True if the row continues a sequence that earlier steps began. The reference then computes one
    /// position at a time, and rounds where its first forward pass does not. Rows are distinguished by this
    /// flag and not by the length of a chunk, so that a draft and the same tokens one by one leave the same
    /// state.
    pub(super) continued: bool,
}

/// Returns the largest number of channels, up to `most`, that divides them into equal tasks.
pub(super) fn channels_of_task(channels: usize, most: usize) -> usize {
    (1..=most.min(channels)).rev().find(|n| channels.is_multiple_of(*n)).unwrap_or(1)
}

/// Returns a flag for each row of the step: true if the row continues a sequence.
pub(super) fn continued(ctx: &Ctx<'_>) -> Vec<bool> {
    ctx.chunks().iter().flat_map(|c| c.rows.clone().map(|_| c.continued)).collect()
}

/// Some rows of one unit.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnitRows {
    /// The unit.
    pub(super) unit: usize,
    /// The first row.
    pub(super) first: usize,
    /// The number of rows.
    pub(super) count: usize,
    /// True if the first row is the first of its sequence.
    begins: bool,
    /// As [`ScanPosition::continued`].
    pub(super) continued: bool,
}

/// Runs `each(at, before, after, y)` over all rows of all chunks: from the unit's part of the
/// state before the row to the one after it, all of which it writes, and the unit's `out`
/// numbers of the output. Gives `[rows, units * out]`.
pub(super) fn scan(
    ctx: &mut Ctx<'_>,
    units: usize,
    out: usize,
    each: impl Fn(ScanPosition, &[f32], &mut [f32], &mut [f32]) + Sync,
) -> Result<Vec<f32>, Error> {
    scan_rows(ctx, units, out, |rows, before, after, y| walk(rows, before, after, y, &each))
}

/// Runs `each(rows, before, after, y)` over the units of all chunks: `after` takes the states after the last rows,
/// oldest first, and `y` the `[rows, out]` numbers of the output. Gives `[rows, units * out]`.
pub(super) fn scan_rows(
    ctx: &mut Ctx<'_>,
    units: usize,
    out: usize,
    each: impl Fn(UnitRows, &[f32], &mut [&mut [f32]], &mut [f32]) + Sync,
) -> Result<Vec<f32>, Error> {
    let width = units * out;
    let mut y = vec![0.0; ctx.tokens().len() * width];
    for chunk in ctx.chunks() {
        let wrong = ctx.error("its state does not hold blocks of this shape");
        let Memory::Recurrent(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
        let size = memory.width().checked_div(units).unwrap_or(0);
        if size == 0 || out == 0 || size * units != memory.width() || memory.end() != chunk.start {
            return Err(wrong);
        }
        let count = chunk.rows.len();
        let RecurrentStep { before, after } = memory.step(count);
        let places = by_unit(after, units, size);
        let output = &mut y[chunk.rows.start * width..chunk.rows.end * width];
        let mut apart = if count == 1 { Vec::new() } else { vec![0.0; output.len()] };
        let lines: &mut [f32] = if count == 1 { output } else { &mut apart };
        lines
            .par_chunks_exact_mut(count * out)
            .zip(places)
            .with_min_len(TASK / (size * count) + 1)
            .enumerate()
            .for_each(|(unit, (y, mut after))| {
                let before = &before[unit * size..][..size];
                let rows = UnitRows {
                    unit,
                    first: chunk.rows.start,
                    count,
                    begins: chunk.start == 0,
                    continued: chunk.continued,
                };
                each(rows, before, &mut after, y);
            });
        if count > 1 {
            let output = &mut y[chunk.rows.start * width..chunk.rows.end * width];
            for (unit, lines) in apart.chunks_exact(count * out).enumerate() {
                for (line, row) in lines.chunks_exact(out).zip(output.chunks_exact_mut(width)) {
                    row[unit * out..][..out].copy_from_slice(line);
                }
            }
        }
    }
    Ok(y)
}

/// Blocks of all units, cut into those of each: `[unit][block]`.
pub(super) fn by_unit(blocks: Vec<&mut [f32]>, units: usize, size: usize) -> Vec<Vec<&mut [f32]>> {
    let mut places: Vec<Vec<&mut [f32]>> =
        (0..units).map(|_| Vec::with_capacity(blocks.len())).collect();
    for block in blocks {
        block.chunks_exact_mut(size).zip(&mut places).for_each(|(part, place)| place.push(part));
    }
    places
}

/// Runs one unit over its rows, one after another, compiled for the widest vectors of the CPU.
pub(super) fn walk(
    rows: UnitRows,
    before: &[f32],
    after: &mut [&mut [f32]],
    y: &mut [f32],
    each: &impl Fn(ScanPosition, &[f32], &mut [f32], &mut [f32]),
) {
    wide(RowWalk { rows, before, after, y, each });
}

struct RowWalk<'a, 'b, F> {
    rows: UnitRows,
    before: &'a [f32],
    after: &'a mut [&'b mut [f32]],
    y: &'a mut [f32],
    each: &'a F,
}

impl<F: Fn(ScanPosition, &[f32], &mut [f32], &mut [f32])> Wide for RowWalk<'_, '_, F> {
    #[inline(always)]
    fn run(self) {
        let Self { rows, before, after, y, each } = self;
        let unkept = rows.count.saturating_sub(after.len());
        let fresh = if unkept > 0 { before.len() } else { 0 };
        // States that are not kept alternate between two buffers.
        let mut last = before[..fresh].to_vec();
        let mut next = before[..fresh].to_vec();
        for (n, y) in y.chunks_exact_mut((y.len() / rows.count.max(1)).max(1)).enumerate() {
            let (from, to): (&[f32], &mut [f32]) = if n < unkept {
                (&last, &mut next)
            } else {
                let (past, remaining) = after.split_at_mut(n - unkept);
                let from = match past.last() {
                    Some(past) => &**past,
                    None if unkept > 0 => &last,
                    None => before,
                };
                (from, &mut *remaining[0])
            };
            let UnitRows { unit, first, continued, .. } = rows;
            let begins = rows.begins && n == 0;
            each(ScanPosition { unit, row: first + n, begins, continued }, from, to, y);
            if n < unkept {
                std::mem::swap(&mut last, &mut next);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_blocks_are_those_of_the_last_rows() {
        for kept_count in 0..=4 {
            let mut blocks = vec![vec![0.0]; kept_count];
            let mut after: Vec<&mut [f32]> = blocks.iter_mut().map(Vec::as_mut_slice).collect();
            let mut y = [0.0; 4];
            let rows = UnitRows { unit: 0, first: 5, count: 4, begins: true, continued: false };
            walk(rows, &[10.0], &mut after, &mut y, &|at, from, to, y| {
                to[0] = from[0] + (at.row - 5) as f32;
                y[0] = to[0];
                assert_eq!(at.begins, at.row == 5);
            });
            assert_eq!(y, [10.0, 11.0, 13.0, 16.0]);
            assert_eq!(blocks.concat(), y[4 - kept_count..]);
        }
    }
}
