//! Vectors of NEON. Eight lanes are two registers.
#![cfg_attr(not(test), expect(clippy::wildcard_imports, reason = "the intrinsics"))]
#![expect(
    unsafe_code,
    reason = "reads and writes of registers, and instructions without an intrinsic"
)]

use std::arch::aarch64::*;
use std::arch::asm;

use crate::pair::Pair;
use crate::{ByteSimd, ByteTask, Simd, VectorTask};

/// Runs a task on bytes with these vectors.
///
/// # Safety
/// The CPU has `FEAT_DotProd`.
#[target_feature(enable = "dotprod")]
pub(crate) unsafe fn run_dots<T: ByteTask>(task: T) -> T::Output {
    task.run(Neon::<true>(()))
}

/// The back end of NEON; with `DOTS` that of `FEAT_DotProd` too, and [`run_dots`] alone makes one.
#[derive(Clone, Copy)]
pub(crate) struct Neon<const DOTS: bool>(());

impl Neon<false> {
    /// Returns the back end that every CPU of this kind has.
    pub(crate) fn new() -> Self {
        Self(())
    }
}

/// Four f32 values.
#[derive(Clone, Copy)]
pub(crate) struct F32x4(float32x4_t);

macro_rules! arithmetic {
    ($($trait:ident $method:ident $intrinsic:ident),*) => {$(
        operators!(F32x4: $trait $method |a, b| {
            // SAFETY: every CPU of this kind has NEON; so below.
            unsafe { $intrinsic(a, b) }
        });
    )*};
}
arithmetic!(Add add vaddq_f32, Sub sub vsubq_f32, Mul mul vmulq_f32, Div div vdivq_f32);

/// Eight f32 values.
type NeonF32x8 = Pair<F32x4>;
/// Eight boolean lanes: all bits set, or none.
type NeonMask8 = Pair<uint32x4_t>;
/// Eight u32 values.
type NeonU32x8 = Pair<uint32x4_t>;
/// Sixteen f32 values.
type NeonF32x16 = Pair<NeonF32x8>;

/// Bit `l` of a byte, twice.
const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
/// Bytes of four words in their order.
const BYTES_OF_WORDS: [u8; 16] = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3];
/// Four times each byte of a quarter.
const QUARTERS: [[u8; 16]; 4] = [
    [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3],
    [4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7],
    [8, 8, 8, 8, 9, 9, 9, 9, 10, 10, 10, 10, 11, 11, 11, 11],
    [12, 12, 12, 12, 13, 13, 13, 13, 14, 14, 14, 14, 15, 15, 15, 15],
];

/// Applies a function to both registers.
#[inline(always)]
fn both(x: NeonF32x8, function: impl Fn(float32x4_t) -> float32x4_t) -> NeonF32x8 {
    Pair(F32x4(function(x.0.0)), F32x4(function(x.1.0)))
}

/// Applies a function to both registers of two vectors.
#[inline(always)]
fn both2<T>(
    a: NeonF32x8,
    b: NeonF32x8,
    function: impl Fn(float32x4_t, float32x4_t) -> T,
) -> Pair<T> {
    Pair(function(a.0.0, b.0.0), function(a.1.0, b.1.0))
}

/// Loads four values.
#[inline(always)]
fn four(x: &[f32]) -> float32x4_t {
    // SAFETY: slicing checks that four can be read.
    unsafe { vld1q_f32(x[..4].as_ptr()) }
}

/// Loads eight values.
#[inline(always)]
fn eight(x: &[f32]) -> NeonF32x8 {
    Pair(F32x4(four(x)), F32x4(four(&x[4..])))
}

/// Stores eight values.
#[inline(always)]
fn store_eight(x: NeonF32x8, out: &mut [f32]) {
    let (low, high) = out[..8].split_at_mut(4);
    // SAFETY: slicing checks that there is room for four in each half.
    unsafe {
        vst1q_f32(low.as_mut_ptr(), x.0.0);
        vst1q_f32(high.as_mut_ptr(), x.1.0);
    }
}

