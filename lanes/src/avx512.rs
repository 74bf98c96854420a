//! Vectors of AVX-512.
#![cfg_attr(not(test), expect(clippy::wildcard_imports, reason = "the intrinsics"))]
#![expect(unsafe_code, reason = "intrinsics")]

use std::arch::asm;
use std::arch::x86_64::*;

use crate::avx2::{transposed, widen};
use crate::{ByteSimd, ByteTask, GroupRows, STEP, Simd, SliceTask, VectorTask};

/// Runs a task with these vectors.
///
/// # Safety
/// The CPU has the instructions.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) unsafe fn run<T: VectorTask>(task: T) -> T::Output {
    task.run(Avx512::<false, false>(()))
}

/// Runs a task from one slice to another with these vectors.
///
/// # Safety
/// As [`run`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) unsafe fn run_slices<T: SliceTask>(task: T, from: &[T::From], to: &mut [T::To]) {
    task.run(Avx512::<false, false>(()), from, to);
}

/// Runs a task whose products are of pairs of bf16.
///
/// # Safety
/// As [`run`], and the CPU has AVX512-BF16.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(crate) unsafe fn run_pairs<T: VectorTask>(task: T) -> T::Output {
    task.run(Avx512::<true, false>(()))
}

/// Runs a task on bytes with these vectors.
///
/// # Safety
/// As [`run`], and the CPU has AVX512-VNNI.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) unsafe fn run_bytes<T: ByteTask>(task: T) -> T::Output {
    task.run(Avx512::<false, true>(()))
}

/// Runs a task in a function of its own.
///
/// # Safety
/// As [`run`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline(never)]
unsafe fn apart<T: VectorTask, const PAIRS: bool, const DOTS: bool>(task: T) -> T::Output {
    task.run(Avx512::<PAIRS, DOTS>(()))
}

/// Runs a task of pairs in a function of its own.
///
/// # Safety
/// As [`run_pairs`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
#[inline(never)]
unsafe fn pairs_apart<T: VectorTask>(task: T) -> T::Output {
    task.run(Avx512::<true, false>(()))
}

/// The back end of AVX-512; with `PAIRS` that of AVX512-BF16 too, and with `DOTS` that of AVX512-VNNI. [`run`],
/// [`run_pairs`] and [`run_bytes`] alone make one.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const PAIRS: bool, const DOTS: bool>(());

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
        let mut total = $total.0;
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
            weight = in(zmm_reg) $weight.0,
            min = in(zmm_reg) min.0,
            $($level = in(zmm_reg) $level.0,)*
            codes = in(reg) $rows.codes,
            scales = in(reg) $rows.scales,
            starts = in(reg) $starts,
            sums = in(reg) sums,
            code = const STEP * ROW,
            row = const 4 * ROW,
            options(pure, readonly, nostack, preserves_flags),
        );
        F32x16(total)
    }};
    (@ zero) => { "vpxord {sum:z}, {sum:z}, {sum:z} /* {starts} */" };
    (@ load) => { "vpbroadcastd {sum:z}, dword ptr [{starts} + {row}]" };
    (@ keep) => { "/* {min:z} {sums} */" };
    (@ subtract) => { "vfnmadd231ps {total:z}, {min:z}, dword ptr [{sums} + {row}]{{1to16}}" };
}

/// Sixteen f32 values.
#[derive(Clone, Copy)]
pub(crate) struct F32x16(__m512);

/// Sixteen u32 values.
#[derive(Clone, Copy)]
pub(crate) struct U32x16(__m512i);

macro_rules! arithmetic {
    ($($trait:ident $method:ident $intrinsic:ident),*) => {$(
        operators!(F32x16: $trait $method |a, b| {
            // SAFETY: values exist only where the CPU has the instructions.
            unsafe { $intrinsic(a, b) }
        });
    )*};
}
arithmetic!(Add add _mm512_add_ps, Sub sub _mm512_sub_ps, Mul mul _mm512_mul_ps, Div div _mm512_div_ps);

impl<const PAIRS: bool, const DOTS: bool> Simd for Avx512<PAIRS, DOTS> {
    const LANES: usize = 16;
    const REGISTERS: usize = 32;
    const PAIRS: bool = PAIRS;
    type F = F32x16;
    type M = __mmask16;
    type I = U32x16;
    type Wide = F32x16;

