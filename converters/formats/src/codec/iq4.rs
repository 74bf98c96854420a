//! IQ4_NL and IQ4_XS: levels of 4 bits that index 16 unevenly spread values.
//!
//! IQ4_NL: `d` (f16), `qs[16]` for 32 values. IQ4_XS: `d`, `scales_h` (u16), `scales_l[4]`, `qs[128]` for
//! 256 values in 8 groups with scales of 6 bits. `qs` as in Q4_0.

use std::cmp::Ordering;

use super::BlockType;
use super::declaration::{BlockDeclaration, FileType, ScaleRule};
use super::layout::{blocks, each, error_weights, get_f16, peak, put_f16, squares, weights_of};
use super::levels::Levels;
use super::nibbles::{join4, split4, values4};
use super::rounding::nearest;
use super::search::TINY;
use super::simd::{self, Groups, SimdEncoder};

pub(super) const IQ4_NL: BlockDeclaration = BlockDeclaration {
    levels: Some(|block, to| to.set(get_f16(block, 0), &split4(&block[2..]), entry)),
    wide: Some(simd::encoder::<Iq4Lanes<18>>),
    scales: ScaleRule::F16(&[0]),
    error: Some(0.0755),
    file_types: &[FileType::new("IQ4_NL", 25)],
    encode: Some(|numbers, row, importance, out| match importance {
        None => {
            for (x, block) in blocks::<32, 18>(numbers, out) {
                encode_nl(x, None, block);
            }
        }
        Some(importance) => {
            let weights = weights_of::<32>(importance, numbers.len() / row);
            for ((x, block), importance) in blocks::<32, 18>(numbers, out).zip(weights) {
                encode_nl(x, Some(importance), block);
            }
        }
    }),
    decode: vectors!(18, 32, |ops, block, out| {
        let table = ops.times(ops.load16(&const { values() }), ops.f16(block, 0));
        values4(ops, table, &block[2..], out);
    }),
    ..BlockDeclaration::new("IQ4_NL", 20, 32, 18)
};

pub(super) const IQ4_XS: BlockDeclaration = BlockDeclaration {
    levels: Some(levels_xs),
    wide: Some(simd::encoder::<Iq4Lanes<136>>),
    scales: ScaleRule::F16(&[0]),
    error: Some(0.0768),
    fallback: Some(BlockType::Iq4Nl),
    file_types: &[FileType::new("IQ4_XS", 30)],
    encode: Some(|numbers, row, importance, out| match importance {
        None => {
            for (x, block) in blocks::<256, 136>(numbers, out) {
                encode_xs(x, None, block);
            }
        }
        Some(importance) => {
            let weights = weights_of::<256>(importance, numbers.len() / row);
            for ((x, block), importance) in blocks::<256, 136>(numbers, out).zip(weights) {
                encode_xs(x, Some(importance), block);
            }
        }
    }),
    decode: vectors!(136, 256, |ops, block, out| {
        let d = ops.f16(block, 0);
        let high = u16::from_le_bytes([block[2], block[3]]);
        for (j, bytes) in block[8..].as_chunks::<16>().0.iter().enumerate() {
            let low = block[4 + j / 2] >> (4 * (j % 2)) & 15;
            let scale = low as i32 | ((high >> (2 * j) & 3) as i32) << 4;
            let scale = d * (scale - 32) as f32;
            values4(ops, ops.times(ops.load16(&const { values() }), scale), bytes, out);
        }
    }),
    ..BlockDeclaration::new("IQ4_XS", 23, 256, 136)
};

/// Values of the levels (`kvalues_iq4nl`).
const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Returns [`VALUES`] as f32.
const fn values() -> [f32; 16] {
    let mut values = [0.0; 16];
    let mut level = 0;
    while level < 16 {
        values[level] = VALUES[level] as f32;
        level += 1;
    }
    values
}

fn value(level: u8) -> f32 {
    VALUES[level as usize & 15] as f32
}

/// Returns the integer that a level encodes.
pub(super) fn entry(level: u8) -> i8 {
    VALUES[level as usize & 15]
}

