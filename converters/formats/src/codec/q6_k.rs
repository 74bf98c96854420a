//! Q6_K: 256 numbers in 16 groups, each with a scale of 8 bits, levels on both sides of zero.
//!
//! `ql[128]`, `qh[64]`, `scales[16]` (i8), `d` (f16). Of each 128 numbers, byte `l` of 64 in `ql`
//! holds the lower halves of `l` and `l + 64`, byte `l` of 32 in `qh` the upper pairs of bits of
//! `l`, `l + 32`, `l + 64` and `l + 96`.

mod lanes;

use super::BlockType;
use super::crumbs::{join2, split2};
use super::declaration::{BlockDeclaration, FileType, ScaleRule};
use super::layout::{OneLine, alone, blocks, each, get_f16, peak, put_f16, weights_of};
use super::levels::Levels;
use super::q2_k::pairs;
use super::rounding::nearest;
use super::search::{TINY, signed};
use super::simd;

pub(super) const Q6_K: BlockDeclaration = BlockDeclaration {
    levels: Some(levels),
    wide: Some(simd::encoder::<lanes::Q6K>),
    scales: ScaleRule::F16(&[208]),
    error: Some(0.0177),
    fallback: Some(BlockType::Q80),
    file_types: &[FileType::new("Q6_K", 18)],
    encode: Some(|numbers, row, importance, out| match importance {
        None => {
            for (x, block) in blocks::<256, 210>(numbers, out) {
                encode(x, &x.map(|x| x * x), block);
            }
        }
        Some(importance) => {
            let weights = weights_of::<256>(importance, numbers.len() / row);
            for ((x, block), importance) in blocks::<256, 210>(numbers, out).zip(weights) {
                encode(x, importance, block);
            }
        }
    }),
    decode: vectors!(210, 256, |ops, block, out| {
        let d = ops.f16(block, 208);
        let levels = each(&split(block), |q| q.wrapping_sub(32));
        let scales = block[192..].first_chunk::<16>().expect("210 bytes");
        let scales = OneLine(each(scales, |q| d * q.cast_signed() as f32));
        for (levels, &scale) in levels.as_chunks::<16>().0.iter().zip(alone(&scales.0)) {
            out.push(ops.times(ops.signed16(levels), scale));
        }
    }),
    ..BlockDeclaration::new("Q6_K", 14, 256, 210)
};

/// Reads a block as levels.
pub(super) fn levels(block: &[u8], to: &mut Levels) {
    let block: &[u8; 210] = block.try_into().expect("one block");
    to.d = get_f16(block, 208);
    for (to, &scale) in to.scales.iter_mut().zip(&block[192..208]) {
        *to = scale.cast_signed();
    }
    to.levels = split(block).map(|q| q.cast_signed() - 32);
}

fn encode(x: &[f32; 256], weights: &[f32; 256], block: &mut [u8; 210]) {
    let mut levels = [0; 256];
    let mut scales = [0.0; 16];
    let weights = weights.as_chunks::<16>().0;
    for ((scale, (x, levels)), weights) in scales.iter_mut().zip(pairs(x, &mut levels)).zip(weights)
    {
        *scale = signed(x, weights, 32, levels);
    }
    finish(x, &scales, |j| levels.as_chunks().0[j], block);
}

/// Rounds the scales, chooses levels for them, and packs both. Groups whose scale is zero have
/// the levels of the search.
#[inline(always)]
pub(super) fn finish(
    x: &[f32; 256],
    scales: &[f32; 16],
    searched: impl Fn(usize) -> [u8; 16],
    block: &mut [u8; 210],
) {
    let max = peak(scales);
    if max.abs() < TINY {
        block.fill(0);
        return;
    }
    let inverse = -128.0 / max;
    let d = put_f16(block, 208, 1.0 / inverse);
    let scales = scales.map(|scale| nearest(inverse * scale).min(127) as i8);
    let mut levels = [0; 256];
    for (j, (x, levels)) in pairs(x, &mut levels).enumerate() {
        let scale = d * scales[j] as f32;
        if scale == 0.0 {
            *levels = searched(j);
        } else {
            *levels = each(x, |x| (nearest(x / scale).clamp(-32, 31) + 32) as u8);
        }
    }
    block[192..208].copy_from_slice(&scales.map(i8::cast_unsigned));
    join(&levels, block);
}

#[inline(always)]
fn join(levels: &[u8; 256], block: &mut [u8; 210]) {
    let bytes = block[..128].as_chunks_mut::<64>().0;
    for (levels, bytes) in levels.as_chunks::<128>().0.iter().zip(bytes) {
        let (low, high) = levels.split_at(64);
        for ((to, low), high) in bytes.iter_mut().zip(low).zip(high) {
            *to = low & 15 | high << 4;
        }
    }
    join2(&each(levels, |level| level >> 4), &mut block[128..192]);
}

#[inline(always)]
fn split(block: &[u8; 210]) -> [u8; 256] {
    let mut levels = split2(&block[128..192]);
    let bytes = block[..128].as_chunks::<64>().0;
    for (levels, bytes) in levels.as_chunks_mut::<128>().0.iter_mut().zip(bytes) {
        let (low, high) = levels.split_at_mut(64);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
            *low = *low << 4 | byte & 15;
            *high = *high << 4 | byte >> 4;
        }
    }
    levels
}
