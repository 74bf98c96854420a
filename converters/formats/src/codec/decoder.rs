//! Block decoders, compiled for every vector width.
//!
//! The compiler vectorizes the plain code of a decoder. A few operations have instructions that the compiler
//! does not find: [`DecoderOps`] has them for each set of CPU features. The numbers are the same bits.
//!
//! Measurements are in [decision 84](../../../../docs/decisions/0084-decode-blocks-with-vectors.md).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use std::marker::PhantomData;

use super::layout::{alone, each};
use super::{BlockType, LaneCount};
use crate::numbers::f16_to_f32;

/// `(bytes, out)`. Lengths are checked before.
pub(super) type DecodeFn = fn(&[u8], &mut [f32]);
/// `(rows, ahead, x, sums)`, as [`BlockReader::add_products`]. Lengths are checked before.
type ProductFn = fn(&[&[u8]], usize, &[f32], &mut [LaneSums]);

/// Sums of one row. Lane `j` adds the products of the numbers `j`, `j + 16` and so on in this order, each by a
/// fused multiply-add.
pub type LaneSums = [f32; 16];

/// Values for which a row is multiplied before the next row has its turn.
const VISIT: usize = 256;
/// Rows of small blocks that are multiplied together.
const TOGETHER: usize = 4;

/// Code that decodes blocks of a format.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockCode {
    pub(super) decode: DecodeFn,
    products: Option<ProductFn>,
}

impl BlockCode {
    /// Returns code that only decodes.
    pub(super) fn new(decode: DecodeFn) -> Self {
        Self { decode, products: None }
    }
}

/// Decoder of a format for this CPU, to be called for a few blocks at a time.
#[derive(Debug, Clone, Copy)]
pub struct BlockReader {
    decoder: BlockCode,
    elements: usize,
    bytes: usize,
}

impl BlockReader {
    /// Returns the decoder of a format; none if the format has none.
    pub fn new(ty: BlockType) -> Option<Self> {
        Self::in_lanes(LaneCount::widest(), ty)
    }

    /// Returns the decoder for a number of lanes; for one lane if the CPU lacks them.
    fn in_lanes(lanes: LaneCount, ty: BlockType) -> Option<Self> {
        let decoder = ty.declaration().decode?(lanes);
        Some(Self { decoder, elements: ty.elements(), bytes: ty.bytes() })
    }

    /// Decodes the first `count` blocks.
    ///
    /// # Panics
    /// If a slice is shorter than the blocks.
    pub fn read(&self, count: usize, bytes: &[u8], out: &mut [f32]) {
        (self.decoder.decode)(&bytes[..count * self.bytes], &mut out[..count * self.elements]);
    }

    /// True if [`Self::add_products`] multiplies without writing decoded numbers.
    pub fn multiplies(&self) -> bool {
        self.decoder.products.is_some()
    }

    /// Decodes the first `x.len()` numbers of each row, multiplies them by `x` and adds them to the sums of the
    /// row. Asks for the cache lines that are `ahead` bytes further on.
    ///
    /// # Panics
    /// If a row is shorter than `x`, `x` ends inside a block, or [`Self::multiplies`] is false.
    pub fn add_products(&self, rows: &[&[u8]], ahead: usize, x: &[f32], sums: &mut [LaneSums]) {
        let bytes = x.len() / self.elements * self.bytes;
        assert!(
            x.len().is_multiple_of(self.elements) && rows.iter().all(|row| row.len() >= bytes),
            "rows have the blocks of `x`"
        );
        self.decoder.products.expect("the format has products")(rows, ahead, x, sums);
    }
}

/// Returns a decoder of blocks of `$bytes` bytes and `$numbers` values that is compiled for every vector width.
///
/// The body is a function and not a closure: a closure may be left out of line, without the CPU features.
macro_rules! decoder {
    ($bytes:literal, $numbers:literal, |$ops:ident, $block:ident, $out:ident| $body:expr) => {{
        struct Blocks;
        impl $crate::codec::decoder::DecoderCode for Blocks {
            #[inline(always)]
            fn decode<O: $crate::codec::decoder::DecoderOps>(
                ops: O,
                bytes: &[u8],
                out: &mut [f32],
            ) {
                #[inline(always)]
                fn one<O: $crate::codec::decoder::DecoderOps>(
                    $ops: O,
                    $block: &[u8; $bytes],
                    $out: &mut [f32; $numbers],
                ) {
                    $body;
                }
                let blocks = bytes.as_chunks::<$bytes>().0.iter();
                for (block, out) in blocks.zip(out.as_chunks_mut::<$numbers>().0) {
                    one(ops, $crate::codec::layout::alone(block), out);
                }
            }
        }
        Some($crate::codec::decoder::decoder::<Blocks>)
    }};
}

