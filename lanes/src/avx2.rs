//! Vectors of AVX2, FMA and F16C.
#![cfg_attr(not(test), expect(clippy::wildcard_imports, reason = "the intrinsics"))]
#![expect(unsafe_code, reason = "intrinsics")]

use std::arch::asm;
use std::arch::x86_64::*;

use crate::pair::Pair;
use crate::{ByteSimd, ByteTask, Simd, SliceTask, VectorTask};

/// Runs a task with these vectors.
///
/// # Safety
/// The CPU has the instructions.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn run<T: VectorTask>(task: T) -> T::Output {
    task.run(Avx2(()))
}

/// Runs a task from one slice to another with these vectors.
///
/// # Safety
/// As [`run`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn run_slices<T: SliceTask>(task: T, from: &[T::From], to: &mut [T::To]) {
    task.run(Avx2(()), from, to);
}

/// Runs a task on bytes with these vectors.
///
/// # Safety
/// As [`run`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn run_bytes<T: ByteTask>(task: T) -> T::Output {
    task.run(Avx2(()))
}

/// Runs a task in a function of its own.
///
/// # Safety
/// As [`run`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
unsafe fn apart<T: VectorTask>(task: T) -> T::Output {
    task.run(Avx2(()))
}

/// The back end of AVX2. [`run`] alone makes one.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// Eight f32 values.
#[derive(Clone, Copy)]
pub(crate) struct F32x8(pub(crate) __m256);

/// Eight u32 values.
#[derive(Clone, Copy)]
pub(crate) struct U32x8(__m256i);

/// Eight boolean lanes: all bits set, or none.
#[derive(Clone, Copy)]
pub(crate) struct Mask8(__m256);

macro_rules! arithmetic {
    ($($trait:ident $method:ident $intrinsic:ident),*) => {$(
        operators!(F32x8: $trait $method |a, b| {
            // SAFETY: values exist only where the CPU has the instructions.
            unsafe { $intrinsic(a, b) }
        });
    )*};
}
arithmetic!(Add add _mm256_add_ps, Sub sub _mm256_sub_ps, Mul mul _mm256_mul_ps, Div div _mm256_div_ps);

impl Simd for Avx2 {
    const LANES: usize = 8;
    const REGISTERS: usize = 8;
    type F = F32x8;
    type M = Mask8;
    type I = U32x8;
    type Wide = Pair<F32x8>;

