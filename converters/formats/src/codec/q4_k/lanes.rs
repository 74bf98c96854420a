//! Vectorized Q4_K and Q5_K, with one group of 32 per lane.

use crate::codec::layout::each;
use crate::codec::q4_1::ladder;
use crate::codec::q4_k::{self, ScalesAndMins};
use crate::codec::simd::{AffineLanes, Groups, SimdEncoder, climb};

/// Encoder of both formats, distinguished by the bytes of a block.
pub(in crate::codec) struct AffineEncoder<const B: usize>;
pub(in crate::codec) type Q4K = AffineEncoder<144>;
pub(in crate::codec) type Q5K = AffineEncoder<176>;

impl<const B: usize> SimdEncoder for AffineEncoder<B> {
    #[inline(always)]
    fn encode<S: Groups>(
        simd: S,
        numbers: &[f32],
        row: usize,
        importance: Option<&[f32]>,
        out: &mut [u8],
    ) {
        encode::<S, B>(simd, numbers, row, importance, out);
    }
}

#[inline(always)]
fn encode<S: Groups, const B: usize>(
    s: S,
    numbers: &[f32],
    row: usize,
    importance: Option<&[f32]>,
    out: &mut [u8],
) {
    let Some(importance) = importance else {
        for (numbers, out) in numbers.chunks(32 * S::LANES).zip(out.chunks_mut(B * S::LANES / 8)) {
            plain::<S, B>(s, numbers, out);
        }
        return;
    };
    let mut squares = Vec::new();
    for (numbers, out) in numbers.chunks_exact(row).zip(out.chunks_exact_mut(row / 256 * B)) {
        s.block_squares::<256>(numbers, &mut squares);
        let chunks = numbers.chunks(32 * S::LANES).zip(importance.chunks(32 * S::LANES));
        let squares = squares.chunks(S::LANES / 8);
        for ((part, squares), out) in chunks.zip(squares).zip(out.chunks_mut(B * S::LANES / 8)) {
            weighted::<S, B>(s, part, squares, out);
        }
    }
}

/// Encodes up to `LANES` groups: whole blocks.
#[inline(always)]
fn plain<S: Groups, const B: usize>(s: S, numbers: &[f32], out: &mut [u8]) {
    let mut x = [s.splat(0.0); 32];
    s.columns(numbers.as_chunks().0, &mut x);
    let squares = x.iter().fold(s.splat(0.0), |sum, &x| sum + x * x);
    let mean = s.sqrt(squares / s.splat(32.0));
    let weights = each(&x, |x| mean + s.abs(x));
    let lanes = climb(s, q4_k::plain_ladder::<B>(), &x, &weights);
    let fits = lanes.scale.as_chunks().0.iter().zip(lanes.minus_min.as_chunks().0);
    let blocks = numbers.as_chunks::<256>().0.iter().zip(out.as_chunks_mut::<B>().0);
    for (n, ((x, block), (&scales, &mins))) in blocks.zip(fits).enumerate() {
        let stored = ScalesAndMins { scales, mins }.stored();
        q4_k::finish(x, stored, |j| searched::<B>(&lanes, n, j, x), block);
    }
}

/// Encodes like [`plain`], with importance and the sum of squares of each block.
#[inline(always)]
fn weighted<S: Groups, const B: usize>(
    s: S,
    (numbers, importance): (&[f32], &[f32]),
    squares: &[f32],
    out: &mut [u8],
) {
    let variance = s.load(&std::array::from_fn(|lane| {
        2.0 * squares[(lane / 8).min(squares.len() - 1)] / 256.0
    }));
    let (x, weights) = s.weighted_columns::<32>(numbers, importance, variance);
    let lanes = climb(s, ladder(q4_k::top::<B>()), &x, &weights);
    let fits = lanes.scale.as_chunks().0.iter().zip(lanes.minus_min.as_chunks().0);
    let fits = fits.zip(lanes.weight.as_chunks().0);
    let blocks = numbers.as_chunks::<256>().0.iter().zip(out.as_chunks_mut::<B>().0);
    for (n, ((x, block), ((&scales, &mins), sums))) in blocks.zip(fits).enumerate() {
        let stored = ScalesAndMins { scales, mins }.stored_weighted::<B>(sums);
        q4_k::finish(x, stored, |j| searched::<B>(&lanes, n, j, x), block);
    }
}

/// Returns the levels that the search found for group `j` of block `n`.
#[cold]
fn searched<const B: usize>(lanes: &AffineLanes, n: usize, j: usize, x: &[f32; 256]) -> [u8; 32] {
    lanes.levels(8 * n + j, q4_k::top::<B>(), &x.as_chunks().0[j])
}