    operations! {
        fn splat(self, x: f32) -> F32x16 { F32x16(_mm512_set1_ps(x)) }
        fn load(self, x: &[f32; 16]) -> F32x16 { F32x16(_mm512_loadu_ps(x.as_ptr())) }
        fn array(self, x: F32x16) -> [f32; 16] {
            let mut array = [0.0; 16];
            _mm512_storeu_ps(array.as_mut_ptr(), x.0);
            array
        }
        fn abs(self, x: F32x16) -> F32x16 { F32x16(_mm512_abs_ps(x.0)) }
        fn sqrt(self, x: F32x16) -> F32x16 { F32x16(_mm512_sqrt_ps(x.0)) }
        fn lesser(self, a: F32x16, b: F32x16) -> F32x16 { F32x16(_mm512_min_ps(a.0, b.0)) }
        fn greater(self, a: F32x16, b: F32x16) -> F32x16 { F32x16(_mm512_max_ps(a.0, b.0)) }
        fn nearest_level(self, x: F32x16, least: f32, greatest: f32) -> F32x16 {
            let sum = _mm512_castps_si512(_mm512_add_ps(x.0, _mm512_set1_ps(12_582_912.0)));
            let mantissa = _mm512_and_si512(sum, _mm512_set1_epi32(0x007f_ffff));
            let level = _mm512_sub_epi32(mantissa, _mm512_set1_epi32(0x0040_0000));
            let level = _mm512_max_epi32(level, _mm512_set1_epi32(least as i32));
            F32x16(_mm512_cvtepi32_ps(_mm512_min_epi32(level, _mm512_set1_epi32(greatest as i32))))
        }
        fn lt(self, a: F32x16, b: F32x16) -> __mmask16 {
            _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a.0, b.0)
        }
        fn le(self, a: F32x16, b: F32x16) -> __mmask16 {
            _mm512_cmp_ps_mask::<_CMP_LE_OQ>(a.0, b.0)
        }
        fn select(self, m: __mmask16, a: F32x16, b: F32x16) -> F32x16 {
            F32x16(_mm512_mask_blend_ps(m, b.0, a.0))
        }
        fn least(self, x: F32x16) -> f32 { _mm512_reduce_min_ps(x.0) }
        fn integers(self, x: &[u32; 16]) -> U32x16 { U32x16(_mm512_loadu_si512(x.as_ptr().cast())) }
        fn widened(self, x: &[u16]) -> U32x16 {
            U32x16(_mm512_cvtepu16_epi32(_mm256_loadu_si256(x[..16].as_ptr().cast())))
        }
        fn shift_right(self, x: U32x16, bits: u32) -> U32x16 {
            U32x16(_mm512_srlv_epi32(x.0, _mm512_set1_epi32(bits as i32)))
        }
        fn lookup(self, table: F32x16, index: U32x16) -> F32x16 {
            F32x16(_mm512_permutexvar_ps(index.0, table.0))
        }

