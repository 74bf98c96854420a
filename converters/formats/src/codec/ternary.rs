//! TQ1_0 and TQ2_0: 256 numbers that are `-d`, 0 or `d`.
//!
//! TQ1_0: `qs[48]` with five base-3 digits a byte, `qh[4]` with four, `d` (f16). A byte is the
//! fraction `digits / 243` in 256ths, rounded up, so that multiplying by 3 brings up the digits
//! one by one. TQ2_0: `qs[64]` as in Q2_K, `d`.

use super::Codec;
use super::crumbs::{join2, split2};
use super::layout::{blocks, each_block, get_f16, peak, put_f16};
use super::rounding::away;

pub(super) const TQ1_0: Codec = Codec {
    encode: |numbers, _, _, out| {
        for (x, block) in blocks::<256, 54>(numbers, out) {
            let trits = trits(x);
            put_f16(block, 52, peak(x).abs());
            for run in RUNS {
                for m in 0..run.stride {
                    let digit =
                        |n| if n < run.digits { trits[run.first + m + n * run.stride] } else { 0 };
                    let digits = (0..5).map(digit);
                    let number =
                        digits.fold(0_u8, |sum, trit| sum.wrapping_mul(3).wrapping_add(trit));
                    block[run.byte + m] = (number as u32 * 256).div_ceil(243) as u8;
                }
            }
        }
    },
    decode: |bytes, out| {
        each_block::<54, 256>(bytes, out, |block, out| {
            let d = get_f16(block, 52);
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
        });
    },
};

pub(super) const TQ2_0: Codec = Codec {
    encode: |numbers, _, _, out| {
        for (x, block) in blocks::<256, 66>(numbers, out) {
            put_f16(block, 64, peak(x).abs());
            join2(&trits(x).map(|trit| trit & 3), &mut block[..64]);
        }
    },
    decode: |bytes, out| {
        each_block::<66, 256>(bytes, out, |block, out| {
            let d = get_f16(block, 64);
            *out = split2(&block[..64]).map(|trit| (trit as i32 - 1) as f32 * d);
        });
    },
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

/// Returns 0, 1 or 2 for values that round to `-d`, 0 or `d`, with `d` the peak's magnitude.
fn trits(x: &[f32; 256]) -> [u8; 256] {
    let d = peak(x).abs();
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    x.map(|x| away(x * inverse).wrapping_add(1) as u8)
}
