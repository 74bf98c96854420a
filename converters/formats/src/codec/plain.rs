//! Formats without blocks: F32, F16, BF16; and, read only, F64 and integers.

use super::{BlockType, Codec, DecodeFn};
use crate::numbers;

pub(super) const F32: Codec = Codec {
    encode: |numbers, _, _, out| write(numbers, out, f32::to_le_bytes),
    decode: |bytes, out| read(bytes, out, f32::from_le_bytes),
};

pub(super) const F16: Codec = Codec {
    encode: |numbers, _, _, out| write(numbers, out, |x| numbers::f32_to_f16(x).to_le_bytes()),
    decode: |bytes, out| read(bytes, out, |bits| numbers::f16_to_f32(u16::from_le_bytes(bits))),
};

pub(super) const BF16: Codec = Codec {
    encode: |numbers, _, _, out| write(numbers, out, |x| numbers::f32_to_bf16(x).to_le_bytes()),
    decode: |bytes, out| read(bytes, out, |bits| numbers::bf16_to_f32(u16::from_le_bytes(bits))),
};

/// Returns the decoder of a format that cannot be encoded; values are rounded to the nearest f32.
pub(super) fn decoder(ty: BlockType) -> Option<DecodeFn> {
    Some(match ty {
        BlockType::I8 => |bytes, out| read(bytes, out, |bits| i8::from_le_bytes(bits) as f32),
        BlockType::I16 => |bytes, out| read(bytes, out, |bits| i16::from_le_bytes(bits) as f32),
        BlockType::I32 => |bytes, out| read(bytes, out, |bits| i32::from_le_bytes(bits) as f32),
        BlockType::I64 => |bytes, out| read(bytes, out, |bits| i64::from_le_bytes(bits) as f32),
        BlockType::F64 => |bytes, out| read(bytes, out, |bits| f64::from_le_bytes(bits) as f32),
        _ => return None,
    })
}

fn write<const N: usize>(numbers: &[f32], out: &mut [u8], bits: impl Fn(f32) -> [u8; N]) {
    for (bytes, &x) in out.as_chunks_mut::<N>().0.iter_mut().zip(numbers) {
        *bytes = bits(x);
    }
}

fn read<const N: usize>(bytes: &[u8], out: &mut [f32], number: impl Fn([u8; N]) -> f32) {
    for (x, &bytes) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *x = number(bytes);
    }
}
