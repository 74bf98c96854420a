//! Q3_K: 256 numbers in 16 groups, each with a scale of 6 bits, levels on both sides of zero.
//!
//! `hmask[32]` (bit `k` of byte `m`: third bit of number `32 k + m`), `qs[64]` (the other two),
//! `scales[12]`, `d` (f16).

use super::BlockType;
use super::crumbs::{join2, split2};
use super::declaration::{BlockDeclaration, FileType, ScaleRule};
use super::layout::{
    blocks, each_block, error_weights, get_f16, peak, put_f16, squares, weights_of,
};
use super::levels::Levels;
use super::q2_k::pairs;
use super::rounding::nearest;
use super::search::{descend, signed};

pub(super) const Q3_K: BlockDeclaration = BlockDeclaration {
    levels: Some(levels),
    scales: ScaleRule::F16(&[108]),
    error: Some(0.151),
    fallback: Some(BlockType::Q40),
    file_types: &[
        FileType::new("Q3_K_L", 13),
        FileType::new("Q3_K_M", 12),
        FileType::new("Q3_K_S", 11),
    ],
    encode: Some(|numbers, row, importance, out| match importance {
        None => {
            for (x, block) in blocks::<256, 110>(numbers, out) {
                plain(x, block);
            }
        }
        Some(importance) => {
            let weights = weights_of::<256>(importance, numbers.len() / row);
            for ((x, block), importance) in blocks::<256, 110>(numbers, out).zip(weights) {
                weighted(x, importance, block);
            }
        }
    }),
    decode: Some(|bytes, out| {
        each_block::<110, 256>(bytes, out, |block, out| {
            let d = get_f16(block, 108);
            let levels = split2(&block[32..96]);
            let scales = split_scales(&block[96..108]);
            let groups = levels.as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<16>().0);
            for (j, (group, out)) in groups.enumerate() {
                let scale = d * (scales[j] as i32 - 32) as f32;
                let bits = &block[16 * (j % 2)..][..16];
                for ((x, &q), &bits) in out.iter_mut().zip(group).zip(bits) {
                    let third = bits >> (j / 2) & 1;
                    *x = scale * (q as i32 + 4 * third as i32 - 4) as f32;
                }
            }
        });
    }),
    ..BlockDeclaration::new("Q3_K", 11, 256, 110)
};

/// Reads a block as levels.
pub(super) fn levels(block: &[u8], to: &mut Levels) {
    to.d = get_f16(block, 108);
    to.scales = split_scales(&block[96..108]).map(|scale| scale.cast_signed() - 32);
    to.levels = split2(&block[32..96]).map(u8::cast_signed);
    for (at, level) in to.levels.iter_mut().enumerate() {
        *level += 4 * (block[at % 32] >> (at / 32) & 1).cast_signed() - 4;
    }
}

fn plain(x: &[f32; 256], block: &mut [u8; 110]) {
    let mut levels = [0; 256];
    let mut scales = [0.0; 16];
    for (scale, (x, levels)) in scales.iter_mut().zip(pairs(x, &mut levels)) {
        *scale = descend(x, 4, levels);
    }
    let max = peak(&scales);
    if max == 0.0 {
        block[96..108].fill(0);
        finish(x, &mut levels, 0.0, block);
    } else {
        let inverse = -32.0 / max;
        let scales =
            scales.map(|scale| ((nearest(inverse * scale) as i8).clamp(-32, 31) + 32) as u8);
        join_scales(&scales, &mut block[96..108]);
        finish(x, &mut levels, 1.0 / inverse, block);
    }
}

fn weighted(x: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 110]) {
    let variance = 2.0 * squares(x) / 256.0;
    let mut levels = [0; 256];
    let (mut scales, mut sums) = ([0.0; 16], [0.0; 16]);
    let importance = importance.as_chunks::<16>().0;
    for (j, ((x, levels), importance)) in pairs(x, &mut levels).zip(importance).enumerate() {
        let weights = error_weights(x, importance, variance);
        sums[j] = weights.iter().fold(0.0, |sum, w| sum + w);
        scales[j] = signed(x, &weights, 4, levels);
    }
    let mut levels_of_scales = [0; 16];
    let d = signed(&scales, &sums, 32, &mut levels_of_scales);
    join_scales(&levels_of_scales, &mut block[96..108]);
    finish(x, &mut levels, d, block);
}

/// Chooses the levels again for the scales as they are stored, and packs them.
fn finish(x: &[f32; 256], levels: &mut [u8; 256], d: f32, block: &mut [u8; 110]) {
    let d = put_f16(block, 108, d);
    let scales = split_scales(&block[96..108]);
    for ((x, levels), scale) in pairs(x, levels).zip(scales) {
        let scale = d * (scale as i32 - 32) as f32;
        if scale == 0.0 {
            continue;
        }
        *levels = x.map(|x| (nearest(x / scale).clamp(-4, 3) + 4) as u8);
    }
    block[..32].fill(0);
    for (k, levels) in levels.as_chunks::<32>().0.iter().enumerate() {
        for (bits, level) in block.iter_mut().zip(levels) {
            *bits |= (level >> 2) << k;
        }
    }
    join2(&levels.map(|level| level & 3), &mut block[32..96]);
}

/// Packs 16 scales of 6 bits: low halves of 4 bits, then the upper pairs of bits.
fn join_scales(scales: &[u8; 16], out: &mut [u8]) {
    for j in 0..8 {
        out[j] = scales[j] & 15 | scales[j + 8] << 4;
    }
    for j in 0..4 {
        let pairs = (0..4).map(|k| scales[j + 4 * k] >> 4 << (2 * k));
        out[8 + j] = pairs.fold(0, |byte, pair| byte | pair);
    }
}

/// Unpacks 16 scales of 6 bits.
fn split_scales(bytes: &[u8]) -> [u8; 16] {
    std::array::from_fn(|j| {
        let low = if j < 8 { bytes[j] & 15 } else { bytes[j - 8] >> 4 };
        low | (bytes[8 + j % 4] >> (2 * (j / 4)) & 3) << 4
    })
}
