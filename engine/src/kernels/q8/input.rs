//! Rows of `x`, rounded to blocks of 32 codes of 8 bits with one scale.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for wide vectors")]

use rayon::prelude::*;

use super::form::STEP;
use crate::kernels::wide::{Wide, wide};

/// The greatest magnitude of a code.
const MOST: f32 = 127.0;
/// Blocks of smaller magnitude are zeros: the reciprocal of their scale would overflow.
const TINY: f32 = 1e-35;

/// Rounded rows, in panels of at most some rows, which lie side by side in each block of codes.
#[derive(Debug)]
pub(super) struct RoundedRows {
    inputs: usize,
    /// The most rows of a panel.
    panel_rows: usize,
    /// `[panel, block, row]`.
    codes: Vec<[i8; STEP]>,
    /// `[panel, block, row]`.
    scales: Vec<f32>,
    /// Sums of each 16 codes: `[panel, block, row]`.
    halves: Vec<[i16; 2]>,
}

impl RoundedRows {
    /// Rounds rows. A block with a number that is not finite gets a scale of NaN.
    ///
    /// # Panics
    /// If `x` is not made of rows, or 32 does not divide `inputs`.
    pub(super) fn new(x: &[f32], inputs: usize, panel_rows: usize) -> Self {
        assert!(inputs > 0 && inputs.is_multiple_of(STEP), "rows divide into blocks of {STEP}");
        assert!(x.len().is_multiple_of(inputs), "x is made of rows");
        let x = x.as_chunks::<STEP>().0;
        let blocks = inputs / STEP;
        let mut rounded = Self {
            inputs,
            panel_rows,
            codes: vec![[0; STEP]; x.len()],
            scales: vec![0.0; x.len()],
            halves: vec![[0; 2]; x.len()],
        };
        let panel = panel_rows * blocks;
        x.par_chunks(panel)
            .zip(rounded.codes.par_chunks_mut(panel))
            .zip(rounded.scales.par_chunks_mut(panel))
            .zip(rounded.halves.par_chunks_mut(panel))
            .for_each(|(((x, codes), scales), halves)| {
                panels(x.len() / blocks, panel_rows, |first, rows| {
                    let panel = first * blocks..(first + rows) * blocks;
                    wide(RoundPanel {
                        rows,
                        x: &x[panel.clone()],
                        codes: &mut codes[panel.clone()],
                        scales: &mut scales[panel.clone()],
                        halves: &mut halves[panel],
                    });
                });
            });
        rounded
    }

    pub(super) fn rows(&self) -> usize {
        self.codes.len() * STEP / self.inputs
    }

    pub(super) fn panel_rows(&self) -> usize {
        self.panel_rows
    }

    /// Returns the codes, `[panel, block, row]`.
    pub(super) fn codes(&self) -> &[[i8; STEP]] {
        &self.codes
    }

    /// Returns the scales, `[panel, block, row]`.
    pub(super) fn scales(&self) -> &[f32] {
        &self.scales
    }
}

/// Calls `each` with the first row and the height of each panel.
pub(super) fn panels(rows: usize, panel_rows: usize, mut each: impl FnMut(usize, usize)) {
    let mut first = 0;
    while first < rows {
        // Kernels are compiled for powers of two.
        let height = panel_rows.min(1 << (rows - first).ilog2());
        each(first, height);
        first += height;
    }
}

/// The rounding of one panel.
struct RoundPanel<'a> {
    rows: usize,
    /// `[row, block]`.
    x: &'a [[f32; STEP]],
    /// `[block, row]`, as all that follow.
    codes: &'a mut [[i8; STEP]],
    scales: &'a mut [f32],
    halves: &'a mut [[i16; 2]],
}

impl Wide for RoundPanel<'_> {
    #[inline(always)]
    fn run(self) {
        let blocks = self.x.len() / self.rows;
        for (row, x) in self.x.chunks_exact(blocks).enumerate() {
            for (block, x) in x.iter().enumerate() {
                let at = block * self.rows + row;
                (self.scales[at], self.halves[at]) = round(x, &mut self.codes[at]);
            }
        }
    }
}

/// Rounds a block: to nearest, ties to even. Returns its scale and the sums of both halves.
#[inline(always)]
pub(super) fn round(x: &[f32; STEP], codes: &mut [i8; STEP]) -> (f32, [i16; 2]) {
    // Adding and subtracting 1.5 * 2^23 rounds to integers; its bits leave the integer in the low half.
    const MAGIC: f32 = 12_582_912.0;
    let bits = x.iter().fold(0, |largest, x| (x.to_bits() & 0x7fff_ffff).max(largest));
    let peak = f32::from_bits(bits);
    if !peak.is_finite() {
        codes.fill(0);
        return (f32::NAN, [0; 2]);
    }
    if peak < TINY {
        codes.fill(0);
        return (0.0, [0; 2]);
    }
    let inverse = MOST / peak;
    for (code, x) in codes.iter_mut().zip(x) {
        *code = ((x * inverse + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32) as i8;
    }
    (peak / MOST, [sum(&codes[..16]), sum(&codes[16..])])
}

/// Sums codes.
#[inline(always)]
fn sum(codes: &[i8]) -> i16 {
    codes.iter().map(|&code| i16::from(code)).sum()
}

/// Sums of codes for one layout of weights: `[panel, group, row]`.
#[derive(Debug)]
pub(super) struct CodeSums {
    /// Sums that groups begin with: minus the offset of levels times the sum of codes.
    starts: Vec<i32>,
    /// Sums of codes times their scale.
    sums: Vec<f32>,
}

impl CodeSums {
    /// Computes the sums for groups of `group` values.
    pub(super) fn new(x: &RoundedRows, form: (u8, usize, bool)) -> Self {
        let (offset, group, mins) = form;
        let offset = i32::from(offset);
        let starts =
            if offset == 0 { Vec::new() } else { grouped(x, group, |_, sum| -offset * sum) };
        let sums =
            if mins { grouped(x, group, |scale, sum| scale * sum as f32) } else { Vec::new() };
        Self { starts, sums }
    }

    pub(super) fn starts(&self) -> &[i32] {
        &self.starts
    }

    pub(super) fn sums(&self) -> &[f32] {
        &self.sums
    }
}

/// Computes a number of the scale and the sum of codes of each group.
fn grouped<T>(x: &RoundedRows, group: usize, each: impl Fn(f32, i32) -> T) -> Vec<T> {
    let blocks = x.scales.iter().zip(&x.halves);
    if group == STEP {
        return blocks.map(|(scale, [a, b])| each(*scale, i32::from(*a) + i32::from(*b))).collect();
    }
    let mut numbers = Vec::with_capacity(2 * x.scales.len());
    let row = x.inputs / STEP;
    panels(x.rows(), x.panel_rows, |first, rows| {
        for block in (first * row..(first + rows) * row).step_by(rows) {
            for half in 0..2 {
                let rows = block..block + rows;
                numbers.extend(rows.map(|at| each(x.scales[at], i32::from(x.halves[at][half]))));
            }
        }
    });
    numbers
}