    operations! {
        fn splat(self, x: f32) -> F32x8 { F32x8(_mm256_set1_ps(x)) }
        fn load(self, x: &[f32; 16]) -> F32x8 { F32x8(_mm256_loadu_ps(x.as_ptr())) }
        fn array(self, x: F32x8) -> [f32; 16] {
            let mut array = [0.0; 16];
            _mm256_storeu_ps(array.as_mut_ptr(), x.0);
            array
        }
        fn abs(self, x: F32x8) -> F32x8 {
            F32x8(_mm256_and_ps(x.0, _mm256_castsi256_ps(_mm256_set1_epi32(i32::MAX))))
        }
        fn sqrt(self, x: F32x8) -> F32x8 { F32x8(_mm256_sqrt_ps(x.0)) }
        fn lesser(self, a: F32x8, b: F32x8) -> F32x8 { F32x8(_mm256_min_ps(a.0, b.0)) }
        fn greater(self, a: F32x8, b: F32x8) -> F32x8 { F32x8(_mm256_max_ps(a.0, b.0)) }
        fn nearest_level(self, x: F32x8, least: f32, greatest: f32) -> F32x8 {
            let sum = _mm256_castps_si256(_mm256_add_ps(x.0, _mm256_set1_ps(12_582_912.0)));
            let mantissa = _mm256_and_si256(sum, _mm256_set1_epi32(0x007f_ffff));
            let level = _mm256_sub_epi32(mantissa, _mm256_set1_epi32(0x0040_0000));
            let level = _mm256_max_epi32(level, _mm256_set1_epi32(least as i32));
            F32x8(_mm256_cvtepi32_ps(_mm256_min_epi32(level, _mm256_set1_epi32(greatest as i32))))
        }
        fn lt(self, a: F32x8, b: F32x8) -> Mask8 { Mask8(_mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0)) }
        fn le(self, a: F32x8, b: F32x8) -> Mask8 { Mask8(_mm256_cmp_ps::<_CMP_LE_OQ>(a.0, b.0)) }
        fn and(self, a: Mask8, b: Mask8) -> Mask8 { Mask8(_mm256_and_ps(a.0, b.0)) }
        fn or(self, a: Mask8, b: Mask8) -> Mask8 { Mask8(_mm256_or_ps(a.0, b.0)) }
        fn select(self, m: Mask8, a: F32x8, b: F32x8) -> F32x8 {
            F32x8(_mm256_blendv_ps(b.0, a.0, m.0))
        }
        fn bits(self, m: Mask8) -> u32 { _mm256_movemask_ps(m.0) as u32 }
        fn least(self, x: F32x8) -> f32 {
            let four = _mm_min_ps(_mm256_castps256_ps128(x.0), _mm256_extractf128_ps::<1>(x.0));
            let two = _mm_min_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_min_ps(two, _mm_shuffle_ps::<1>(two, two)))
        }
        fn integers(self, x: &[u32; 16]) -> U32x8 { U32x8(_mm256_loadu_si256(x.as_ptr().cast())) }
        fn widened(self, x: &[u16]) -> U32x8 {
            U32x8(_mm256_cvtepu16_epi32(_mm_loadu_si128(x[..8].as_ptr().cast())))
        }
        fn shift_right(self, x: U32x8, bits: u32) -> U32x8 {
            U32x8(_mm256_srlv_epi32(x.0, _mm256_set1_epi32(bits as i32)))
        }
        fn lookup(self, table: F32x8, index: U32x8) -> F32x8 {
            F32x8(_mm256_permutevar8x32_ps(table.0, index.0))
        }

        fn widen(self, bits: u16) -> f32 { widen(bits) }
        fn signed16(self, bytes: &[u8; 16]) -> Pair<F32x8> {
            let (low, high) = bytes.split_at(8);
            let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(low.as_ptr().cast()));
            let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(high.as_ptr().cast()));
            Pair(F32x8(_mm256_cvtepi32_ps(low)), F32x8(_mm256_cvtepi32_ps(high)))
        }
        fn negate16(self, values: Pair<F32x8>, bits: u16) -> Pair<F32x8> {
            let one = _mm256_set1_ps(1.0);
            let minus_one = _mm256_set1_ps(-1.0);
            let low = _mm256_blendv_ps(one, minus_one, set_lanes(bits));
            let high = _mm256_blendv_ps(one, minus_one, set_lanes(bits >> 8));
            values * Pair(F32x8(low), F32x8(high))
        }
        fn fma16(self, sums: Pair<F32x8>, a: Pair<F32x8>, b: Pair<F32x8>) -> Pair<F32x8> {
            Pair(
                F32x8(_mm256_fmadd_ps(a.0.0, b.0.0, sums.0.0)),
                F32x8(_mm256_fmadd_ps(a.1.0, b.1.0, sums.1.0)),
            )
        }
        fn lookup4(self, tables: [Pair<F32x8>; 2], bytes: &[u8; 16]) -> [Pair<F32x8>; 2] {
            let levels = levels(bytes);
            let upper = upper(levels);
            [
                Pair(get(tables[0], levels[0]), get(tables[0], levels[1])),
                Pair(get(tables[1], upper[0]), get(tables[1], upper[1])),
            ]
        }
        fn lookup5(self, tables: [[Pair<F32x8>; 2]; 2], bytes: &[u8; 16], fifths: [u16; 2]) -> [Pair<F32x8>; 2] {
            let levels = levels(bytes);
            [
                choose_both(tables[0], levels, fifths[0]),
                choose_both(tables[1], upper(levels), fifths[1]),
            ]
        }
        fn byte_bits(self, bytes: &[u8; 16], bit: usize) -> u16 {
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            let up = _mm_cvtsi32_si128(7 - bit as i32);
            _mm_movemask_epi8(_mm_sll_epi16(bytes, up)) as u16
        }
    }

    operations! {
        unsafe
        fn read16(self, from: *const u8) -> Pair<F32x8> {
            let high = _mm256_loadu_ps(from.add(32).cast());
            Pair(F32x8(_mm256_loadu_ps(from.cast())), F32x8(high))
        }
        fn read16_f16(self, from: *const u8) -> Pair<F32x8> {
            let high = _mm256_cvtph_ps(_mm_loadu_si128(from.add(16).cast()));
            Pair(F32x8(_mm256_cvtph_ps(_mm_loadu_si128(from.cast()))), F32x8(high))
        }
        fn read16_odd(self, from: *const u8) -> Pair<F32x8> {
            let mask = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
            let low = _mm256_and_si256(_mm256_loadu_si256(from.cast()), mask);
            let high = _mm256_and_si256(_mm256_loadu_si256(from.add(32).cast()), mask);
            Pair(F32x8(_mm256_castsi256_ps(low)), F32x8(_mm256_castsi256_ps(high)))
        }
        fn read16_even(self, from: *const u8) -> Pair<F32x8> {
            let low = _mm256_slli_epi32::<16>(_mm256_loadu_si256(from.cast()));
            let high = _mm256_slli_epi32::<16>(_mm256_loadu_si256(from.add(32).cast()));
            Pair(F32x8(_mm256_castsi256_ps(low)), F32x8(_mm256_castsi256_ps(high)))
        }
        fn write16(self, values: Pair<F32x8>, to: *mut f32) {
            _mm256_storeu_ps(to, values.0.0);
            _mm256_storeu_ps(to.add(8), values.1.0);
        }
    }

    #[inline(always)]
    fn sums16<const N: usize>(self, vectors: [Pair<F32x8>; N]) -> [f32; N] {
        let mut sums = [0.0; N];
        for (vector, sum) in vectors.into_iter().zip(&mut sums) {
            // SAFETY: the CPU has the instructions.
            unsafe {
                let eight = _mm256_add_ps(vector.0.0, vector.1.0);
                let upper = _mm256_extractf128_ps::<1>(eight);
                let four = _mm_add_ps(_mm256_castps256_ps128(eight), upper);
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                *sum = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
            }
        }
        sums
    }
    #[inline(always)]
    fn apart<T: VectorTask>(self, task: T) -> T::Output {
        // SAFETY: the CPU has the instructions.
        unsafe { apart(task) }
    }
    #[inline(always)]
    fn splat16(self, x: f32) -> Pair<F32x8> {
        Pair(self.splat(x), self.splat(x))
    }
    #[inline(always)]
    fn each_column<'a>(
        self,
        group: impl Fn(usize) -> &'a [f32],
        mut each: impl FnMut(usize, F32x8),
    ) {
        let rows: [&[f32]; 8] = std::array::from_fn(group);
        for at in (0..rows[0].len()).step_by(8) {
            // SAFETY: the CPU has the instructions.
            let columns = unsafe { transposed(rows, at) };
            for (i, column) in columns.into_iter().enumerate() {
                each(at + i, F32x8(column));
            }
        }
    }
}

