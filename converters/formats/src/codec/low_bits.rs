//! Q1_0 and Q2_0: levels of 1 and 2 bits with one scale.
//!
//! `d` (f16), then levels in order, lowest bits first. Q1_0: 128 numbers that are `-d` or `d`.
//! Q2_0: 64 numbers that are `-d`, 0, `d` or `2 d`.

use super::BlockType;
use super::declaration::{BlockDeclaration, FileType, ScaleRule};
use super::layout::{blocks, each_block, get_f16, peak, put_f16};
use super::rounding::away;

pub(super) const Q1_0: BlockDeclaration = BlockDeclaration {
    levels: Some(|block, to| {
        let bits = (0..128).map(|at| block[2 + at / 8] >> (at % 8) & 1);
        to.set(get_f16(block, 0), &bits.collect::<Vec<u8>>(), |bit| 2 * bit.cast_signed() - 1);
    }),
    scales: ScaleRule::F16(&[0]),
    error: Some(0.601),
    file_types: &[FileType::new("Q1_0", 40)],
    encode: Some(|numbers, _, _, out| {
        for (x, block) in blocks::<128, 18>(numbers, out) {
            let sum = x.iter().fold(0.0_f32, |sum, x| sum + x.abs());
            put_f16(block, 0, sum / 128.0);
            for (byte, x) in block[2..].iter_mut().zip(x.as_chunks::<8>().0) {
                let bits = x.iter().enumerate().map(|(j, &x)| u8::from(x >= 0.0) << j);
                *byte = bits.fold(0, |byte, bit| byte | bit);
            }
        }
    }),
    decode: Some(|bytes, out| {
        each_block::<18, 128>(bytes, out, |block, out| {
            let d = get_f16(block, 0);
            for (byte, x) in block[2..].iter().zip(out.as_chunks_mut::<8>().0) {
                *x = std::array::from_fn(|j| if byte >> j & 1 == 1 { d } else { -d });
            }
        });
    }),
    ..BlockDeclaration::new("Q1_0", 41, 128, 18)
};

pub(super) const Q2_0: BlockDeclaration = BlockDeclaration {
    levels: Some(|block, to| {
        let pairs = (0..64).map(|at| block[2 + at / 4] >> (2 * (at % 4)) & 3);
        to.set(get_f16(block, 0), &pairs.collect::<Vec<u8>>(), |level| level.cast_signed() - 1);
    }),
    scales: ScaleRule::F16(&[0]),
    error: Some(0.719),
    fallback: Some(BlockType::Q40),
    file_types: &[FileType::new("Q2_0", 41)],
    encode: Some(|numbers, _, _, out| {
        for (x, block) in blocks::<64, 18>(numbers, out) {
            let d = peak(x).abs();
            let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
            put_f16(block, 0, d);
            for (byte, x) in block[2..].iter_mut().zip(x.as_chunks::<4>().0) {
                let level = |x: f32| away(x * inverse).wrapping_add(1).clamp(0, 3) as u8;
                let bits = x.iter().enumerate().map(|(j, &x)| level(x) << (2 * j));
                *byte = bits.fold(0, |byte, bits| byte | bits);
            }
        }
    }),
    decode: Some(|bytes, out| {
        each_block::<18, 64>(bytes, out, |block, out| {
            let d = get_f16(block, 0);
            for (byte, x) in block[2..].iter().zip(out.as_chunks_mut::<4>().0) {
                *x = std::array::from_fn(|j| ((byte >> (2 * j) & 3) as i32 - 1) as f32 * d);
            }
        });
    }),
    ..BlockDeclaration::new("Q2_0", 42, 64, 18)
};
