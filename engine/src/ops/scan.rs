//! Loop that recurrences share. Units (heads, groups of channels) go through the rows of a chunk
//! independently of each other, each with its own part of the state.

use rayon::prelude::*;

use super::Ctx;
use crate::Error;
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
    /// True if the row continues a sequence that earlier steps began. The reference then computes one
    /// position at a time, and rounds where its first forward pass does not. Rows are distinguished by this
    /// flag and not by the length of a chunk, so that a draft and the same tokens one by one leave the same
    /// state.
    pub(super) continued: bool,
}

/// Returns a flag for each row of the step: true if the row continues a sequence.
pub(super) fn continued(ctx: &Ctx<'_>) -> Vec<bool> {
    ctx.chunks().iter().flat_map(|c| c.rows.clone().map(|_| c.start > 0)).collect()
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
        let own = &mut y[chunk.rows.start * width..chunk.rows.end * width];
        let mut apart = if count == 1 { Vec::new() } else { vec![0.0; own.len()] };
        let lines: &mut [f32] = if count == 1 { own } else { &mut apart };
        lines
            .par_chunks_exact_mut(count * out)
            .zip(places)
            .with_min_len(TASK / (size * count) + 1)
            .enumerate()
            .for_each(|(unit, (y, mut after))| {
                let before = &before[unit * size..][..size];
                let at = |n| ScanPosition {
                    unit,
                    row: chunk.rows.start + n,
                    continued: chunk.start > 0,
                };
                walk(before, &mut after, y, out, |n, from, to, y| each(at(n), from, to, y));
            });
        if count > 1 {
            let own = &mut y[chunk.rows.start * width..chunk.rows.end * width];
            for (unit, lines) in apart.chunks_exact(count * out).enumerate() {
                for (line, row) in lines.chunks_exact(out).zip(own.chunks_exact_mut(width)) {
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
        block.chunks_exact_mut(size).zip(&mut places).for_each(|(part, own)| own.push(part));
    }
    places
}

/// Runs one unit over all rows; `after` takes the blocks of the last ones.
fn walk(
    before: &[f32],
    after: &mut [&mut [f32]],
    y: &mut [f32],
    out: usize,
    each: impl Fn(usize, &[f32], &mut [f32], &mut [f32]),
) {
    let unkept = (y.len() / out).saturating_sub(after.len());
    let fresh = || if unkept > 0 { before.to_vec() } else { Vec::new() };
    let (mut from, mut to) = (fresh(), fresh());
    for (n, y) in y.chunks_exact_mut(out).enumerate() {
        if n < unkept {
            each(n, &from, &mut to, y);
            std::mem::swap(&mut from, &mut to);
            continue;
        }
        let (past, next) = after.split_at_mut(n - unkept);
        let from: &[f32] = match past.last() {
            Some(past) => past,
            None if unkept > 0 => &from,
            None => before,
        };
        each(n, from, next[0], y);
    }
}

/// Computes Σ a·b in f32, over eight running sums in a fixed order.
#[inline]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (x, y) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f32 = x.remainder().iter().zip(y.remainder()).map(|(a, b)| a * b).sum();
    for (x, y) in x.zip(y) {
        for lane in 0..8 {
            sums[lane] += x[lane] * y[lane];
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (b + f)) + ((c + g) + (d + h)) + tail
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_blocks_are_those_of_the_last_rows() {
        for kept in 0..=4 {
            let mut blocks = vec![vec![0.0]; kept];
            let mut after: Vec<&mut [f32]> = blocks.iter_mut().map(Vec::as_mut_slice).collect();
            let mut y = [0.0; 4];
            walk(&[10.0], &mut after, &mut y, 1, |n, from, to, y| {
                to[0] = from[0] + n as f32;
                y[0] = to[0];
            });
            assert_eq!(y, [10.0, 11.0, 13.0, 16.0]);
            assert_eq!(blocks.concat(), y[4 - kept..]);
        }
    }

    #[test]
    fn dots() {
        let a: Vec<f32> = (1..=19).map(|n| n as f32).collect();
        assert_eq!(dot(&a, &a), 2470.0);
        assert_eq!(dot(&[], &[]), 0.0);
    }
}
