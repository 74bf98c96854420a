//! Q3_K: 256 numbers in 16 groups, each with a scale of 6 bits, levels on both sides of zero.
//!
//! `hmask[32]` (bit `k` of byte `m`: third bit of number `32 k + m`), `qs[64]` (the other two),
//! `scales[12]`, `d` (f16).

use super::BlockType;
use super::crumbs::{join2, split2};
use super::declaration::{BlockDeclaration, FileType, ScaleRule};
use super::layout::{blocks, each, error_weights, get_f16, peak, put_f16, squares, weights_of};
use super::levels::Levels;
use super::q2_k::pairs;
use super::rounding::nearest;
use super::search::{descend, signed};
use super::simd::{self, Groups, SignedLanes, SimdEncoder};

pub(super) const Q3_K: BlockDeclaration = BlockDeclaration {
    levels: Some(levels),
    wide: Some(simd::encoder::<Q3Lanes>),
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
    decode: decoder!(110, 256, |ops, block, out| {
        let d = ops.f16(block, 108);
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
    finish(x, plain_scales(&scales, block), |j| levels.as_chunks().0[j], block);
}

fn weighted(x: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 110]) {
    let variance = 2.0 * squares(x) / 256.0;
    let mut levels = [0; 256];
    let mut scales = [0.0; 16];
    let mut sums = [0.0; 16];
    let importance = importance.as_chunks::<16>().0;
    for (j, ((x, levels), importance)) in pairs(x, &mut levels).zip(importance).enumerate() {
        let weights = error_weights(x, importance, variance);
        sums[j] = weights.iter().fold(0.0, |sum, w| sum + w);
        scales[j] = signed(x, &weights, 4, levels);
    }
    let d = weighted_scales(&scales, &sums, block);
    finish(x, d, |j| levels.as_chunks().0[j], block);
}

/// Vectorized encoder, with one group per lane.
pub(super) struct Q3Lanes;

impl SimdEncoder for Q3Lanes {
    #[inline(always)]
    fn encode<S: Groups>(
        s: S,
        numbers: &[f32],
        row: usize,
        importance: Option<&[f32]>,
        out: &mut [u8],
    ) {
        let Some(importance) = importance else {
            let runs = numbers.chunks(32 * S::LANES).zip(out.chunks_mut(S::LANES / 8 * 110));
            for (numbers, out) in runs {
                plain_lanes(s, numbers, out);
            }
            return;
        };
        let mut squares = Vec::new();
        for (numbers, out) in numbers.chunks_exact(row).zip(out.chunks_exact_mut(row / 256 * 110)) {
            s.block_squares::<256>(numbers, &mut squares);
            let blocks = blocks::<256, 110>(numbers, out).zip(weights_of::<256>(importance, 1));
            for (((x, block), importance), squares) in blocks.zip(&squares) {
                weighted_lanes(s, x, importance, s.splat(2.0 * squares / 256.0), block);
            }
        }
    }
}

/// Encodes up to two vectors of groups: whole blocks.
#[inline(always)]
fn plain_lanes<S: Groups>(s: S, numbers: &[f32], out: &mut [u8]) {
    let groups = numbers.as_chunks::<16>().0;
    let mut x = [[s.splat(0.0); 16]; 2];
    s.columns(&groups[..S::LANES.min(groups.len())], &mut x[0]);
    s.columns(&groups[S::LANES.min(groups.len() - 1)..], &mut x[1]);
    let fits = simd::descend(s, 4.0, &x);
    for (n, (x, block)) in blocks::<256, 110>(numbers, out).enumerate() {
        let scales = std::array::from_fn(|j| {
            let (vector, lane) = vector_and_lane::<S>(16 * n + j);
            fits[vector].scale[lane]
        });
        finish(
            x,
            plain_scales(&scales, block),
            |j: usize| {
                let (vector, lane) = vector_and_lane::<S>(16 * n + j);
                fits[vector].levels(s, lane, 4)
            },
            block,
        );
    }
}

/// Returns the vector that holds a group, and the group's lane in it.
#[inline(always)]
fn vector_and_lane<S: Groups>(group: usize) -> (usize, usize) {
    (group / S::LANES, group % S::LANES)
}

#[inline(always)]
fn weighted_lanes<S: Groups>(
    s: S,
    numbers: &[f32; 256],
    importance: &[f32; 256],
    variance: S::F,
    block: &mut [u8; 110],
) {
    let mut scales = [0.0; 16];
    let mut sums = [0.0; 16];
    let mut fits = [SignedLanes::default(), SignedLanes::default()];
    for (part, fit) in fits.iter_mut().enumerate().take(16 / S::LANES) {
        let at = part * S::LANES * 16..(part + 1) * S::LANES * 16;
        let (x, weights) =
            s.weighted_columns::<16>(&numbers[at.clone()], &importance[at], variance);
        let sum = weights.iter().fold(s.splat(0.0), |sum, &weight| sum + weight);
        *fit = simd::signed(s, 4.0, &x, &weights);
        sums[part * S::LANES..][..S::LANES].copy_from_slice(&s.array(sum)[..S::LANES]);
        scales[part * S::LANES..][..S::LANES].copy_from_slice(&fit.scale[..S::LANES]);
    }
    let groups = numbers.as_chunks::<16>().0;
    finish(
        numbers,
        weighted_scales(&scales, &sums, block),
        |j: usize| fits[j / S::LANES].levels(j % S::LANES, 4, &groups[j]),
        block,
    );
}

/// Writes the levels of scales, with the greatest at the lowest level, and returns the value of level 1.
fn plain_scales(scales: &[f32; 16], block: &mut [u8; 110]) -> f32 {
    let max = peak(scales);
    if max == 0.0 {
        block[96..108].fill(0);
        return 0.0;
    }
    let inverse = -32.0 / max;
    let scales = scales.map(|scale| ((nearest(inverse * scale) as i8).clamp(-32, 31) + 32) as u8);
    join_scales(&scales, &mut block[96..108]);
    1.0 / inverse
}

/// Searches for the levels of scales, with errors weighted by the sum of their group's weights.
fn weighted_scales(scales: &[f32; 16], sums: &[f32; 16], block: &mut [u8; 110]) -> f32 {
    let mut levels = [0; 16];
    let d = signed(scales, sums, 32, &mut levels);
    join_scales(&levels, &mut block[96..108]);
    d
}

/// Chooses levels for the scales as they are stored, and packs them. Groups whose scale is zero have those
/// of the search.
#[inline(always)]
fn finish(x: &[f32; 256], d: f32, searched: impl Fn(usize) -> [u8; 16], block: &mut [u8; 110]) {
    let d = put_f16(block, 108, d);
    let scales = split_scales(&block[96..108]);
    let mut levels = [0; 256];
    for (j, (x, levels)) in pairs(x, &mut levels).enumerate() {
        let scale = d * (scales[j] as i32 - 32) as f32;
        if scale == 0.0 {
            *levels = searched(j);
        } else {
            *levels = each(x, |x| (nearest(x / scale).clamp(-4, 3) + 4) as u8);
        }
    }
    block[..32].fill(0);
    for (k, levels) in levels.as_chunks::<32>().0.iter().enumerate() {
        for (bits, level) in block.iter_mut().zip(levels) {
            *bits |= (level >> 2) << k;
        }
    }
    join2(&each(&levels, |level| level & 3), &mut block[32..96]);
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
#[inline(always)]
fn split_scales(bytes: &[u8]) -> [u8; 16] {
    let mut scales = [0; 16];
    for (j, scale) in scales.iter_mut().enumerate() {
        let low = if j < 8 { bytes[j] & 15 } else { bytes[j - 8] >> 4 };
        *scale = low | (bytes[8 + j % 4] >> (2 * (j / 4)) & 3) << 4;
    }
    scales
}
