//! IQ1_S, IQ1_M: 8 values of -1, 0 or 1, all shifted by an eighth, as a point of 2048.

use super::lattice::{IQ1, LatticePlace, Pick, level};
use super::search::{errors, nearest_point};
use super::split::{self, SHIFT, Split, VALUES};
use super::{BLOCK, encode_blocks, grids, larger, mean_square};
use crate::codec::Codec;
use crate::codec::layout::{each_block, error_weights, get_f16, put_f16};
use crate::codec::rounding::nearest;
use crate::numbers::{f16_to_f32, f32_to_f16};

/// Bytes: scale, 32 low bytes of indices, then per 32 values a word of 4 x 3 high bits, 3 bits of scale and
/// the direction of the shift.
pub(in crate::codec) const IQ1_S: Codec = Codec {
    encode: |x, row, importance, out| encode_blocks(x, row, importance, out, encode_s),
    decode: |bytes, x| each_block(bytes, x, decode_s),
};

/// Bytes: 32 low bytes of indices, 32 times 3 high bits and the direction of the shift, then 4
/// words of 4 x 3 bits of scale and a quarter of the block's scale.
pub(in crate::codec) const IQ1_M: Codec = Codec {
    encode: |x, row, importance, out| encode_blocks(x, row, importance, out, encode_m),
    decode: |bytes, x| each_block(bytes, x, decode_m),
};

/// Search result for a part of `M` values.
struct Iq1Part {
    picks: [Pick; 4],
    /// True if the shift goes down, for each half.
    down: [bool; 2],
    scale: f32,
}

/// Finds the points for a split, and the scale for the points.
fn part<const M: usize>(
    x: &[f32; M],
    weight: &[f32; M],
    Split { mut scale, mut levels, mut down }: Split<M>,
) -> Iq1Part {
    if scale < 0.0 {
        scale = -scale;
        levels = levels.map(|level| 2 - level);
        down = down.map(|down| !down);
    }
    let mut picks = [0; 4];
    let mut off = false;
    let groups = x.as_chunks::<8>().0.iter().zip(weight.as_chunks::<8>().0);
    let values = |k: usize| &VALUES[usize::from(down[k * 16 / M])];
    for (k, (x, weight)) in groups.clone().enumerate() {
        let levels = &levels[8 * k..][..8];
        let code = levels.iter().rev().fold(0, |code, &level| code << 2 | u32::from(level));
        picks[k] = match IQ1.at(code) {
            LatticePlace::Point(pick) => pick,
            LatticePlace::Near(list) => {
                off = true;
                nearest_point(list, &errors(x, weight, scale, values(k)))
            }
        };
    }
    if off {
        let (mut qx, mut q2) = (0.0, 0.0);
        for (k, (x, weight)) in groups.enumerate() {
            for i in 0..8 {
                let q = values(k)[level::<8>(picks[k], i)];
                qx += weight[i] * q * x[i];
                q2 += weight[i] * q * q;
            }
        }
        if qx > 0.0 && q2 > 0.0 {
            scale = qx / q2;
        }
    }
    Iq1Part { picks, down, scale }
}

fn encode_s(x: &[f32; BLOCK], importance: Option<&[f32; BLOCK]>, out: &mut [u8; 50]) {
    out.fill(0);
    let mean = mean_square(x, 2.0);
    let (low, words) = out[2..].split_at_mut(32);
    let mut scales = [0.0; 8];
    let mut high = [0u16; 8];
    let mut max = 0.0;
    for (at, x) in x.as_chunks::<32>().0.iter().enumerate() {
        let weight = weights(x, importance.map(|all| &all.as_chunks().0[at]), mean);
        let Some(split) = split::with_one_shift(x, &weight, 1e-12) else { continue };
        let part = part(x, &weight, split);
        for (k, pick) in part.picks.into_iter().enumerate() {
            low[4 * at + k] = (pick >> 16) as u8;
            high[at] |= ((pick >> 24) as u16) << (3 * k);
        }
        high[at] |= u16::from(part.down[0]) << 15;
        scales[at] = part.scale;
        max = larger(max, part.scale);
    }
    let scale = max / 15.0;
    let inverse = 1.0 / scale;
    for (at, word) in words.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        if max == 0.0 {
            // The direction of the shift is not written in this case.
            high[at] &= 0x0fff;
        } else {
            high[at] |= (eighths(inverse, scales[at]) as u16) << 12;
        }
        *word = high[at].to_le_bytes();
    }
    if max != 0.0 {
        put_f16(out, 0, scale * 1.125);
    }
}

