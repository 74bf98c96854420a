//! Q8_0: 32 numbers, one scale, levels of 8 bits.
//!
//! `d` (f16), `qs[32]` (i8).

use super::by_peak::{ByPeak, PeakFormat, by_peak};
use super::declaration::{BlockDeclaration, FileType, ScaleRule};
use super::layout::{each, get_f16, put_f16};
use super::rounding::away;
use super::simd;

pub(super) const Q8_0: BlockDeclaration = BlockDeclaration {
    levels: Some(|block, to| to.set(get_f16(block, 0), &block[2..], u8::cast_signed)),
    scales: ScaleRule::F16(&[0]),
    error: Some(0.0054),
    file_types: &[FileType::new("Q8_0", 7)],
    encode: Some(by_peak::<Q8Blocks, 32, 34>),
    wide: Some(simd::encoder::<ByPeak<Q8Blocks, 32, 34>>),
    decode: vectors!(34, 32, |ops, block, out| {
        let d = ops.f16(block, 0);
        for levels in block[2..].as_chunks::<16>().0 {
            out.push(ops.times(ops.signed16(levels), d));
        }
    }),
    ..BlockDeclaration::new("Q8_0", 8, 32, 34)
};

/// Q8_1: form of activations while a model runs; no file has it.
pub(super) const Q8_1: BlockDeclaration = BlockDeclaration::new("Q8_1", 9, 32, 36);

struct Q8Blocks;

impl PeakFormat<32, 34> for Q8Blocks {
    #[inline(always)]
    fn pack(x: &[f32; 32], peak: f32, block: &mut [u8; 34]) {
        let d = peak.abs() / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        put_f16(block, 0, d);
        block[2..].copy_from_slice(&each(x, |x| away(x * inverse) as u8));
    }
}
