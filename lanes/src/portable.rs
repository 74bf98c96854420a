//! The plain form of every operation, for any CPU.
#![expect(unsafe_code, reason = "reads and writes through pointers")]

use std::array::from_fn;
use std::hint::black_box;

use crate::{ByteSimd, Simd, VectorTask, f16_to_f32};

/// The back end of plain arrays.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

/// Sixteen f32 values.
#[derive(Clone, Copy)]
pub(crate) struct Plain([f32; 16]);

operators!(Plain:
    Add add |a, b| each(|l| a[l] + b[l]).0,
    Sub sub |a, b| each(|l| a[l] - b[l]).0,
    Mul mul |a, b| each(|l| a[l] * b[l]).0,
    Div div |a, b| each(|l| a[l] / b[l]).0);

/// Computes each lane. A loop, because `from_fn` is not inlined everywhere.
#[inline(always)]
fn each(lane: impl Fn(usize) -> f32) -> Plain {
    let mut lanes = [0.0; 16];
    for (l, to) in lanes.iter_mut().enumerate() {
        *to = lane(l);
    }
    Plain(lanes)
}

/// Reads `N` bytes for each lane.
///
/// # Safety
/// `16 * N` bytes are readable, at any alignment.
#[inline(always)]
unsafe fn read<const N: usize>(from: *const u8, lane: impl Fn([u8; N]) -> f32) -> Plain {
    // SAFETY: the caller's promise.
    let bytes = unsafe { from.cast::<[[u8; N]; 16]>().read_unaligned() };
    each(|l| lane(bytes[l]))
}

/// Shifts both pairs of bytes of a word.
#[inline(always)]
fn pairs(word: u32, shift: impl Fn(u16) -> u16) -> u32 {
    u32::from(shift(word as u16)) | u32::from(shift((word >> 16) as u16)) << 16
}

/// Adds the products of four levels and the four codes at `x`.
///
/// # Safety
/// Four bytes are readable.
#[inline(always)]
unsafe fn dot(
    sums: [u32; 16],
    levels: [u32; 16],
    x: *const i8,
    level: impl Fn(u8) -> i32,
) -> [u32; 16] {
    // SAFETY: the caller's promise.
    let x = unsafe { x.cast::<[i8; 4]>().read_unaligned() };
    let mut sums = sums;
    for (sum, levels) in sums.iter_mut().zip(levels) {
        for (byte, x) in levels.to_le_bytes().into_iter().zip(x) {
            *sum = sum.wrapping_add_signed(level(byte) * i32::from(x));
        }
    }
    sums
}

/// Returns the lanes for which a condition holds.
#[inline(always)]
fn mask(lane: impl Fn(usize) -> bool) -> u16 {
    (0..16).fold(0, |bits, l| bits | u16::from(lane(l)) << l)
}

impl Simd for Portable {
    const LANES: usize = 16;
    const REGISTERS: usize = 4;
    type F = Plain;
    type M = u16;
    type I = [u32; 16];
    type Wide = Plain;

