//! Q4_0 and Q5_0: 32 numbers, one scale, levels on both sides of zero.
//!
//! `d` (f16), for Q5_0 `qh[4]` (bit `j`: fifth bit of number `j`), then `qs[16]` with number `j`
//! in the low half of byte `j` and number `j + 16` in the high half.

use super::by_peak::{PeakFormat, by_peak, by_peak_in};
use super::declaration::{BlockDeclaration, FileType, ScaleRule};
use super::layout::{blocks, each, error_weights, get_f16, put_f16, squares, weights_of};
use super::nibbles::{join4, join5, split4, split5, values_from, values4, values5};
use super::rounding::cut;
use super::search::signed;
use super::simd::{self, Groups, SimdEncoder};

pub(super) const Q4_0: BlockDeclaration = BlockDeclaration {
    levels: Some(|block, to| {
        to.set(get_f16(block, 0), &split4(&block[2..]), |q| q.cast_signed() - 8);
    }),
    scales: ScaleRule::F16(&[0]),
    error: Some(0.0859),
    file_types: &[FileType::new("Q4_0", 2)],
    encode: Some(encode::<18>),
    wide: Some(simd::encoder::<SignedBlocks<18>>),
    decode: vectors!(18, 32, |ops, block, out| {
        let table = ops.times(ops.load16(&const { values_from(-8) }), ops.f16(block, 0));
        values4(ops, table, &block[2..], out);
    }),
    ..BlockDeclaration::new("Q4_0", 2, 32, 18)
};

pub(super) const Q5_0: BlockDeclaration = BlockDeclaration {
    levels: Some(|block, to| {
        to.set(get_f16(block, 0), &split5(&block[2..]), |q| q.cast_signed() - 16);
    }),
    scales: ScaleRule::F16(&[0]),
    error: Some(0.0427),
    file_types: &[FileType::new("Q5_0", 8)],
    encode: Some(encode::<22>),
    wide: Some(simd::encoder::<SignedBlocks<22>>),
    decode: vectors!(22, 32, |ops, block, out| {
        let d = ops.f16(block, 0);
        let values = const { [values_from(-16), values_from(0)] };
        let tables = [ops.times(ops.load16(&values[0]), d), ops.times(ops.load16(&values[1]), d)];
        values5(ops, tables, &block[2..], out);
    }),
    ..BlockDeclaration::new("Q5_0", 6, 32, 22)
};

/// Blocks of 18 bytes are Q4_0, of 22 Q5_0.
fn encode<const B: usize>(numbers: &[f32], row: usize, importance: Option<&[f32]>, out: &mut [u8]) {
    let Some(importance) = importance else {
        return by_peak::<PlainSigned, 32, B>(numbers, row, None, out);
    };
    let rows = numbers.chunks_exact(row).zip(out.chunks_exact_mut(row / 32 * B));
    for (numbers, out) in rows {
        let variance = squares(numbers) / row as f32;
        for ((x, block), importance) in
            blocks::<32, B>(numbers, out).zip(weights_of::<32>(importance, 1))
        {
            let mut levels = [0; 32];
            let weights = error_weights(x, importance, variance);
            let d = signed(x, &weights, half::<B>(), &mut levels);
            put(block, d, &levels);
        }
    }
}

/// Vectorized encoder, with one block per lane.
pub(super) struct SignedBlocks<const B: usize>;

impl<const B: usize> SimdEncoder for SignedBlocks<B> {
    #[inline(always)]
    fn encode<S: Groups>(
        s: S,
        numbers: &[f32],
        row: usize,
        importance: Option<&[f32]>,
        out: &mut [u8],
    ) {
        let Some(importance) = importance else {
            return by_peak_in::<S, PlainSigned, 32, B>(s, numbers, out);
        };
        let half = half::<B>();
        let rows = numbers.chunks(row * S::LANES).zip(out.chunks_mut(row / 32 * B * S::LANES));
        for (numbers, out) in rows {
            let all = s.row_squares(numbers, row);
            let rows = numbers.chunks_exact(row).zip(out.chunks_exact_mut(row / 32 * B));
            for ((numbers, out), squares) in rows.zip(all) {
                let variance = s.splat(squares / row as f32);
                let parts = numbers.chunks(32 * S::LANES).zip(importance.chunks(32 * S::LANES));
                for ((numbers, importance), out) in parts.zip(out.chunks_mut(B * S::LANES)) {
                    let (x, weights) = s.weighted_columns::<32>(numbers, importance, variance);
                    let fit = simd::signed(s, half as f32, &x, &weights);
                    for (lane, (x, block)) in blocks::<32, B>(numbers, out).enumerate() {
                        put(block, fit.scale[lane], &fit.levels(lane, half, x));
                    }
                }
            }
        }
    }
}

/// Returns the level of zero.
const fn half<const B: usize>() -> i32 {
    if B == 18 { 8 } else { 16 }
}

#[inline(always)]
fn put<const B: usize>(block: &mut [u8; B], d: f32, levels: &[u8; 32]) {
    put_f16(block, 0, d);
    if B == 18 {
        join4(levels, &mut block[2..]);
    } else {
        join5(levels, &mut block[2..]);
    }
}

/// Blocks without importance: the number of largest magnitude is put at the lowest level.
struct PlainSigned;

impl<const B: usize> PeakFormat<32, B> for PlainSigned {
    #[inline(always)]
    fn pack(x: &[f32; 32], peak: f32, block: &mut [u8; B]) {
        let half = half::<B>();
        let d = peak / -half as f32;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let middle = half as f32 + 0.5;
        let top = (2 * half - 1) as i8;
        put(block, d, &each(x, |x| (cut(x * inverse + middle) as i8).min(top) as u8));
    }
}
