//! Q8_0: 32 numbers, one scale, levels of 8 bits.
//!
//! `d` (f16), `qs[32]` (i8).

use super::Codec;
use super::layout::{blocks, each_block, get_f16, peak, put_f16};
use super::rounding::away;

pub(super) const Q8_0: Codec = Codec {
    encode: |numbers, _, _, out| {
        for (x, block) in blocks::<32, 34>(numbers, out) {
            let d = peak(x).abs() / 127.0;
            let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
            put_f16(block, 0, d);
            for (to, x) in block[2..].iter_mut().zip(x) {
                *to = away(x * inverse) as u8;
            }
        }
    },
    decode: |bytes, out| {
        each_block::<34, 32>(bytes, out, |block, out| {
            let d = get_f16(block, 0);
            for (x, &q) in out.iter_mut().zip(&block[2..]) {
                *x = q.cast_signed() as f32 * d;
            }
        });
    },
};
