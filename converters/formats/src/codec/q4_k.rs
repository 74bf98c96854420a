//! Q4_K and Q5_K: 256 numbers in 8 groups, each with a scale and a minimum of 6 bits.
//!
//! `d`, `dmin` (f16), `scales[12]`, for Q5_K `qh[32]` (bit `k` of byte `l`: fifth bit of number
//! `32 k + l`), then `qs[128]`: of each 64 numbers, `l` in the low half of byte `l` and `l + 32`
//! in the high half.

mod lanes;

use ::lanes::Simd;

use super::BlockType;
use super::declaration::{BlockDeclaration, FileType, ScaleRule};
use super::decoder::VectorSink;
use super::layout::{
    OneLine, alone, blocks, each, error_weights, get_f16, put_f16, squares, weights_of,
};
use super::levels::Levels;
use super::nibbles::values_from;
use super::q2_k::greatest;
use super::q4_1::ladder;
use super::rounding::nearest;
use super::search::{Ladder, positive};
use super::simd;

pub(super) const Q4_K: BlockDeclaration = BlockDeclaration {
    levels: Some(levels::<144>),
    wide: Some(simd::encoder::<lanes::Q4K>),
    scales: ScaleRule::F16(&[0, 2]),
    error: Some(0.0713),
    fallback: Some(BlockType::Q50),
    file_types: &[FileType::new("Q4_K_M", 15), FileType::new("Q4_K_S", 14)],
    encode: Some(encode::<144>),
    decode: vectors!(144, 256, |ops, block, out| decode(ops, block, out)),
    ..BlockDeclaration::new("Q4_K", 12, 256, 144)
};

pub(super) const Q5_K: BlockDeclaration = BlockDeclaration {
    levels: Some(levels::<176>),
    wide: Some(simd::encoder::<lanes::Q5K>),
    scales: ScaleRule::F16(&[0, 2]),
    error: Some(0.0361),
    fallback: Some(BlockType::Q51),
    file_types: &[FileType::new("Q5_K_M", 17), FileType::new("Q5_K_S", 16)],
    encode: Some(encode::<176>),
    decode: vectors!(176, 256, |ops, block, out| decode(ops, block, out)),
    ..BlockDeclaration::new("Q5_K", 13, 256, 176)
};

/// Blocks of 144 bytes are Q4_K, of 176 Q5_K.
fn encode<const B: usize>(numbers: &[f32], row: usize, importance: Option<&[f32]>, out: &mut [u8]) {
    let Some(importance) = importance else {
        for (x, block) in blocks::<256, B>(numbers, out) {
            plain(x, block);
        }
        return;
    };
    let weights = weights_of::<256>(importance, numbers.len() / row);
    for ((x, block), importance) in blocks::<256, B>(numbers, out).zip(weights) {
        weighted(x, importance, block);
    }
}

#[inline(always)]
fn decode<O: Simd, const B: usize>(ops: O, block: &[u8; B], out: &mut impl VectorSink<O>) {
    let d = ops.f16(block, 0);
    let dmin = ops.f16(block, 2);
    let (scales, mins) = split_scales(&block[4..16]);
    // In memory, from where a load spreads one over a vector.
    let scales = OneLine(each(alone(&scales), |q| d * q as f32));
    let mins = OneLine(each(alone(&mins), |q| dmin * q as f32));
    let scales = alone(&scales.0);
    let mins = alone(&mins.0);
    let values = const { [values_from(0), values_from(16)] };
    let table = |j: usize, upper: usize| {
        ops.minus(ops.times(ops.load16(&values[upper]), scales[j]), mins[j])
    };
    for (n, bytes) in block[B - 128..].as_chunks::<32>().0.iter().enumerate() {
        let low = 2 * n;
        let high = 2 * n + 1;
        let [first, last] = bytes.as_chunks::<16>().0 else { return };
        let [[low0, high0], [low1, high1]] = if B == 144 {
            let tables = [table(low, 0), table(high, 0)];
            [ops.lookup4(tables, first), ops.lookup4(tables, last)]
        } else {
            let tables = [[table(low, 0), table(low, 1)], [table(high, 0), table(high, 1)]];
            let [first5, last5] = block[16..48].as_chunks::<16>().0 else { return };
            let fifths_of_first = [ops.byte_bits(first5, low), ops.byte_bits(first5, high)];
            let fifths_of_last = [ops.byte_bits(last5, low), ops.byte_bits(last5, high)];
            [ops.lookup5(tables, first, fifths_of_first), ops.lookup5(tables, last, fifths_of_last)]
        };
        for values in [low0, low1, high0, high1] {
            out.push(values);
        }
    }
}

