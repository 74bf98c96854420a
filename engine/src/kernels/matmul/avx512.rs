//! The tile kernel for x86-64 with AVX-512, and with AVX512-BF16 where `x` is on the bf16 grid.
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
    __m512, __m512bh, _mm_storeu_ps, _mm256_loadu_si256, _mm512_add_ps, _mm512_and_si512,
    _mm512_castps512_ps128, _mm512_castsi512_ps, _mm512_cvtph_ps, _mm512_dpbf16_ps,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_permute_ps, _mm512_permutexvar_ps,
    _mm512_set1_epi32, _mm512_setr_epi32, _mm512_setzero_ps, _mm512_shuffle_f32x4,
    _mm512_slli_epi32,
};

#[derive(Clone, Copy)]
struct Avx512(__m512);

impl Lanes for Avx512 {
    const ROWS: usize = 6;
    const IN_TURN: bool = true;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has the CPU features.
        unsafe { Self(_mm512_setzero_ps()) }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller lets 64 bytes be read.
        unsafe { Self(_mm512_loadu_ps(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: the caller lets 32 bytes be read.
        unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_odd(from: *const u8) -> Self {
        // SAFETY: the caller lets 64 bytes be read.
        unsafe {
            let mask = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
            let pairs = _mm512_loadu_si512(from.cast());
            Self(_mm512_castsi512_ps(_mm512_and_si512(pairs, mask)))
        }
    }
    #[inline(always)]
    unsafe fn load_even(from: *const u8) -> Self {
        // SAFETY: the caller lets 64 bytes be read.
        unsafe {
            let pairs = _mm512_loadu_si512(from.cast());
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)))
        }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller has the CPU features.
        unsafe { Self(_mm512_fmadd_ps(a.0, b.0, self.0)) }
    }
    #[inline(always)]
    unsafe fn sums<const N: usize>(of: [Self; N]) -> [f32; N] {
        let mut sums = [0.0; N];
        for (at, sums) in sums.chunks_mut(4).enumerate() {
            let [a, b, c, d] =
                [of[4 * at], of[(4 * at + 1) % N], of[(4 * at + 2) % N], of[(4 * at + 3) % N]];
            let mut all = [0.0; 4];
            // SAFETY: the caller has the CPU features; `all` has room for four.
            unsafe {
                let ab = halves(a.0, b.0);
                let cd = halves(c.0, d.0);
                // One quarter of the vector per sum.
                let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
                let four = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd));
                let two = _mm512_add_ps(four, _mm512_permute_ps::<0b01_00_11_10>(four));
                let one = _mm512_add_ps(two, _mm512_permute_ps::<0b10_11_00_01>(two));
                let firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
                let packed = _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, one));
                _mm_storeu_ps(all.as_mut_ptr(), packed);
            }
            sums.copy_from_slice(&all[..sums.len()]);
        }
        sums
    }
    #[target_feature(enable = "avx512f,avx512vl,avx2,fma,f16c")]
    #[inline(never)]
    unsafe fn sweep<F, const R: usize, const N: usize, const FETCH: usize>(tile: &Sweep<Self, N>)
    where
        F: WeightFormat<Lanes = Self>,
    {
        // SAFETY: the caller's promise.
        unsafe { sweep::<F, R, N, FETCH>(tile) }
    }
}

/// Adds the upper half of each to its lower half, side by side.
#[inline(always)]
unsafe fn halves(a: __m512, b: __m512) -> __m512 {
    // SAFETY: the caller has the CPU features.
    unsafe {
        let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
        _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
    }
}

/// bf16 weights times bf16 `x`, a pair per lane and instruction.
struct Bf16Pairs;

impl WeightFormat for Bf16Pairs {
    type Lanes = Avx512;
    const BYTES: usize = 64;
    const PHASES: usize = 1;

    #[inline(always)]
    unsafe fn weight(from: *const u8, _phase: usize) -> Avx512 {
        // SAFETY: the caller's promise.
        unsafe { Avx512::load(from) }
    }
    #[inline(always)]
    unsafe fn fma(sum: Avx512, weight: Avx512, x: Avx512) -> Avx512 {
        // SAFETY: the caller has the CPU features; the three types are 512 plain bits.
        unsafe {
            let weight = std::mem::transmute::<__m512, __m512bh>(weight.0);
            let x = std::mem::transmute::<__m512, __m512bh>(x.0);
            Avx512(_mm512_dpbf16_ps(sum.0, weight, x))
        }
    }
    #[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
    #[inline(never)]
    unsafe fn sweep<const R: usize, const N: usize, const FETCH: usize>(tile: &Sweep<Avx512, N>) {
        // SAFETY: the caller's promise.
        unsafe { sweep::<Self, R, N, FETCH>(tile) }
    }
}

/// Computes one block.
///
/// # Safety
/// As [`tile::block`], on a CPU with AVX-512F and VL, and AVX512-BF16 if `kind` is [`PackLayout::PairBf16`].
pub(super) unsafe fn block(kind: PackLayout, block: &RowBlock<'_>) {
    // SAFETY: the caller's promise.
    unsafe { if kind == PackLayout::PairBf16 { pairs(block) } else { widened(block) } }
}

#[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
unsafe fn pairs(block: &RowBlock<'_>) {
    // SAFETY: the caller's promise.
    unsafe { tile::block::<Bf16Pairs, 4>(block) }
}

#[target_feature(enable = "avx512f,avx512vl,avx2,fma,f16c")]
unsafe fn widened(block: &RowBlock<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match block.dtype {
            Dtype::F32 if block.blocks.is_some() => tile::decoded_block::<Avx512, 4, 8>(block),
            Dtype::F32 => tile::block::<F32Weights<Avx512>, 4>(block),
            Dtype::F16 => tile::block::<F16Weights<Avx512>, 4>(block),
            Dtype::Bf16 => tile::block::<Bf16Weights<Avx512>, 4>(block),
        }
    }
}