    #[inline(always)]
    fn splat(self, x: f32) -> Plain {
        Plain([x; 16])
    }
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> Plain {
        Plain(*x)
    }
    #[inline(always)]
    fn each_column<'a>(
        self,
        group: impl Fn(usize) -> &'a [f32],
        mut each: impl FnMut(usize, Plain),
    ) {
        let groups: [&[f32]; 16] = from_fn(group);
        for at in 0..groups[0].len() {
            each(at, Plain(groups.map(|group| group[at])));
        }
    }
    #[inline(always)]
    fn array(self, x: Plain) -> [f32; 16] {
        x.0
    }
    #[inline(always)]
    fn abs(self, x: Plain) -> Plain {
        each(|l| x.0[l].abs())
    }
    #[inline(always)]
    fn sqrt(self, x: Plain) -> Plain {
        each(|l| x.0[l].sqrt())
    }
    #[inline(always)]
    fn lesser(self, a: Plain, b: Plain) -> Plain {
        each(|l| if a.0[l] < b.0[l] { a.0[l] } else { b.0[l] })
    }
    #[inline(always)]
    fn greater(self, a: Plain, b: Plain) -> Plain {
        each(|l| if a.0[l] > b.0[l] { a.0[l] } else { b.0[l] })
    }
    #[inline(always)]
    fn nearest_level(self, x: Plain, least: f32, greatest: f32) -> Plain {
        each(|l| {
            let mantissa = (x.0[l] + 12_582_912.0).to_bits() & 0x007f_ffff;
            let level = mantissa.cast_signed() - 0x0040_0000;
            level.max(least as i32).min(greatest as i32) as f32
        })
    }
    #[inline(always)]
    fn lt(self, a: Plain, b: Plain) -> u16 {
        mask(|l| a.0[l] < b.0[l])
    }
    #[inline(always)]
    fn le(self, a: Plain, b: Plain) -> u16 {
        mask(|l| a.0[l] <= b.0[l])
    }
    #[inline(always)]
    fn and(self, a: u16, b: u16) -> u16 {
        a & b
    }
    #[inline(always)]
    fn or(self, a: u16, b: u16) -> u16 {
        a | b
    }
    #[inline(always)]
    fn select(self, m: u16, a: Plain, b: Plain) -> Plain {
        each(|l| if m >> l & 1 == 1 { a.0[l] } else { b.0[l] })
    }
    #[inline(always)]
    fn bits(self, m: u16) -> u32 {
        m.into()
    }
    #[inline(always)]
    fn least(self, x: Plain) -> f32 {
        x.0.into_iter().fold(f32::INFINITY, f32::min)
    }
    #[inline(always)]
    fn integers(self, x: &[u32; 16]) -> [u32; 16] {
        *x
    }
    #[inline(always)]
    fn widened(self, x: &[u16]) -> [u32; 16] {
        from_fn(|l| x[l].into())
    }
    #[inline(always)]
    fn shift_right(self, x: [u32; 16], bits: u32) -> [u32; 16] {
        x.map(|x| x >> bits)
    }
    #[inline(always)]
    fn lookup(self, table: Plain, index: [u32; 16]) -> Plain {
        each(|l| table.0[index[l] as usize & 15])
    }

    #[inline(always)]
    fn widen(self, bits: u16) -> f32 {
        f16_to_f32(bits)
    }
    #[inline(always)]
    fn splat16(self, x: f32) -> Plain {
        Plain([x; 16])
    }
    #[inline(always)]
    fn load16(self, x: &[f32; 16]) -> Plain {
        // The compiler would make a product with a known -1 a negation, which differs in the sign of a NaN.
        Plain(*black_box(x))
    }
    #[inline(always)]
    fn signed16(self, bytes: &[u8; 16]) -> Plain {
        each(|l| f32::from(bytes[l].cast_signed()))
    }
    #[inline(always)]
    fn negate16(self, values: Plain, bits: u16) -> Plain {
        each(|l| values.0[l] * if bits >> l & 1 == 1 { -1.0 } else { 1.0 })
    }
    #[inline(always)]
    fn fma16(self, sums: Plain, a: Plain, b: Plain) -> Plain {
        each(|l| a.0[l].mul_add(b.0[l], sums.0[l]))
    }
    #[inline(always)]
    unsafe fn read16(self, from: *const u8) -> Plain {
        // SAFETY: the caller lets 64 bytes be read.
        unsafe { read(from, f32::from_le_bytes) }
    }
    #[inline(always)]
    unsafe fn read16_f16(self, from: *const u8) -> Plain {
        // SAFETY: the caller lets 32 bytes be read.
        unsafe { read(from, |bits| f16_to_f32(u16::from_le_bytes(bits))) }
    }
    #[inline(always)]
    unsafe fn read16_odd(self, from: *const u8) -> Plain {
        // SAFETY: the caller lets 64 bytes be read.
        unsafe { read(from, |bits| f32::from_bits(u32::from_le_bytes(bits) & 0xffff_0000)) }
    }
    #[inline(always)]
    unsafe fn read16_even(self, from: *const u8) -> Plain {
        // SAFETY: the caller lets 64 bytes be read.
        unsafe { read(from, |bits| f32::from_bits(u32::from_le_bytes(bits) << 16)) }
    }
    #[inline(always)]
    unsafe fn write16(self, values: Plain, to: *mut f32) {
        // SAFETY: the caller lets sixteen values be written.
        unsafe { to.cast::<[f32; 16]>().write_unaligned(values.0) }
    }
    #[inline(always)]
    fn sums16<const N: usize>(self, vectors: [Plain; N]) -> [f32; N] {
        vectors.map(|Plain(mut lanes)| {
            for half in [8, 4, 2, 1] {
                for l in 0..half {
                    lanes[l] += lanes[l + half];
                }
            }
            lanes[0]
        })
    }
    #[inline(never)]
    fn apart<T: VectorTask>(self, task: T) -> T::Output {
        task.run(self)
    }
    #[inline(always)]
    fn lookup4(self, tables: [Plain; 2], bytes: &[u8; 16]) -> [Plain; 2] {
        self.lookup5(tables.map(|table| [table; 2]), bytes, [0; 2])
    }
    #[inline(always)]
    fn lookup5(
        self,
        [low, high]: [[Plain; 2]; 2],
        bytes: &[u8; 16],
        fifths: [u16; 2],
    ) -> [Plain; 2] {
        let fifth = |half: usize, l: usize| usize::from(fifths[half] >> l & 1);
        [
            each(|l| low[fifth(0, l)].0[usize::from(bytes[l] & 15)]),
            each(|l| high[fifth(1, l)].0[usize::from(bytes[l] >> 4)]),
        ]
    }
    #[inline(always)]
    fn byte_bits(self, bytes: &[u8; 16], bit: usize) -> u16 {
        mask(|l| bytes[l] >> bit & 1 == 1)
    }
}