/// Loads sixteen bytes.
#[inline(always)]
fn bytes16(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: sixteen bytes are read.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// Loads four integers.
#[inline(always)]
fn words(x: &[u32]) -> uint32x4_t {
    // SAFETY: slicing checks that four can be read.
    unsafe { vld1q_u32(x[..4].as_ptr()) }
}

/// Reads sixteen values as words, and changes these.
///
/// # Safety
/// 64 bytes are readable.
#[inline(always)]
unsafe fn words16(from: *const u8, function: impl Fn(uint32x4_t) -> uint32x4_t) -> NeonF32x16 {
    // SAFETY: the caller's promise, and every CPU of this kind has NEON.
    let quarter = |n: usize| unsafe {
        let words = vreinterpretq_u32_u8(vld1q_u8(from.add(16 * n)));
        F32x4(vreinterpretq_f32_u32(function(words)))
    };
    Pair(Pair(quarter(0), quarter(1)), Pair(quarter(2), quarter(3)))
}

/// Widens eight f16 values.
#[inline(always)]
fn halves(bits: uint8x16_t) -> NeonF32x8 {
    let low: float32x4_t;
    let high: float32x4_t;
    // SAFETY: every CPU of this kind has the instructions, which read a register and write others.
    unsafe {
        asm!(
            "fcvtl {low:v}.4s, {bits:v}.4h",
            "fcvtl2 {high:v}.4s, {bits:v}.8h",
            bits = in(vreg) bits,
            low = out(vreg) low,
            high = lateout(vreg) high,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    Pair(F32x4(low), F32x4(high))
}

/// Converts eight integers of 16 bits.
#[inline(always)]
fn floats8(integers: int16x8_t) -> NeonF32x8 {
    // SAFETY: every CPU of this kind has NEON.
    unsafe {
        let low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(integers)));
        Pair(F32x4(low), F32x4(vcvtq_f32_s32(vmovl_high_s16(integers))))
    }
}

/// Adds the products of each four of sixteen bytes to a sum.
#[inline(always)]
fn dot4<const DOTS: bool>(sum: uint32x4_t, levels: uint32x4_t, x: int8x16_t) -> uint32x4_t {
    // SAFETY: every CPU of this kind has NEON, and `DOTS` exists only where it has the instruction.
    unsafe {
        let levels = vreinterpretq_s8_u32(levels);
        let mut sum = vreinterpretq_s32_u32(sum);
        if DOTS {
            asm!(
                "sdot {sum:v}.4s, {levels:v}.16b, {x:v}.16b",
                sum = inout(vreg) sum,
                levels = in(vreg) levels,
                x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags),
            );
        } else {
            let low = vpaddlq_s16(vmull_s8(vget_low_s8(levels), vget_low_s8(x)));
            let high = vpaddlq_s16(vmull_high_s8(levels, x));
            sum = vaddq_s32(sum, vpaddq_s32(low, high));
        }
        vreinterpretq_u32_s32(sum)
    }
}

/// Returns the bytes of sixteen values, as a table.
#[inline(always)]
fn table64(values: NeonF32x16) -> uint8x16x4_t {
    // SAFETY: every CPU of this kind has NEON.
    unsafe {
        uint8x16x4_t(
            vreinterpretq_u8_f32(values.0.0.0),
            vreinterpretq_u8_f32(values.0.1.0),
            vreinterpretq_u8_f32(values.1.0.0),
            vreinterpretq_u8_f32(values.1.1.0),
        )
    }
}

/// Returns the values of sixteen levels of 5 bits: those below 16 are of the first table.
#[inline(always)]
fn look_up(tables: [uint8x16x4_t; 2], levels: uint8x16_t) -> NeonF32x16 {
    // SAFETY: every CPU of this kind has NEON.
    unsafe {
        let first_bytes = vshlq_n_u8::<2>(levels);
        let quarter = |n: usize| {
            let at = vqtbl1q_u8(first_bytes, bytes16(&QUARTERS[n]));
            let at = vaddq_u8(at, bytes16(&BYTES_OF_WORDS));
            // Indices beyond a table give zeros, and then leave what is there.
            let values = vqtbl4q_u8(tables[0], at);
            let values = vqtbx4q_u8(values, tables[1], vsubq_u8(at, vdupq_n_u8(64)));
            F32x4(vreinterpretq_f32_u8(values))
        };
        Pair(Pair(quarter(0), quarter(1)), Pair(quarter(2), quarter(3)))
    }
}

/// Returns the values of sixteen levels of 4 bits.
#[inline(always)]
fn look_up4(table: uint8x16x4_t, levels: uint8x16_t) -> NeonF32x16 {
    // SAFETY: every CPU of this kind has NEON.
    unsafe {
        let first_bytes = vshlq_n_u8::<2>(levels);
        let quarter = |n: usize| {
            let at = vqtbl1q_u8(first_bytes, bytes16(&QUARTERS[n]));
            let at = vaddq_u8(at, bytes16(&BYTES_OF_WORDS));
            F32x4(vreinterpretq_f32_u8(vqtbl4q_u8(table, at)))
        };
        Pair(Pair(quarter(0), quarter(1)), Pair(quarter(2), quarter(3)))
    }
}

