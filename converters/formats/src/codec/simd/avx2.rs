//! Eight lanes, with AVX2.
#![expect(unsafe_code, reason = "intrinsics")]

use std::arch::x86_64::{
    __m256, __m256i, _CMP_LE_OQ, _CMP_LT_OQ, _mm_cvtss_f32, _mm_loadu_si128, _mm_min_ps,
    _mm_movehl_ps, _mm_shuffle_ps, _mm256_add_ps, _mm256_and_ps, _mm256_and_si256,
    _mm256_blendv_ps, _mm256_castps_si256, _mm256_castps256_ps128, _mm256_castsi256_ps,
    _mm256_cmp_ps, _mm256_cvtepi32_ps, _mm256_cvtepu16_epi32, _mm256_div_ps, _mm256_extractf128_ps,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_max_epi32, _mm256_max_ps, _mm256_min_epi32,
    _mm256_min_ps, _mm256_movemask_ps, _mm256_mul_ps, _mm256_or_ps, _mm256_permute2f128_ps,
    _mm256_permutevar8x32_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_shuffle_ps, _mm256_sqrt_ps,
    _mm256_srlv_epi32, _mm256_storeu_ps, _mm256_sub_epi32, _mm256_sub_ps, _mm256_unpackhi_ps,
    _mm256_unpacklo_ps,
};
use std::ops::{Add, Div, Mul, Sub};

use super::lanes::{Simd, SimdEncoder, Width};
use crate::codec::EncodeFn;
use crate::features;

/// Proof that the CPU has AVX2.
#[derive(Clone, Copy)]
pub(super) struct HasAvx2(());

/// Eight f32 values. They come from an [`HasAvx2`], so the CPU supports their operations.
#[derive(Clone, Copy)]
pub(super) struct F32x8(pub(super) __m256);

/// Eight u32 values.
#[derive(Clone, Copy)]
pub(super) struct U32x8(__m256i);

/// Eight boolean lanes: all bits set, or none.
#[derive(Clone, Copy)]
pub(super) struct Mask8(__m256);

impl Width for HasAvx2 {
    fn encoder<W: SimdEncoder>() -> Option<EncodeFn> {
        // SAFETY: the CPU has these features.
        features::avx2().then_some(|numbers, row, weights, out| unsafe {
            encode::<W>(numbers, row, weights, out);
        })
    }
}

#[target_feature(enable = "avx2")]
fn encode<W: SimdEncoder>(numbers: &[f32], row: usize, weights: Option<&[f32]>, out: &mut [u8]) {
    W::encode(HasAvx2(()), numbers, row, weights, out);
}

macro_rules! operator {
    ($trait:ident, $method:ident, $intrinsic:ident) => {
        impl $trait for F32x8 {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                // SAFETY: values exist only where the CPU has AVX2.
                Self(unsafe { $intrinsic(self.0, other.0) })
            }
        }
    };
}
operator!(Add, add, _mm256_add_ps);
operator!(Sub, sub, _mm256_sub_ps);
operator!(Mul, mul, _mm256_mul_ps);
operator!(Div, div, _mm256_div_ps);

impl Simd for HasAvx2 {
    const LANES: usize = 8;
    type F = F32x8;
    type M = Mask8;
    type I = U32x8;

