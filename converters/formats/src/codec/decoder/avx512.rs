//! Operations of decoders with AVX-512.
#![expect(unsafe_code, reason = "intrinsics")]

use super::avx2::widen;
use super::{DecoderCode, DecoderOps};
use std::arch::x86_64::{
    __m512, _mm_loadu_si128, _mm_set1_epi8, _mm_test_epi8_mask, _mm512_add_ps,
    _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_loadu_ps,
    _mm512_mask_mul_ps, _mm512_mask_permutexvar_ps, _mm512_mul_ps, _mm512_permutexvar_ps,
    _mm512_set1_ps, _mm512_srli_epi32, _mm512_storeu_ps, _mm512_sub_ps,
};

/// Decodes with these operations.
///
/// # Safety
/// The CPU has the features of [`crate::features::avx512`].
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn decode<D: DecoderCode>(bytes: &[u8], out: &mut [f32]) {
    D::decode(Avx512Ops(()), bytes, out);
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
    fn store(self, values: __m512, out: &mut [f32; 16]) {
        // SAFETY: the CPU has the features; 64 bytes are written.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), values) }
    }
    #[inline(always)]
    fn lookup4(self, tables: [__m512; 2], bytes: &[u8; 16], [low, high]: [&mut [f32; 16]; 2]) {
        // SAFETY: the CPU has the features; 16 bytes are read, and 64 written to each half.
        unsafe {
            // A permutation looks at four bits of an index.
            let levels = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
            let upper = _mm512_srli_epi32::<4>(levels);
            _mm512_storeu_ps(low.as_mut_ptr(), _mm512_permutexvar_ps(levels, tables[0]));
            _mm512_storeu_ps(high.as_mut_ptr(), _mm512_permutexvar_ps(upper, tables[1]));
        }
    }
    #[inline(always)]
    fn lookup5(
        self,
        tables: [[__m512; 2]; 2],
        bytes: &[u8; 16],
        fifths: [u16; 2],
        [low, high]: [&mut [f32; 16]; 2],
    ) {
        // SAFETY: the CPU has the features; 16 bytes are read, and 64 written to each half.
        unsafe {
            let levels = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
            let upper = _mm512_srli_epi32::<4>(levels);
            let low_values = _mm512_permutexvar_ps(levels, tables[0][0]);
            let high_values = _mm512_permutexvar_ps(upper, tables[1][0]);
            let low_values =
                _mm512_mask_permutexvar_ps(low_values, fifths[0], levels, tables[0][1]);
            let high_values =
                _mm512_mask_permutexvar_ps(high_values, fifths[1], upper, tables[1][1]);
            _mm512_storeu_ps(low.as_mut_ptr(), low_values);
            _mm512_storeu_ps(high.as_mut_ptr(), high_values);
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
