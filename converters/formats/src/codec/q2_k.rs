//! Q2_K: 256 numbers in 16 groups, each with a scale and a minimum of 4 bits.
//!
//! `scales[16]` (scale in the low half, minimum in the high half), `qs[64]`, `d`, `dmin` (f16).

use super::BlockType;
use super::crumbs::{join2, split2};
use super::declaration::{BlockDeclaration, FileType, ScaleRule};
use super::layout::{
    OneLine, alone, blocks, each, error_weights, get_f16, put_f16, squares, weights_of,
};
use super::levels::Levels;
use super::q4_1::ladder;
use super::rounding::nearest;
use super::search::{Ladder, positive};
use super::simd::{self, AffineLanes, Groups, SimdEncoder};

pub(super) const Q2_K: BlockDeclaration = BlockDeclaration {
    levels: Some(levels),
    wide: Some(simd::encoder::<Q2Lanes>),
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
    decode: vectors!(84, 256, |ops, block, out| {
        let d = ops.f16(block, 80);
        let dmin = ops.f16(block, 82);
        let levels = split2(&block[16..80]);
        let bytes = block.first_chunk::<16>().expect("84 bytes");
        let scales = OneLine(each(bytes, |byte| d * (byte & 15) as f32));
        let mins = OneLine(each(bytes, |byte| dmin * (byte >> 4) as f32));
        let scales = alone(&scales.0);
        let mins = alone(&mins.0);
        for (j, group) in levels.as_chunks::<16>().0.iter().enumerate() {
            out.push(ops.minus(ops.times(ops.signed16(group), scales[j]), mins[j]));
        }
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

const LADDER: Ladder = Ladder { top: 3, first: -0.5, step: 0.1, last: 15, absolute: true };

fn plain(x: &[f32; 256], block: &mut [u8; 84]) {
    let mut levels = [0; 256];
    let mut scales = [0.0; 16];
    let mut mins = [0.0; 16];
    for (j, (x, levels)) in pairs(x, &mut levels).enumerate() {
        let fit = LADDER.climb((x, &x.map(f32::abs)), levels);
        (scales[j], mins[j]) = (fit.scale, fit.minus_min);
    }
    finish(x, plain_scales(&scales, &mins, block), |j| levels.as_chunks().0[j], block);
}

fn weighted(x: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 84]) {
    let variance = squares(x) / 256.0;
    let mut levels = [0; 256];
    let mut scales = [0.0; 16];
    let mut mins = [0.0; 16];
    let mut sums = [0.0; 16];
    let importance = importance.as_chunks::<16>().0;
    for (j, ((x, levels), importance)) in pairs(x, &mut levels).zip(importance).enumerate() {
        let weights = error_weights(x, importance, variance);
        sums[j] = weights.iter().fold(0.0, |sum, w| sum + w);
        let fit = ladder(3).climb((x, &weights), levels);
        (scales[j], mins[j]) = (fit.scale, fit.minus_min);
    }
    let scales = weighted_scales(&scales, &mins, &sums, block);
    finish(x, scales, |j| levels.as_chunks().0[j], block);
}

/// Vectorized encoder, with one group per lane.
pub(super) struct Q2Lanes;

impl SimdEncoder for Q2Lanes {
    #[inline(always)]
    fn encode<S: Groups>(
        s: S,
        numbers: &[f32],
        row: usize,
        importance: Option<&[f32]>,
        out: &mut [u8],
    ) {
        let mut squares = Vec::new();
        for (numbers, out) in numbers.chunks_exact(row).zip(out.chunks_exact_mut(row / 256 * 84)) {
            if importance.is_some() {
                s.block_squares::<256>(numbers, &mut squares);
            }
            for (n, (x, block)) in blocks::<256, 84>(numbers, out).enumerate() {
                let mut fit = GroupFits::default();
                for part in 0..16 / S::LANES {
                    let at = part * S::LANES * 16..(part + 1) * S::LANES * 16;
                    fit.0[part] = if let Some(importance) = importance {
                        let importance = &importance[256 * n..][at.clone()];
                        let variance = s.splat(squares[n] / 256.0);
                        let (x, weights) = s.weighted_columns(&x[at], importance, variance);
                        simd::climb::<S, 16>(s, ladder(3), &x, &weights)
                    } else {
                        let mut columns = [s.splat(0.0); 16];
                        s.columns(x[at].as_chunks().0, &mut columns);
                        simd::climb(s, LADDER, &columns, &each(&columns, |x| s.abs(x)))
                    };
                }
                let scales = fit.each::<S>(|of| &of.scale);
                let mins = fit.each::<S>(|of| &of.minus_min);
                let scales = match importance {
                    Some(_) => {
                        weighted_scales(&scales, &mins, &fit.each::<S>(|of| &of.weight), block)
                    }
                    None => plain_scales(&scales, &mins, block),
                };
                let groups = x.as_chunks::<16>().0;
                finish(
                    x,
                    scales,
                    |j: usize| fit.0[j / S::LANES].levels(j % S::LANES, 3, &groups[j]),
                    block,
                );
            }
        }
    }
}

/// Fits of the groups of a block: eight lanes need two iterations, sixteen one.
#[derive(Default)]
struct GroupFits([AffineLanes; 2]);

impl GroupFits {
    /// Returns a number of each group.
    #[inline(always)]
    fn each<S: Groups>(&self, of: impl Fn(&AffineLanes) -> &[f32; 16]) -> [f32; 16] {
        std::array::from_fn(|j| of(&self.0[j / S::LANES])[j % S::LANES])
    }
}

/// Writes the levels of scales and minima, with the greatest of each at level 15, and returns the values of
/// level 1.
fn plain_scales(scales: &[f32; 16], mins: &[f32; 16], block: &mut [u8; 84]) -> (f32, f32) {
    let max_scale = greatest(scales);
    let max_min = greatest(mins);
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
    (max_scale / 15.0, max_min / 15.0)
}

/// Searches for the levels of scales and minima, with errors weighted by the sum of their group's weights.
fn weighted_scales(
    scales: &[f32; 16],
    mins: &[f32; 16],
    sums: &[f32; 16],
    block: &mut [u8; 84],
) -> (f32, f32) {
    let mut low = [0; 16];
    let mut high = [0; 16];
    let d = positive(scales, sums, 15, &mut low);
    let dmin = positive(mins, sums, 15, &mut high);
    for ((to, low), high) in block.iter_mut().zip(low).zip(high) {
        *to = low | high << 4;
    }
    (d, dmin)
}

/// Chooses levels for the scales as they are stored, and packs them. Groups whose scale is zero have those
/// of the search.
#[inline(always)]
fn finish(
    x: &[f32; 256],
    (d, dmin): (f32, f32),
    searched: impl Fn(usize) -> [u8; 16],
    block: &mut [u8; 84],
) {
    let d = put_f16(block, 80, d);
    let dmin = put_f16(block, 82, dmin);
    let mut levels = [0; 256];
    for (j, (x, levels)) in pairs(x, &mut levels).enumerate() {
        let scale = d * (block[j] & 15) as f32;
        if scale == 0.0 {
            *levels = searched(j);
        } else {
            let min = dmin * (block[j] >> 4) as f32;
            *levels = each(x, |x| nearest((x + min) / scale).clamp(0, 3) as u8);
        }
    }
    join2(&levels, &mut block[16..80]);
}

/// Groups of 16 numbers with their levels.
pub(super) fn pairs<'a>(
    x: &'a [f32; 256],
    levels: &'a mut [u8; 256],
) -> impl Iterator<Item = (&'a [f32; 16], &'a mut [u8; 16])> {
    x.as_chunks().0.iter().zip(levels.as_chunks_mut().0)
}

/// Returns the greatest value, at least 0.
pub(super) fn greatest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |greatest, &value| if value > greatest { value } else { greatest })
}
