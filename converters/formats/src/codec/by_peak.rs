//! Formats whose blocks follow from their values and the value of largest magnitude.

use super::layout::{blocks, peak};
use super::simd::{Groups, SimdEncoder};

/// Packing of a block of `N` values into `B` bytes.
pub(super) trait PeakFormat<const N: usize, const B: usize> {
    /// Packs a block, given its value of largest magnitude. The compiler vectorizes it, so it is inlined.
    fn pack(x: &[f32; N], peak: f32, block: &mut [u8; B]);
}

/// Encodes blocks one after the other.
pub(super) fn by_peak<T: PeakFormat<N, B>, const N: usize, const B: usize>(
    numbers: &[f32],
    _row: usize,
    _importance: Option<&[f32]>,
    out: &mut [u8],
) {
    for (x, block) in blocks::<N, B>(numbers, out) {
        T::pack(x, peak(x), block);
    }
}

/// Encodes blocks, finding the peaks with a block per lane.
#[inline(always)]
pub(super) fn by_peak_in<S: Groups, T: PeakFormat<N, B>, const N: usize, const B: usize>(
    s: S,
    numbers: &[f32],
    out: &mut [u8],
) {
    for (numbers, out) in numbers.chunks(N * S::LANES).zip(out.chunks_mut(B * S::LANES)) {
        let peaks = s.peaks::<N>(numbers.as_chunks().0);
        for ((x, block), peak) in blocks::<N, B>(numbers, out).zip(peaks) {
            T::pack(x, peak, block);
        }
    }
}

/// Vectorized encoder of a format.
pub(super) struct ByPeak<T, const N: usize, const B: usize>(T);

impl<T: PeakFormat<N, B>, const N: usize, const B: usize> SimdEncoder for ByPeak<T, N, B> {
    #[inline(always)]
    fn encode<S: Groups>(
        s: S,
        numbers: &[f32],
        _row: usize,
        _importance: Option<&[f32]>,
        out: &mut [u8],
    ) {
        by_peak_in::<S, T, N, B>(s, numbers, out);
    }
}
