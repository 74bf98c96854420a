//! Sixteen lanes, with AVX-512.
#![expect(unsafe_code, reason = "intrinsics")]

use std::arch::x86_64::{
    __m512, __m512i, __mmask16, _CMP_LE_OQ, _CMP_LT_OQ, _mm256_loadu_si256, _mm512_abs_ps,
    _mm512_add_ps, _mm512_and_si512, _mm512_castps_si512, _mm512_castps256_ps512,
    _mm512_cmp_ps_mask, _mm512_cvtepi32_ps, _mm512_cvtepu16_epi32, _mm512_div_ps,
    _mm512_insertf32x8, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mask_blend_ps,
    _mm512_max_epi32, _mm512_max_ps, _mm512_min_epi32, _mm512_min_ps, _mm512_mul_ps,
    _mm512_permutexvar_ps, _mm512_reduce_min_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_sqrt_ps,
    _mm512_srlv_epi32, _mm512_storeu_ps, _mm512_sub_epi32, _mm512_sub_ps,
};
use std::ops::{Add, Div, Mul, Sub};

use super::avx2::transposed;
use super::lanes::{Simd, SimdEncoder, Width};
use crate::codec::EncodeFn;
use crate::features;

/// Proof that the CPU has AVX-512.
#[derive(Clone, Copy)]
pub(super) struct HasAvx512(());

/// Sixteen f32 values. They come from an [`HasAvx512`], so the CPU supports their operations.
#[derive(Clone, Copy)]
pub(super) struct F32x16(__m512);

/// Sixteen u32 values.
#[derive(Clone, Copy)]
pub(super) struct U32x16(__m512i);

impl Width for HasAvx512 {
    fn encoder<W: SimdEncoder>() -> Option<EncodeFn> {
        // SAFETY: the CPU has these features.
        features::avx512().then_some(|numbers, row, weights, out| unsafe {
            encode::<W>(numbers, row, weights, out);
        })
    }
}

#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
fn encode<W: SimdEncoder>(numbers: &[f32], row: usize, weights: Option<&[f32]>, out: &mut [u8]) {
    W::encode(HasAvx512(()), numbers, row, weights, out);
}

macro_rules! operator {
    ($trait:ident, $method:ident, $intrinsic:ident) => {
        impl $trait for F32x16 {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                // SAFETY: values exist only where the CPU has AVX-512.
                Self(unsafe { $intrinsic(self.0, other.0) })
            }
        }
    };
}
operator!(Add, add, _mm512_add_ps);
operator!(Sub, sub, _mm512_sub_ps);
operator!(Mul, mul, _mm512_mul_ps);
operator!(Div, div, _mm512_div_ps);

impl Simd for HasAvx512 {
    const LANES: usize = 16;
    type F = F32x16;
    type M = __mmask16;
    type I = U32x16;