        fn widen(self, bits: u16) -> f32 { widen(bits) }
        fn signed16(self, bytes: &[u8; 16]) -> F32x16 {
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            F32x16(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)))
        }
        fn negate16(self, values: F32x16, bits: u16) -> F32x16 {
            F32x16(_mm512_mask_mul_ps(values.0, bits, values.0, _mm512_set1_ps(-1.0)))
        }
        fn fma16(self, sums: F32x16, a: F32x16, b: F32x16) -> F32x16 {
            F32x16(_mm512_fmadd_ps(a.0, b.0, sums.0))
        }
        fn lookup4(self, tables: [F32x16; 2], bytes: &[u8; 16]) -> [F32x16; 2] {
            // A permutation looks at four bits of an index.
            let levels = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
            let upper = _mm512_srli_epi32::<4>(levels);
            [
                F32x16(_mm512_permutexvar_ps(levels, tables[0].0)),
                F32x16(_mm512_permutexvar_ps(upper, tables[1].0)),
            ]
        }
        fn lookup5(self, tables: [[F32x16; 2]; 2], bytes: &[u8; 16], fifths: [u16; 2]) -> [F32x16; 2] {
            let levels = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
            let upper = _mm512_srli_epi32::<4>(levels);
            let low = _mm512_permutexvar_ps(levels, tables[0][0].0);
            let high = _mm512_permutexvar_ps(upper, tables[1][0].0);
            [
                F32x16(_mm512_mask_permutexvar_ps(low, fifths[0], levels, tables[0][1].0)),
                F32x16(_mm512_mask_permutexvar_ps(high, fifths[1], upper, tables[1][1].0)),
            ]
        }
        fn byte_bits(self, bytes: &[u8; 16], bit: usize) -> u16 {
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            _mm_test_epi8_mask(bytes, _mm_set1_epi8((1_u8 << bit).cast_signed()))
        }
    }

    operations! {
        unsafe
        fn read16(self, from: *const u8) -> F32x16 { F32x16(_mm512_loadu_ps(from.cast())) }
        fn read16_f16(self, from: *const u8) -> F32x16 {
            F32x16(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast())))
        }
        fn read16_odd(self, from: *const u8) -> F32x16 {
            let mask = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
            F32x16(_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(from.cast()), mask)))
        }
        fn read16_even(self, from: *const u8) -> F32x16 {
            let pairs = _mm512_loadu_si512(from.cast());
            F32x16(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)))
        }
        fn write16(self, values: F32x16, to: *mut f32) { _mm512_storeu_ps(to, values.0) }
        fn transpose16(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
            transpose(from, from_stride, to, to_stride);
        }
    }

    #[inline(always)]
    fn add_products16(self, sums: F32x16, a: F32x16, b: F32x16) -> F32x16 {
        if !PAIRS {
            return self.fma16(sums, a, b);
        }
        // SAFETY: the CPU has the instructions; the types are 512 plain bits.
        unsafe {
            let a = std::mem::transmute::<__m512, __m512bh>(a.0);
            let b = std::mem::transmute::<__m512, __m512bh>(b.0);
            F32x16(_mm512_dpbf16_ps(sums.0, a, b))
        }
    }
    #[inline(always)]
    fn sums16<const N: usize>(self, vectors: [F32x16; N]) -> [f32; N] {
        let mut sums = [0.0; N];
        for (at, sums) in sums.chunks_mut(4).enumerate() {
            let [a, b, c, d] = [
                vectors[4 * at].0,
                vectors[(4 * at + 1) % N].0,
                vectors[(4 * at + 2) % N].0,
                vectors[(4 * at + 3) % N].0,
            ];
            let mut all = [0.0; 4];
            // SAFETY: the CPU has the instructions; `all` has room for four.
            unsafe {
                let ab = halves(a, b);
                let cd = halves(c, d);
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
    #[inline(always)]
    fn apart<T: VectorTask>(self, task: T) -> T::Output {
        // SAFETY: the CPU has the instructions of this back end.
        unsafe { if PAIRS { pairs_apart(task) } else { apart::<T, PAIRS, DOTS>(task) } }
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
            // SAFETY: the CPU has the instructions; so below.
            let (low, high) = unsafe { (transposed(low, at), transposed(high, at)) };
            for (i, (low, high)) in low.into_iter().zip(high).enumerate() {
                // SAFETY: as above.
                let x = unsafe { _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high) };
                each(at + i, F32x16(x));
            }
        }
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
    fn bits(self, m: __mmask16) -> u32 {
        m.into()
    }
    #[inline(always)]
    fn splat16(self, x: f32) -> F32x16 {
        self.splat(x)
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

/// Transposes a block of sixteen by sixteen words.
///
/// # Safety
/// As [`Simd::transpose16`], on a CPU with AVX-512F.
#[inline(always)]
unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let zero = _mm512_setzero_ps();
        let mut a = [zero; 16];
        let mut b = [zero; 16];
        for (n, a) in a.iter_mut().enumerate() {
            *a = _mm512_loadu_ps(from.add(n * from_stride));
        }
        for n in 0..8 {
            b[2 * n] = _mm512_unpacklo_ps(a[2 * n], a[2 * n + 1]);
            b[2 * n + 1] = _mm512_unpackhi_ps(a[2 * n], a[2 * n + 1]);
        }
        // Afterwards quarter `l` of `a[4 n + m]` holds word `4 l + m` of rows `4 n` to `4 n + 3`.
        for n in 0..4 {
            for half in 0..2 {
                let x = _mm512_castps_pd(b[4 * n + half]);
                let y = _mm512_castps_pd(b[4 * n + half + 2]);
                a[4 * n + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
                a[4 * n + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
            }
        }
        for m in 0..4 {
            let even_low = _mm512_shuffle_f32x4::<0x88>(a[m], a[4 + m]);
            let odd_low = _mm512_shuffle_f32x4::<0xdd>(a[m], a[4 + m]);
            let even_high = _mm512_shuffle_f32x4::<0x88>(a[8 + m], a[12 + m]);
            let odd_high = _mm512_shuffle_f32x4::<0xdd>(a[8 + m], a[12 + m]);
            let rows = [
                (m, _mm512_shuffle_f32x4::<0x88>(even_low, even_high)),
                (4 + m, _mm512_shuffle_f32x4::<0x88>(odd_low, odd_high)),
                (8 + m, _mm512_shuffle_f32x4::<0xdd>(even_low, even_high)),
                (12 + m, _mm512_shuffle_f32x4::<0xdd>(odd_low, odd_high)),
            ];
            for (row, words) in rows {
                _mm512_storeu_ps(to.add(row * to_stride), words);
            }
        }
    }
}

impl ByteSimd for Avx512<false, true> {
    const SIGNED: i32 = 128;

    operations! {
        unsafe
        fn read_bytes(self, from: *const u8) -> U32x16 { U32x16(_mm512_loadu_si512(from.cast())) }
        fn dot(self, sum: U32x16, levels: U32x16, x: *const i8) -> U32x16 {
            let x = _mm512_set1_epi32(x.cast::<i32>().read_unaligned());
            U32x16(_mm512_dpbusd_epi32(sum.0, levels.0, x))
        }
        fn dot_signed(self, sum: U32x16, levels: U32x16, x: *const i8) -> U32x16 {
            self.dot(sum, levels, x)
        }
        fn read_f32(self, from: *const u8) -> F32x16 { F32x16(_mm512_loadu_ps(from.cast())) }
        fn read_f16(self, from: *const u8) -> F32x16 {
            F32x16(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast())))
        }
        fn read_bf16(self, from: *const u8) -> F32x16 {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            F32x16(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
        }
        fn read_i8(self, from: *const u8) -> F32x16 {
            F32x16(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))))
        }
        fn read_u8(self, from: *const u8) -> F32x16 {
            F32x16(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))))
        }
        fn write(self, values: F32x16, to: *mut f32) { _mm512_storeu_ps(to, values.0) }
    }

    operations! {
        fn byte_table(self, bytes: &[i8; 16]) -> U32x16 {
            U32x16(_mm512_broadcast_i32x4(_mm_loadu_si128(bytes.as_ptr().cast())))
        }
        fn splat_byte(self, byte: u8) -> U32x16 { U32x16(_mm512_set1_epi8(byte.cast_signed())) }
        fn and_bytes(self, a: U32x16, b: U32x16) -> U32x16 { U32x16(_mm512_and_si512(a.0, b.0)) }
        fn or_bytes(self, a: U32x16, b: U32x16) -> U32x16 { U32x16(_mm512_or_si512(a.0, b.0)) }
        fn pairs_right<const N: i32>(self, a: U32x16) -> U32x16 {
            match N {
                0 => a,
                1 => U32x16(_mm512_srli_epi16::<1>(a.0)),
                2 => U32x16(_mm512_srli_epi16::<2>(a.0)),
                3 => U32x16(_mm512_srli_epi16::<3>(a.0)),
                _ => U32x16(_mm512_srli_epi16::<4>(a.0)),
            }
        }
        fn pairs_left<const N: i32>(self, a: U32x16) -> U32x16 {
            match N {
                0 => a,
                1 => U32x16(_mm512_slli_epi16::<1>(a.0)),
                2 => U32x16(_mm512_slli_epi16::<2>(a.0)),
                3 => U32x16(_mm512_slli_epi16::<3>(a.0)),
                _ => U32x16(_mm512_slli_epi16::<4>(a.0)),
            }
        }
        fn lookup_bytes(self, table: U32x16, index: U32x16) -> U32x16 {
            U32x16(_mm512_shuffle_epi8(table.0, index.0))
        }
        fn add_signed(self, a: U32x16) -> U32x16 {
            U32x16(_mm512_xor_si512(a.0, _mm512_set1_epi8(-128)))
        }
        fn splat_int(self, value: i32) -> U32x16 { U32x16(_mm512_set1_epi32(value)) }
        fn to_float(self, a: U32x16) -> F32x16 { F32x16(_mm512_cvtepi32_ps(a.0)) }
        fn fma(self, a: F32x16, b: F32x16, c: F32x16) -> F32x16 {
            F32x16(_mm512_fmadd_ps(a.0, b.0, c.0))
        }
        fn minus_product(self, a: F32x16, b: F32x16, c: F32x16) -> F32x16 {
            F32x16(_mm512_fnmadd_ps(a.0, b.0, c.0))
        }
    }

    #[inline(always)]
    unsafe fn add_group<const ROW: usize>(
        self,
        total: F32x16,
        levels: &[U32x16],
        _signed: bool,
        weight: F32x16,
        rows: &GroupRows<Self>,
    ) -> F32x16 {
        // SAFETY: the caller's promise.
        unsafe { add_group::<ROW>(total, levels, weight, rows) }
    }
}

/// Computes [`ByteSimd::add_group`].
///
/// # Safety
/// As there, on a CPU with AVX512-VNNI.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
unsafe fn add_group<const ROW: usize>(
    total: F32x16,
    levels: &[U32x16],
    weight: F32x16,
    rows: &GroupRows<Avx512<false, true>>,
) -> F32x16 {
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