    #[inline(always)]
    fn splat(self, x: f32) -> F32x8 {
        // SAFETY: `self` exists only where the CPU has AVX2; so below.
        F32x8(unsafe { _mm256_set1_ps(x) })
    }
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> F32x8 {
        // SAFETY: as above; eight of the sixteen are read.
        F32x8(unsafe { _mm256_loadu_ps(x.as_ptr()) })
    }
    #[inline(always)]
    fn each_column<'a>(
        self,
        group: impl Fn(usize) -> &'a [f32],
        mut each: impl FnMut(usize, F32x8),
    ) {
        let rows: [&[f32]; 8] = std::array::from_fn(group);
        for at in (0..rows[0].len()).step_by(8) {
            // SAFETY: as above.
            let columns = unsafe { transposed(rows, at) };
            for (i, column) in columns.into_iter().enumerate() {
                each(at + i, F32x8(column));
            }
        }
    }
    #[inline(always)]
    fn array(self, x: F32x8) -> [f32; 16] {
        let mut array = [0.0; 16];
        // SAFETY: as above; eight of the sixteen are written.
        unsafe { _mm256_storeu_ps(array.as_mut_ptr(), x.0) };
        array
    }
    #[inline(always)]
    fn abs(self, x: F32x8) -> F32x8 {
        // SAFETY: as above.
        F32x8(unsafe { _mm256_and_ps(x.0, _mm256_castsi256_ps(_mm256_set1_epi32(i32::MAX))) })
    }
    #[inline(always)]
    fn sqrt(self, x: F32x8) -> F32x8 {
        // SAFETY: as above.
        F32x8(unsafe { _mm256_sqrt_ps(x.0) })
    }
    #[inline(always)]
    fn lesser(self, a: F32x8, b: F32x8) -> F32x8 {
        // SAFETY: as above.
        F32x8(unsafe { _mm256_min_ps(a.0, b.0) })
    }
    #[inline(always)]
    fn greater(self, a: F32x8, b: F32x8) -> F32x8 {
        // SAFETY: as above.
        F32x8(unsafe { _mm256_max_ps(a.0, b.0) })
    }
    #[inline(always)]
    fn nearest_level(self, x: F32x8, least: f32, greatest: f32) -> F32x8 {
        let sum = x + self.splat(12_582_912.0);
        // SAFETY: as above.
        unsafe {
            let mantissa =
                _mm256_and_si256(_mm256_castps_si256(sum.0), _mm256_set1_epi32(0x007f_ffff));
            let level = _mm256_sub_epi32(mantissa, _mm256_set1_epi32(0x0040_0000));
            let level = _mm256_max_epi32(level, _mm256_set1_epi32(least as i32));
            F32x8(_mm256_cvtepi32_ps(_mm256_min_epi32(level, _mm256_set1_epi32(greatest as i32))))
        }
    }
    #[inline(always)]
    fn lt(self, a: F32x8, b: F32x8) -> Mask8 {
        // SAFETY: as above.
        Mask8(unsafe { _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0) })
    }
    #[inline(always)]
    fn le(self, a: F32x8, b: F32x8) -> Mask8 {
        // SAFETY: as above.
        Mask8(unsafe { _mm256_cmp_ps::<_CMP_LE_OQ>(a.0, b.0) })
    }
    #[inline(always)]
    fn and(self, a: Mask8, b: Mask8) -> Mask8 {
        // SAFETY: as above.
        Mask8(unsafe { _mm256_and_ps(a.0, b.0) })
    }
    #[inline(always)]
    fn or(self, a: Mask8, b: Mask8) -> Mask8 {
        // SAFETY: as above.
        Mask8(unsafe { _mm256_or_ps(a.0, b.0) })
    }
    #[inline(always)]
    fn select(self, m: Mask8, a: F32x8, b: F32x8) -> F32x8 {
        // SAFETY: as above.
        F32x8(unsafe { _mm256_blendv_ps(b.0, a.0, m.0) })
    }
    #[inline(always)]
    fn all(self, m: Mask8) -> bool {
        // SAFETY: as above.
        unsafe { _mm256_movemask_ps(m.0) == 0xff }
    }
    #[inline(always)]
    fn any(self, m: Mask8) -> bool {
        // SAFETY: as above.
        unsafe { _mm256_movemask_ps(m.0) != 0 }
    }
    #[inline(always)]
    fn bits(self, m: Mask8) -> u32 {
        // SAFETY: as above.
        (unsafe { _mm256_movemask_ps(m.0) }) as u32
    }
    #[inline(always)]
    fn least(self, x: F32x8) -> f32 {
        // SAFETY: as above.
        unsafe {
            let four = _mm_min_ps(_mm256_castps256_ps128(x.0), _mm256_extractf128_ps::<1>(x.0));
            let two = _mm_min_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_min_ps(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    fn integers(self, x: &[u32; 16]) -> U32x8 {
        // SAFETY: as above; eight of the sixteen are read.
        U32x8(unsafe { _mm256_loadu_si256(x.as_ptr().cast()) })
    }
    #[inline(always)]
    fn widened(self, x: &[u16]) -> U32x8 {
        // SAFETY: as above; slicing checks that eight can be read.
        U32x8(unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(x[..8].as_ptr().cast())) })
    }
    #[inline(always)]
    fn shift_right(self, x: U32x8, bits: u32) -> U32x8 {
        // SAFETY: as above.
        U32x8(unsafe { _mm256_srlv_epi32(x.0, _mm256_set1_epi32(bits as i32)) })
    }
    #[inline(always)]
    fn lookup(self, table: F32x8, index: U32x8) -> F32x8 {
        // SAFETY: as above.
        F32x8(unsafe { _mm256_permutevar8x32_ps(table.0, index.0) })
    }
}

/// Returns elements `at..at + 8` of eight rows: vector `i` has element `at + i` of each.
///
/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
pub(super) unsafe fn transposed(rows: [&[f32]; 8], at: usize) -> [__m256; 8] {
    // SAFETY: the caller has AVX2.
    unsafe {
        let [a, b, c, d, e, f, g, h] = rows;
        let low = four([eight(a, at), eight(b, at), eight(c, at), eight(d, at)]);
        let high = four([eight(e, at), eight(f, at), eight(g, at), eight(h, at)]);
        [
            _mm256_permute2f128_ps::<0x20>(low[0], high[0]),
            _mm256_permute2f128_ps::<0x20>(low[1], high[1]),
            _mm256_permute2f128_ps::<0x20>(low[2], high[2]),
            _mm256_permute2f128_ps::<0x20>(low[3], high[3]),
            _mm256_permute2f128_ps::<0x31>(low[0], high[0]),
            _mm256_permute2f128_ps::<0x31>(low[1], high[1]),
            _mm256_permute2f128_ps::<0x31>(low[2], high[2]),
            _mm256_permute2f128_ps::<0x31>(low[3], high[3]),
        ]
    }
}

/// Loads elements `at..at + 8` of a row.
///
/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn eight(row: &[f32], at: usize) -> __m256 {
    // SAFETY: the caller has AVX2; slicing checks that eight numbers can be read.
    unsafe { _mm256_loadu_ps(row[at..at + 8].as_ptr()) }
}

/// Transposes 4 by 4 in both halves.
///
/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn four([a, b, c, d]: [__m256; 4]) -> [__m256; 4] {
    // SAFETY: the caller has AVX2.
    unsafe {
        let ab = _mm256_unpacklo_ps(a, b);
        let ab_high = _mm256_unpackhi_ps(a, b);
        let cd = _mm256_unpacklo_ps(c, d);
        let cd_high = _mm256_unpackhi_ps(c, d);
        [
            _mm256_shuffle_ps::<0x44>(ab, cd),
            _mm256_shuffle_ps::<0xee>(ab, cd),
            _mm256_shuffle_ps::<0x44>(ab_high, cd_high),
            _mm256_shuffle_ps::<0xee>(ab_high, cd_high),
        ]
    }
}
