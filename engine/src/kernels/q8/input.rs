//! Rows of `x`, rounded to blocks of 32 codes of 8 bits with one scale.

#![expect(unsafe_code, reason = "calls the copy of a loop that is compiled for AVX2")]
#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for AVX2")]

use rayon::prelude::*;

use super::form::STEP;

/// The greatest magnitude of a code.
const MOST: f32 = 127.0;
/// Blocks of smaller magnitude are zeros: the reciprocal of their scale would overflow.
const TINY: f32 = 1e-35;
/// Values that one task rounds, at least.
const TASK: usize = 1 << 15;

/// Rounded rows.
#[derive(Debug, Clone)]
pub struct RoundedRows {
    rows: usize,
    inputs: usize,
    /// `[rows, inputs]`.
    codes: Vec<i8>,
    /// `[rows, inputs / 32]`.
    scales: Vec<f32>,
    /// Sums of each 16 codes: `[rows, inputs / 16]`.
    sums: Vec<i16>,
}

impl RoundedRows {
    /// Rounds `rows` rows. A block with a number that is not finite gets a scale of NaN.
    ///
    /// # Panics
    /// If `x` is not `[rows, inputs]`, or 32 does not divide `inputs`.
    pub fn new(x: &[f32], rows: usize, inputs: usize) -> Self {
        assert_eq!(Some(x.len()), rows.checked_mul(inputs), "x is [rows, inputs]");
        assert!(inputs.is_multiple_of(STEP), "rows divide into blocks of {STEP}");
        let mut made = Self {
            rows,
            inputs,
            codes: vec![0; x.len()],
            scales: vec![0.0; x.len() / STEP],
            sums: vec![0; x.len() / 16],
        };
        let blocks = x.as_chunks::<STEP>().0;
        let codes = made.codes.as_chunks_mut::<STEP>().0;
        let sums = made.sums.as_chunks_mut::<2>().0;
        let tasks = blocks.par_chunks(TASK / STEP).zip(codes.par_chunks_mut(TASK / STEP));
        let tasks = tasks.zip(made.scales.par_chunks_mut(TASK / STEP));
        tasks.zip(sums.par_chunks_mut(TASK / STEP)).for_each(|(((x, codes), scales), sums)| {
            round_blocks(x, codes, scales, sums);
        });
        made
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the length of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Returns the codes, `[rows, inputs]`.
    pub fn codes(&self) -> &[i8] {
        &self.codes
    }

    /// Returns the scales, `[rows, inputs / 32]`.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }
}

/// Rounds blocks, with AVX2 where the CPU has it; the arithmetic is the same.
fn round_blocks(
    x: &[[f32; STEP]],
    codes: &mut [[i8; STEP]],
    scales: &mut [f32],
    sums: &mut [[i16; 2]],
) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, as just asked.
        unsafe { round_avx2(x, codes, scales, sums) };
        return;
    }
    round_plain(x, codes, scales, sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn round_avx2(
    x: &[[f32; STEP]],
    codes: &mut [[i8; STEP]],
    scales: &mut [f32],
    sums: &mut [[i16; 2]],
) {
    round_plain(x, codes, scales, sums);
}

#[inline(always)]
fn round_plain(
    x: &[[f32; STEP]],
    codes: &mut [[i8; STEP]],
    scales: &mut [f32],
    sums: &mut [[i16; 2]],
) {
    for (((x, codes), scale), sums) in x.iter().zip(codes).zip(scales).zip(sums) {
        (*scale, *sums) = round(x, codes);
    }
}

/// Rounds a block: to nearest, ties to even. Returns its scale and the sums of both halves.
#[inline(always)]
fn round(x: &[f32; STEP], codes: &mut [i8; STEP]) -> (f32, [i16; 2]) {
    // Adding and subtracting 1.5 * 2^23 rounds to integers; its bits leave the integer in the low half.
    const MAGIC: f32 = 12_582_912.0;
    let bits = x.iter().fold(0, |most, x| (x.to_bits() & 0x7fff_ffff).max(most));
    let most = f32::from_bits(bits);
    if !most.is_finite() {
        codes.fill(0);
        return (f32::NAN, [0; 2]);
    }
    if most < TINY {
        codes.fill(0);
        return (0.0, [0; 2]);
    }
    let inverse = MOST / most;
    for (code, x) in codes.iter_mut().zip(x) {
        *code = ((x * inverse + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32) as i8;
    }
    let sum = |codes: &[i8]| codes.iter().map(|&code| i16::from(code)).sum();
    (most / MOST, [sum(&codes[..16]), sum(&codes[16..])])
}

/// Returns the height of the next panel of `rows` rows that are left: kernels are compiled for powers of two.
pub(super) fn panel_rows(rows: usize, most: usize) -> usize {
    most.min(1 << rows.ilog2())
}

/// Interleaves the rows of each panel: of `[rows, row]`, `[row, rows]` for every panel.
fn interleave<T: Copy + Send + Sync>(from: &[T], row: usize, most: usize) -> Vec<T> {
    let mut to = from.to_vec();
    if from.len() <= row {
        return to;
    }
    let tasks = to.par_chunks_mut(most * row).zip(from.par_chunks(most * row));
    tasks.for_each(|(mut to, mut from)| {
        while !from.is_empty() {
            let rows = panel_rows(from.len() / row, most);
            let (panel, left);
            (panel, from) = from.split_at(rows * row);
            (left, to) = std::mem::take(&mut to).split_at_mut(rows * row);
            for (r, values) in panel.chunks_exact(row).enumerate() {
                for (to, value) in left.chunks_exact_mut(rows).zip(values) {
                    to[r] = *value;
                }
            }
        }
    });
    to
}

/// Rounded rows in panels of at most some rows, which lie side by side in each block of codes.
#[derive(Debug)]
pub(super) struct RowPanels {
    /// `[panel, block, row]`.
    codes: Vec<[i8; STEP]>,
    /// `[panel, block, row]`.
    scales: Vec<f32>,
}

impl RowPanels {
    pub(super) fn new(x: &RoundedRows, most: usize) -> Self {
        let blocks = x.inputs / STEP;
        Self {
            codes: interleave(x.codes.as_chunks::<STEP>().0, blocks, most),
            scales: interleave(&x.scales, blocks, most),
        }
    }

    pub(super) fn codes(&self) -> &[[i8; STEP]] {
        &self.codes
    }

    pub(super) fn scales(&self) -> &[f32] {
        &self.scales
    }
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
    pub(super) fn new(x: &RoundedRows, form: (u8, usize, bool), most: usize) -> Self {
        let (offset, group, mins) = form;
        let each = |at: usize| -> i32 {
            if group == STEP {
                i32::from(x.sums[2 * at]) + i32::from(x.sums[2 * at + 1])
            } else {
                i32::from(x.sums[at])
            }
        };
        let count = x.codes.len() / group;
        let starts = if offset == 0 { 0 } else { count };
        let sums = if mins { count } else { 0 };
        let starts: Vec<i32> = (0..starts).map(|at| -i32::from(offset) * each(at)).collect();
        let sums: Vec<f32> =
            (0..sums).map(|at| x.scales[at * group / STEP] * each(at) as f32).collect();
        let row = x.inputs / group;
        Self { starts: interleave(&starts, row, most), sums: interleave(&sums, row, most) }
    }

    pub(super) fn starts(&self) -> &[i32] {
        &self.starts
    }

    pub(super) fn sums(&self) -> &[f32] {
        &self.sums
    }
}