fn decode_s(bytes: &[u8; 50], x: &mut [f32; BLOCK]) {
    let scale = get_f16(bytes, 0);
    let (low, words) = bytes[2..].split_at(32);
    let words = words.as_chunks::<2>().0.iter().map(|&word| u16::from_le_bytes(word));
    for (at, (x, word)) in x.as_chunks_mut::<32>().0.iter_mut().zip(words).enumerate() {
        let scale = scale * f32::from(2 * (word >> 12 & 7) + 1);
        for (k, x) in x.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let index = low[4 * at + k] as usize | (word as usize >> (3 * k) & 7) << 8;
            write(x, scale, grids::IQ1[index], word & 0x8000 != 0);
        }
    }
}

fn encode_m(x: &[f32; BLOCK], importance: Option<&[f32; BLOCK]>, out: &mut [u8; 56]) {
    out.fill(0);
    let mean = mean_square(x, 2.0);
    let parts = x.as_chunks::<16>().0;
    let weight =
        |at: usize| weights(&parts[at], importance.map(|all| &all.as_chunks::<16>().0[at]), mean);
    let mut found: [Iq1Part; 16] =
        std::array::from_fn(|_| Iq1Part { picks: [0; 4], down: [false; 2], scale: 0.0 });
    let mut max = 0.0;
    for (at, x) in parts.iter().enumerate() {
        let weight = weight(at);
        let Some(split) = split::with_two_shifts(x, &weight, 1e-7) else { continue };
        found[at] = part(x, &weight, split);
        max = larger(max, found[at].scale);
        for k in 0..2 {
            out[2 * at + k] = (found[at].picks[k] >> 16) as u8;
            out[32 + at] |= ((found[at].picks[k] >> 24) as u8) << (4 * k);
        }
    }
    if max == 0.0 {
        return;
    }
    // With all points and small scales known, the block's scale is fitted once more.
    let mut scale = max / 15.0;
    let inverse = 1.0 / scale;
    let mut words = [0u16; 4];
    let (mut qx, mut q2) = (0.0, 0.0);
    for (at, (x, part)) in parts.iter().zip(&found).enumerate() {
        let of_part = eighths(inverse, part.scale);
        words[at / 4] |= (of_part as u16) << (3 * (at % 4));
        out[32 + at] |= u8::from(part.down[0]) << 3 | u8::from(part.down[1]) << 7;
        let weight = weight(at);
        for i in 0..16 {
            let value = VALUES[usize::from(part.down[i / 8])][level::<8>(part.picks[i / 8], i % 8)];
            let q = value * (2 * of_part + 1) as f32;
            qx += weight[i] * q * x[i];
            q2 += weight[i] * q * q;
        }
    }
    if q2 > 0.0 {
        scale = qx / q2;
    }
    let bits = f32_to_f16(scale * 1.1125);
    for (k, (word, out)) in words.iter().zip(out[48..].as_chunks_mut::<2>().0).enumerate() {
        *out = (word | (bits >> (4 * k) & 15) << 12).to_le_bytes();
    }
}

fn decode_m(bytes: &[u8; 56], x: &mut [f32; BLOCK]) {
    let words = [0, 2, 4, 6].map(|at| u16::from_le_bytes([bytes[48 + at], bytes[49 + at]]));
    let bits = (0..4).fold(0, |bits, k| bits | (words[k] >> 12) << (4 * k));
    let scale = f16_to_f32(bits);
    for (at, x) in x.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let of_part = words[at / 8] >> (3 * (at / 2 % 4)) & 7;
        let high = bytes[32 + at / 2] >> (4 * (at % 2)) & 15;
        let index = bytes[at] as usize | (high as usize & 7) << 8;
        write(x, scale * f32::from(2 * of_part + 1), grids::IQ1[index], high & 8 != 0);
    }
}

fn weights<const M: usize>(x: &[f32; M], importance: Option<&[f32; M]>, mean: f32) -> [f32; M] {
    match importance {
        Some(importance) => error_weights(x, importance, mean),
        None => x.map(|x| x * x),
    }
}

/// Returns the scale level `s` of a part, in 0 to 7: `2 s + 1` multiplies the block's scale.
fn eighths(inverse: f32, scale: f32) -> i32 {
    nearest(0.5 * (inverse * scale - 1.0)).clamp(0, 7)
}

fn write(x: &mut [f32; 8], scale: f32, point: u16, down: bool) {
    let shift = if down { -SHIFT } else { SHIFT };
    for (i, x) in x.iter_mut().enumerate() {
        *x = scale * (level::<8>(point.into(), i) as f32 - 1.0 + shift);
    }
}
