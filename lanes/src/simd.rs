//! The one trait.
#![expect(unsafe_code, reason = "reads and writes through pointers")]

use std::ops::{Add, Div, Mul, Sub};

/// Work that is compiled once for each instruction set.
pub trait VectorTask {
    /// Result of the work.
    type Output;
    /// Runs the work. It must always be inlined into its caller.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Work from one slice to another, as [`VectorTask`]. The compiler knows that the slices do not overlap, which it does not of
/// those that a task holds.
pub trait SliceTask {
    /// Element of the source.
    type From;
    /// Element of the destination.
    type To;
    /// Runs the work. It must always be inlined into its caller.
    fn run<S: Simd>(self, simd: S, from: &[Self::From], to: &mut [Self::To]);
}

/// Proof that the CPU has an instruction set, with the operations on its vectors.
///
/// Every operation acts on each lane like the operator of f32, and no operation is fused unless its text says so. The
/// bits of results are the same for all instruction sets, but for the signs and payloads of NaN. Comparisons with NaN
/// are false.
pub trait Simd: Copy {
    /// Lanes of a vector: 8 or 16.
    const LANES: usize;
    /// Values of [`Self::Wide`] that registers hold, about.
    const REGISTERS: usize;
    /// True if [`Self::add_products16`] takes pairs of bf16.
    const PAIRS: bool = false;
    /// Vector with an f32 per lane.
    type F: Copy
        + Add<Output = Self::F>
        + Sub<Output = Self::F>
        + Mul<Output = Self::F>
        + Div<Output = Self::F>;
    /// Vector with a boolean per lane.
    type M: Copy;
    /// Vector with a u32 per lane.
    type I: Copy;
    /// Sixteen f32, in one vector or several.
    type Wide: Copy + Add<Output = Self::Wide> + Sub<Output = Self::Wide> + Mul<Output = Self::Wide>;

    /// Returns a vector with the same value in every lane.
    fn splat(self, x: f32) -> Self::F;
    /// Loads the first `LANES` values.
    fn load(self, x: &[f32; 16]) -> Self::F;
    /// Calls `each` with element `i` of the groups of all lanes, for each `i`. Groups are equally long, a
    /// multiple of 8.
    fn each_column<'a>(self, group: impl Fn(usize) -> &'a [f32], each: impl FnMut(usize, Self::F));
    /// Returns the lanes in order.
    fn array(self, x: Self::F) -> [f32; 16];
    /// Returns magnitudes.
    fn abs(self, x: Self::F) -> Self::F;
    /// Returns square roots.
    fn sqrt(self, x: Self::F) -> Self::F;
    /// Returns `if a < b { a } else { b }`.
    fn lesser(self, a: Self::F, b: Self::F) -> Self::F;
    /// Returns `if a > b { a } else { b }`.
    fn greater(self, a: Self::F, b: Self::F) -> Self::F;
    /// Returns the lowest 23 bits of the bits of `x + 12_582_912.0`, less 2^22, clamped. For `x` below 2^22 this is the
    /// nearest integer, ties to even.
    fn nearest_level(self, x: Self::F, least: f32, greatest: f32) -> Self::F;
    /// Returns `a < b`.
    fn lt(self, a: Self::F, b: Self::F) -> Self::M;
    /// Returns `a <= b`.
    fn le(self, a: Self::F, b: Self::F) -> Self::M;
    /// Returns `a && b`.
    fn and(self, a: Self::M, b: Self::M) -> Self::M;
    /// Returns `a || b`.
    fn or(self, a: Self::M, b: Self::M) -> Self::M;
    /// Returns `if m { a } else { b }`.
    fn select(self, m: Self::M, a: Self::F, b: Self::F) -> Self::F;
    /// True if every lane is set.
    #[inline(always)]
    fn all(self, m: Self::M) -> bool {
        self.bits(m) == (1 << Self::LANES) - 1
    }
    /// True if a lane is set.
    #[inline(always)]
    fn any(self, m: Self::M) -> bool {
        self.bits(m) != 0
    }
    /// Returns the lanes that are set, the first in the lowest bit.
    fn bits(self, m: Self::M) -> u32;
    /// Returns the least lane, if none is NaN.
    fn least(self, x: Self::F) -> f32;
    /// Loads the first `LANES` integers.
    fn integers(self, x: &[u32; 16]) -> Self::I;
    /// Loads and widens `LANES` integers.
    ///
    /// # Panics
    /// If there are fewer.
    fn widened(self, x: &[u16]) -> Self::I;
    /// Shifts integers; at most 31 bits.
    fn shift_right(self, x: Self::I, bits: u32) -> Self::I;
    /// Returns the lane of `table` that each index selects by its lowest bits: three of eight lanes, four
    /// of sixteen.
    fn lookup(self, table: Self::F, index: Self::I) -> Self::F;

