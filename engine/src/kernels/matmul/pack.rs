//! `x` in the order in which the tile kernel reads it.

use super::weights::STEP;
use rayon::prelude::*;
use std::cell::Cell;

/// One cache line: a vector of sixteen f32, or of thirty-two bf16.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(super) struct CacheLine(pub(super) [u32; 16]);

/// The layout of a packed row of `x`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PackLayout {
    /// Thirty-two f32 in their order.
    Natural,
    /// Of thirty-two elements, the odd ones and then the even ones, in f32.
    PairF32,
    /// Thirty-two bf16 in their order.
    PairBf16,
}

impl PackLayout {
    /// Lines that a step of a row fills.
    fn phases(self) -> usize {
        match self {
            Self::Natural | Self::PairF32 => 2,
            Self::PairBf16 => 1,
        }
    }
}

/// The rows of `x`, cut into panels of nearly equal height.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panels {
    pub(super) rows: usize,
    count: usize,
}

impl Panels {
    pub(super) fn new(rows: usize, height: usize) -> Self {
        Self { rows, count: rows.div_ceil(height) }
    }

    pub(super) fn count(self) -> usize {
        self.count
    }

    /// Returns the first row and the number of rows of a panel; the higher ones come first.
    pub(super) fn get(self, panel: usize) -> (usize, usize) {
        let low = self.rows / self.count;
        let extra = self.rows % self.count;
        (panel * low + panel.min(extra), low + usize::from(panel < extra))
    }
}

/// True if every number is exactly a bf16.
pub(super) fn is_bf16(x: &[f32]) -> bool {
    x.chunks(1024).all(|x| {
        let bits = x.iter().fold(0, |bits, x| bits | x.to_bits());
        bits.trailing_zeros() >= 16
    })
}

/// Packs `x[rows, inner]` into memory that this thread keeps for the next call.
pub(super) fn with_packed<T>(
    x: &[f32],
    inner: usize,
    panels: Panels,
    kind: PackLayout,
    f: impl FnOnce(&[CacheLine]) -> T,
) -> T {
    thread_local! {
        static KEPT: Cell<Vec<CacheLine>> = const { Cell::new(Vec::new()) };
    }
    let row_lines = inner.div_ceil(STEP) * kind.phases();
    // Taken, not borrowed: while this thread waits for others it may run another matmul.
    let mut buffer = KEPT.take();
    if buffer.len() < panels.rows * row_lines {
        buffer.resize(panels.rows * row_lines, CacheLine([0; 16]));
    }
    let lines = &mut buffer[..panels.rows * row_lines];
    if lines.len() < 4096 {
        let mut remaining = &mut *lines;
        for panel in 0..panels.count {
            let (first, rows) = panels.get(panel);
            let (to, after) = remaining.split_at_mut(rows * row_lines);
            pack(&x[first * inner..(first + rows) * inner], rows, inner, kind, to);
            remaining = after;
        }
    } else {
        let low = panels.rows / panels.count;
        let extra = panels.rows % panels.count;
        let (higher, lower) = lines.split_at_mut(extra * (low + 1) * row_lines);
        let higher = higher.par_chunks_mut((low + 1) * row_lines);
        higher.chain(lower.par_chunks_mut(low * row_lines)).enumerate().for_each(|(panel, to)| {
            let (first, rows) = panels.get(panel);
            pack(&x[first * inner..(first + rows) * inner], rows, inner, kind, to);
        });
    }
    let result = f(&buffer[..panels.rows * row_lines]);
    KEPT.set(buffer);
    result
}

/// Packs one panel: `[step, phase, row]` lines, the last step padded with zeros.
fn pack(x: &[f32], rows: usize, inner: usize, kind: PackLayout, to: &mut [CacheLine]) {
    let phases = kind.phases();
    for (r, x) in x.chunks_exact(inner.max(1)).enumerate() {
        let steps = to.chunks_exact_mut(rows * phases);
        let mut full_steps = x.chunks_exact(STEP);
        for (x, to) in full_steps.by_ref().zip(steps) {
            pack_step(x, kind, rows, &mut to[r..]);
        }
        let partial = full_steps.remainder();
        if !partial.is_empty() {
            let mut padded = [0.0; STEP];
            padded[..partial.len()].copy_from_slice(partial);
            let last = to.len() - rows * phases + r;
            pack_step(&padded, kind, rows, &mut to[last..]);
        }
    }
}

/// Packs one step of one row; a phase's lines are `rows` apart.
#[inline]
fn pack_step(x: &[f32], kind: PackLayout, rows: usize, to: &mut [CacheLine]) {
    match kind {
        PackLayout::Natural => {
            let (first, second) = x.split_at(16);
            to[0].0.iter_mut().zip(first).for_each(|(to, x)| *to = x.to_bits());
            to[rows].0.iter_mut().zip(second).for_each(|(to, x)| *to = x.to_bits());
        }
        PackLayout::PairF32 => {
            for (l, pair) in x.chunks_exact(2).enumerate() {
                to[0].0[l] = pair[1].to_bits();
                to[rows].0[l] = pair[0].to_bits();
            }
        }
        PackLayout::PairBf16 => {
            for (to, pair) in to[0].0.iter_mut().zip(x.chunks_exact(2)) {
                *to = (pair[1].to_bits() & 0xffff_0000) | (pair[0].to_bits() >> 16);
            }
        }
    }
}
