//! Sixteen f32 lanes, and how each weight format streams into them.
#![expect(unsafe_code, reason = "vector loads and intrinsics")]
#![expect(
    clippy::inline_always,
    reason = "intrinsics are fast only inside a function with features"
)]

use super::register_tile::Sweep;
use std::marker::PhantomData;

/// Elements of a row in one step, whatever the format.
pub(super) const STEP: usize = 32;

/// Sixteen f32 numbers in registers.
///
/// # Safety
/// Every function needs the CPU features of its implementation; pointers must be readable
/// (or writable) for the bytes each one names, at any alignment.
pub(super) trait Lanes: Copy {
    /// Rows of `x` in the largest register tile.
    const ROWS: usize;
    /// True if the rows of `x` are loaded in turn. The compiler may otherwise load all of them first, and
    /// spill sums for it.
    const IN_TURN: bool;

    unsafe fn zero() -> Self;
    /// Reads 64 bytes.
    unsafe fn load(from: *const u8) -> Self;
    /// Reads 32 bytes of f16.
    unsafe fn load_f16(from: *const u8) -> Self;
    /// Reads 64 bytes of bf16 and keeps the odd elements.
    unsafe fn load_odd(from: *const u8) -> Self;
    /// Reads 64 bytes of bf16 and keeps the even elements.
    unsafe fn load_even(from: *const u8) -> Self;
    /// Computes `self + a * b`, rounded once.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    /// Adds the lanes of each element in halves.
    unsafe fn sums<const N: usize>(of: [Self; N]) -> [f32; N];
    /// Runs the loop over a tile, compiled for the CPU features of these lanes.
    unsafe fn sweep<F, const R: usize, const N: usize, const FETCH: usize>(tile: &Sweep<Self, N>)
    where
        F: WeightFormat<Lanes = Self>;
}

/// A weight format as the tile kernel streams it, [`STEP`] elements of a row at a time.
///
/// # Safety
/// As [`Lanes`]; `weight` reads `BYTES` bytes.
pub(super) trait WeightFormat {
    type Lanes: Lanes;
    /// Bytes of a weight row in one step.
    const BYTES: usize;
    /// Multiply-adds of a lane in one step.
    const PHASES: usize;

    unsafe fn weight(from: *const u8, phase: usize) -> Self::Lanes;
    unsafe fn fma(sum: Self::Lanes, weight: Self::Lanes, x: Self::Lanes) -> Self::Lanes;
    /// Runs the loop over a tile, compiled for the CPU features of this format.
    #[inline(always)]
    unsafe fn sweep<const R: usize, const N: usize, const FETCH: usize>(
        tile: &Sweep<Self::Lanes, N>,
    ) where
        Self: Sized,
    {
        // SAFETY: the caller's promise.
        unsafe { Self::Lanes::sweep::<Self, R, N, FETCH>(tile) }
    }
}

/// f32 weights.
pub(super) struct F32Weights<L>(PhantomData<L>);
/// f16 weights, widened in registers.
pub(super) struct F16Weights<L>(PhantomData<L>);
/// bf16 weights, widened in registers.
pub(super) struct Bf16Weights<L>(PhantomData<L>);

impl<L: Lanes> WeightFormat for F32Weights<L> {
    type Lanes = L;
    const BYTES: usize = 128;
    const PHASES: usize = 2;

    #[inline(always)]
    unsafe fn weight(from: *const u8, phase: usize) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load(from.add(64 * phase)) }
    }
    #[inline(always)]
    unsafe fn fma(sum: L, weight: L, x: L) -> L {
        // SAFETY: the caller's promise.
        unsafe { sum.fma(weight, x) }
    }
}

impl<L: Lanes> WeightFormat for F16Weights<L> {
    type Lanes = L;
    const BYTES: usize = 64;
    const PHASES: usize = 2;

    #[inline(always)]
    unsafe fn weight(from: *const u8, phase: usize) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load_f16(from.add(32 * phase)) }
    }
    #[inline(always)]
    unsafe fn fma(sum: L, weight: L, x: L) -> L {
        // SAFETY: the caller's promise.
        unsafe { sum.fma(weight, x) }
    }
}

impl<L: Lanes> WeightFormat for Bf16Weights<L> {
    type Lanes = L;
    const BYTES: usize = 64;
    const PHASES: usize = 2;

    #[inline(always)]
    unsafe fn weight(from: *const u8, phase: usize) -> L {
        // SAFETY: the caller's promise.
        unsafe { if phase == 0 { L::load_odd(from) } else { L::load_even(from) } }
    }
    #[inline(always)]
    unsafe fn fma(sum: L, weight: L, x: L) -> L {
        // SAFETY: the caller's promise.
        unsafe { sum.fma(weight, x) }
    }
}