    /// Widens f16 bits.
    fn widen(self, bits: u16) -> f32;
    /// Reads a number of f16.
    #[inline(always)]
    fn f16(self, bytes: &[u8], at: usize) -> f32 {
        self.widen(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
    }
    /// Returns sixteen times the same value.
    fn splat16(self, x: f32) -> Self::Wide;
    /// Loads sixteen values.
    #[inline(always)]
    fn load16(self, x: &[f32; 16]) -> Self::Wide {
        // SAFETY: sixteen values are 64 bytes.
        unsafe { self.read16(x.as_ptr().cast()) }
    }
    /// Stores sixteen values.
    #[inline(always)]
    fn store16(self, values: Self::Wide, out: &mut [f32; 16]) {
        // SAFETY: there is room for sixteen.
        unsafe { self.write16(values, out.as_mut_ptr()) }
    }
    /// Reads sixteen values.
    ///
    /// # Safety
    /// 64 bytes are readable, at any alignment.
    unsafe fn read16(self, from: *const u8) -> Self::Wide;
    /// Reads sixteen values of f16.
    ///
    /// # Safety
    /// 32 bytes are readable, at any alignment.
    unsafe fn read16_f16(self, from: *const u8) -> Self::Wide;
    /// Reads 32 values of bf16 and keeps the odd ones.
    ///
    /// # Safety
    /// 64 bytes are readable, at any alignment.
    unsafe fn read16_odd(self, from: *const u8) -> Self::Wide;
    /// Reads 32 values of bf16 and keeps the even ones.
    ///
    /// # Safety
    /// 64 bytes are readable, at any alignment.
    unsafe fn read16_even(self, from: *const u8) -> Self::Wide;
    /// Writes sixteen values.
    ///
    /// # Safety
    /// Sixteen values are writable, at any alignment.
    unsafe fn write16(self, values: Self::Wide, to: *mut f32);
    /// Returns the values of bytes as signed integers.
    fn signed16(self, bytes: &[u8; 16]) -> Self::Wide;
    /// Returns `values[i] * by`.
    #[inline(always)]
    fn times(self, values: Self::Wide, by: f32) -> Self::Wide {
        values * self.splat16(by)
    }
    /// Returns `values[i] + number`.
    #[inline(always)]
    fn plus(self, values: Self::Wide, number: f32) -> Self::Wide {
        values + self.splat16(number)
    }
    /// Returns `values[i] - number`.
    #[inline(always)]
    fn minus(self, values: Self::Wide, number: f32) -> Self::Wide {
        values - self.splat16(number)
    }
    /// Returns `values[i] * -1.0` for every bit that is set.
    fn negate16(self, values: Self::Wide, bits: u16) -> Self::Wide;
    /// Returns `sums[i] + a[i] * b[i]`, rounded once.
    fn fma16(self, sums: Self::Wide, a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// Returns `sums[i] + a[i] * b[i]`, rounded once. With [`Self::PAIRS`], `a` and `b` are pairs of bf16, of which the
    /// upper one is multiplied and added first, and numbers below 2^-126 count as zero.
    #[inline(always)]
    fn add_products16(self, sums: Self::Wide, a: Self::Wide, b: Self::Wide) -> Self::Wide {
        self.fma16(sums, a, b)
    }
    /// Adds the lanes of each in halves: `l + 8`, then `l + 4`, `l + 2` and `l + 1`.
    fn sums16<const N: usize>(self, vectors: [Self::Wide; N]) -> [f32; N];
    /// Transposes sixteen words of each of sixteen rows. Reads sixteen words at `from` and every `from_stride`
    /// words on, and writes sixteen at `to` and every `to_stride` words on.
    ///
    /// # Safety
    /// These words are readable and writable.
    #[inline(always)]
    unsafe fn transpose16(
        self,
        from: *const f32,
        from_stride: usize,
        to: *mut f32,
        to_stride: usize,
    ) {
        for word in 0..16 {
            for row in 0..16 {
                // SAFETY: the caller's promise.
                unsafe { *to.add(word * to_stride + row) = *from.add(row * from_stride + word) };
            }
        }
    }
    /// Runs a task in a function of its own, so that nothing around it competes for registers.
    fn apart<T: VectorTask>(self, task: T) -> T::Output;
    /// Returns the values of the lower halves of bytes, from the first table, and of the upper halves, from the
    /// second.
    fn lookup4(self, tables: [Self::Wide; 2], bytes: &[u8; 16]) -> [Self::Wide; 2];
    /// Returns values as [`Self::lookup4`]. Each half has two tables, between which its `fifths` choose: bit
    /// `j` is that of byte `j`.
    fn lookup5(
        self,
        tables: [[Self::Wide; 2]; 2],
        bytes: &[u8; 16],
        fifths: [u16; 2],
    ) -> [Self::Wide; 2];
    /// Returns bit `bit` of every byte, that of the first byte lowest.
    fn byte_bits(self, bytes: &[u8; 16], bit: usize) -> u16;
}