/// Returns bytes of which all bits are those of bit `l` of `bits`.
#[inline(always)]
fn set_bytes(bits: u16) -> uint8x16_t {
    // SAFETY: every CPU of this kind has NEON.
    unsafe {
        let [low, high] = bits.to_le_bytes();
        vtstq_u8(vcombine_u8(vdup_n_u8(low), vdup_n_u8(high)), bytes16(&BITS))
    }
}

/// Transposes four rows of four values.
#[inline(always)]
fn transposed([a, b, c, d]: [float32x4_t; 4]) -> [float32x4_t; 4] {
    // SAFETY: every CPU of this kind has NEON.
    unsafe {
        let even_ab = vreinterpretq_f64_f32(vtrn1q_f32(a, b));
        let odd_ab = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
        let even_cd = vreinterpretq_f64_f32(vtrn1q_f32(c, d));
        let odd_cd = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
        [
            vreinterpretq_f32_f64(vtrn1q_f64(even_ab, even_cd)),
            vreinterpretq_f32_f64(vtrn1q_f64(odd_ab, odd_cd)),
            vreinterpretq_f32_f64(vtrn2q_f64(even_ab, even_cd)),
            vreinterpretq_f32_f64(vtrn2q_f64(odd_ab, odd_cd)),
        ]
    }
}

impl<const DOTS: bool> Simd for Neon<DOTS> {
    const LANES: usize = 8;
    const REGISTERS: usize = 8;
    type F = NeonF32x8;
    type M = NeonMask8;
    type I = NeonU32x8;
    type Wide = NeonF32x16;

