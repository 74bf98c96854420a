//! Blocks in rows, and the fields that many formats share.

use crate::numbers::{f16_to_f32, f32_to_f16};

/// Pairs blocks of `N` values with their `B` bytes.
pub(super) fn blocks<'a, const N: usize, const B: usize>(
    numbers: &'a [f32],
    bytes: &'a mut [u8],
) -> impl Iterator<Item = (&'a [f32; N], &'a mut [u8; B])> {
    numbers.as_chunks::<N>().0.iter().zip(bytes.as_chunks_mut::<B>().0)
}

/// Returns a block that the compiler does not see through: it would put several blocks in one vector, and
/// gather and scatter their bytes.
#[inline(always)]
pub(super) fn alone<T>(block: &T) -> &T {
    std::hint::black_box(block)
}

/// Numbers that are stored to be read one at a time. A store across two cache lines is slow to read back.
#[repr(align(64))]
pub(super) struct OneLine<T>(pub(super) T);

/// Pairs every block of a row with its part of the importances, which belong to a row.
pub(super) fn weights_of<const N: usize>(
    importance: &[f32],
    rows: usize,
) -> impl Iterator<Item = &[f32; N]> {
    std::iter::repeat_n(importance, rows).flat_map(|row| row.as_chunks::<N>().0)
}

/// Returns a function of every value. Unlike `map` of arrays it is always part of its caller, so that it is
/// compiled with the features of the caller.
#[inline(always)]
pub(super) fn each<const N: usize, A: Copy, T: Copy>(
    values: &[A; N],
    function: impl Fn(A) -> T,
) -> [T; N] {
    let mut out = [function(values[0]); N];
    for (to, &x) in out.iter_mut().zip(values) {
        *to = function(x);
    }
    out
}

/// Writes a scale as f16 and returns its decoded value.
#[inline]
pub(super) fn put_f16(bytes: &mut [u8], at: usize, value: f32) -> f32 {
    let bits = f32_to_f16(value);
    bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    f16_to_f32(bits)
}

/// Reads a scale of f16.
#[inline]
pub(super) fn get_f16(bytes: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// Returns the value of largest magnitude, with its sign; the first of equals.
#[inline]
pub(super) fn peak(numbers: &[f32]) -> f32 {
    let mut peak = 0.0_f32;
    for &x in numbers {
        if x.abs() > peak.abs() {
            peak = x;
        }
    }
    peak
}

/// Returns the `sum of x*x`, in order.
#[inline]
pub(super) fn squares(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0, |sum, x| sum + x * x)
}

/// Returns the error weight of each value: `importance * sqrt(variance + x*x)`.
#[inline]
pub(super) fn error_weights<const N: usize>(
    numbers: &[f32; N],
    importance: &[f32; N],
    variance: f32,
) -> [f32; N] {
    std::array::from_fn(|i| importance[i] * (variance + numbers[i] * numbers[i]).sqrt())
}
