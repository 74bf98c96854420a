//! The tile kernel for x86-64 with AVX2, FMA and F16C.
#![expect(unsafe_code, reason = "intrinsics")]
#![expect(
    clippy::inline_always,
    reason = "intrinsics are fast only inside a function with features"
)]

use super::lanes::{Bf16Weights, F16Weights, F32Weights, Lanes, WeightFormat};
use super::pack::PackLayout;
use super::register_tile::Sweep;
use super::sweep::sweep;
use super::tile::{self, RowBlock};
use registry::dtype::Dtype;
use std::arch::x86_64::{
    __m256, __m256i, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_loadu_si128, _mm_movehdup_ps,
    _mm_movehl_ps, _mm256_add_ps, _mm256_and_si256, _mm256_castps256_ps128, _mm256_castsi256_ps,
    _mm256_cvtph_ps, _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_set1_epi32, _mm256_setzero_ps, _mm256_slli_epi32,
};

/// Lanes 0 to 7 and 8 to 15.
#[derive(Clone, Copy)]
struct Avx2(__m256, __m256);

/// Reads 32 bytes.
#[inline(always)]
unsafe fn bits(from: *const u8) -> __m256i {
    // SAFETY: the caller lets 32 bytes be read.
    unsafe { _mm256_loadu_si256(from.cast()) }
}

impl Lanes for Avx2 {
    const ROWS: usize = 3;
    const IN_TURN: bool = false;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has the CPU features.
        unsafe { Self(_mm256_setzero_ps(), _mm256_setzero_ps()) }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller lets 64 bytes be read.
        unsafe { Self(_mm256_loadu_ps(from.cast()), _mm256_loadu_ps(from.add(32).cast())) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: the caller lets 32 bytes be read.
        unsafe {
            Self(
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(16).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_odd(from: *const u8) -> Self {
        // SAFETY: the caller lets 64 bytes be read.
        unsafe {
            let mask = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
            let low = _mm256_and_si256(bits(from), mask);
            let high = _mm256_and_si256(bits(from.add(32)), mask);
            Self(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high))
        }
    }
    #[inline(always)]
    unsafe fn load_even(from: *const u8) -> Self {
        // SAFETY: the caller lets 64 bytes be read.
        unsafe {
            let low = _mm256_slli_epi32::<16>(bits(from));
            let high = _mm256_slli_epi32::<16>(bits(from.add(32)));
            Self(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high))
        }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller has the CPU features.
        unsafe { Self(_mm256_fmadd_ps(a.0, b.0, self.0), _mm256_fmadd_ps(a.1, b.1, self.1)) }
    }
    #[inline(always)]
    unsafe fn sums<const N: usize>(of: [Self; N]) -> [f32; N] {
        let mut sums = [0.0; N];
        for (Self(low, high), sum) in of.into_iter().zip(&mut sums) {
            // SAFETY: the caller has the CPU features.
            unsafe {
                let eight = _mm256_add_ps(low, high);
                let upper = _mm256_extractf128_ps::<1>(eight);
                let four = _mm_add_ps(_mm256_castps256_ps128(eight), upper);
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                *sum = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
            }
        }
        sums
    }
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline(never)]
    unsafe fn sweep<F, const R: usize, const N: usize, const FETCH: usize>(tile: &Sweep<Self, N>)
    where
        F: WeightFormat<Lanes = Self>,
    {
        // SAFETY: the caller's promise.
        unsafe { sweep::<F, R, N, FETCH>(tile) }
    }
}

/// Computes one block.
///
/// # Safety
/// As [`tile::block`], on a CPU with AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn block(kind: PackLayout, block: &RowBlock<'_>) {
    debug_assert!(kind != PackLayout::PairBf16);
    // SAFETY: the caller's promise.
    unsafe {
        match block.dtype {
            Dtype::F32 if block.blocks.is_some() => tile::decoded_block::<Avx2, 2, 4>(block),
            Dtype::F32 => tile::block::<F32Weights<Avx2>, 2>(block),
            Dtype::F16 => tile::block::<F16Weights<Avx2>, 2>(block),
            Dtype::Bf16 => tile::block::<Bf16Weights<Avx2>, 2>(block),
        }
    }
}
