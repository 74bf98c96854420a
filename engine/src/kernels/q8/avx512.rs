//! The kernel for x86-64 with AVX-512 and VNNI: sixteen rows in a vector.
#![expect(unsafe_code, reason = "intrinsics")]
#![expect(
    clippy::inline_always,
    reason = "intrinsics are fast only inside a function with features"
)]

use std::arch::asm;
use std::arch::x86_64::{
    __m512, __m512i, _mm_loadu_si128, _mm256_loadu_si256, _mm512_and_si512, _mm512_broadcast_i32x4,
    _mm512_castsi512_ps, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32,
    _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_fnmadd_ps,
    _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mul_ps, _mm512_or_si512, _mm512_set1_epi8,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_shuffle_epi8, _mm512_slli_epi16,
    _mm512_slli_epi32, _mm512_srli_epi16, _mm512_storeu_ps, _mm512_xor_si512,
};

use super::form::{PackedLayout, STEP};
use super::lanes::{ByteLanes, GroupRows};
use super::panel::{RowPanel, panel};

/// The instructions for one group and row. As intrinsics they took a seventh more time: the compiler reads what
/// rows need long before its use, and has no registers left for that.
macro_rules! group {
    ($total:ident, $weight:ident, $rows:ident, $levels:tt) => {
        match ($rows.starts, $rows.sums) {
            (None, None) => {
                let starts = $rows.scales;
                group!(@ $total, $weight, $rows, $levels, zero, starts, keep, ($weight, starts))
            }
            (Some(starts), None) => {
                let sums = $rows.scales;
                group!(@ $total, $weight, $rows, $levels, load, starts, keep, ($weight, sums))
            }
            (None, Some(sums)) => {
                let starts = $rows.scales;
                group!(@ $total, $weight, $rows, $levels, zero, starts, subtract, sums)
            }
            (Some(starts), Some(sums)) => {
                group!(@ $total, $weight, $rows, $levels, load, starts, subtract, sums)
            }
        }
    };
    (@ $total:ident, $weight:ident, $rows:ident, [$($level:ident $at:literal),*],
        $start:ident, $starts:ident, $end:ident, $sums:expr) => {{
        let mut total = $total;
        let (mut _sum, mut _both): (__m512i, __m512);
        let (min, sums) = $sums;
        asm!(
            group!(@ $start),
            $(concat!(
                "vpdpbusd {sum:z}, {", stringify!($level), ":z}, dword ptr [{codes} + {code} + ", $at,
                "]{{1to16}}",
            ),)*
            "vmulps {both:z}, {weight:z}, dword ptr [{scales} + {row}]{{1to16}}",
            "vcvtdq2ps {sum:z}, {sum:z}",
            "vfmadd231ps {total:z}, {sum:z}, {both:z}",
            group!(@ $end),
            sum = out(zmm_reg) _sum,
            both = out(zmm_reg) _both,
            total = inout(zmm_reg) total,
            weight = in(zmm_reg) $weight,
            min = in(zmm_reg) min,
            $($level = in(zmm_reg) $level,)*
            codes = in(reg) $rows.codes,
            scales = in(reg) $rows.scales,
            starts = in(reg) $starts,
            sums = in(reg) sums,
            code = const STEP * ROW,
            row = const 4 * ROW,
            options(pure, readonly, nostack, preserves_flags),
        );
        total
    }};
    (@ zero) => { "vpxord {sum:z}, {sum:z}, {sum:z} /* {starts} */" };
    (@ load) => { "vpbroadcastd {sum:z}, dword ptr [{starts} + {row}]" };
    (@ keep) => { "/* {min:z} {sums} */" };
    (@ subtract) => { "vfnmadd231ps {total:z}, {min:z}, dword ptr [{sums} + {row}]{{1to16}}" };
}

#[derive(Clone, Copy)]
struct VnniBytes;