/// Reads a block as levels.
pub(super) fn levels<const B: usize>(block: &[u8], to: &mut Levels) {
    (to.d, to.dmin) = (get_f16(block, 0), get_f16(block, 2));
    let (scales, mins) = split_scales(&block[4..16]);
    to.scales32(scales.map(u8::cast_signed));
    for (j, min) in mins.into_iter().enumerate() {
        to.mins[2 * j..2 * j + 2].fill(min);
    }
    let groups = to.levels.as_chunks_mut::<32>().0.iter_mut();
    for (j, (levels, bytes)) in groups.zip(halves(&block[B - 128..])).enumerate() {
        for (l, (level, &byte)) in levels.iter_mut().zip(bytes).enumerate() {
            let low = if j % 2 == 0 { byte & 15 } else { byte >> 4 };
            let fifth = if B == 176 { block[16 + l] >> j & 1 } else { 0 };
            *level = (low | fifth << 4).cast_signed();
        }
    }
}

/// Returns every 32 bytes, twice.
fn halves(bytes: &[u8]) -> impl Iterator<Item = &[u8; 32]> {
    bytes.as_chunks::<32>().0.iter().flat_map(|bytes| [bytes, bytes])
}

/// Scales and minima of 8 groups.
pub(super) struct ScalesAndMins {
    pub(super) scales: [f32; 8],
    pub(super) mins: [f32; 8],
}

/// Stored scales: the value of level 1, and the levels.
type StoredScales = (f32, [u8; 8]);

fn plain<const B: usize>(x: &[f32; 256], block: &mut [u8; B]) {
    let mut levels = [0; 256];
    let mut fit = ScalesAndMins { scales: [0.0; 8], mins: [0.0; 8] };
    for (j, (x, levels)) in pairs(x, &mut levels).enumerate() {
        let mean = (squares(x) / 32.0).sqrt();
        let group = plain_ladder::<B>().climb((x, &x.map(|x| mean + x.abs())), levels);
        (fit.scales[j], fit.mins[j]) = (group.scale, group.minus_min);
    }
    finish(x, fit.stored(), |j| levels.as_chunks().0[j], block);
}

fn weighted<const B: usize>(x: &[f32; 256], importance: &[f32; 256], block: &mut [u8; B]) {
    let variance = 2.0 * squares(x) / 256.0;
    let mut levels = [0; 256];
    let mut fit = ScalesAndMins { scales: [0.0; 8], mins: [0.0; 8] };
    let mut sums = [0.0; 8];
    let importance = importance.as_chunks::<32>().0;
    for (j, ((x, levels), importance)) in pairs(x, &mut levels).zip(importance).enumerate() {
        let weights = error_weights(x, importance, variance);
        sums[j] = weights.iter().fold(0.0, |sum, w| sum + w);
        let group = ladder(top::<B>()).climb((x, &weights), levels);
        (fit.scales[j], fit.mins[j]) = (group.scale, group.minus_min);
    }
    finish(x, fit.stored_weighted::<B>(&sums), |j| levels.as_chunks().0[j], block);
}

/// Returns the search parameters without importance.
pub(super) const fn plain_ladder<const B: usize>() -> Ladder {
    let (first, last) = if B == 144 { (-1.0, 20) } else { (-0.5, 15) };
    Ladder { top: top::<B>(), first, step: 0.1, last, absolute: false }
}

/// Returns the highest level.
pub(super) const fn top<const B: usize>() -> i32 {
    if B == 144 { 15 } else { 31 }
}

impl ScalesAndMins {
    /// Returns stored scales and minima, with the greatest of each at level 63.
    pub(super) fn stored(&self) -> (StoredScales, StoredScales) {
        (stored_by_greatest(&self.scales), stored_by_greatest(&self.mins))
    }

    /// Searches for the levels, with errors weighted by the sum of their group's weights.
    pub(super) fn stored_weighted<const B: usize>(
        &self,
        sums: &[f32; 8],
    ) -> (StoredScales, StoredScales) {
        (stored_by_search::<B>(&self.scales, sums), stored_by_search::<B>(&self.mins, sums))
    }
}

