//! Products of bytes, added to integers.
#![expect(unsafe_code, reason = "reads and writes through pointers")]

use crate::Simd;

/// Codes of a row of a panel, side by side.
pub const STEP: usize = 32;

/// Work on bytes that is compiled once for each instruction set.
pub trait ByteTask {
    /// Result of the work.
    type Output;
    /// Runs the work. It must always be inlined into its caller.
    fn run<S: ByteSimd>(self, simd: S) -> Self::Output;
}

/// Operations on vectors of [`Simd::LANES`] integers of 32 bits, or of four times as many bytes. Those that multiply
/// bytes need instructions that not all CPUs with wide vectors have.
///
/// # Safety
/// Pointers must be readable (or writable) for the bytes each function names, at any alignment.
#[expect(clippy::missing_safety_doc, reason = "the rule above is that of every function")]
pub trait ByteSimd: Simd {
    /// Number that [`Self::add_signed`] adds.
    const SIGNED: i32;

    /// Reads `4 * LANES` bytes.
    unsafe fn read_bytes(self, from: *const u8) -> Self::I;
    /// Copies sixteen bytes into every 128 bits.
    fn byte_table(self, bytes: &[i8; 16]) -> Self::I;
    /// Returns the same byte everywhere.
    fn splat_byte(self, byte: u8) -> Self::I;
    /// Returns `a & b`.
    fn and_bytes(self, a: Self::I, b: Self::I) -> Self::I;
    /// Returns `a | b`.
    fn or_bytes(self, a: Self::I, b: Self::I) -> Self::I;
    /// Shifts pairs of bytes by 0 to 4 bits; bits that cross between the two are masked away by callers.
    fn pairs_right<const N: i32>(self, a: Self::I) -> Self::I;
    /// Shifts as [`Self::pairs_right`].
    fn pairs_left<const N: i32>(self, a: Self::I) -> Self::I;
    /// Looks up bytes below 16.
    fn lookup_bytes(self, table: Self::I, index: Self::I) -> Self::I;
    /// Adds [`Self::SIGNED`] to signed bytes.
    fn add_signed(self, a: Self::I) -> Self::I;

    /// Returns the same integer in every lane.
    fn splat_int(self, value: i32) -> Self::I;
    /// Adds the products of each four bytes: `levels` of at most 63 times the four signed bytes at `x`.
    unsafe fn dot(self, sum: Self::I, levels: Self::I, x: *const i8) -> Self::I;
    /// Adds the products of each four results of [`Self::add_signed`] and the four signed bytes at `x`, none of which
    /// is -128.
    unsafe fn dot_signed(self, sum: Self::I, levels: Self::I, x: *const i8) -> Self::I;
    /// Converts integers.
    fn to_float(self, a: Self::I) -> Self::F;

    /// Reads `LANES` numbers of f32.
    unsafe fn read_f32(self, from: *const u8) -> Self::F;
    /// Reads `LANES` numbers of f16.
    unsafe fn read_f16(self, from: *const u8) -> Self::F;
    /// Reads `LANES` numbers of bf16.
    unsafe fn read_bf16(self, from: *const u8) -> Self::F;
    /// Reads `LANES` signed bytes.
    unsafe fn read_i8(self, from: *const u8) -> Self::F;
    /// Reads `LANES` bytes.
    unsafe fn read_u8(self, from: *const u8) -> Self::F;
    /// Computes `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Computes `c - a * b`, rounded once.
    fn minus_product(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Writes `LANES` numbers.
    unsafe fn write(self, values: Self::F, to: *mut f32);

    /// Adds the products of one group to the sum of row `ROW` of a panel. `levels` are four or eight vectors,
    /// signed ones by [`Self::add_signed`]; `weight` is their scale.
    #[inline(always)]
    unsafe fn add_group<const ROW: usize>(
        self,
        total: Self::F,
        levels: &[Self::I],
        signed: bool,
        weight: Self::F,
        rows: &GroupRows<Self>,
    ) -> Self::F {
        // SAFETY: the caller's promise: the pointers of `rows` are those of a panel with a row `ROW`.
        unsafe {
            let start = rows.starts.map_or(0, |starts| *starts.add(ROW));
            let mut sum = self.splat_int(start);
            for (n, levels) in levels.iter().enumerate() {
                let x = rows.codes.add(STEP * ROW + 4 * n);
                sum = if signed {
                    self.dot_signed(sum, *levels, x)
                } else {
                    self.dot(sum, *levels, x)
                };
            }
            let scale = weight * self.splat(*rows.scales.add(ROW));
            let total = self.fma(self.to_float(sum), scale, total);
            match rows.sums {
                Some((min, sums)) => self.minus_product(min, self.splat(*sums.add(ROW)), total),
                None => total,
            }
        }
    }
}

/// Rows of a panel in one group of a weight.
pub struct GroupRows<S: Simd> {
    /// Codes of the first row; those of the next one follow [`STEP`] bytes later.
    pub codes: *const i8,
    /// The integers that sums begin with, one for each row; none if they are 0.
    pub starts: Option<*const i32>,
    /// The scale of each row.
    pub scales: *const f32,
    /// The minima of the weight, and the sum of codes times scale of each row; none without minima.
    pub sums: Option<(S::F, *const f32)>,
}
