//! Operations of decoders with AVX2 and F16C.
#![expect(unsafe_code, reason = "intrinsics")]

use super::{DecoderCode, DecoderOps, LaneSums, VectorBlocks, VectorCode};
use std::arch::asm;
use std::arch::x86_64::{
    __m256, __m256i, _MM_HINT_T0, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_cvtss_f32, _mm_loadl_epi64,
    _mm_loadu_si128, _mm_movemask_epi8, _mm_prefetch, _mm_sll_epi16, _mm256_add_ps,
    _mm256_and_si256, _mm256_blendv_ps, _mm256_castsi256_ps, _mm256_cmpeq_epi32,
    _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32, _mm256_fmadd_ps,
    _mm256_loadu_ps, _mm256_mul_ps, _mm256_permutevar8x32_ps, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setr_epi32, _mm256_slli_epi32, _mm256_srli_epi32, _mm256_storeu_ps, _mm256_sub_ps,
};

/// Decodes with these operations.
///
/// # Safety
/// The CPU has the features of [`crate::features::avx2`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn decode<D: DecoderCode>(bytes: &[u8], out: &mut [f32]) {
    D::decode(Avx2Ops(()), bytes, out);
}

/// Multiplies with these operations.
///
/// # Safety
/// As [`decode`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn add_products<V: VectorCode<B>, const B: usize, const N: usize>(
    rows: &[&[u8]],
    ahead: usize,
    x: &[f32],
    sums: &mut [LaneSums],
) {
    VectorBlocks::<V, B, N>::add_products(Avx2Ops(()), rows, ahead, x, sums);
}

/// Operations of AVX2; [`decode`] alone makes one.
#[derive(Clone, Copy)]
struct Avx2Ops(());

/// Widens f16 bits by F16C.
#[inline(always)]
pub(super) unsafe fn widen(bits: u16) -> f32 {
    let mut word = i32::from(bits);
    // SAFETY: the caller has the CPU features; no instruction comes of the assembly. It keeps the compiler from
    // inserting the bits into an older vector, for which the CPU would wait.
    unsafe {
        asm!("/* {0:e} */", inout(reg) word, options(pure, nomem, nostack, preserves_flags));
        _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(word)))
    }
}

/// Values 0 to 7 and 8 to 15.
#[derive(Clone, Copy)]
struct TwoVectors(__m256, __m256);

impl TwoVectors {
    /// Returns the values of eight indices; bits above the lowest four are ignored.
    #[inline(always)]
    unsafe fn get(self, indices: __m256i) -> __m256 {
        // SAFETY: the caller has the CPU features.
        unsafe {
            let low = _mm256_permutevar8x32_ps(self.0, indices);
            let high = _mm256_permutevar8x32_ps(self.1, indices);
            // The fourth bit becomes the sign, which chooses.
            _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(indices)))
        }
    }
}

impl DecoderOps for Avx2Ops {
    type Vector = TwoVectors;

