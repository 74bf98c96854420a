//! Formats without blocks: F32, F16, BF16; integers of 32 bits, for tensors of indices; and, read only, F64 and other
//! integers.

use super::declaration::{BlockDeclaration, FileType, ScaleRule};
use super::decoder::BlockCode;
use crate::numbers;
use registry::dtype::Dtype;

pub(super) const F32: BlockDeclaration = BlockDeclaration {
    plain: Some(Dtype::F32),
    scales: ScaleRule::Number(|bytes| f32::from_le_bytes(first(bytes)).into()),
    file_types: &[FileType::new("F32", 0)],
    encode: Some(|numbers, _, _, out| write(numbers, out, f32::to_le_bytes)),
    decode: Some(BlockCode::plain(|_, bytes, out| read(bytes, out, f32::from_le_bytes))),
    ..BlockDeclaration::new("F32", 0, 1, 4)
};

pub(super) const F16: BlockDeclaration = BlockDeclaration {
    plain: Some(Dtype::F16),
    scales: ScaleRule::F16(&[0]),
    file_types: &[FileType::new("F16", 1)],
    encode: Some(|numbers, _, _, out| {
        write(numbers, out, |x| numbers::f32_to_f16(x).to_le_bytes());
    }),
    decode: Some(BlockCode::plain(|_, bytes, out| {
        read(bytes, out, |bits| numbers::f16_to_f32(u16::from_le_bytes(bits)));
    })),
    ..BlockDeclaration::new("F16", 1, 1, 2)
};

pub(super) const BF16: BlockDeclaration = BlockDeclaration {
    plain: Some(Dtype::Bf16),
    scales: ScaleRule::Number(|bytes| {
        numbers::bf16_to_f32(u16::from_le_bytes(first(bytes))).into()
    }),
    file_types: &[FileType::new("BF16", 32)],
    encode: Some(|numbers, _, _, out| {
        write(numbers, out, |x| numbers::f32_to_bf16(x).to_le_bytes());
    }),
    decode: Some(BlockCode::plain(|_, bytes, out| {
        read(bytes, out, |bits| numbers::bf16_to_f32(u16::from_le_bytes(bits)));
    })),
    ..BlockDeclaration::new("BF16", 30, 1, 2)
};

// Types that are read alone; values are rounded to the nearest f32.

pub(super) const I8: BlockDeclaration = BlockDeclaration {
    decode: Some(BlockCode::plain(|_, bytes, out| {
        read(bytes, out, |bits| i8::from_le_bytes(bits) as f32);
    })),
    ..BlockDeclaration::new("I8", 24, 1, 1)
};

pub(super) const I16: BlockDeclaration = BlockDeclaration {
    decode: Some(BlockCode::plain(|_, bytes, out| {
        read(bytes, out, |bits| i16::from_le_bytes(bits) as f32);
    })),
    ..BlockDeclaration::new("I16", 25, 1, 2)
};

// Written where a section asks for it, and no target.
pub(super) const I32: BlockDeclaration = BlockDeclaration {
    encode: Some(|numbers, _, _, out| {
        write(numbers, out, |x| (x.round_ties_even() as i32).to_le_bytes());
    }),
    decode: Some(BlockCode::plain(|_, bytes, out| {
        read(bytes, out, |bits| i32::from_le_bytes(bits) as f32);
    })),
    ..BlockDeclaration::new("I32", 26, 1, 4)
};

pub(super) const I64: BlockDeclaration = BlockDeclaration {
    decode: Some(BlockCode::plain(|_, bytes, out| {
        read(bytes, out, |bits| i64::from_le_bytes(bits) as f32);
    })),
    ..BlockDeclaration::new("I64", 27, 1, 8)
};

pub(super) const F64: BlockDeclaration = BlockDeclaration {
    scales: ScaleRule::Number(|bytes| f64::from_le_bytes(first(bytes))),
    decode: Some(BlockCode::plain(|_, bytes, out| {
        read(bytes, out, |bits| f64::from_le_bytes(bits) as f32);
    })),
    ..BlockDeclaration::new("F64", 28, 1, 8)
};

/// Returns the bytes of the only value of a block.
fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.first_chunk().copied().unwrap_or([0; N])
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
