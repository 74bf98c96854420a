//! TQ1_0 and TQ2_0: 256 numbers that are `-d`, 0 or `d`.
//!
//! TQ1_0: `qs[48]` with five base-3 digits a byte, `qh[4]` with four, `d` (f16). A byte is the
//! fraction `digits / 243` in 256ths, rounded up, so that multiplying by 3 brings up the digits
//! one by one. TQ2_0: `qs[64]` as in Q2_K, `d`.

use super::BlockType;
use super::by_peak::{ByPeak, PeakFormat, by_peak};
use super::crumbs::{join2, split2};
use super::declaration::{BlockDeclaration, FileType, ScaleRule};
use super::layout::{each, get_f16, put_f16};
use super::rounding::away;
use super::simd;

pub(super) const TQ1_0: BlockDeclaration = BlockDeclaration {
    scales: ScaleRule::F16(&[52]),
    error: Some(0.809),
    fallback: Some(BlockType::Q40),
    file_types: &[FileType::new("TQ1_0", 36)],
    encode: Some(by_peak::<Tq1Blocks, 256, 54>),
    wide: Some(simd::encoder::<ByPeak<Tq1Blocks, 256, 54>>),
    decode: decoder!(54, 256, |ops, block, out| {
        let d = ops.f16(block, 52);
        for run in RUNS {
            let mut power = 1_u8;
            for n in 0..run.digits {
                for m in 0..run.stride {
                    let fraction = block[run.byte + m].wrapping_mul(power);
                    let trit = (fraction as i32 * 3) >> 8;
                    out[run.first + m + n * run.stride] = (trit - 1) as f32 * d;
                }
                power *= 3;
            }
        }
    }),
    ..BlockDeclaration::new("TQ1_0", 34, 256, 54)
};

pub(super) const TQ2_0: BlockDeclaration = BlockDeclaration {
    levels: Some(|block, to| {
        to.set(get_f16(block, 64), &split2(&block[..64]), |trit| trit.cast_signed() - 1);
    }),
    scales: ScaleRule::F16(&[64]),
    error: Some(0.809),
    fallback: Some(BlockType::Q40),
    file_types: &[FileType::new("TQ2_0", 37)],
    encode: Some(by_peak::<Tq2Blocks, 256, 66>),
    wide: Some(simd::encoder::<ByPeak<Tq2Blocks, 256, 66>>),
    decode: decoder!(66, 256, |ops, block, out| {
        let d = ops.f16(block, 64);
        *out = each(&split2(&block[..64]), |trit| (trit as i32 - 1) as f32 * d);
    }),
    ..BlockDeclaration::new("TQ2_0", 35, 256, 66)
};

/// Bytes whose digits are values `first + m + n * stride`.
struct DigitRun {
    byte: usize,
    first: usize,
    stride: usize,
    digits: usize,
}

const RUNS: [DigitRun; 3] = [
    DigitRun { byte: 0, first: 0, stride: 32, digits: 5 },
    DigitRun { byte: 32, first: 160, stride: 16, digits: 5 },
    DigitRun { byte: 48, first: 240, stride: 4, digits: 4 },
];

struct Tq1Blocks;

impl PeakFormat<256, 54> for Tq1Blocks {
    #[inline(always)]
    fn pack(x: &[f32; 256], peak: f32, block: &mut [u8; 54]) {
        let trits = trits(x, peak.abs());
        put_f16(block, 52, peak.abs());
        for run in RUNS {
            let mut numbers = [0_u8; 32];
            for n in 0..5 {
                let at = run.first + n * run.stride;
                for (m, number) in numbers[..run.stride].iter_mut().enumerate() {
                    let trit = if n < run.digits { trits[at + m] } else { 0 };
                    *number = number.wrapping_mul(3).wrapping_add(trit);
                }
            }
            for (to, number) in block[run.byte..].iter_mut().zip(&numbers[..run.stride]) {
                *to = (u32::from(*number) * 256).div_ceil(243) as u8;
            }
        }
    }
}

struct Tq2Blocks;

impl PeakFormat<256, 66> for Tq2Blocks {
    #[inline(always)]
    fn pack(x: &[f32; 256], peak: f32, block: &mut [u8; 66]) {
        put_f16(block, 64, peak.abs());
        join2(&each(&trits(x, peak.abs()), |trit| trit & 3), &mut block[..64]);
    }
}

/// Returns 0, 1 or 2 for values that round to `-d`, 0 or `d`, with `d` the peak's magnitude.
#[inline(always)]
fn trits(x: &[f32; 256], d: f32) -> [u8; 256] {
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    each(x, |x| away(x * inverse).wrapping_add(1) as u8)
}
