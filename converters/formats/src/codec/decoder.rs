//! Block decoders, compiled for every instruction set.
//!
//! The compiler vectorizes the plain code of a decoder. A few operations have instructions that the compiler
//! does not find: [`Simd`] has them for each instruction set. The numbers are the same bits.
//!
//! Measurements are in [decision 84](../../../../docs/decisions/0084-decode-blocks-with-vectors.md).

use std::marker::PhantomData;

use lanes::{Isa, Simd, SliceTask, prefetch_to_l1};

use super::BlockType;
use super::layout::alone;

/// `(isa, bytes, out)`. Lengths are checked before.
pub(super) type DecodeFn = fn(Isa, &[u8], &mut [f32]);
/// `(isa, rows, ahead, x, sums)`, as [`BlockReader::add_products`]. Lengths are checked before.
type ProductFn = fn(Isa, &[&[u8]], usize, &[f32], &mut [LaneSums]);

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
    /// Returns code that is the same for all instruction sets.
    pub(super) const fn plain(decode: DecodeFn) -> Self {
        Self { decode, products: None }
    }

    /// Returns code that only decodes.
    pub(super) const fn of<D: DecoderCode>() -> Self {
        Self { decode: decode::<D>, products: None }
    }

    /// Returns code that decodes, and multiplies by values that it hands on.
    pub(super) const fn of_vectors<V: VectorCode<B>, const B: usize, const N: usize>() -> Self {
        const { assert!(VISIT.is_multiple_of(N), "a visit is whole blocks") }
        Self { decode: decode::<VectorBlocks<V, B, N>>, products: Some(add_products::<V, B, N>) }
    }
}

/// Decoder of a format for this CPU, to be called for a few blocks at a time.
#[derive(Debug, Clone, Copy)]
pub struct BlockReader {
    isa: Isa,
    decoder: BlockCode,
    elements: usize,
    bytes: usize,
}

impl BlockReader {
    /// Returns the decoder of a format; none if the format has none.
    pub fn new(ty: BlockType) -> Option<Self> {
        Self::on(Isa::best(), ty)
    }

    /// Returns the decoder with the vectors of an instruction set.
    fn on(isa: Isa, ty: BlockType) -> Option<Self> {
        let decoder = ty.declaration().decode?;
        Some(Self { isa, decoder, elements: ty.elements(), bytes: ty.bytes() })
    }

    /// Decodes the first `count` blocks.
    ///
    /// # Panics
    /// If a slice is shorter than the blocks.
    pub fn read(&self, count: usize, bytes: &[u8], out: &mut [f32]) {
        (self.decoder.decode)(
            self.isa,
            &bytes[..count * self.bytes],
            &mut out[..count * self.elements],
        );
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
        self.decoder.products.expect("the format has products")(self.isa, rows, ahead, x, sums);
    }
}

/// Returns a decoder of blocks of `$bytes` bytes and `$numbers` values that is compiled for every instruction set.
///
/// The body is a function and not a closure: a closure may be left out of line, without the CPU features.
macro_rules! decoder {
    ($bytes:literal, $numbers:literal, |$ops:ident, $block:ident, $out:ident| $body:expr) => {{
        struct Blocks;
        impl $crate::codec::decoder::DecoderCode for Blocks {
            #[inline(always)]
            fn decode<O: ::lanes::Simd>(ops: O, bytes: &[u8], out: &mut [f32]) {
                #[inline(always)]
                fn one<O: ::lanes::Simd>(
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
        Some($crate::codec::decoder::BlockCode::of::<Blocks>())
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
                O: ::lanes::Simd,
                S: $crate::codec::decoder::VectorSink<O>,
            {
                $body;
            }
        }
        Some($crate::codec::decoder::BlockCode::of_vectors::<Blocks, $bytes, $numbers>())
    }};
}

/// Decoder of a format, to be compiled for an instruction set. It must be inlined into its caller.
pub(super) trait DecoderCode {
    fn decode<O: Simd>(ops: O, bytes: &[u8], out: &mut [f32]);
}

/// Decoder of one block, which hands on its values. It must be inlined into its caller.
pub(super) trait VectorCode<const B: usize> {
    fn block<O: Simd, S: VectorSink<O>>(ops: O, block: &[u8; B], out: &mut S);
}

/// Receiver of the values of a block.
/// Products of one row keep them in registers ([decision 94](../../../../docs/decisions/0094-multiply-blocks-in-registers.md)).
pub(super) trait VectorSink<O: Simd> {
    /// Takes the next sixteen values.
    fn push(&mut self, values: O::Wide);
}

/// Writes the values that are left, in order.
struct StoredValues<'a, O> {
    ops: O,
    out: std::slice::IterMut<'a, [f32; 16]>,
}

impl<O: Simd> VectorSink<O> for StoredValues<'_, O> {
    #[inline(always)]
    fn push(&mut self, values: O::Wide) {
        if let Some(out) = self.out.next() {
            self.ops.store16(values, out);
        }
    }
}

