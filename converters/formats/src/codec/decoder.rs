//! Block decoders, compiled for every vector width.
//!
//! The compiler vectorizes the plain code of a decoder. A few operations have instructions that the compiler
//! does not find: [`DecoderOps`] has them for each set of CPU features. The numbers are the same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use super::layout::{alone, each};
use super::{BlockType, LaneCount};
use crate::numbers::f16_to_f32;

/// `(bytes, out)`. Lengths are checked before.
pub(crate) type DecodeFn = fn(&[u8], &mut [f32]);

/// Decoder of a format for this CPU, to be called for a few blocks at a time.
#[derive(Debug, Clone, Copy)]
pub struct BlockReader {
    decode: DecodeFn,
    elements: usize,
    bytes: usize,
}

impl BlockReader {
    /// Returns the decoder of a format; none if the format has none.
    pub fn new(ty: BlockType) -> Option<Self> {
        let decode = ty.declaration().decode?(LaneCount::widest());
        Some(Self { decode, elements: ty.elements(), bytes: ty.bytes() })
    }

    /// Decodes the first `count` blocks.
    ///
    /// # Panics
    /// If a slice is shorter than the blocks.
    pub fn read(&self, count: usize, bytes: &[u8], out: &mut [f32]) {
        (self.decode)(&bytes[..count * self.bytes], &mut out[..count * self.elements]);
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

/// Decoder of a format, to be compiled for a set of CPU features. It must be inlined into its caller.
pub(super) trait DecoderCode {
    fn decode<O: DecoderOps>(ops: O, bytes: &[u8], out: &mut [f32]);
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
    fn store(self, values: Self::Vector, out: &mut [f32; 16]);
    /// Writes the values of the lower halves of bytes, from the first table, and of the upper halves, from the
    /// second.
    fn lookup4(self, tables: [Self::Vector; 2], bytes: &[u8; 16], out: [&mut [f32; 16]; 2]);
    /// Writes values as [`Self::lookup4`]. Each half has two tables, between which its `fifths` choose: bit `j`
    /// is that of byte `j`.
    fn lookup5(
        self,
        tables: [[Self::Vector; 2]; 2],
        bytes: &[u8; 16],
        fifths: [u16; 2],
        out: [&mut [f32; 16]; 2],
    );
    /// Returns bit `bit` of every byte, that of the first byte lowest.
    fn bits(self, bytes: &[u8; 16], bit: usize) -> u16;
}

/// Returns the decoder for a number of lanes; for one lane if the CPU lacks them.
#[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "CPU features"))]
pub(super) fn decoder<D: DecoderCode>(lanes: LaneCount) -> DecodeFn {
    match lanes {
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
    }
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
    fn store(self, values: [f32; 16], out: &mut [f32; 16]) {
        *out = values;
    }
    #[inline(always)]
    fn lookup4(self, tables: [[f32; 16]; 2], bytes: &[u8; 16], out: [&mut [f32; 16]; 2]) {
        self.lookup5(tables.map(|table| [table; 2]), bytes, [0; 2], out);
    }
    #[inline(always)]
    fn lookup5(
        self,
        tables: [[[f32; 16]; 2]; 2],
        bytes: &[u8; 16],
        fifths: [u16; 2],
        out: [&mut [f32; 16]; 2],
    ) {
        let [low, high] = out;
        for (j, &byte) in bytes.iter().enumerate() {
            let fifth = fifths.map(|bits| usize::from(bits >> j & 1));
            low[j] = tables[0][fifth[0]][usize::from(byte & 15)];
            high[j] = tables[1][fifth[1]][usize::from(byte >> 4)];
        }
    }
    #[inline(always)]
    fn bits(self, bytes: &[u8; 16], bit: usize) -> u16 {
        let bits = bytes.iter().enumerate().map(|(j, byte)| u16::from(byte >> bit & 1) << j);
        bits.fold(0, |word, bit| word | bit)
    }
}

#[cfg(test)]
mod tests {
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
                let decode = |lanes| {
                    let mut out = vec![0.0; blocks * ty.elements()];
                    codec::decode_in(lanes, ty, &bytes, &mut out).unwrap();
                    // Which of several NaN a sum keeps is up to the compiler.
                    let bits = |x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
                    out.into_iter().map(bits).collect::<Vec<_>>()
                };
                let expected = decode(LaneCount::One);
                for lanes in LaneCount::available() {
                    assert_eq!(decode(lanes), expected, "{ty} {lanes:?} {bytes:02x?}");
                }
            }
        }
    }
}
