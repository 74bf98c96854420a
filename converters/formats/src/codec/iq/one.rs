//! IQ1_S, IQ1_M: 8 values of -1, 0 or 1, all shifted by an eighth, as a point of 2048.

use super::lattice::{IQ1, LatticePlace, Pick, level};
use super::search::{CodebookSearch, OneByOne};
use super::split::{SHIFT, Split, VALUES};
use super::{BLOCK, grids, larger, layout, mean_square, vectorized};
use crate::codec::declaration::{BlockDeclaration, FileType, ImportanceNeed, ScaleRule};
use crate::codec::layout::{error_weights, put_f16};
use crate::codec::rounding::nearest;
use crate::codec::{BlockType, simd};
use crate::numbers::{f16_to_f32, f32_to_f16};
use lanes::Simd;

/// Bytes: scale, 32 low bytes of indices, then per 32 values a word of 4 x 3 high bits, 3 bits of scale and
/// the direction of the shift.
pub(in crate::codec) const IQ1_S: BlockDeclaration = BlockDeclaration {
    scales: ScaleRule::F16(&[0]),
    importance: ImportanceNeed::Required,
    error: Some(0.486),
    fallback: Some(BlockType::Iq4Nl),
    file_types: &[FileType::new("IQ1_S", 24)],
    encode: Some(|x, row, importance, out| encode_s(OneByOne, x, row, importance, out)),
    wide: Some(simd::encoder::<Iq1SLanes>),
    decode: decoder!(50, 256, |ops, block, out| decode_s(ops, block, out)),
    ..BlockDeclaration::new("IQ1_S", 19, 256, 50)
};

/// Bytes: 32 low bytes of indices, 32 times 3 high bits and the direction of the shift, then 4
/// words of 4 x 3 bits of scale and a quarter of the block's scale.
pub(in crate::codec) const IQ1_M: BlockDeclaration = BlockDeclaration {
    scales: ScaleRule::Number(|block| f16_to_f32(block_scale(words(&block[48..]))).into()),
    importance: ImportanceNeed::Advised,
    error: Some(0.584),
    fallback: Some(BlockType::Iq4Nl),
    file_types: &[FileType::new("IQ1_M", 31)],
    encode: Some(|x, row, importance, out| encode_m(OneByOne, x, row, importance, out)),
    wide: Some(simd::encoder::<Iq1MLanes>),
    decode: decoder!(56, 256, |ops, block, out| decode_m(ops, block, out)),
    ..BlockDeclaration::new("IQ1_M", 29, 256, 56)
};

/// Number of values whose parts are split together: 16 parts of 32 values fill the widest vector.
const RUN: usize = 2 * BLOCK;

/// Returns the error weights of a run of blocks, by part.
#[inline(always)]
fn weights<const M: usize>(
    numbers: &[f32],
    row: usize,
    importance: Option<&[f32]>,
    run: usize,
) -> [[f32; M]; 32] {
    let mut weights = [[0.0; M]; 32];
    let of_blocks = numbers.as_chunks::<BLOCK>().0.iter().zip(weights.chunks_mut(BLOCK / M));
    for (n, (x, weights)) in of_blocks.enumerate() {
        let from = (run * RUN + n * BLOCK) % row;
        let importance = importance.map(|all| all[from..from + BLOCK].as_chunks::<M>().0);
        let mean = mean_square(x, 2.0);
        for (at, (weight, x)) in weights.iter_mut().zip(x.as_chunks::<M>().0).enumerate() {
            *weight = match importance {
                Some(importance) => error_weights(x, &importance[at], mean),
                None => x.map(|x| x * x),
            };
        }
    }
    weights
}

/// Search result for a part of `M` values.
struct Iq1Part {
    picks: [Pick; 4],
    /// True if the shift goes down, for each half.
    down: [bool; 2],
    scale: f32,
}