    operations! {
        unsafe
        fn read16(self, from: *const u8) -> NeonF32x16 { words16(from, |word| word) }
        fn read16_f16(self, from: *const u8) -> NeonF32x16 {
            Pair(halves(vld1q_u8(from)), halves(vld1q_u8(from.add(16))))
        }
        fn read16_odd(self, from: *const u8) -> NeonF32x16 {
            words16(from, |pair| vandq_u32(pair, vdupq_n_u32(0xffff_0000)))
        }
        fn read16_even(self, from: *const u8) -> NeonF32x16 {
            words16(from, |pair| vshlq_n_u32::<16>(pair))
        }
        fn write16(self, values: NeonF32x16, to: *mut f32) {
            self.write(values.0, to);
            self.write(values.1, to.add(8));
        }
        fn transpose16(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
            for row in [0, 4, 8, 12] {
                for word in [0, 4, 8, 12] {
                    let from = from.add(row * from_stride + word);
                    let to = to.add(word * to_stride + row);
                    let block = transposed([
                        vld1q_f32(from),
                        vld1q_f32(from.add(from_stride)),
                        vld1q_f32(from.add(2 * from_stride)),
                        vld1q_f32(from.add(3 * from_stride)),
                    ]);
                    for (n, words) in block.into_iter().enumerate() {
                        vst1q_f32(to.add(n * to_stride), words);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn sums16<const N: usize>(self, vectors: [NeonF32x16; N]) -> [f32; N] {
        let mut sums = [0.0; N];
        for (vector, sum) in vectors.into_iter().zip(&mut sums) {
            let eight = vector.0 + vector.1;
            let four = eight.0 + eight.1;
            // SAFETY: every CPU of this kind has NEON.
            *sum = unsafe { vpadds_f32(vadd_f32(vget_low_f32(four.0), vget_high_f32(four.0))) };
        }
        sums
    }
    #[inline(never)]
    fn apart<T: VectorTask>(self, task: T) -> T::Output {
        task.run(self)
    }
    #[inline(always)]
    fn each_column<'a>(
        self,
        group: impl Fn(usize) -> &'a [f32],
        mut each: impl FnMut(usize, NeonF32x8),
    ) {
        let rows: [&[f32]; 8] = std::array::from_fn(group);
        for at in (0..rows[0].len()).step_by(4) {
            let low = transposed([0, 1, 2, 3].map(|row: usize| four(&rows[row][at..])));
            let high = transposed([4, 5, 6, 7].map(|row: usize| four(&rows[row][at..])));
            for (i, (low, high)) in low.into_iter().zip(high).enumerate() {
                each(at + i, Pair(F32x4(low), F32x4(high)));
            }
        }
    }

    operations! {
        fn splat(self, x: f32) -> NeonF32x8 { Pair(F32x4(vdupq_n_f32(x)), F32x4(vdupq_n_f32(x))) }
        fn abs(self, x: NeonF32x8) -> NeonF32x8 { both(x, |x| vabsq_f32(x)) }
        fn sqrt(self, x: NeonF32x8) -> NeonF32x8 { both(x, |x| vsqrtq_f32(x)) }
        fn nearest_level(self, x: NeonF32x8, least: f32, greatest: f32) -> NeonF32x8 {
            both(x, |x| {
                let sum = vreinterpretq_s32_f32(vaddq_f32(x, vdupq_n_f32(12_582_912.0)));
                let mantissa = vandq_s32(sum, vdupq_n_s32(0x007f_ffff));
                let level = vsubq_s32(mantissa, vdupq_n_s32(0x0040_0000));
                let level = vmaxq_s32(level, vdupq_n_s32(least as i32));
                vcvtq_f32_s32(vminq_s32(level, vdupq_n_s32(greatest as i32)))
            })
        }
        fn lt(self, a: NeonF32x8, b: NeonF32x8) -> NeonMask8 { both2(a, b, |a, b| vcltq_f32(a, b)) }
        fn le(self, a: NeonF32x8, b: NeonF32x8) -> NeonMask8 { both2(a, b, |a, b| vcleq_f32(a, b)) }
        fn and(self, a: NeonMask8, b: NeonMask8) -> NeonMask8 {
            Pair(vandq_u32(a.0, b.0), vandq_u32(a.1, b.1))
        }
        fn or(self, a: NeonMask8, b: NeonMask8) -> NeonMask8 {
            Pair(vorrq_u32(a.0, b.0), vorrq_u32(a.1, b.1))
        }
        fn select(self, m: NeonMask8, a: NeonF32x8, b: NeonF32x8) -> NeonF32x8 {
            Pair(F32x4(vbslq_f32(m.0, a.0.0, b.0.0)), F32x4(vbslq_f32(m.1, a.1.0, b.1.0)))
        }
        fn all(self, m: NeonMask8) -> bool { vminvq_u32(vandq_u32(m.0, m.1)) != 0 }
        fn any(self, m: NeonMask8) -> bool { vmaxvq_u32(vorrq_u32(m.0, m.1)) != 0 }
        fn bits(self, m: NeonMask8) -> u32 {
            let low = vandq_u32(m.0, words(&[1, 2, 4, 8]));
            let high = vandq_u32(m.1, words(&[16, 32, 64, 128]));
            vaddvq_u32(vorrq_u32(low, high))
        }
        fn least(self, x: NeonF32x8) -> f32 { vminvq_f32(vminq_f32(x.0.0, x.1.0)) }
        fn widened(self, x: &[u16]) -> NeonU32x8 {
            let x = vld1q_u16(x[..8].as_ptr());
            Pair(vmovl_u16(vget_low_u16(x)), vmovl_high_u16(x))
        }
        fn shift_right(self, x: NeonU32x8, bits: u32) -> NeonU32x8 {
            let by = vdupq_n_s32(-(bits as i32));
            Pair(vshlq_u32(x.0, by), vshlq_u32(x.1, by))
        }
        fn lookup(self, table: NeonF32x8, index: NeonU32x8) -> NeonF32x8 {
            let table = uint8x16x2_t(vreinterpretq_u8_f32(table.0.0), vreinterpretq_u8_f32(table.1.0));
            let values = |index: uint32x4_t| {
                let first_byte = vmulq_n_u32(vandq_u32(index, vdupq_n_u32(7)), 0x0404_0404);
                let at = vaddq_u8(vreinterpretq_u8_u32(first_byte), bytes16(&BYTES_OF_WORDS));
                F32x4(vreinterpretq_f32_u8(vqtbl2q_u8(table, at)))
            };
            Pair(values(index.0), values(index.1))
        }
        fn signed16(self, bytes: &[u8; 16]) -> NeonF32x16 {
            let bytes = vreinterpretq_s8_u8(bytes16(bytes));
            Pair(floats8(vmovl_s8(vget_low_s8(bytes))), floats8(vmovl_high_s8(bytes)))
        }
        fn negate16(self, values: NeonF32x16, bits: u16) -> NeonF32x16 {
            let bits = vdupq_n_u32(bits.into());
            let factor = |first: u32| {
                let set = vtstq_u32(bits, words(&[first, first << 1, first << 2, first << 3]));
                F32x4(vbslq_f32(set, vdupq_n_f32(-1.0), vdupq_n_f32(1.0)))
            };
            let low = Pair(factor(1), factor(1 << 4));
            values * Pair(low, Pair(factor(1 << 8), factor(1 << 12)))
        }
        fn fma16(self, sums: NeonF32x16, a: NeonF32x16, b: NeonF32x16) -> NeonF32x16 {
            let fma = |sum: F32x4, a: F32x4, b: F32x4| F32x4(vfmaq_f32(sum.0, a.0, b.0));
            Pair(
                Pair(fma(sums.0.0, a.0.0, b.0.0), fma(sums.0.1, a.0.1, b.0.1)),
                Pair(fma(sums.1.0, a.1.0, b.1.0), fma(sums.1.1, a.1.1, b.1.1)),
            )
        }
        fn lookup4(self, tables: [NeonF32x16; 2], bytes: &[u8; 16]) -> [NeonF32x16; 2] {
            let bytes = bytes16(bytes);
            [
                look_up4(table64(tables[0]), vandq_u8(bytes, vdupq_n_u8(15))),
                look_up4(table64(tables[1]), vshrq_n_u8::<4>(bytes)),
            ]
        }
        fn lookup5(self, tables: [[NeonF32x16; 2]; 2], bytes: &[u8; 16], fifths: [u16; 2]) -> [NeonF32x16; 2] {
            let bytes = bytes16(bytes);
            let fifth = vdupq_n_u8(16);
            let low = vandq_u8(bytes, vdupq_n_u8(15));
            let high = vshrq_n_u8::<4>(bytes);
            [
                look_up(
                    [table64(tables[0][0]), table64(tables[0][1])],
                    vorrq_u8(low, vandq_u8(set_bytes(fifths[0]), fifth)),
                ),
                look_up(
                    [table64(tables[1][0]), table64(tables[1][1])],
                    vorrq_u8(high, vandq_u8(set_bytes(fifths[1]), fifth)),
                ),
            ]
        }
        fn byte_bits(self, bytes: &[u8; 16], bit: usize) -> u16 {
            let set = vtstq_u8(bytes16(bytes), vdupq_n_u8(1 << bit));
            let set = vandq_u8(set, bytes16(&BITS));
            u16::from_le_bytes([vaddv_u8(vget_low_u8(set)), vaddv_u8(vget_high_u8(set))])
        }
        fn widen(self, bits: u16) -> f32 {
            let half = f32::from_bits(bits.into());
            let value: f32;
            asm!(
                "fcvt {value:s}, {half:h}",
                half = in(vreg) half,
                value = out(vreg) value,
                options(pure, nomem, nostack, preserves_flags),
            );
            value
        }
    }

    operations! {
        safe
        fn load(self, x: &[f32; 16]) -> NeonF32x8 { eight(x) }
        fn array(self, x: NeonF32x8) -> [f32; 16] {
            let mut array = [0.0; 16];
            store_eight(x, &mut array);
            array
        }
        fn lesser(self, a: NeonF32x8, b: NeonF32x8) -> NeonF32x8 { self.select(self.lt(a, b), a, b) }
        fn greater(self, a: NeonF32x8, b: NeonF32x8) -> NeonF32x8 { self.select(self.lt(b, a), a, b) }
        fn integers(self, x: &[u32; 16]) -> NeonU32x8 { Pair(words(x), words(&x[4..])) }
        fn splat16(self, x: f32) -> NeonF32x16 { Pair(self.splat(x), self.splat(x)) }
    }
}

impl<const DOTS: bool> ByteSimd for Neon<DOTS> {
    const SIGNED: i32 = 0;

    operations! {
        unsafe
        fn read_bytes(self, from: *const u8) -> NeonU32x8 {
            let high = vreinterpretq_u32_u8(vld1q_u8(from.add(16)));
            Pair(vreinterpretq_u32_u8(vld1q_u8(from)), high)
        }
        fn dot(self, sum: NeonU32x8, levels: NeonU32x8, x: *const i8) -> NeonU32x8 {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(x.cast::<i32>().read_unaligned()));
            Pair(dot4::<DOTS>(sum.0, levels.0, x), dot4::<DOTS>(sum.1, levels.1, x))
        }
        fn dot_signed(self, sum: NeonU32x8, levels: NeonU32x8, x: *const i8) -> NeonU32x8 {
            self.dot(sum, levels, x)
        }
        fn read_f32(self, from: *const u8) -> NeonF32x8 {
            let high = vreinterpretq_f32_u8(vld1q_u8(from.add(16)));
            Pair(F32x4(vreinterpretq_f32_u8(vld1q_u8(from))), F32x4(high))
        }
        fn read_f16(self, from: *const u8) -> NeonF32x8 { halves(vld1q_u8(from)) }
        fn read_bf16(self, from: *const u8) -> NeonF32x8 {
            let bits = vreinterpretq_u16_u8(vld1q_u8(from));
            let low = vshll_n_u16::<16>(vget_low_u16(bits));
            let high = vshll_high_n_u16::<16>(bits);
            Pair(F32x4(vreinterpretq_f32_u32(low)), F32x4(vreinterpretq_f32_u32(high)))
        }
        fn read_i8(self, from: *const u8) -> NeonF32x8 { floats8(vmovl_s8(vld1_s8(from.cast()))) }
        fn read_u8(self, from: *const u8) -> NeonF32x8 {
            floats8(vreinterpretq_s16_u16(vmovl_u8(vld1_u8(from))))
        }
        fn write(self, values: NeonF32x8, to: *mut f32) {
            vst1q_u8(to.cast(), vreinterpretq_u8_f32(values.0.0));
            vst1q_u8(to.add(4).cast(), vreinterpretq_u8_f32(values.1.0));
        }
    }

    operations! {
        fn byte_table(self, bytes: &[i8; 16]) -> NeonU32x8 {
            let table = vreinterpretq_u32_s8(vld1q_s8(bytes.as_ptr()));
            Pair(table, table)
        }
        fn splat_byte(self, byte: u8) -> NeonU32x8 {
            let all = vreinterpretq_u32_u8(vdupq_n_u8(byte));
            Pair(all, all)
        }
        fn and_bytes(self, a: NeonU32x8, b: NeonU32x8) -> NeonU32x8 {
            Pair(vandq_u32(a.0, b.0), vandq_u32(a.1, b.1))
        }
        fn or_bytes(self, a: NeonU32x8, b: NeonU32x8) -> NeonU32x8 {
            Pair(vorrq_u32(a.0, b.0), vorrq_u32(a.1, b.1))
        }
        fn pairs_right<const N: i32>(self, a: NeonU32x8) -> NeonU32x8 {
            let by = vdupq_n_s16(-(N as i16));
            let shifted = |a: uint32x4_t| vreinterpretq_u32_u16(vshlq_u16(vreinterpretq_u16_u32(a), by));
            Pair(shifted(a.0), shifted(a.1))
        }
        fn pairs_left<const N: i32>(self, a: NeonU32x8) -> NeonU32x8 {
            let by = vdupq_n_s16(N as i16);
            let shifted = |a: uint32x4_t| vreinterpretq_u32_u16(vshlq_u16(vreinterpretq_u16_u32(a), by));
            Pair(shifted(a.0), shifted(a.1))
        }
        fn lookup_bytes(self, table: NeonU32x8, index: NeonU32x8) -> NeonU32x8 {
            let table = vreinterpretq_u8_u32(table.0);
            let found = |at: uint32x4_t| vreinterpretq_u32_u8(vqtbl1q_u8(table, vreinterpretq_u8_u32(at)));
            Pair(found(index.0), found(index.1))
        }
        fn splat_int(self, value: i32) -> NeonU32x8 {
            let all = vreinterpretq_u32_s32(vdupq_n_s32(value));
            Pair(all, all)
        }
        fn to_float(self, a: NeonU32x8) -> NeonF32x8 {
            let low = vcvtq_f32_s32(vreinterpretq_s32_u32(a.0));
            Pair(F32x4(low), F32x4(vcvtq_f32_s32(vreinterpretq_s32_u32(a.1))))
        }
        fn fma(self, a: NeonF32x8, b: NeonF32x8, c: NeonF32x8) -> NeonF32x8 {
            Pair(
                F32x4(vfmaq_f32(c.0.0, a.0.0, b.0.0)),
                F32x4(vfmaq_f32(c.1.0, a.1.0, b.1.0)),
            )
        }
        fn minus_product(self, a: NeonF32x8, b: NeonF32x8, c: NeonF32x8) -> NeonF32x8 {
            Pair(
                F32x4(vfmsq_f32(c.0.0, a.0.0, b.0.0)),
                F32x4(vfmsq_f32(c.1.0, a.1.0, b.1.0)),
            )
        }
    }

    #[inline(always)]
    fn add_signed(self, a: NeonU32x8) -> NeonU32x8 {
        a
    }
}