impl ByteSimd for Avx2 {
    const SIGNED: i32 = 0;

    operations! {
        unsafe
        fn read_bytes(self, from: *const u8) -> U32x8 { U32x8(_mm256_loadu_si256(from.cast())) }
        fn dot(self, sum: U32x8, levels: U32x8, x: *const i8) -> U32x8 {
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            // Levels of at most 63 do not saturate: 2 * 63 * 127 < 2^15.
            let pairs = _mm256_maddubs_epi16(levels.0, x);
            U32x8(_mm256_add_epi32(sum.0, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))))
        }
        fn dot_signed(self, sum: U32x8, levels: U32x8, x: *const i8) -> U32x8 {
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            // Signs move to `x`, which is never -128: 2 * 128 * 127 < 2^15.
            let x = _mm256_sign_epi8(x, levels.0);
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(levels.0), x);
            U32x8(_mm256_add_epi32(sum.0, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))))
        }
        fn read_f32(self, from: *const u8) -> F32x8 { F32x8(_mm256_loadu_ps(from.cast())) }
        fn read_f16(self, from: *const u8) -> F32x8 {
            F32x8(_mm256_cvtph_ps(_mm_loadu_si128(from.cast())))
        }
        fn read_bf16(self, from: *const u8) -> F32x8 {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            F32x8(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)))
        }
        fn read_i8(self, from: *const u8) -> F32x8 {
            F32x8(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))))
        }
        fn read_u8(self, from: *const u8) -> F32x8 {
            F32x8(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))))
        }
        fn write(self, values: F32x8, to: *mut f32) { _mm256_storeu_ps(to, values.0) }
    }

    operations! {
        fn byte_table(self, bytes: &[i8; 16]) -> U32x8 {
            U32x8(_mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast())))
        }
        fn splat_byte(self, byte: u8) -> U32x8 { U32x8(_mm256_set1_epi8(byte.cast_signed())) }
        fn and_bytes(self, a: U32x8, b: U32x8) -> U32x8 { U32x8(_mm256_and_si256(a.0, b.0)) }
        fn or_bytes(self, a: U32x8, b: U32x8) -> U32x8 { U32x8(_mm256_or_si256(a.0, b.0)) }
        fn pairs_right<const N: i32>(self, a: U32x8) -> U32x8 {
            match N {
                0 => a,
                1 => U32x8(_mm256_srli_epi16::<1>(a.0)),
                2 => U32x8(_mm256_srli_epi16::<2>(a.0)),
                3 => U32x8(_mm256_srli_epi16::<3>(a.0)),
                _ => U32x8(_mm256_srli_epi16::<4>(a.0)),
            }
        }
        fn pairs_left<const N: i32>(self, a: U32x8) -> U32x8 {
            match N {
                0 => a,
                1 => U32x8(_mm256_slli_epi16::<1>(a.0)),
                2 => U32x8(_mm256_slli_epi16::<2>(a.0)),
                3 => U32x8(_mm256_slli_epi16::<3>(a.0)),
                _ => U32x8(_mm256_slli_epi16::<4>(a.0)),
            }
        }
        fn lookup_bytes(self, table: U32x8, index: U32x8) -> U32x8 {
            U32x8(_mm256_shuffle_epi8(table.0, index.0))
        }
        fn splat_int(self, value: i32) -> U32x8 { U32x8(_mm256_set1_epi32(value)) }
        fn to_float(self, a: U32x8) -> F32x8 { F32x8(_mm256_cvtepi32_ps(a.0)) }
        fn fma(self, a: F32x8, b: F32x8, c: F32x8) -> F32x8 {
            F32x8(_mm256_fmadd_ps(a.0, b.0, c.0))
        }
        fn minus_product(self, a: F32x8, b: F32x8, c: F32x8) -> F32x8 {
            F32x8(_mm256_fnmadd_ps(a.0, b.0, c.0))
        }
    }

    #[inline(always)]
    fn add_signed(self, a: U32x8) -> U32x8 {
        a
    }
}