/// Finds the points for a split, and the scale for the points.
#[inline(always)]
fn part<const M: usize>(
    search: impl CodebookSearch,
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
    for (k, (x, weight)) in groups.clone().enumerate() {
        let levels = &levels[8 * k..][..8];
        let code = levels.iter().rev().fold(0, |code, &level| code << 2 | u32::from(level));
        picks[k] = match IQ1.at(code) {
            LatticePlace::Point(pick) => pick,
            LatticePlace::Near(list) => {
                off = true;
                let values = &VALUES[usize::from(down[k * 16 / M])];
                IQ1.pick(search.nearest(list, (x, weight), scale, values))
            }
        };
    }
    if off {
        let mut qx = 0.0;
        let mut q2 = 0.0;
        for (k, (x, weight)) in groups.enumerate() {
            let values = &VALUES[usize::from(down[k * 16 / M])];
            for i in 0..8 {
                let q = values[level::<8>(picks[k], i)];
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

vectorized!(Iq1SLanes, encode_s);

#[inline(always)]
fn encode_s(
    search: impl CodebookSearch,
    numbers: &[f32],
    row: usize,
    importance: Option<&[f32]>,
    out: &mut [u8],
) {
    for (run, (numbers, out)) in
        numbers.chunks(RUN).zip(out.chunks_mut(RUN / BLOCK * 50)).enumerate()
    {
        let parts = numbers.as_chunks::<32>().0;
        let weights = weights::<32>(numbers, row, importance, run);
        let weights = &weights[..parts.len()];
        let mut splits = [None; RUN / 32];
        search.with_one_shift(parts, weights, &mut splits[..parts.len()]);
        let parts = weights.as_chunks().0.iter().zip(splits.as_chunks().0);
        let blocks = layout::blocks::<BLOCK, 50>(numbers, out).zip(parts);
        for ((x, out), (weights, splits)) in blocks {
            pack_s(search, x, weights, splits, out);
        }
    }
}

#[inline(always)]
fn pack_s(
    search: impl CodebookSearch,
    x: &[f32; BLOCK],
    weights: &[[f32; 32]; BLOCK / 32],
    splits: &[Option<Split<32>>; BLOCK / 32],
    out: &mut [u8; 50],
) {
    out.fill(0);
    let (low, words) = out[2..].split_at_mut(32);
    let mut scales = [0.0; 8];
    let mut high = [0u16; 8];
    let mut max = 0.0;
    for (at, x) in x.as_chunks::<32>().0.iter().enumerate() {
        let Some(split) = splits[at] else { continue };
        let part = part(search, x, &weights[at], split);
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

#[inline(always)]
fn decode_s<O: Simd>(ops: O, bytes: &[u8; 50], x: &mut [f32; BLOCK]) {
    let scale = ops.f16(bytes, 0);
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

vectorized!(Iq1MLanes, encode_m);

#[inline(always)]
fn encode_m(
    search: impl CodebookSearch,
    numbers: &[f32],
    row: usize,
    importance: Option<&[f32]>,
    out: &mut [u8],
) {
    for (run, (numbers, out)) in
        numbers.chunks(RUN).zip(out.chunks_mut(RUN / BLOCK * 56)).enumerate()
    {
        let parts = numbers.as_chunks::<16>().0;
        let weights = weights::<16>(numbers, row, importance, run);
        let weights = &weights[..parts.len()];
        let mut splits = [None; RUN / 16];
        search.with_two_shifts(parts, weights, &mut splits[..parts.len()]);
        let parts = weights.as_chunks().0.iter().zip(splits.as_chunks().0);
        let blocks = layout::blocks::<BLOCK, 56>(numbers, out).zip(parts);
        for ((x, out), (weights, splits)) in blocks {
            pack_m(search, x, weights, splits, out);
        }
    }
}

#[inline(always)]
fn pack_m(
    search: impl CodebookSearch,
    x: &[f32; BLOCK],
    weights: &[[f32; 16]; BLOCK / 16],
    splits: &[Option<Split<16>>; BLOCK / 16],
    out: &mut [u8; 56],
) {
    out.fill(0);
    let parts = x.as_chunks::<16>().0;
    let mut fitted: [Iq1Part; 16] =
        std::array::from_fn(|_| Iq1Part { picks: [0; 4], down: [false; 2], scale: 0.0 });
    let mut max = 0.0;
    for (at, x) in parts.iter().enumerate() {
        let Some(split) = splits[at] else { continue };
        fitted[at] = part(search, x, &weights[at], split);
        max = larger(max, fitted[at].scale);
        for k in 0..2 {
            out[2 * at + k] = (fitted[at].picks[k] >> 16) as u8;
            out[32 + at] |= ((fitted[at].picks[k] >> 24) as u8) << (4 * k);
        }
    }
    if max == 0.0 {
        return;
    }
    // With all points and small scales known, the block's scale is fitted once more.
    let mut scale = max / 15.0;
    let inverse = 1.0 / scale;
    let mut words = [0u16; 4];
    let mut qx = 0.0;
    let mut q2 = 0.0;
    for (at, (x, part)) in parts.iter().zip(&fitted).enumerate() {
        let of_part = eighths(inverse, part.scale);
        words[at / 4] |= (of_part as u16) << (3 * (at % 4));
        out[32 + at] |= u8::from(part.down[0]) << 3 | u8::from(part.down[1]) << 7;
        let weight = &weights[at];
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

#[inline(always)]
fn decode_m<O: Simd>(ops: O, bytes: &[u8; 56], x: &mut [f32; BLOCK]) {
    let words = words(&bytes[48..]);
    let scale = ops.widen(block_scale(words));
    for (at, x) in x.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let of_part = words[at / 8] >> (3 * (at / 2 % 4)) & 7;
        let high = bytes[32 + at / 2] >> (4 * (at % 2)) & 15;
        let index = bytes[at] as usize | (high as usize & 7) << 8;
        write(x, scale * f32::from(2 * of_part + 1), grids::IQ1[index], high & 8 != 0);
    }
}

#[inline(always)]
fn words(bytes: &[u8]) -> [u16; 4] {
    [0, 2, 4, 6].map(|at| u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// Returns the block's scale, an f16 in the upper quarters of its words.
#[inline(always)]
fn block_scale(words: [u16; 4]) -> u16 {
    (0..4).fold(0, |bits, k| bits | (words[k] >> 12) << (4 * k))
}

/// Returns the scale level `s` of a part, in 0 to 7: `2 s + 1` multiplies the block's scale.
fn eighths(inverse: f32, scale: f32) -> i32 {
    nearest(0.5 * (inverse * scale - 1.0)).clamp(0, 7)
}

#[inline(always)]
fn write(x: &mut [f32; 8], scale: f32, point: u16, down: bool) {
    let shift = if down { -SHIFT } else { SHIFT };
    for (i, x) in x.iter_mut().enumerate() {
        *x = scale * (level::<8>(point.into(), i) as f32 - 1.0 + shift);
    }
}