/// Returns a decoder as [`decoder`], of code that hands on sixteen values at a time, in order, by
/// `$out.push(values)`. Such code also multiplies, and no value is written to memory for it.
macro_rules! vectors {
    ($bytes:literal, $numbers:literal, |$ops:ident, $block:ident, $out:ident| $body:expr) => {{
        struct Blocks;
        impl $crate::codec::decoder::VectorCode<$bytes> for Blocks {
            #[inline(always)]
            fn block<O, S>($ops: O, $block: &[u8; $bytes], $out: &mut S)
            where
                O: $crate::codec::decoder::DecoderOps,
                S: $crate::codec::decoder::VectorSink<O>,
            {
                $body;
            }
        }
        Some($crate::codec::decoder::vectors::<Blocks, $bytes, $numbers>)
    }};
}

/// Decoder of a format, to be compiled for a set of CPU features. It must be inlined into its caller.
pub(super) trait DecoderCode {
    fn decode<O: DecoderOps>(ops: O, bytes: &[u8], out: &mut [f32]);
}

/// Decoder of one block, which hands on its values. It must be inlined into its caller.
pub(super) trait VectorCode<const B: usize> {
    fn block<O: DecoderOps, S: VectorSink<O>>(ops: O, block: &[u8; B], out: &mut S);
}

/// Receiver of the values of a block.
/// Products of one row keep them in registers ([decision 94](../../../../docs/decisions/0094-multiply-blocks-in-registers.md)).
pub(super) trait VectorSink<O: DecoderOps> {
    /// Takes the next sixteen values.
    fn push(&mut self, values: O::Vector);
}

/// Writes the values that are left, in order.
struct StoredValues<'a, O> {
    ops: O,
    out: std::slice::IterMut<'a, [f32; 16]>,
}

impl<O: DecoderOps> VectorSink<O> for StoredValues<'_, O> {
    #[inline(always)]
    fn push(&mut self, values: O::Vector) {
        if let Some(out) = self.out.next() {
            self.ops.store(values, out);
        }
    }
}

/// Adds the products of the values and of `x`.
struct MultipliedValues<'a, O: DecoderOps> {
    ops: O,
    x: std::slice::Iter<'a, [f32; 16]>,
    sums: O::Vector,
}

impl<O: DecoderOps> VectorSink<O> for MultipliedValues<'_, O> {
    #[inline(always)]
    fn push(&mut self, values: O::Vector) {
        if let Some(x) = self.x.next() {
            self.sums = self.ops.fma(self.sums, values, x);
        }
    }
}

/// [`DecoderCode`] of blocks of `B` bytes and `N` values that hands on vectors.
struct VectorBlocks<V, const B: usize, const N: usize>(PhantomData<V>);

impl<V: VectorCode<B>, const B: usize, const N: usize> DecoderCode for VectorBlocks<V, B, N> {
    #[inline(always)]
    fn decode<O: DecoderOps>(ops: O, bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.as_chunks::<B>().0.iter().zip(out.as_chunks_mut::<N>().0) {
            let out = out.as_chunks_mut().0.iter_mut();
            V::block(ops, alone(block), &mut StoredValues { ops, out });
        }
    }
}