/// Reads a block of IQ4_XS as levels.
pub(super) fn levels_xs(block: &[u8], to: &mut Levels) {
    to.d = get_f16(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    to.scales32(std::array::from_fn(|j| {
        let low = block[4 + j / 2] >> (4 * (j % 2)) & 15;
        (low as i8 | ((high >> (2 * j) & 3) as i8) << 4) - 32
    }));
    let groups = to.levels.as_chunks_mut::<32>().0.iter_mut();
    for (levels, bytes) in groups.zip(block[8..].as_chunks::<16>().0) {
        *levels = split4(bytes).map(entry);
    }
}

/// Least number of each level but the lowest: halfway between two values, a tie goes up.
const BORDERS: [f32; 15] = {
    let mut borders = [0.0; 15];
    let mut at = 0;
    while at < 15 {
        borders[at] = f32::midpoint(VALUES[at] as f32, VALUES[at + 1] as f32);
        at += 1;
    }
    borders
};

/// Returns the level whose value is nearest; in a tie, the upper; for NaN, the highest.
#[inline(always)]
fn level(x: f32) -> u8 {
    BORDERS
        .iter()
        .map(|border| u8::from(!matches!(x.partial_cmp(border), Some(Ordering::Less))))
        .sum()
}

/// Finds the scale of a group by trying those that put the peak near the lowest value.
fn fit(x: &[f32; 32], weights: &[f32; 32]) -> f32 {
    let max = peak(x);
    if max.abs() < TINY {
        return 0.0;
    }
    let lowest = value(0);
    let (xq, q2) = sums(x, weights, 1.0 / (-max / lowest));
    let mut scale = if q2 > 0.0 { xq / q2 } else { 0.0 };
    let mut best = scale * xq;
    for step in -7_i8..=7 {
        let (xq, q2) = sums(x, weights, (step as f32 + lowest) / max);
        if q2 > 0.0 && xq * xq > best * q2 {
            scale = xq / q2;
            best = scale * xq;
        }
    }
    scale
}

/// Returns the weighted sums of value times level and of squared levels, for an inverse scale.
fn sums(x: &[f32; 32], weights: &[f32; 32], inverse: f32) -> (f32, f32) {
    let mut xq = 0.0_f32;
    let mut q2 = 0.0_f32;
    for (&x, &w) in x.iter().zip(weights) {
        let q = value(level(inverse * x));
        xq += w * q * x;
        q2 += w * q * q;
    }
    (xq, q2)
}

/// Returns the error weights: by importance, or `x*x`.
fn weigh(x: &[f32; 32], importance: Option<&[f32; 32]>, variance: f32) -> [f32; 32] {
    match importance {
        Some(importance) => error_weights(x, importance, variance),
        None => x.map(|x| x * x),
    }
}

fn encode_nl(x: &[f32; 32], importance: Option<&[f32; 32]>, block: &mut [u8; 18]) {
    let variance = squares(x) * (2.0 / 32.0);
    finish_nl(x, fit(x, &weigh(x, importance, variance)), block);
}

fn encode_xs(x: &[f32; 256], importance: Option<&[f32; 256]>, block: &mut [u8; 136]) {
    let variance = squares(x) * (2.0 / 256.0);
    let mut scales = [0.0; 8];
    for (j, x) in x.as_chunks::<32>().0.iter().enumerate() {
        let importance = importance.map(|all| &all.as_chunks::<32>().0[j]);
        scales[j] = fit(x, &weigh(x, importance, variance));
    }
    finish_xs(x, &scales, block);
}

#[inline(always)]
fn finish_nl(x: &[f32; 32], scale: f32, block: &mut [u8; 18]) {
    put_f16(block, 0, scale);
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    join4(&each(x, |x| level(inverse * x)), &mut block[2..]);
}

#[inline(always)]
fn finish_xs(x: &[f32; 256], scales: &[f32; 8], block: &mut [u8; 136]) {
    let d = -peak(scales) / 32.0;
    put_f16(block, 0, d);
    block[2..8].fill(0);
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut high = 0_u16;
    for (j, x) in x.as_chunks::<32>().0.iter().enumerate() {
        let scale = nearest(inverse * scales[j]).clamp(-32, 31);
        // The levels are chosen for the scale before it is rounded to f16.
        let inverse = d * scale as f32;
        let inverse = if inverse == 0.0 { 0.0 } else { 1.0 / inverse };
        join4(&each(x, |x| level(inverse * x)), &mut block[8 + 16 * j..]);
        let scale = (scale + 32) as u8;
        block[4 + j / 2] |= (scale & 15) << (4 * (j % 2));
        high |= (scale as u16 >> 4) << (2 * j);
    }
    block[2..4].copy_from_slice(&high.to_le_bytes());
}

/// Vectorized encoder, with a group of 32 values per lane. Blocks of 18 bytes are IQ4_NL, of 136 IQ4_XS.
pub(super) struct Iq4Lanes<const B: usize>;

impl<const B: usize> SimdEncoder for Iq4Lanes<B> {
    #[inline(always)]
    fn encode<S: Groups>(
        s: S,
        numbers: &[f32],
        row: usize,
        importance: Option<&[f32]>,
        out: &mut [u8],
    ) {
        let groups = if B == 18 { 1 } else { 8 };
        let mut squares = Vec::new();
        for (numbers, out) in
            numbers.chunks_exact(row).zip(out.chunks_exact_mut(row / 32 / groups * B))
        {
            if B != 18 && importance.is_some() {
                s.block_squares::<256>(numbers, &mut squares);
            }
            let run = 32 * S::LANES;
            let runs = numbers.chunks(run).zip(out.chunks_mut(S::LANES / groups * B));
            for (n, (numbers, out)) in runs.enumerate() {
                let mut x = [s.splat(0.0); 32];
                s.columns(numbers.as_chunks().0, &mut x);
                let mut weights = each(&x, |x| x * x);
                if let Some(importance) = importance {
                    let sums = if B == 18 {
                        weights.iter().fold(s.splat(0.0), |sum, &square| sum + square)
                    } else {
                        let squares = &squares[n * S::LANES / 8..];
                        s.load(&std::array::from_fn(|lane| {
                            squares[(lane / 8).min(squares.len() - 1)]
                        }))
                    };
                    let variance = sums * s.splat(2.0 / (32 * groups) as f32);
                    let importance = &importance[n * run..][..numbers.len()];
                    (x, weights) = s.weighted_columns(numbers, importance, variance);
                }
                let scales = fit_lanes(s, &x, &weights);
                if B == 18 {
                    for ((x, block), scale) in blocks::<32, 18>(numbers, out).zip(scales) {
                        finish_nl(x, scale, block);
                    }
                } else {
                    let scales = scales.as_chunks::<8>().0;
                    for ((x, block), scales) in blocks::<256, 136>(numbers, out).zip(scales) {
                        finish_xs(x, scales, block);
                    }
                }
            }
        }
    }
}

/// Finds the scale of each lane's group as [`fit`] does.
#[inline(always)]
fn fit_lanes<S: Groups>(s: S, x: &[S::F; 32], weights: &[S::F; 32]) -> [f32; 16] {
    let zero = s.splat(0.0);
    let (max, magnitude) = s.peak(x);
    let lowest = s.splat(value(0));
    let (xq, q2) = sums_lanes(s, s.splat(1.0) / (s.splat(-1.0) * max / lowest), x, weights);
    let mut scale = s.select(s.lt(zero, q2), xq / q2, zero);
    let mut best = scale * xq;
    for step in -7_i8..=7 {
        let inverse = (s.splat(step.into()) + lowest) / max;
        let (xq, q2) = sums_lanes(s, inverse, x, weights);
        let better = s.and(s.lt(zero, q2), s.lt(best * q2, xq * xq));
        scale = s.select(better, xq / q2, scale);
        best = s.select(better, scale * xq, best);
    }
    s.array(s.select(s.lt(magnitude, s.splat(TINY)), zero, scale))
}

/// Returns the weighted sums of products of numbers and their nearest values, and of squared values.
#[inline(always)]
fn sums_lanes<S: Groups>(
    s: S,
    inverse: S::F,
    x: &[S::F; 32],
    weights: &[S::F; 32],
) -> (S::F, S::F) {
    let mut xq = s.splat(0.0);
    let mut q2 = s.splat(0.0);
    for (&x, &w) in x.iter().zip(weights) {
        let scaled = inverse * x;
        let mut q = s.splat(value(15));
        for (&border, level) in BORDERS.iter().zip(0..15).rev() {
            q = s.select(s.lt(scaled, s.splat(border)), s.splat(value(level)), q);
        }
        xq = xq + w * q * x;
        q2 = q2 + w * q * q;
    }
    (xq, q2)
}

#[cfg(test)]
mod tests {
    use super::{VALUES, level};

    #[test]
    fn ties_go_up_and_ends_hold() {
        assert_eq!(level(-1e30), 0);
        assert_eq!(level(f32::INFINITY), 15);
        assert_eq!(level(-127.0), 0);
        assert_eq!(level(7.0), 9, "halfway between 1 and 13");
        for (at, &value) in VALUES.iter().enumerate() {
            assert_eq!(level(value as f32) as usize, at);
        }
    }
}
