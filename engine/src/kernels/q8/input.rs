//! Rows of `x`, rounded to blocks of 32 codes of 8 bits with one scale.

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
    /// CodeSums of each 16 codes: `[rows, inputs / 16]`.
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
        if x.len() <= TASK {
            let all = blocks.iter().zip(codes).zip(&mut made.scales).zip(sums);
            all.for_each(|(((x, codes), scale), sums)| (*scale, *sums) = round(x, codes));
        } else {
            let all = blocks.par_iter().zip(codes).zip(&mut made.scales).zip(sums);
            all.with_min_len(TASK / STEP)
                .for_each(|(((x, codes), scale), sums)| (*scale, *sums) = round(x, codes));
        }
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

/// Rounds a block: to nearest, ties to even. Returns its scale and the sums of both halves.
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

/// CodeSums of codes for one layout of weights.
#[derive(Debug)]
pub(super) struct CodeSums {
    /// CodeSums that groups begin with: minus the offset of levels times the sum of codes.
    starts: Vec<i32>,
    /// CodeSums of codes times their scale.
    sums: Vec<f32>,
}

impl CodeSums {
    /// Computes the sums for groups of `group` values.
    pub(super) fn new(x: &RoundedRows, offset: u8, group: usize, mins: bool) -> Self {
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
        Self {
            starts: (0..starts).map(|at| -i32::from(offset) * each(at)).collect(),
            sums: (0..sums).map(|at| x.scales[at * group / STEP] * each(at) as f32).collect(),
        }
    }

    pub(super) fn starts(&self) -> &[i32] {
        &self.starts
    }

    pub(super) fn sums(&self) -> &[f32] {
        &self.sums
    }
}