impl ByteLanes for VnniBytes {
    const LANES: usize = 16;
    const SIGNED: i32 = 128;
    type Int = __m512i;
    type Float = __m512;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512i {
        // SAFETY: the caller lets 64 bytes be read.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn table(from: &[i8; 16]) -> __m512i {
        // SAFETY: sixteen bytes are read.
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(from.as_ptr().cast())) }
    }
    #[inline(always)]
    unsafe fn splat_byte(byte: u8) -> __m512i {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm512_set1_epi8(byte.cast_signed()) }
    }
    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn right<const N: i32>(a: __m512i) -> __m512i {
        // SAFETY: the caller has the CPU features.
        unsafe {
            match N {
                0 => a,
                1 => _mm512_srli_epi16::<1>(a),
                2 => _mm512_srli_epi16::<2>(a),
                3 => _mm512_srli_epi16::<3>(a),
                _ => _mm512_srli_epi16::<4>(a),
            }
        }
    }
    #[inline(always)]
    unsafe fn left<const N: i32>(a: __m512i) -> __m512i {
        // SAFETY: the caller has the CPU features.
        unsafe {
            match N {
                0 => a,
                1 => _mm512_slli_epi16::<1>(a),
                2 => _mm512_slli_epi16::<2>(a),
                3 => _mm512_slli_epi16::<3>(a),
                _ => _mm512_slli_epi16::<4>(a),
            }
        }
    }
    #[inline(always)]
    unsafe fn lookup(table: __m512i, index: __m512i) -> __m512i {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm512_shuffle_epi8(table, index) }
    }
    #[inline(always)]
    unsafe fn signed(a: __m512i) -> __m512i {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm512_xor_si512(a, _mm512_set1_epi8(-128)) }
    }
    #[inline(always)]
    unsafe fn splat_int(value: i32) -> __m512i {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm512_set1_epi32(value) }
    }
    #[inline(always)]
    unsafe fn dot(sum: __m512i, levels: __m512i, x: *const i8) -> __m512i {
        // SAFETY: the caller lets four bytes be read.
        unsafe {
            _mm512_dpbusd_epi32(sum, levels, _mm512_set1_epi32(x.cast::<i32>().read_unaligned()))
        }
    }
    #[inline(always)]
    unsafe fn dot_signed(sum: __m512i, levels: __m512i, x: *const i8) -> __m512i {
        // SAFETY: the caller lets four bytes be read.
        unsafe { Self::dot(sum, levels, x) }
    }
    #[inline(always)]
    unsafe fn to_float(a: __m512i) -> __m512 {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm512_cvtepi32_ps(a) }
    }
    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load_f32(from: *const u8) -> __m512 {
        // SAFETY: the caller lets 64 bytes be read.
        unsafe { _mm512_loadu_ps(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> __m512 {
        // SAFETY: the caller lets 32 bytes be read.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> __m512 {
        // SAFETY: the caller lets 32 bytes be read.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> __m512 {
        // SAFETY: the caller lets 16 bytes be read.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> __m512 {
        // SAFETY: the caller lets 16 bytes be read.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn minus(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller has the CPU features.
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn store(a: __m512, to: *mut f32) {
        // SAFETY: the caller lets 64 bytes be written.
        unsafe { _mm512_storeu_ps(to, a) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    #[inline]
    unsafe fn add_group<const ROW: usize>(
        total: __m512,
        levels: &[__m512i],
        _signed: bool,
        weight: __m512,
        rows: &GroupRows<Self>,
    ) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            match *levels {
                [a, b, c, d, e, f, g, h] => {
                    group!(total, weight, rows, [a 0, b 4, c 8, d 12, e 16, f 20, g 24, h 28])
                }
                [a, b, c, d] => group!(total, weight, rows, [a 0, b 4, c 8, d 12]),
                _ => unreachable!("a group has sixteen or thirty-two values"),
            }
        }
    }
}

/// Multiplies one panel.
///
/// # Safety
/// As [`panel`], on a CPU with AVX-512F, BW, VL and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn run<F: PackedLayout>(of: &RowPanel<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match of.rows {
            16 => panel::<VnniBytes, F, 16>(of),
            8 => panel::<VnniBytes, F, 8>(of),
            4 => panel::<VnniBytes, F, 4>(of),
            2 => panel::<VnniBytes, F, 2>(of),
            _ => panel::<VnniBytes, F, 1>(of),
        }
    }
}
