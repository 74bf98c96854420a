//! Q2_K: 256 numbers in 16 groups, each with a scale and a minimum of 4 bits.
//!
//! `scales[16]` (scale in the low half, minimum in the high half), `qs[64]`, `d`, `dmin` (f16).

use super::BlockType;
use super::crumbs::{join2, split2};
use super::declaration::{BlockDeclaration, FileType, ScaleRule};
use super::layout::{blocks, each_block, error_weights, get_f16, put_f16, squares, weights_of};
use super::levels::Levels;
use super::q4_1::ladder;
use super::rounding::nearest;
use super::search::{Ladder, positive};

pub(super) const Q2_K: BlockDeclaration = BlockDeclaration {
    levels: Some(levels),
    scales: ScaleRule::F16(&[80, 82]),
    error: Some(0.297),
    fallback: Some(BlockType::Q40),
    file_types: &[FileType::new("Q2_K", 10), FileType::new("Q2_K_S", 21)],
    encode: Some(|numbers, row, importance, out| match importance {
        None => {
            for (x, block) in blocks::<256, 84>(numbers, out) {
                plain(x, block);
            }
        }
        Some(importance) => {
            let weights = weights_of::<256>(importance, numbers.len() / row);
            for ((x, block), importance) in blocks::<256, 84>(numbers, out).zip(weights) {
                weighted(x, importance, block);
            }
        }
    }),
    decode: Some(|bytes, out| {
        each_block::<84, 256>(bytes, out, |block, out| {
            let (d, dmin) = (get_f16(block, 80), get_f16(block, 82));
            let levels = split2(&block[16..80]);
            for (j, (group, x)) in levels.as_chunks::<16>().0.iter().zip(groups(out)).enumerate() {
                let scale = d * (block[j] & 15) as f32;
                let min = dmin * (block[j] >> 4) as f32;
                *x = group.map(|q| scale * q as f32 - min);
            }
        });
    }),
    ..BlockDeclaration::new("Q2_K", 10, 256, 84)
};

/// Reads a block as levels.
pub(super) fn levels(block: &[u8], to: &mut Levels) {
    (to.d, to.dmin) = (get_f16(block, 80), get_f16(block, 82));
    for (j, &byte) in block[..16].iter().enumerate() {
        (to.scales[j], to.mins[j]) = ((byte & 15).cast_signed(), byte >> 4);
    }
    to.levels = split2(&block[16..80]).map(u8::cast_signed);
}

fn groups(out: &mut [f32; 256]) -> &mut [[f32; 16]] {
    out.as_chunks_mut::<16>().0
}

const LADDER: Ladder = Ladder { top: 3, first: -0.5, step: 0.1, last: 15, absolute: true };

fn plain(x: &[f32; 256], block: &mut [u8; 84]) {
    let mut levels = [0; 256];
    let (mut scales, mut mins) = ([0.0; 16], [0.0; 16]);
    for (j, (x, levels)) in pairs(x, &mut levels).enumerate() {
        let fit = LADDER.climb((x, &x.map(f32::abs)), levels);
        (scales[j], mins[j]) = (fit.scale, fit.minus_min);
    }
    let (max_scale, max_min) = (most(&scales), most(&mins));
    block[..16].fill(0);
    if max_scale > 0.0 {
        for (to, scale) in block.iter_mut().zip(scales) {
            *to = nearest(15.0 / max_scale * scale) as u8;
        }
    }
    if max_min > 0.0 {
        for (to, min) in block.iter_mut().zip(mins) {
            *to |= (nearest(15.0 / max_min * min) << 4) as u8;
        }
    }
    finish(x, &mut levels, max_scale / 15.0, max_min / 15.0, block);
}

fn weighted(x: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 84]) {
    let variance = squares(x) / 256.0;
    let mut levels = [0; 256];
    let (mut scales, mut mins, mut sums) = ([0.0; 16], [0.0; 16], [0.0; 16]);
    let importance = importance.as_chunks::<16>().0;
    for (j, ((x, levels), importance)) in pairs(x, &mut levels).zip(importance).enumerate() {
        let weights = error_weights(x, importance, variance);
        sums[j] = weights.iter().fold(0.0, |sum, w| sum + w);
        let fit = ladder(3).climb((x, &weights), levels);
        (scales[j], mins[j]) = (fit.scale, fit.minus_min);
    }
    let (mut low, mut high) = ([0; 16], [0; 16]);
    let d = positive(&scales, &sums, 15, &mut low);
    let dmin = positive(&mins, &sums, 15, &mut high);
    for ((to, low), high) in block.iter_mut().zip(low).zip(high) {
        *to = low | high << 4;
    }
    finish(x, &mut levels, d, dmin, block);
}

/// Chooses the levels again for the scales as they are stored, and packs them.
fn finish(x: &[f32; 256], levels: &mut [u8; 256], d: f32, dmin: f32, block: &mut [u8; 84]) {
    let (d, dmin) = (put_f16(block, 80, d), put_f16(block, 82, dmin));
    for (j, (x, levels)) in pairs(x, levels).enumerate() {
        let scale = d * (block[j] & 15) as f32;
        if scale == 0.0 {
            continue;
        }
        let min = dmin * (block[j] >> 4) as f32;
        *levels = x.map(|x| nearest((x + min) / scale).clamp(0, 3) as u8);
    }
    join2(levels, &mut block[16..80]);
}

/// Groups of 16 numbers with their levels.
pub(super) fn pairs<'a>(
    x: &'a [f32; 256],
    levels: &'a mut [u8; 256],
) -> impl Iterator<Item = (&'a [f32; 16], &'a mut [u8; 16])> {
    x.as_chunks().0.iter().zip(levels.as_chunks_mut().0)
}

/// Returns the greatest value, at least 0.
pub(super) fn most(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, &value| if value > most { value } else { most })
}