impl<V: VectorCode<B>, const B: usize, const N: usize> VectorBlocks<V, B, N> {
    /// Code of [`BlockReader::add_products`].
    #[inline(always)]
    fn add_products<O: DecoderOps>(
        ops: O,
        rows: &[&[u8]],
        ahead: usize,
        x: &[f32],
        sums: &mut [LaneSums],
    ) {
        for (n, x) in x.chunks(VISIT).enumerate() {
            let start = n * (VISIT / N) * B;
            let len = x.len() / N * B;
            // A visit of one block has enough work of its own.
            let together = if N < VISIT { rows.len() / TOGETHER * TOGETHER } else { 0 };
            let (tiles, remaining) = rows.split_at(together);
            let (sums_of_tiles, sums_of_remaining) = sums.split_at_mut(together);
            let tiles = tiles.as_chunks::<TOGETHER>().0.iter();
            for (rows, sums) in tiles.zip(sums_of_tiles.as_chunks_mut().0) {
                Self::visit(ops, rows.map(|row| &row[start..][..len]), ahead, x, sums);
            }
            for (row, sums) in remaining.iter().zip(sums_of_remaining) {
                Self::visit(ops, [&row[start..][..len]], ahead, x, std::array::from_mut(sums));
            }
        }
    }

    /// Multiplies some rows together: the additions of one row wait for each other.
    #[inline(always)]
    fn visit<O: DecoderOps, const R: usize>(
        ops: O,
        rows: [&[u8]; R],
        ahead: usize,
        x: &[f32],
        sums: &mut [LaneSums; R],
    ) {
        for row in rows {
            for line in (0..row.len()).step_by(64) {
                ops.prefetch(row.as_ptr().wrapping_add(ahead + line));
            }
        }
        let mut totals = sums.each_ref().map(|sums| ops.load(sums));
        let blocks = rows.map(|row| row.as_chunks::<B>().0);
        for (n, x) in x.as_chunks::<N>().0.iter().enumerate() {
            for (blocks, total) in blocks.iter().zip(&mut totals) {
                let Some(block) = blocks.get(n) else { return };
                let mut out = MultipliedValues { ops, x: x.as_chunks().0.iter(), sums: *total };
                V::block(ops, alone(block), &mut out);
                *total = out.sums;
            }
        }
        for (total, sums) in totals.into_iter().zip(sums) {
            ops.store(total, sums);
        }
    }
}

/// Proof that the CPU has a set of features, with operations that use them.
pub(super) trait DecoderOps: Copy {
    /// Sixteen values, in registers.
    type Vector: Copy;