    #[inline(always)]
    fn widen(self, bits: u16) -> f32 {
        // SAFETY: the CPU has the features.
        unsafe { widen(bits) }
    }
    #[inline(always)]
    fn load(self, values: &[f32; 16]) -> TwoVectors {
        let (low, high) = values.split_at(8);
        // SAFETY: the CPU has the features; 32 bytes are read from each half.
        unsafe { TwoVectors(_mm256_loadu_ps(low.as_ptr()), _mm256_loadu_ps(high.as_ptr())) }
    }
    #[inline(always)]
    fn integers(self, bytes: &[u8; 16]) -> TwoVectors {
        let (low, high) = bytes.split_at(8);
        // SAFETY: the CPU has the features; 8 bytes are read from each half.
        unsafe {
            let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(low.as_ptr().cast()));
            let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(high.as_ptr().cast()));
            TwoVectors(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }
    #[inline(always)]
    fn times(self, TwoVectors(low, high): TwoVectors, by: f32) -> TwoVectors {
        // SAFETY: the CPU has the features.
        unsafe {
            let by = _mm256_set1_ps(by);
            TwoVectors(_mm256_mul_ps(low, by), _mm256_mul_ps(high, by))
        }
    }
    #[inline(always)]
    fn plus(self, TwoVectors(low, high): TwoVectors, number: f32) -> TwoVectors {
        // SAFETY: the CPU has the features.
        unsafe {
            let number = _mm256_set1_ps(number);
            TwoVectors(_mm256_add_ps(low, number), _mm256_add_ps(high, number))
        }
    }
    #[inline(always)]
    fn minus(self, TwoVectors(low, high): TwoVectors, number: f32) -> TwoVectors {
        // SAFETY: the CPU has the features.
        unsafe {
            let number = _mm256_set1_ps(number);
            TwoVectors(_mm256_sub_ps(low, number), _mm256_sub_ps(high, number))
        }
    }
    #[inline(always)]
    fn negate(self, TwoVectors(low, high): TwoVectors, bits: u16) -> TwoVectors {
        // SAFETY: the CPU has the features.
        unsafe {
            let one = _mm256_set1_ps(1.0);
            let minus_one = _mm256_set1_ps(-1.0);
            let low_sign = _mm256_blendv_ps(one, minus_one, lanes(bits));
            let high_sign = _mm256_blendv_ps(one, minus_one, lanes(bits >> 8));
            TwoVectors(_mm256_mul_ps(low, low_sign), _mm256_mul_ps(high, high_sign))
        }
    }
    #[inline(always)]
    fn fma(self, sums: TwoVectors, values: TwoVectors, x: &[f32; 16]) -> TwoVectors {
        let x = self.load(x);
        // SAFETY: the CPU has the features.
        unsafe {
            TwoVectors(
                _mm256_fmadd_ps(values.0, x.0, sums.0),
                _mm256_fmadd_ps(values.1, x.1, sums.1),
            )
        }
    }
    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: every CPU of this kind has the instruction, which reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    fn store(self, TwoVectors(low, high): TwoVectors, out: &mut [f32; 16]) {
        let (first, last) = out.split_at_mut(8);
        // SAFETY: the CPU has the features; 32 bytes are written to each half.
        unsafe {
            _mm256_storeu_ps(first.as_mut_ptr(), low);
            _mm256_storeu_ps(last.as_mut_ptr(), high);
        }
    }
    #[inline(always)]
    fn lookup4(self, [low, high]: [TwoVectors; 2], bytes: &[u8; 16]) -> [TwoVectors; 2] {
        // SAFETY: the CPU has the features.
        unsafe {
            let levels = levels(bytes);
            let upper = upper(levels);
            [
                TwoVectors(low.get(levels[0]), low.get(levels[1])),
                TwoVectors(high.get(upper[0]), high.get(upper[1])),
            ]
        }
    }
    #[inline(always)]
    fn lookup5(
        self,
        tables: [[TwoVectors; 2]; 2],
        bytes: &[u8; 16],
        fifths: [u16; 2],
    ) -> [TwoVectors; 2] {
        // SAFETY: the CPU has the features.
        unsafe {
            let levels = levels(bytes);
            [
                choose_both(tables[0], levels, fifths[0]),
                choose_both(tables[1], upper(levels), fifths[1]),
            ]
        }
    }
    #[inline(always)]
    fn bits(self, bytes: &[u8; 16], bit: usize) -> u16 {
        // SAFETY: the CPU has the features; 16 bytes are read.
        unsafe {
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            let up = _mm_cvtsi32_si128(7 - bit as i32);
            _mm_movemask_epi8(_mm_sll_epi16(bytes, up)) as u16
        }
    }
}

/// Returns the bytes as integers.
#[inline(always)]
unsafe fn levels(bytes: &[u8; 16]) -> [__m256i; 2] {
    let (low, high) = bytes.split_at(8);
    // SAFETY: the caller has the CPU features; 8 bytes are read from each half.
    unsafe {
        [
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(low.as_ptr().cast())),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(high.as_ptr().cast())),
        ]
    }
}

/// Returns the upper four bits of bytes. A function, as all helpers here: closures and `map` are not inlined everywhere,
/// and are compiled without the features then.
#[inline(always)]
unsafe fn upper(levels: [__m256i; 2]) -> [__m256i; 2] {
    // SAFETY: the caller has the CPU features.
    unsafe { [_mm256_srli_epi32::<4>(levels[0]), _mm256_srli_epi32::<4>(levels[1])] }
}

/// Returns values of the second table where bit `l` of `fifths` is set, else of the first, for sixteen indices.
#[inline(always)]
unsafe fn choose_both(tables: [TwoVectors; 2], indices: [__m256i; 2], fifths: u16) -> TwoVectors {
    // SAFETY: the caller has the CPU features.
    unsafe {
        TwoVectors(choose(tables, indices[0], fifths), choose(tables, indices[1], fifths >> 8))
    }
}

/// Returns values of the second table where bit `l` of `fifths` is set, else of the first.
#[inline(always)]
unsafe fn choose(tables: [TwoVectors; 2], indices: __m256i, fifths: u16) -> __m256 {
    // SAFETY: the caller has the CPU features.
    unsafe { _mm256_blendv_ps(tables[0].get(indices), tables[1].get(indices), lanes(fifths)) }
}

/// Returns lanes of which all bits are those of bit `l` of `bits`.
#[inline(always)]
unsafe fn lanes(bits: u16) -> __m256 {
    // SAFETY: the caller has the CPU features.
    unsafe {
        let of_lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        let set = _mm256_and_si256(_mm256_set1_epi32(bits.into()), of_lanes);
        _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, of_lanes))
    }
}
