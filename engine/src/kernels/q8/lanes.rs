//! The vector operations that the kernel is written in.
#![expect(unsafe_code, reason = "vector loads and intrinsics")]
#![expect(
    clippy::inline_always,
    reason = "intrinsics are fast only inside a function with features"
)]

use super::form::STEP;

/// Vectors of [`Self::LANES`] numbers of 32 bits, or of four times as many bytes.
///
/// # Safety
/// Every function needs the CPU features of its implementation; pointers must be readable (or writable) for
/// the bytes each one names, at any alignment.
pub(super) trait ByteLanes: Copy {
    /// Weight rows side by side: 16, or a divisor of it.
    const LANES: usize;
    /// The number that is added to signed levels before they are multiplied.
    const SIGNED: i32;
    /// Bytes, or integers of 32 bits.
    type Int: Copy;
    type Float: Copy;

    /// Reads `4 * LANES` bytes.
    unsafe fn load(from: *const u8) -> Self::Int;
    /// Copies sixteen bytes into every 128 bits.
    unsafe fn table(from: &[i8; 16]) -> Self::Int;
    unsafe fn splat_byte(byte: u8) -> Self::Int;
    unsafe fn and(a: Self::Int, b: Self::Int) -> Self::Int;
    unsafe fn or(a: Self::Int, b: Self::Int) -> Self::Int;
    /// Shifts pairs of bytes; bits that cross between the two are masked away by callers.
    unsafe fn right<const N: i32>(a: Self::Int) -> Self::Int;
    unsafe fn left<const N: i32>(a: Self::Int) -> Self::Int;
    /// Looks up bytes below 16.
    unsafe fn lookup(table: Self::Int, index: Self::Int) -> Self::Int;
    /// Adds [`Self::SIGNED`] to signed bytes.
    unsafe fn signed(a: Self::Int) -> Self::Int;

    unsafe fn splat_int(value: i32) -> Self::Int;
    /// Adds the products of each four bytes: `levels` of at most 63 times the four signed bytes at `x`.
    unsafe fn dot(sum: Self::Int, levels: Self::Int, x: *const i8) -> Self::Int;
    /// Adds the products of each four results of [`Self::signed`] and the four signed bytes at `x`.
    unsafe fn dot_signed(sum: Self::Int, levels: Self::Int, x: *const i8) -> Self::Int;
    unsafe fn to_float(a: Self::Int) -> Self::Float;

    unsafe fn zero() -> Self::Float;
    unsafe fn splat(value: f32) -> Self::Float;
    /// Reads `LANES` numbers of f32.
    unsafe fn load_f32(from: *const u8) -> Self::Float;
    /// Reads `LANES` numbers of f16.
    unsafe fn load_f16(from: *const u8) -> Self::Float;
    /// Reads `LANES` numbers of bf16.
    unsafe fn load_bf16(from: *const u8) -> Self::Float;
    /// Reads `LANES` signed bytes.
    unsafe fn load_i8(from: *const u8) -> Self::Float;
    /// Reads `LANES` bytes.
    unsafe fn load_u8(from: *const u8) -> Self::Float;
    unsafe fn mul(a: Self::Float, b: Self::Float) -> Self::Float;
    /// Computes `a * b + c`, rounded once.
    unsafe fn fma(a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float;
    /// Computes `c - a * b`, rounded once.
    unsafe fn minus(a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float;
    unsafe fn store(a: Self::Float, to: *mut f32);

    /// Adds the products of one group to the sum of row `ROW` of a panel. `levels` are four or eight vectors,
    /// signed ones by [`Self::signed`]; `weight` is their scale.
    #[inline(always)]
    unsafe fn add_group<const ROW: usize>(
        total: Self::Float,
        levels: &[Self::Int],
        signed: bool,
        weight: Self::Float,
        rows: &GroupRows<Self>,
    ) -> Self::Float {
        // SAFETY: the caller's promise: the pointers of `rows` are those of a panel with a row `ROW`.
        unsafe {
            let start = rows.starts.map_or(0, |starts| *starts.add(ROW));
            let mut sum = Self::splat_int(start);
            for (n, levels) in levels.iter().enumerate() {
                let x = rows.codes.add(STEP * ROW + 4 * n);
                sum = if signed {
                    Self::dot_signed(sum, *levels, x)
                } else {
                    Self::dot(sum, *levels, x)
                };
            }
            let both = Self::mul(weight, Self::splat(*rows.scales.add(ROW)));
            let total = Self::fma(Self::to_float(sum), both, total);
            match rows.sums {
                Some((min, sums)) => Self::minus(min, Self::splat(*sums.add(ROW)), total),
                None => total,
            }
        }
    }
}

/// Rows of a panel in one group of a weight.
pub(super) struct GroupRows<L: ByteLanes> {
    /// Codes of the first row; those of the next one follow [`STEP`] bytes later.
    pub(super) codes: *const i8,
    /// The integers that sums begin with, one for each row; none if they are 0.
    pub(super) starts: Option<*const i32>,
    /// The scale of each row.
    pub(super) scales: *const f32,
    /// The minima of the weight, and the sum of codes times scale of each row; none without minima.
    pub(super) sums: Option<(L::Float, *const f32)>,
}