    #[inline(always)]
    fn splat(self, x: f32) -> F32x16 {
        // SAFETY: `self` exists only where the CPU has AVX-512; so below.
        F32x16(unsafe { _mm512_set1_ps(x) })
    }
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> F32x16 {
        // SAFETY: as above; sixteen are read.
        F32x16(unsafe { _mm512_loadu_ps(x.as_ptr()) })
    }
    #[inline(always)]
    fn each_column<'a>(
        self,
        group: impl Fn(usize) -> &'a [f32],
        mut each: impl FnMut(usize, F32x16),
    ) {
        let low: [&[f32]; 8] = std::array::from_fn(&group);
        let high: [&[f32]; 8] = std::array::from_fn(|lane| group(lane + 8));
        for at in (0..low[0].len()).step_by(8) {
            // SAFETY: as above.
            let (low, high) = unsafe { (transposed(low, at), transposed(high, at)) };
            for (i, (low, high)) in low.into_iter().zip(high).enumerate() {
                // SAFETY: as above.
                let x = unsafe { _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high) };
                each(at + i, F32x16(x));
            }
        }
    }
    #[inline(always)]
    fn array(self, x: F32x16) -> [f32; 16] {
        let mut array = [0.0; 16];
        // SAFETY: as above; there is room for sixteen.
        unsafe { _mm512_storeu_ps(array.as_mut_ptr(), x.0) };
        array
    }
    #[inline(always)]
    fn abs(self, x: F32x16) -> F32x16 {
        // SAFETY: as above.
        F32x16(unsafe { _mm512_abs_ps(x.0) })
    }
    #[inline(always)]
    fn sqrt(self, x: F32x16) -> F32x16 {
        // SAFETY: as above.
        F32x16(unsafe { _mm512_sqrt_ps(x.0) })
    }
    #[inline(always)]
    fn lesser(self, a: F32x16, b: F32x16) -> F32x16 {
        // SAFETY: as above.
        F32x16(unsafe { _mm512_min_ps(a.0, b.0) })
    }
    #[inline(always)]
    fn greater(self, a: F32x16, b: F32x16) -> F32x16 {
        // SAFETY: as above.
        F32x16(unsafe { _mm512_max_ps(a.0, b.0) })
    }
    #[inline(always)]
    fn nearest_level(self, x: F32x16, least: f32, greatest: f32) -> F32x16 {
        let sum = x + self.splat(12_582_912.0);
        // SAFETY: as above.
        unsafe {
            let mantissa =
                _mm512_and_si512(_mm512_castps_si512(sum.0), _mm512_set1_epi32(0x007f_ffff));
            let level = _mm512_sub_epi32(mantissa, _mm512_set1_epi32(0x0040_0000));
            let level = _mm512_max_epi32(level, _mm512_set1_epi32(least as i32));
            F32x16(_mm512_cvtepi32_ps(_mm512_min_epi32(level, _mm512_set1_epi32(greatest as i32))))
        }
    }
    #[inline(always)]
    fn lt(self, a: F32x16, b: F32x16) -> __mmask16 {
        // SAFETY: as above.
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a.0, b.0) }
    }
    #[inline(always)]
    fn le(self, a: F32x16, b: F32x16) -> __mmask16 {
        // SAFETY: as above.
        unsafe { _mm512_cmp_ps_mask::<_CMP_LE_OQ>(a.0, b.0) }
    }
    #[inline(always)]
    fn and(self, a: __mmask16, b: __mmask16) -> __mmask16 {
        a & b
    }
    #[inline(always)]
    fn or(self, a: __mmask16, b: __mmask16) -> __mmask16 {
        a | b
    }
    #[inline(always)]
    fn select(self, m: __mmask16, a: F32x16, b: F32x16) -> F32x16 {
        // SAFETY: as above.
        F32x16(unsafe { _mm512_mask_blend_ps(m, b.0, a.0) })
    }
    #[inline(always)]
    fn all(self, m: __mmask16) -> bool {
        m == u16::MAX
    }
    #[inline(always)]
    fn any(self, m: __mmask16) -> bool {
        m != 0
    }
    #[inline(always)]
    fn bits(self, m: __mmask16) -> u32 {
        m.into()
    }
    #[inline(always)]
    fn least(self, x: F32x16) -> f32 {
        // SAFETY: as above.
        unsafe { _mm512_reduce_min_ps(x.0) }
    }
    #[inline(always)]
    fn integers(self, x: &[u32; 16]) -> U32x16 {
        // SAFETY: as above; sixteen are read.
        U32x16(unsafe { _mm512_loadu_si512(x.as_ptr().cast()) })
    }
    #[inline(always)]
    fn widened(self, x: &[u16]) -> U32x16 {
        // SAFETY: as above; slicing checks that sixteen can be read.
        U32x16(unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(x[..16].as_ptr().cast())) })
    }
    #[inline(always)]
    fn shift_right(self, x: U32x16, bits: u32) -> U32x16 {
        // SAFETY: as above.
        U32x16(unsafe { _mm512_srlv_epi32(x.0, _mm512_set1_epi32(bits as i32)) })
    }
    #[inline(always)]
    fn lookup(self, table: F32x16, index: U32x16) -> F32x16 {
        // SAFETY: as above.
        F32x16(unsafe { _mm512_permutexvar_ps(index.0, table.0) })
    }
}