/// Adds the products of the values and of `x`.
struct MultipliedValues<'a, O: Simd> {
    ops: O,
    x: std::slice::Iter<'a, [f32; 16]>,
    sums: O::Wide,
}

impl<O: Simd> VectorSink<O> for MultipliedValues<'_, O> {
    #[inline(always)]
    fn push(&mut self, values: O::Wide) {
        if let Some(x) = self.x.next() {
            self.sums = self.ops.fma16(self.sums, values, self.ops.load16(x));
        }
    }
}

/// [`DecoderCode`] of blocks of `B` bytes and `N` values that hands on vectors.
struct VectorBlocks<V, const B: usize, const N: usize>(PhantomData<V>);

impl<V: VectorCode<B>, const B: usize, const N: usize> DecoderCode for VectorBlocks<V, B, N> {
    #[inline(always)]
    fn decode<O: Simd>(ops: O, bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.as_chunks::<B>().0.iter().zip(out.as_chunks_mut::<N>().0) {
            let out = out.as_chunks_mut().0.iter_mut();
            V::block(ops, alone(block), &mut StoredValues { ops, out });
        }
    }
}

impl<V: VectorCode<B>, const B: usize, const N: usize> VectorBlocks<V, B, N> {
    /// Code of [`BlockReader::add_products`].
    #[inline(always)]
    fn add_products<O: Simd>(
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
    fn visit<O: Simd, const R: usize>(
        ops: O,
        rows: [&[u8]; R],
        ahead: usize,
        x: &[f32],
        sums: &mut [LaneSums; R],
    ) {
        for row in rows {
            for line in (0..row.len()).step_by(64) {
                prefetch_to_l1(row.as_ptr().wrapping_add(ahead + line));
            }
        }
        let mut totals = sums.each_ref().map(|sums| ops.load16(sums));
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
            ops.store16(total, sums);
        }
    }
}

/// Decoding of a format as a task.
struct Decoding<D>(PhantomData<D>);

impl<D: DecoderCode> SliceTask for Decoding<D> {
    type From = u8;
    type To = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S, bytes: &[u8], out: &mut [f32]) {
        D::decode(simd, bytes, out);
    }
}

/// Decodes with the vectors of an instruction set.
fn decode<D: DecoderCode>(isa: Isa, bytes: &[u8], out: &mut [f32]) {
    isa.run_slices(Decoding::<D>(PhantomData), bytes, out);
}

/// Products of rows as a task.
struct Products<'a, V, const B: usize, const N: usize> {
    rows: &'a [&'a [u8]],
    ahead: usize,
    code: PhantomData<V>,
}

impl<V: VectorCode<B>, const B: usize, const N: usize> SliceTask for Products<'_, V, B, N> {
    type From = f32;
    type To = LaneSums;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S, x: &[f32], sums: &mut [LaneSums]) {
        VectorBlocks::<V, B, N>::add_products(simd, self.rows, self.ahead, x, sums);
    }
}

/// Multiplies with the vectors of an instruction set.
fn add_products<V: VectorCode<B>, const B: usize, const N: usize>(
    isa: Isa,
    rows: &[&[u8]],
    ahead: usize,
    x: &[f32],
    sums: &mut [LaneSums],
) {
    isa.run_slices(Products::<V, B, N> { rows, ahead, code: PhantomData }, x, sums);
}

#[cfg(test)]
mod tests {
    use super::{BlockReader, LaneSums};
    use crate::codec::{self, BlockType};
    use lanes::Isa;

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
    fn every_instruction_set_gives_the_bits_of_the_plain_code() {
        let mut state = 1;
        for ty in BlockType::all().filter(|ty| ty.declaration().decode.is_some()) {
            for round in 0..200 {
                let blocks = 1 + round % 3;
                let mut bytes = vec![0; blocks * ty.bytes()];
                random_bytes(&mut state, round as u64 % 6, &mut bytes);
                let expected = decoded_bits(Isa::PORTABLE, ty, &bytes, blocks * ty.elements());
                for isa in Isa::available() {
                    assert_eq!(
                        decoded_bits(isa, ty, &bytes, blocks * ty.elements()),
                        expected,
                        "{ty} {isa:?} {bytes:02x?}"
                    );
                }
            }
        }
    }

    fn decoded_bits(isa: Isa, ty: BlockType, bytes: &[u8], count: usize) -> Vec<u32> {
        let mut out = vec![0.0; count];
        codec::decode_in(isa, ty, bytes, &mut out).unwrap();
        // Which of several NaN a sum keeps is up to the compiler.
        out.into_iter()
            .map(|x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() })
            .collect()
    }

    #[test]
    fn products_are_added_in_the_order_of_the_numbers() {
        let mut state = 7;
        let mut multiplied = 0;
        for (ty, reader) in Isa::available().flat_map(|isa| {
            BlockType::all().filter_map(move |ty| Some((ty, BlockReader::on(isa, ty)?)))
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
                    codec::decode_in(Isa::PORTABLE, ty, row, &mut numbers).unwrap();
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