/// Chooses levels for the scales as they are stored, and packs them. Groups whose scale is zero
/// have those of the search.
#[inline(always)]
pub(super) fn finish<const B: usize>(
    x: &[f32; 256],
    ((d, scales), (dmin, mins)): (StoredScales, StoredScales),
    searched: impl Fn(usize) -> [u8; 32],
    block: &mut [u8; B],
) {
    let d = put_f16(block, 0, d);
    let dmin = put_f16(block, 2, dmin);
    join_scales(scales, mins, &mut block[4..16]);
    let (scales, mins) = split_scales(&block[4..16]);
    let mut levels = [0; 256];
    for (j, (x, levels)) in pairs(x, &mut levels).enumerate() {
        let scale = d * scales[j] as f32;
        if scale == 0.0 {
            *levels = searched(j);
        } else {
            let min = dmin * mins[j] as f32;
            *levels = each(x, |x| nearest((x + min) / scale).clamp(0, top::<B>()) as u8);
        }
    }
    pack(&levels, block);
}

#[inline(always)]
fn pack<const B: usize>(levels: &[u8; 256], block: &mut [u8; B]) {
    if B == 176 {
        block[16..48].fill(0);
        for (k, levels) in levels.as_chunks::<32>().0.iter().enumerate() {
            for (bits, level) in block[16..48].iter_mut().zip(levels) {
                *bits |= (level >> 4) << k;
            }
        }
    }
    let bytes = block[B - 128..].as_chunks_mut::<32>().0;
    for (levels, bytes) in levels.as_chunks::<64>().0.iter().zip(bytes) {
        let (low, high) = levels.split_at(32);
        for ((to, low), high) in bytes.iter_mut().zip(low).zip(high) {
            *to = low & 15 | high << 4;
        }
    }
}

/// Groups of 32 numbers with their levels.
fn pairs<'a>(
    x: &'a [f32; 256],
    levels: &'a mut [u8; 256],
) -> impl Iterator<Item = (&'a [f32; 32], &'a mut [u8; 32])> {
    x.as_chunks().0.iter().zip(levels.as_chunks_mut().0)
}

/// Packs 8 scales and 8 minima of 6 bits: the first four of each whole, with the upper pairs of
/// bits of the last four above them; then the lower halves of the last four.
fn join_scales(scales: [u8; 8], mins: [u8; 8], out: &mut [u8]) {
    for j in 0..4 {
        out[j] = scales[j] | scales[j + 4] >> 4 << 6;
        out[j + 4] = mins[j] | mins[j + 4] >> 4 << 6;
        out[j + 8] = scales[j + 4] & 15 | mins[j + 4] << 4;
    }
}

/// Returns scales as levels of 6 bits, with the greatest at level 63.
fn stored_by_greatest(scales: &[f32; 8]) -> StoredScales {
    let max = greatest(scales);
    let inverse = if max > 0.0 { 63.0 / max } else { 0.0 };
    (max / 63.0, scales.map(|scale| (nearest(inverse * scale) as u8).min(63)))
}

/// Returns scales as levels of 6 bits, found by a search with weighted errors.
fn stored_by_search<const B: usize>(scales: &[f32; 8], sums: &[f32; 8]) -> StoredScales {
    let mut levels = [0; 8];
    let d = positive(scales, sums, 63, &mut levels);
    // Only Q5_K clamps here; a level that wrapped below zero stays as it is in Q4_K.
    (d, if B == 176 { levels.map(|level| level.min(63)) } else { levels })
}

/// Unpacks 8 scales and 8 minima of 6 bits.
#[inline(always)]
fn split_scales(bytes: &[u8]) -> ([u8; 8], [u8; 8]) {
    // Four bytes at a time.
    let scales = word_at(bytes, 0);
    let mins = word_at(bytes, 4);
    let last = word_at(bytes, 8);
    (
        joined_levels(scales, last & 0x0f0f_0f0f | scales >> 2 & 0x3030_3030),
        joined_levels(mins, last >> 4 & 0x0f0f_0f0f | mins >> 2 & 0x3030_3030),
    )
}

/// Returns the four bytes from `at` on as a word.
#[inline(always)]
fn word_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Returns eight levels: the low six bits of the bytes of `first`, then the bytes of `last`.
#[inline(always)]
fn joined_levels(first: u32, last: u32) -> [u8; 8] {
    (u64::from(first & 0x3f3f_3f3f) | u64::from(last) << 32).to_le_bytes()
}