impl ByteSimd for Portable {
    const SIGNED: i32 = 0;

    #[inline(always)]
    unsafe fn read_bytes(self, from: *const u8) -> [u32; 16] {
        // SAFETY: the caller lets 64 bytes be read.
        unsafe { from.cast::<[[u8; 4]; 16]>().read_unaligned() }.map(u32::from_le_bytes)
    }
    #[inline(always)]
    fn byte_table(self, bytes: &[i8; 16]) -> [u32; 16] {
        let word = |at: usize| u32::from_le_bytes(from_fn(|n| bytes[at + n].cast_unsigned()));
        from_fn(|lane| word(lane % 4 * 4))
    }
    #[inline(always)]
    fn splat_byte(self, byte: u8) -> [u32; 16] {
        [u32::from_le_bytes([byte; 4]); 16]
    }
    #[inline(always)]
    fn and_bytes(self, a: [u32; 16], b: [u32; 16]) -> [u32; 16] {
        from_fn(|l| a[l] & b[l])
    }
    #[inline(always)]
    fn or_bytes(self, a: [u32; 16], b: [u32; 16]) -> [u32; 16] {
        from_fn(|l| a[l] | b[l])
    }
    #[inline(always)]
    fn pairs_right<const N: i32>(self, a: [u32; 16]) -> [u32; 16] {
        a.map(|a| pairs(a, |pair| pair >> N))
    }
    #[inline(always)]
    fn pairs_left<const N: i32>(self, a: [u32; 16]) -> [u32; 16] {
        a.map(|a| pairs(a, |pair| pair << N))
    }
    #[inline(always)]
    fn lookup_bytes(self, table: [u32; 16], index: [u32; 16]) -> [u32; 16] {
        let byte = |at: u8| table[usize::from(at) / 4].to_le_bytes()[usize::from(at) % 4];
        index.map(|index| u32::from_le_bytes(index.to_le_bytes().map(byte)))
    }
    #[inline(always)]
    fn add_signed(self, a: [u32; 16]) -> [u32; 16] {
        a
    }
    #[inline(always)]
    fn splat_int(self, value: i32) -> [u32; 16] {
        [value.cast_unsigned(); 16]
    }
    #[inline(always)]
    unsafe fn dot(self, sum: [u32; 16], levels: [u32; 16], x: *const i8) -> [u32; 16] {
        // SAFETY: the caller lets four bytes be read.
        unsafe { dot(sum, levels, x, i32::from) }
    }
    #[inline(always)]
    unsafe fn dot_signed(self, sum: [u32; 16], levels: [u32; 16], x: *const i8) -> [u32; 16] {
        // SAFETY: the caller lets four bytes be read.
        unsafe { dot(sum, levels, x, |level| i32::from(level.cast_signed())) }
    }
    #[inline(always)]
    fn to_float(self, a: [u32; 16]) -> Plain {
        each(|l| a[l].cast_signed() as f32)
    }
    #[inline(always)]
    unsafe fn read_f32(self, from: *const u8) -> Plain {
        // SAFETY: the caller lets 64 bytes be read.
        unsafe { read(from, f32::from_le_bytes) }
    }
    #[inline(always)]
    unsafe fn read_f16(self, from: *const u8) -> Plain {
        // SAFETY: the caller lets 32 bytes be read.
        unsafe { self.read16_f16(from) }
    }
    #[inline(always)]
    unsafe fn read_bf16(self, from: *const u8) -> Plain {
        // SAFETY: the caller lets 32 bytes be read.
        unsafe { read(from, |bits| f32::from_bits(u32::from(u16::from_le_bytes(bits)) << 16)) }
    }
    #[inline(always)]
    unsafe fn read_i8(self, from: *const u8) -> Plain {
        // SAFETY: the caller lets 16 bytes be read.
        unsafe { read(from, |[byte]| f32::from(byte.cast_signed())) }
    }
    #[inline(always)]
    unsafe fn read_u8(self, from: *const u8) -> Plain {
        // SAFETY: the caller lets 16 bytes be read.
        unsafe { read(from, |[byte]| f32::from(byte)) }
    }
    #[inline(always)]
    fn fma(self, a: Plain, b: Plain, c: Plain) -> Plain {
        each(|l| a.0[l].mul_add(b.0[l], c.0[l]))
    }
    #[inline(always)]
    fn minus_product(self, a: Plain, b: Plain, c: Plain) -> Plain {
        each(|l| (-a.0[l]).mul_add(b.0[l], c.0[l]))
    }
    #[inline(always)]
    unsafe fn write(self, values: Plain, to: *mut f32) {
        // SAFETY: the caller lets sixteen values be written.
        unsafe { self.write16(values, to) }
    }
}
