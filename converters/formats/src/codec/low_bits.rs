//! Q1_0 and Q2_0: levels of 1 and 2 bits with one scale.
//!
//! `d` (f16), then levels in order, lowest bits first. Q1_0: 128 numbers that are `-d` or `d`.
//! Q2_0: 64 numbers that are `-d`, 0, `d` or `2 d`.

use super::BlockType;
use super::by_peak::{ByPeak, PeakFormat, by_peak};
use super::declaration::{BlockDeclaration, FileType, ScaleRule};
use super::layout::{blocks, each, get_f16, put_f16};
use super::rounding::away;
use super::simd::{self, Groups, SimdEncoder};

pub(super) const Q1_0: BlockDeclaration = BlockDeclaration {
    levels: Some(|block, to| {
        let bits = (0..128).map(|at| block[2 + at / 8] >> (at % 8) & 1);
        to.set(get_f16(block, 0), &bits.collect::<Vec<u8>>(), |bit| 2 * bit.cast_signed() - 1);
    }),
    scales: ScaleRule::F16(&[0]),
    error: Some(0.601),
    file_types: &[FileType::new("Q1_0", 40)],
    encode: Some(|numbers, _, _, out| {
        for (x, block) in blocks::<128, 18>(numbers, out) {
            pack_signs(x, x.iter().fold(0.0_f32, |sum, x| sum + x.abs()), block);
        }
    }),
    wide: Some(simd::encoder::<SignLanes>),
    decode: decoder!(18, 128, |ops, block, out| {
        let d = ops.f16(block, 0);
        for (byte, x) in block[2..].iter().zip(out.as_chunks_mut::<8>().0) {
            *x = std::array::from_fn(|j| if byte >> j & 1 == 1 { d } else { -d });
        }
    }),
    ..BlockDeclaration::new("Q1_0", 41, 128, 18)
};

pub(super) const Q2_0: BlockDeclaration = BlockDeclaration {
    levels: Some(|block, to| {
        let pairs = (0..64).map(|at| block[2 + at / 4] >> (2 * (at % 4)) & 3);
        to.set(get_f16(block, 0), &pairs.collect::<Vec<u8>>(), |level| level.cast_signed() - 1);
    }),
    scales: ScaleRule::F16(&[0]),
    error: Some(0.719),
    fallback: Some(BlockType::Q40),
    file_types: &[FileType::new("Q2_0", 41)],
    encode: Some(by_peak::<Q2Blocks, 64, 18>),
    wide: Some(simd::encoder::<ByPeak<Q2Blocks, 64, 18>>),
    decode: decoder!(18, 64, |ops, block, out| {
        let d = ops.f16(block, 0);
        for (byte, x) in block[2..].iter().zip(out.as_chunks_mut::<4>().0) {
            *x = std::array::from_fn(|j| ((byte >> (2 * j) & 3) as i32 - 1) as f32 * d);
        }
    }),
    ..BlockDeclaration::new("Q2_0", 42, 64, 18)
};

/// Vectorized encoder of Q1_0, with one block per lane.
struct SignLanes;

impl SimdEncoder for SignLanes {
    #[inline(always)]
    fn encode<S: Groups>(
        s: S,
        numbers: &[f32],
        _row: usize,
        _importance: Option<&[f32]>,
        out: &mut [u8],
    ) {
        for (numbers, out) in numbers.chunks(128 * S::LANES).zip(out.chunks_mut(18 * S::LANES)) {
            let groups = numbers.as_chunks::<128>().0;
            let mut sum = s.splat(0.0);
            s.each_column(
                |lane: usize| &groups[lane.min(groups.len() - 1)][..],
                |_, x| sum = sum + s.abs(x),
            );
            for ((x, block), sum) in blocks::<128, 18>(numbers, out).zip(s.array(sum)) {
                pack_signs(x, sum, block);
            }
        }
    }
}

/// Packs signs, given the sum of magnitudes.
#[inline(always)]
fn pack_signs(x: &[f32; 128], sum: f32, block: &mut [u8; 18]) {
    put_f16(block, 0, sum / 128.0);
    for (bytes, x) in block[2..].as_chunks_mut::<8>().0.iter_mut().zip(x.as_chunks::<64>().0) {
        let bits = x.iter().enumerate().map(|(j, &x)| u64::from(x >= 0.0) << j);
        *bytes = bits.fold(0, |word, bit| word | bit).to_le_bytes();
    }
}

struct Q2Blocks;

impl PeakFormat<64, 18> for Q2Blocks {
    #[inline(always)]
    fn pack(x: &[f32; 64], peak: f32, block: &mut [u8; 18]) {
        let d = peak.abs();
        let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
        put_f16(block, 0, d);
        let levels = each(x, |x| away(x * inverse).wrapping_add(1).clamp(0, 3) as u8);
        for (byte, levels) in block[2..].iter_mut().zip(levels.as_chunks::<4>().0) {
            *byte = levels[0] | levels[1] << 2 | levels[2] << 4 | levels[3] << 6;
        }
    }
}
