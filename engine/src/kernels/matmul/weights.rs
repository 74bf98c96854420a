//! Streams of each weight format into sixteen lanes.
#![expect(unsafe_code, reason = "reads of raw bytes")]
#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for vectors")]

use lanes::Simd;

/// Elements of a row in one step, whatever the format.
pub(super) const STEP: usize = 32;

/// A weight format as the tile kernel streams it, [`STEP`] elements of a row at a time.
pub(super) trait WeightFormat {
    /// Bytes of a weight row in one step.
    const BYTES: usize;
    /// Multiply-adds of a lane in one step.
    const PHASES: usize;

    /// Reads the weights of a phase.
    ///
    /// # Safety
    /// `BYTES` bytes are readable at `from`.
    unsafe fn weight<S: Simd>(s: S, from: *const u8, phase: usize) -> S::Wide;

    /// Adds the products of weights and a line of `x`.
    #[inline(always)]
    fn add_products<S: Simd>(s: S, sums: S::Wide, weights: S::Wide, x: S::Wide) -> S::Wide {
        s.fma16(sums, weights, x)
    }
}

/// f32 weights.
pub(super) struct F32Weights;
/// f16 weights, widened in registers.
pub(super) struct F16Weights;
/// bf16 weights, widened in registers.
pub(super) struct Bf16Weights;
/// bf16 weights times bf16 `x`, a pair per lane and instruction.
pub(super) struct Bf16Pairs;

impl WeightFormat for F32Weights {
    const BYTES: usize = 128;
    const PHASES: usize = 2;

    #[inline(always)]
    unsafe fn weight<S: Simd>(s: S, from: *const u8, phase: usize) -> S::Wide {
        // SAFETY: the caller's promise.
        unsafe { s.read16(from.add(64 * phase)) }
    }
}

impl WeightFormat for F16Weights {
    const BYTES: usize = 64;
    const PHASES: usize = 2;

    #[inline(always)]
    unsafe fn weight<S: Simd>(s: S, from: *const u8, phase: usize) -> S::Wide {
        // SAFETY: the caller's promise.
        unsafe { s.read16_f16(from.add(32 * phase)) }
    }
}

impl WeightFormat for Bf16Weights {
    const BYTES: usize = 64;
    const PHASES: usize = 2;

    #[inline(always)]
    unsafe fn weight<S: Simd>(s: S, from: *const u8, phase: usize) -> S::Wide {
        // SAFETY: the caller's promise.
        unsafe { if phase == 0 { s.read16_odd(from) } else { s.read16_even(from) } }
    }
}

impl WeightFormat for Bf16Pairs {
    const BYTES: usize = 64;
    const PHASES: usize = 1;

    #[inline(always)]
    unsafe fn weight<S: Simd>(s: S, from: *const u8, _phase: usize) -> S::Wide {
        // SAFETY: the caller's promise.
        unsafe { s.read16(from) }
    }
    #[inline(always)]
    fn add_products<S: Simd>(s: S, sums: S::Wide, weights: S::Wide, x: S::Wide) -> S::Wide {
        s.add_products16(sums, weights, x)
    }
}