    /// Widens f16 bits.
    fn widen(self, bits: u16) -> f32;
    /// Reads a scale of f16.
    #[inline(always)]
    fn f16(self, bytes: &[u8], at: usize) -> f32 {
        self.widen(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
    }
    fn load(self, values: &[f32; 16]) -> Self::Vector;
    /// Returns the value of bytes as signed integers.
    fn integers(self, bytes: &[u8; 16]) -> Self::Vector;
    /// Returns `values[i] * by`.
    fn times(self, values: Self::Vector, by: f32) -> Self::Vector;
    /// Returns `values[i] + number`.
    fn plus(self, values: Self::Vector, number: f32) -> Self::Vector;
    /// Returns `values[i] - number`.
    fn minus(self, values: Self::Vector, number: f32) -> Self::Vector;
    /// Returns `values[i] * -1.0` for every bit that is set.
    fn negate(self, values: Self::Vector, bits: u16) -> Self::Vector;
    /// Returns `sums[i] + values[i] * x[i]`, rounded once.
    fn fma(self, sums: Self::Vector, values: Self::Vector, x: &[f32; 16]) -> Self::Vector;
    fn store(self, values: Self::Vector, out: &mut [f32; 16]);
    /// Asks for the cache line of an address, which need not be readable.
    fn prefetch(self, address: *const u8);
    /// Returns the values of the lower halves of bytes, from the first table, and of the upper halves, from the
    /// second.
    fn lookup4(self, tables: [Self::Vector; 2], bytes: &[u8; 16]) -> [Self::Vector; 2];
    /// Returns values as [`Self::lookup4`]. Each half has two tables, between which its `fifths` choose: bit
    /// `j` is that of byte `j`.
    fn lookup5(
        self,
        tables: [[Self::Vector; 2]; 2],
        bytes: &[u8; 16],
        fifths: [u16; 2],
    ) -> [Self::Vector; 2];
    /// Returns bit `bit` of every byte, that of the first byte lowest.
    fn bits(self, bytes: &[u8; 16], bit: usize) -> u16;
}

/// Returns the decoder for a number of lanes; for one lane if the CPU lacks them.
#[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "CPU features"))]
pub(super) fn decoder<D: DecoderCode>(lanes: LaneCount) -> BlockCode {
    BlockCode::new(match lanes {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the CPU has the features.
        LaneCount::Sixteen if crate::features::avx512() => |bytes, out| unsafe {
            avx512::decode::<D>(bytes, out);
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the CPU has the features.
        LaneCount::Eight if crate::features::avx2() => |bytes, out| unsafe {
            avx2::decode::<D>(bytes, out);
        },
        _ => |bytes, out| D::decode(PlainOps, bytes, out),
    })
}

/// Returns the decoder of code that hands on vectors, as [`decoder`].
#[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "CPU features"))]
pub(super) fn vectors<V: VectorCode<B>, const B: usize, const N: usize>(
    lanes: LaneCount,
) -> BlockCode {
    const { assert!(VISIT.is_multiple_of(N), "a visit is whole blocks") }
    let products: ProductFn = match lanes {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the CPU has the features.
        LaneCount::Sixteen if crate::features::avx512() => |rows, ahead, x, sums| unsafe {
            avx512::add_products::<V, B, N>(rows, ahead, x, sums);
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the CPU has the features.
        LaneCount::Eight if crate::features::avx2() => |rows, ahead, x, sums| unsafe {
            avx2::add_products::<V, B, N>(rows, ahead, x, sums);
        },
        _ => |rows, ahead, x, sums| {
            VectorBlocks::<V, B, N>::add_products(PlainOps, rows, ahead, x, sums);
        },
    };
    BlockCode { products: Some(products), ..decoder::<VectorBlocks<V, B, N>>(lanes) }
}

/// Operations of any CPU.
#[derive(Clone, Copy)]
struct PlainOps;

impl DecoderOps for PlainOps {
    type Vector = [f32; 16];

    #[inline(always)]
    fn widen(self, bits: u16) -> f32 {
        f16_to_f32(bits)
    }
    #[inline(always)]
    fn load(self, values: &[f32; 16]) -> [f32; 16] {
        // The compiler would make a product with a known -1 a negation, which differs in the sign of a NaN.
        *alone(values)
    }
    #[inline(always)]
    fn integers(self, bytes: &[u8; 16]) -> [f32; 16] {
        each(bytes, |byte| f32::from(byte.cast_signed()))
    }
    #[inline(always)]
    fn times(self, values: [f32; 16], by: f32) -> [f32; 16] {
        each(&values, |x| x * by)
    }
    #[inline(always)]
    fn plus(self, values: [f32; 16], number: f32) -> [f32; 16] {
        each(&values, |x| x + number)
    }
    #[inline(always)]
    fn minus(self, values: [f32; 16], number: f32) -> [f32; 16] {
        each(&values, |x| x - number)
    }
    #[inline(always)]
    fn negate(self, mut values: [f32; 16], bits: u16) -> [f32; 16] {
        for (i, x) in values.iter_mut().enumerate() {
            *x *= if bits >> i & 1 == 1 { -1.0 } else { 1.0 };
        }
        values
    }
    #[inline(always)]
    fn fma(self, mut sums: [f32; 16], values: [f32; 16], x: &[f32; 16]) -> [f32; 16] {
        for ((sum, value), &x) in sums.iter_mut().zip(values).zip(x) {
            *sum = value.mul_add(x, *sum);
        }
        sums
    }
    #[inline(always)]
    fn store(self, values: [f32; 16], out: &mut [f32; 16]) {
        *out = values;
    }
    #[inline(always)]
    fn prefetch(self, _address: *const u8) {}
    #[inline(always)]
    fn lookup4(self, tables: [[f32; 16]; 2], bytes: &[u8; 16]) -> [[f32; 16]; 2] {
        self.lookup5(tables.map(|table| [table; 2]), bytes, [0; 2])
    }
    #[inline(always)]
    fn lookup5(
        self,
        tables: [[[f32; 16]; 2]; 2],
        bytes: &[u8; 16],
        fifths: [u16; 2],
    ) -> [[f32; 16]; 2] {
        let mut low = [0.0; 16];
        let mut high = [0.0; 16];
        for (j, &byte) in bytes.iter().enumerate() {
            let fifth = fifths.map(|bits| usize::from(bits >> j & 1));
            low[j] = tables[0][fifth[0]][usize::from(byte & 15)];
            high[j] = tables[1][fifth[1]][usize::from(byte >> 4)];
        }
        [low, high]
    }
    #[inline(always)]
    fn bits(self, bytes: &[u8; 16], bit: usize) -> u16 {
        let bits = bytes.iter().enumerate().map(|(j, byte)| u16::from(byte >> bit & 1) << j);
        bits.fold(0, |word, bit| word | bit)
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockReader, LaneSums};
    use crate::codec::{self, BlockType, LaneCount};

    /// Bytes that make special scales likely: all bits, infinities and NaN of f16, NaN of f8.
    const SPECIAL: [u8; 8] = [0xff, 0x7c, 0xfc, 0x7f, 0x7e, 0x00, 0x80, 0x01];

    fn random_bytes(state: &mut u64, special: u64, bytes: &mut [u8]) {
        for byte in bytes {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let word = *state >> 40;
            *byte = if word >> 8 & 7 < special { SPECIAL[word as usize & 7] } else { word as u8 };
        }
    }

    #[test]
    fn every_vector_width_gives_the_bits_of_the_plain_code() {
        let mut state = 1;
        for ty in BlockType::all().filter(|ty| ty.declaration().decode.is_some()) {
            for round in 0..200 {
                let blocks = 1 + round % 3;
                let mut bytes = vec![0; blocks * ty.bytes()];
                random_bytes(&mut state, round as u64 % 6, &mut bytes);
                let expected = decoded_bits(LaneCount::One, ty, &bytes, blocks * ty.elements());
                for lanes in LaneCount::available() {
                    assert_eq!(
                        decoded_bits(lanes, ty, &bytes, blocks * ty.elements()),
                        expected,
                        "{ty} {lanes:?} {bytes:02x?}"
                    );
                }
            }
        }
    }

    fn decoded_bits(lanes: LaneCount, ty: BlockType, bytes: &[u8], count: usize) -> Vec<u32> {
        let mut out = vec![0.0; count];
        codec::decode_in(lanes, ty, bytes, &mut out).unwrap();
        // Which of several NaN a sum keeps is up to the compiler.
        out.into_iter()
            .map(|x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() })
            .collect()
    }

    #[test]
    fn products_are_added_in_the_order_of_the_numbers() {
        let mut state = 7;
        let mut multiplied = 0;
        for (ty, reader) in LaneCount::available().flat_map(|lanes| {
            BlockType::all().filter_map(move |ty| Some((ty, BlockReader::in_lanes(lanes, ty)?)))
        }) {
            if !reader.multiplies() {
                continue;
            }
            multiplied += 1;
            for (count, blocks) in [(1, 1), (3, 2), (4, 9), (5, 17), (9, 24)] {
                let len = blocks * ty.elements();
                let mut rows = vec![0; count * blocks * ty.bytes()];
                random_bytes(&mut state, 0, &mut rows);
                let mut x = vec![0; len];
                random_bytes(&mut state, 0, &mut x);
                let x: Vec<f32> = x.iter().map(|&byte| f32::from(byte) - 127.5).collect();
                let rows: Vec<&[u8]> = rows.chunks_exact(blocks * ty.bytes()).collect();
                let start: Vec<LaneSums> = (0..count).map(|n| [n as f32; 16]).collect();
                let mut expected = start.clone();
                for (row, sums) in rows.iter().zip(&mut expected) {
                    let mut numbers = vec![0.0; len];
                    codec::decode_in(LaneCount::One, ty, row, &mut numbers).unwrap();
                    for (n, (number, x)) in numbers.iter().zip(&x).enumerate() {
                        sums[n % 16] = number.mul_add(*x, sums[n % 16]);
                    }
                }
                let mut sums = start;
                reader.add_products(&rows, 0, &x, &mut sums);
                assert_eq!(
                    sum_bits(&sums),
                    sum_bits(&expected),
                    "{ty} {count} rows of {blocks} blocks"
                );
            }
        }
        assert!(multiplied >= 13, "only {multiplied} decoders multiply");
    }

    fn sum_bits(sums: &[LaneSums]) -> Vec<u32> {
        sums.as_flattened()
            .iter()
            .map(|x: &f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() })
            .collect()
    }
}
