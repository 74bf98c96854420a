//! Operations of decoders with AVX-512.
#![expect(unsafe_code, reason = "intrinsics")]

use super::avx2::widen;
use super::{DecoderCode, DecoderOps, LaneSums, VectorBlocks, VectorCode};
use std::arch::x86_64::{
    __m512, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_set1_epi8, _mm_test_epi8_mask,
    _mm512_add_ps, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_mask_mul_ps, _mm512_mask_permutexvar_ps, _mm512_mul_ps,
    _mm512_permutexvar_ps, _mm512_set1_ps, _mm512_srli_epi32, _mm512_storeu_ps, _mm512_sub_ps,
};

/// Decodes with these operations.
///
/// # Safety
/// The CPU has the features of [`crate::features::avx512`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn decode<D: DecoderCode>(bytes: &[u8], out: &mut [f32]) {
    D::decode(Avx512Ops(()), bytes, out);
}

/// Multiplies with these operations.
///
/// # Safety
/// As [`decode`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn add_products<V: VectorCode<B>, const B: usize, const N: usize>(
    rows: &[&[u8]],
    ahead: usize,
    x: &[f32],
    sums: &mut [LaneSums],
) {
    VectorBlocks::<V, B, N>::add_products(Avx512Ops(()), rows, ahead, x, sums);
}

/// Operations of AVX-512; [`decode`] alone makes one.
#[derive(Clone, Copy)]
struct Avx512Ops(());

impl DecoderOps for Avx512Ops {
    type Vector = __m512;

    #[inline(always)]
    fn widen(self, bits: u16) -> f32 {
        // SAFETY: the CPU has the features.
        unsafe { widen(bits) }
    }
    #[inline(always)]
    fn load(self, values: &[f32; 16]) -> __m512 {
        // SAFETY: the CPU has the features; 64 bytes are read.
        unsafe { _mm512_loadu_ps(values.as_ptr()) }
    }
    #[inline(always)]
    fn integers(self, bytes: &[u8; 16]) -> __m512 {
        // SAFETY: the CPU has the features; 16 bytes are read.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()))) }
    }
    #[inline(always)]
    fn times(self, values: __m512, by: f32) -> __m512 {
        // SAFETY: the CPU has the features.
        unsafe { _mm512_mul_ps(values, _mm512_set1_ps(by)) }
    }
    #[inline(always)]
    fn plus(self, values: __m512, number: f32) -> __m512 {
        // SAFETY: the CPU has the features.
        unsafe { _mm512_add_ps(values, _mm512_set1_ps(number)) }
    }
    #[inline(always)]
    fn minus(self, values: __m512, number: f32) -> __m512 {
        // SAFETY: the CPU has the features.
        unsafe { _mm512_sub_ps(values, _mm512_set1_ps(number)) }
    }
    #[inline(always)]
    fn negate(self, values: __m512, bits: u16) -> __m512 {
        // SAFETY: the CPU has the features.
        unsafe { _mm512_mask_mul_ps(values, bits, values, _mm512_set1_ps(-1.0)) }
    }
    #[inline(always)]
    fn fma(self, sums: __m512, values: __m512, x: &[f32; 16]) -> __m512 {
        // SAFETY: the CPU has the features; 64 bytes are read.
        unsafe { _mm512_fmadd_ps(values, _mm512_loadu_ps(x.as_ptr()), sums) }
    }
    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: every CPU of this kind has the instruction, which reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    fn store(self, values: __m512, out: &mut [f32; 16]) {
        // SAFETY: the CPU has the features; 64 bytes are written.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), values) }
    }
    #[inline(always)]
    fn lookup4(self, tables: [__m512; 2], bytes: &[u8; 16]) -> [__m512; 2] {
        // SAFETY: the CPU has the features; 16 bytes are read.
        unsafe {
            // A permutation looks at four bits of an index.
            let levels = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
            let upper = _mm512_srli_epi32::<4>(levels);
            [_mm512_permutexvar_ps(levels, tables[0]), _mm512_permutexvar_ps(upper, tables[1])]
        }
    }
    #[inline(always)]
    fn lookup5(self, tables: [[__m512; 2]; 2], bytes: &[u8; 16], fifths: [u16; 2]) -> [__m512; 2] {
        // SAFETY: the CPU has the features; 16 bytes are read.
        unsafe {
            let levels = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
            let upper = _mm512_srli_epi32::<4>(levels);
            let low = _mm512_permutexvar_ps(levels, tables[0][0]);
            let high = _mm512_permutexvar_ps(upper, tables[1][0]);
            [
                _mm512_mask_permutexvar_ps(low, fifths[0], levels, tables[0][1]),
                _mm512_mask_permutexvar_ps(high, fifths[1], upper, tables[1][1]),
            ]
        }
    }
    #[inline(always)]
    fn bits(self, bytes: &[u8; 16], bit: usize) -> u16 {
        // SAFETY: the CPU has the features; 16 bytes are read.
        unsafe {
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            _mm_test_epi8_mask(bytes, _mm_set1_epi8((1_u8 << bit).cast_signed()))
        }
    }
}
