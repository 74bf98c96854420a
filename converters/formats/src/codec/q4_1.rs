//! Q4_1 and Q5_1: 32 numbers, a scale and a minimum.
//!
//! `d`, `m` (f16), for Q5_1 `qh[4]`, then `qs[16]`, both as in Q4_0 and Q5_0.

use super::declaration::{BlockDeclaration, FileType, ScaleRule};
use super::layout::{blocks, each, error_weights, get_f16, put_f16, squares, weights_of};
use super::nibbles::{join4, join5, split4, split5, values_from, values4, values5};
use super::rounding::cut;
use super::search::Ladder;
use super::simd::{self, Groups, SimdEncoder};

pub(super) const Q4_1: BlockDeclaration = BlockDeclaration {
    levels: Some(|block, to| {
        to.set_shifted(get_f16(block, 0), get_f16(block, 2), &split4(&block[4..]));
    }),
    scales: ScaleRule::F16(&[0, 2]),
    error: Some(0.0783),
    file_types: &[FileType::new("Q4_1", 3)],
    encode: Some(encode::<20>),
    wide: Some(simd::encoder::<AffineBlocks<20>>),
    decode: vectors!(20, 32, |ops, block, out| {
        let d = ops.f16(block, 0);
        let m = ops.f16(block, 2);
        let table = ops.plus(ops.times(ops.load16(&const { values_from(0) }), d), m);
        values4(ops, table, &block[4..], out);
    }),
    ..BlockDeclaration::new("Q4_1", 3, 32, 20)
};

pub(super) const Q5_1: BlockDeclaration = BlockDeclaration {
    levels: Some(|block, to| {
        to.set_shifted(get_f16(block, 0), get_f16(block, 2), &split5(&block[4..]));
    }),
    scales: ScaleRule::F16(&[0, 2]),
    error: Some(0.0378),
    file_types: &[FileType::new("Q5_1", 9)],
    encode: Some(encode::<24>),
    wide: Some(simd::encoder::<AffineBlocks<24>>),
    decode: vectors!(24, 32, |ops, block, out| {
        let d = ops.f16(block, 0);
        let m = ops.f16(block, 2);
        let values = const { [values_from(0), values_from(16)] };
        let low = ops.plus(ops.times(ops.load16(&values[0]), d), m);
        let high = ops.plus(ops.times(ops.load16(&values[1]), d), m);
        values5(ops, [low, high], &block[4..], out);
    }),
    ..BlockDeclaration::new("Q5_1", 7, 32, 24)
};

/// Returns the search parameters of both formats for weighted errors.
pub(super) const fn ladder(top: i32) -> Ladder {
    Ladder { top, first: -0.9, step: 0.05, last: 36, absolute: false }
}

/// Blocks of 20 bytes are Q4_1, of 24 Q5_1.
fn encode<const B: usize>(numbers: &[f32], row: usize, importance: Option<&[f32]>, out: &mut [u8]) {
    let Some(importance) = importance else { return encode_plain::<B>(numbers, out) };
    let rows = numbers.chunks_exact(row).zip(out.chunks_exact_mut(row / 32 * B));
    for (numbers, out) in rows {
        let variance = squares(numbers) / row as f32;
        for ((x, block), importance) in
            blocks::<32, B>(numbers, out).zip(weights_of::<32>(importance, 1))
        {
            let mut levels = [0; 32];
            let weights = error_weights(x, importance, variance);
            let fit = ladder(top::<B>()).climb((x, &weights), &mut levels);
            put(block, fit.scale, -fit.minus_min, &levels);
        }
    }
}

/// Vectorized encoder, with one block per lane.
pub(super) struct AffineBlocks<const B: usize>;

impl<const B: usize> SimdEncoder for AffineBlocks<B> {
    #[inline(always)]
    fn encode<S: Groups>(
        s: S,
        numbers: &[f32],
        row: usize,
        importance: Option<&[f32]>,
        out: &mut [u8],
    ) {
        let Some(importance) = importance else {
            return encode_plain_lanes::<S, B>(s, numbers, out);
        };
        let top = top::<B>();
        let rows = numbers.chunks(row * S::LANES).zip(out.chunks_mut(row / 32 * B * S::LANES));
        for (numbers, out) in rows {
            let all = s.row_squares(numbers, row);
            let rows = numbers.chunks_exact(row).zip(out.chunks_exact_mut(row / 32 * B));
            for ((numbers, out), squares) in rows.zip(all) {
                let variance = s.splat(squares / row as f32);
                let parts = numbers.chunks(32 * S::LANES).zip(importance.chunks(32 * S::LANES));
                for ((numbers, importance), out) in parts.zip(out.chunks_mut(B * S::LANES)) {
                    let (x, weights) = s.weighted_columns::<32>(numbers, importance, variance);
                    let fit = simd::climb(s, ladder(top), &x, &weights);
                    for (lane, (x, block)) in blocks::<32, B>(numbers, out).enumerate() {
                        let levels = fit.levels(lane, top, x);
                        put(block, fit.scale[lane], -fit.minus_min[lane], &levels);
                    }
                }
            }
        }
    }
}

/// Returns the highest level.
const fn top<const B: usize>() -> i32 {
    if B == 20 { 15 } else { 31 }
}

#[inline(always)]
fn put<const B: usize>(block: &mut [u8; B], d: f32, m: f32, levels: &[u8; 32]) {
    put_f16(block, 0, d);
    put_f16(block, 2, m);
    if B == 20 {
        join4(levels, &mut block[4..]);
    } else {
        join5(levels, &mut block[4..]);
    }
}

#[inline(always)]
fn encode_plain<const B: usize>(numbers: &[f32], out: &mut [u8]) {
    for (x, block) in blocks::<32, B>(numbers, out) {
        let mut min = f32::MAX;
        let mut max = f32::MIN;
        for &x in x {
            if x < min {
                min = x;
            }
            if x > max {
                max = x;
            }
        }
        plain(x, (min, max), block);
    }
}

#[inline(always)]
fn encode_plain_lanes<S: Groups, const B: usize>(s: S, numbers: &[f32], out: &mut [u8]) {
    for (numbers, out) in numbers.chunks(32 * S::LANES).zip(out.chunks_mut(B * S::LANES)) {
        let mut min = s.splat(f32::MAX);
        let mut max = s.splat(f32::MIN);
        let groups = numbers.as_chunks::<32>().0;
        s.each_column(
            |lane: usize| &groups[lane.min(groups.len() - 1)][..],
            |_, x| (min, max) = (s.lesser(x, min), s.greater(x, max)),
        );
        let ranges = s.array(min).into_iter().zip(s.array(max));
        for ((x, block), range) in blocks::<32, B>(numbers, out).zip(ranges) {
            plain(x, range, block);
        }
    }
}

/// Spreads the levels from the least value to the greatest.
#[inline(always)]
fn plain<const B: usize>(x: &[f32; 32], (min, max): (f32, f32), block: &mut [u8; B]) {
    let d = (max - min) / top::<B>() as f32;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let levels = each(x, |x| {
        let level = cut((x - min) * inverse + 0.5);
        // Only the shorter format clamps (quantize_row_q4_1_ref, quantize_row_q5_1_ref).
        if B == 20 { (level as i8).min(15) as u8 } else { level as u8 }
    });
    put(block, d, min, &levels);
}
