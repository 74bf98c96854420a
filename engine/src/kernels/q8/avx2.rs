//! The kernel for x86-64 with AVX2, FMA and F16C: eight rows in a vector.
#![expect(unsafe_code, reason = "intrinsics")]
#![expect(
    clippy::inline_always,
    reason = "intrinsics are fast only inside a function with features"
)]

use std::arch::x86_64::{
    __m256, __m256i, _mm_loadl_epi64, _mm_loadu_si128, _mm256_abs_epi8, _mm256_add_epi32,
    _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_castsi256_ps, _mm256_cvtepi8_epi32,
    _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32, _mm256_cvtepu16_epi32, _mm256_cvtph_ps,
    _mm256_fmadd_ps, _mm256_fnmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_shuffle_epi8, _mm256_sign_epi8,
    _mm256_slli_epi16, _mm256_slli_epi32, _mm256_srli_epi16, _mm256_storeu_ps,
};

use super::form::PackedLayout;
use super::lanes::ByteLanes;
use super::panel::{RowPanel, panel};

#[derive(Clone, Copy)]
struct Avx2Bytes;

impl ByteLanes for Avx2Bytes {
    const LANES: usize = 8;
    const SIGNED: i32 = 0;
    type Int = __m256i;
    type Float = __m256;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m256i {
        // SAFETY: the caller lets 32 bytes be read.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn table(from: &[i8; 16]) -> __m256i {
        // SAFETY: sixteen bytes are read.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(from.as_ptr().cast())) }
    }
    #[inline(always)]
    unsafe fn splat_byte(byte: u8) -> __m256i {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm256_set1_epi8(byte.cast_signed()) }
    }
    #[inline(always)]
    unsafe fn and(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm256_and_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn right<const N: i32>(a: __m256i) -> __m256i {
        // SAFETY: the caller has the CPU features.
        unsafe {
            match N {
                0 => a,
                1 => _mm256_srli_epi16::<1>(a),
                2 => _mm256_srli_epi16::<2>(a),
                3 => _mm256_srli_epi16::<3>(a),
                _ => _mm256_srli_epi16::<4>(a),
            }
        }
    }
    #[inline(always)]
    unsafe fn left<const N: i32>(a: __m256i) -> __m256i {
        // SAFETY: the caller has the CPU features.
        unsafe {
            match N {
                0 => a,
                1 => _mm256_slli_epi16::<1>(a),
                2 => _mm256_slli_epi16::<2>(a),
                3 => _mm256_slli_epi16::<3>(a),
                _ => _mm256_slli_epi16::<4>(a),
            }
        }
    }
    #[inline(always)]
    unsafe fn lookup(table: __m256i, index: __m256i) -> __m256i {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm256_shuffle_epi8(table, index) }
    }
    #[inline(always)]
    unsafe fn signed(a: __m256i) -> __m256i {
        a
    }
    #[inline(always)]
    unsafe fn splat_int(value: i32) -> __m256i {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm256_set1_epi32(value) }
    }
    #[inline(always)]
    unsafe fn dot(sum: __m256i, levels: __m256i, x: *const i8) -> __m256i {
        // SAFETY: the caller lets four bytes be read.
        unsafe {
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            // Levels of at most 63 do not saturate: 2 * 63 * 127 < 2^15.
            let pairs = _mm256_maddubs_epi16(levels, x);
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
    #[inline(always)]
    unsafe fn dot_signed(sum: __m256i, levels: __m256i, x: *const i8) -> __m256i {
        // SAFETY: the caller lets four bytes be read.
        unsafe {
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            // Signs move to `x`, which is never -128: 2 * 128 * 127 < 2^15.
            let x = _mm256_sign_epi8(x, levels);
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(levels), x);
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
    #[inline(always)]
    unsafe fn to_float(a: __m256i) -> __m256 {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm256_cvtepi32_ps(a) }
    }
    #[inline(always)]
    unsafe fn zero() -> __m256 {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load_f32(from: *const u8) -> __m256 {
        // SAFETY: the caller lets 32 bytes be read.
        unsafe { _mm256_loadu_ps(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> __m256 {
        // SAFETY: the caller lets 16 bytes be read.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> __m256 {
        // SAFETY: the caller lets 16 bytes be read.
        unsafe {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> __m256 {
        // SAFETY: the caller lets 8 bytes be read.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> __m256 {
        // SAFETY: the caller lets 8 bytes be read.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn minus(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm256_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn store(a: __m256, to: *mut f32) {
        // SAFETY: the caller lets 32 bytes be written.
        unsafe { _mm256_storeu_ps(to, a) }
    }
}

/// Multiplies one panel.
///
/// # Safety
/// As [`panel`], on a CPU with AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<F: PackedLayout>(of: &RowPanel<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match of.rows {
            4 => panel::<Avx2Bytes, F, 4>(of),
            2 => panel::<Avx2Bytes, F, 2>(of),
            _ => panel::<Avx2Bytes, F, 1>(of),
        }
    }
}