/// Widens f16 bits.
#[inline(always)]
pub(crate) unsafe fn widen(bits: u16) -> f32 {
    let mut word = i32::from(bits);
    // SAFETY: the caller has the CPU features; no instruction comes of the assembly. It keeps the compiler from
    // inserting the bits into an older vector, for which the CPU would wait.
    unsafe {
        asm!("/* {0:e} */", inout(reg) word, options(pure, nomem, nostack, preserves_flags));
        _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(word)))
    }
}

/// Returns the values of eight indices; bits above the lowest four are ignored. A function, as all helpers here:
/// closures and `map` are not inlined everywhere, and are compiled without the features then.
#[inline(always)]
unsafe fn get(table: Pair<F32x8>, indices: __m256i) -> F32x8 {
    // SAFETY: the caller has the CPU features.
    unsafe {
        let low = _mm256_permutevar8x32_ps(table.0.0, indices);
        let high = _mm256_permutevar8x32_ps(table.1.0, indices);
        // The fourth bit becomes the sign, which chooses.
        F32x8(_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(indices))))
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

/// Returns the upper four bits of bytes.
#[inline(always)]
unsafe fn upper(levels: [__m256i; 2]) -> [__m256i; 2] {
    // SAFETY: the caller has the CPU features.
    unsafe { [_mm256_srli_epi32::<4>(levels[0]), _mm256_srli_epi32::<4>(levels[1])] }
}

/// Returns values of the second table where bit `l` of `fifths` is set, else of the first, for sixteen indices.
#[inline(always)]
unsafe fn choose_both(tables: [Pair<F32x8>; 2], indices: [__m256i; 2], fifths: u16) -> Pair<F32x8> {
    // SAFETY: the caller has the CPU features.
    unsafe { Pair(choose(tables, indices[0], fifths), choose(tables, indices[1], fifths >> 8)) }
}

/// Returns values of the second table where bit `l` of `fifths` is set, else of the first.
#[inline(always)]
unsafe fn choose(tables: [Pair<F32x8>; 2], indices: __m256i, fifths: u16) -> F32x8 {
    // SAFETY: the caller has the CPU features.
    unsafe {
        let first = get(tables[0], indices);
        F32x8(_mm256_blendv_ps(first.0, get(tables[1], indices).0, set_lanes(fifths)))
    }
}

/// Returns lanes of which all bits are those of bit `l` of `bits`.
#[inline(always)]
unsafe fn set_lanes(bits: u16) -> __m256 {
    // SAFETY: the caller has the CPU features.
    unsafe {
        let of_lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        let set = _mm256_and_si256(_mm256_set1_epi32(bits.into()), of_lanes);
        _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, of_lanes))
    }
}

/// Returns elements `at..at + 8` of eight rows: vector `i` has element `at + i` of each.
///
/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
pub(crate) unsafe fn transposed(rows: [&[f32]; 8], at: usize) -> [__m256; 8] {
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
