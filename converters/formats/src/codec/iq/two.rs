//! IQ2_XXS, IQ2_XS, IQ2_S: 8 values of 3 magnitudes as a point of 256, 512 or 1024.

use super::lattice;
use super::search::{self, CodebookSearch, IqBlock, OneByOne, SearchParams, SecondSearch};
use super::{BLOCK, blocks, magnitudes, searched, signs, vectorized};
use crate::codec::declaration::{BlockDeclaration, FileType, ImportanceNeed, ScaleRule};
use crate::codec::layout::each;
use crate::codec::search::TINY;
use crate::codec::{BlockType, simd};
use lanes::Simd;

/// Bytes: scale, then per 32 values 4 indices and a word of 4 x 7 signs and 4 bits of scale.
pub(in crate::codec) const IQ2_XXS: BlockDeclaration = BlockDeclaration {
    scales: ScaleRule::F16(&[0]),
    importance: ImportanceNeed::Required,
    error: Some(0.343),
    fallback: Some(BlockType::Iq4Nl),
    file_types: &[FileType::new("IQ2_XXS", 19)],
    encode: Some(|x, row, importance, out| encode_xxs(OneByOne, x, row, importance, out)),
    wide: Some(simd::encoder::<Iq2XxsLanes>),
    decode: decoder!(66, 256, |ops, block, out| decode_xxs(ops, block, out)),
    ..BlockDeclaration::new("IQ2_XXS", 16, 256, 66)
};

/// Bytes: scale, then 32 words of 9 bits of index and 7 signs, then 16 scales of 4 bits.
pub(in crate::codec) const IQ2_XS: BlockDeclaration = BlockDeclaration {
    scales: ScaleRule::F16(&[0]),
    importance: ImportanceNeed::Required,
    error: Some(0.299),
    fallback: Some(BlockType::Iq4Nl),
    file_types: &[FileType::new("IQ2_S", 28), FileType::new("IQ2_XS", 20)],
    encode: Some(|x, row, importance, out| encode_xs(OneByOne, x, row, importance, out)),
    wide: Some(simd::encoder::<Iq2XsLanes>),
    decode: decoder!(74, 256, |ops, block, out| decode_xs(ops, block, out)),
    ..BlockDeclaration::new("IQ2_XS", 17, 256, 74)
};

/// Bytes: scale, 32 low bytes of indices, 32 signs, 32 high pairs of bits, 16 scales of 4 bits.
pub(in crate::codec) const IQ2_S: BlockDeclaration = BlockDeclaration {
    scales: ScaleRule::F16(&[0]),
    importance: ImportanceNeed::Advised,
    error: Some(0.265),
    fallback: Some(BlockType::Iq4Nl),
    file_types: &[FileType::new("IQ2_M", 29)],
    encode: Some(|x, row, importance, out| encode_s(OneByOne, x, row, importance, out)),
    wide: Some(simd::encoder::<Iq2SLanes>),
    decode: decoder!(82, 256, |ops, block, out| decode_s(ops, block, out)),
    ..BlockDeclaration::new("IQ2_S", 22, 256, 82)
};

const RULE_XXS: SearchParams<8> = SearchParams {
    lattice: || &lattice::IQ2_XXS,
    sigma: 1.0,
    unweighted: |x, _| x * x,
    even: true,
    tiny: TINY,
    tries: 6,
    step: 0.1,
    again: SecondSearch::Always,
    gain: 1.0,
};

const RULE_XS: SearchParams<8> =
    SearchParams { lattice: || &lattice::IQ2_XS, tries: 9, again: SecondSearch::Off, ..RULE_XXS };

const RULE_S: SearchParams<8> = SearchParams {
    lattice: || &lattice::IQ2_S,
    sigma: 2.0,
    unweighted: |x, mean| 0.25 * mean + x * x,
    even: false,
    tiny: 1e-8,
    gain: 0.9875,
    ..RULE_XS
};

searched!(Iq2XxsLanes, encode_xxs, 66, 32, 8, RULE_XXS, pack_xxs);

#[inline(always)]
fn pack_xxs(block: &IqBlock, out: &mut [u8; 66]) {
    out.fill(0);
    if block.zero {
        return;
    }
    out[..2].copy_from_slice(&block.scale.to_le_bytes());
    for (part, out) in block.parts.iter().zip(out[2..].as_chunks_mut::<8>().0) {
        let indices = part.picks.map(|pick| (pick >> 16) as u8);
        out[..4].copy_from_slice(&indices[..4]);
        let mut word = u32::from(part.scale) << 28;
        for (k, &signs) in part.signs.iter().enumerate() {
            word |= u32::from(signs) << (7 * k);
        }
        out[4..].copy_from_slice(&word.to_le_bytes());
    }
}

#[inline(always)]
fn decode_xxs<O: Simd>(ops: O, bytes: &[u8; 66], x: &mut [f32; BLOCK]) {
    let scale = ops.f16(bytes, 0);
    for (bytes, x) in bytes[2..].as_chunks::<8>().0.iter().zip(x.as_chunks_mut::<32>().0) {
        let word = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let scale = scale * (0.5 + (word >> 28) as f32) * 0.25;
        for (n, x) in x.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let k = [2 * n, 2 * n + 1];
            let points = each(&k, |k| magnitudes::IQ2_XXS[bytes[k] as usize]);
            let signs = each(&k, |k| signs::eighth(word >> (7 * k)));
            magnitudes::write(ops, x, scale, points, signs);
        }
    }
}

searched!(Iq2XsLanes, encode_xs, 74, 16, 8, RULE_XS, pack_xs);

#[inline(always)]
fn pack_xs(block: &IqBlock, out: &mut [u8; 74]) {
    out.fill(0);
    if block.zero {
        return;
    }
    out[..2].copy_from_slice(&block.scale.to_le_bytes());
    let (words, scales) = out[2..].split_at_mut(64);
    for (at, part) in block.parts.iter().enumerate() {
        for k in 0..2 {
            let word = (part.picks[k] >> 16) as u16 | u16::from(part.signs[k]) << 9;
            words[4 * at + 2 * k..][..2].copy_from_slice(&word.to_le_bytes());
        }
        scales[at / 2] |= part.scale << (4 * (at % 2));
    }
}

#[inline(always)]
fn decode_xs<O: Simd>(ops: O, bytes: &[u8; 74], x: &mut [f32; BLOCK]) {
    let scale = ops.f16(bytes, 0);
    let (words, scales) = bytes[2..].split_at(64);
    let words = words.as_chunks::<4>().0.iter();
    for (n, (x, words)) in x.as_chunks_mut::<16>().0.iter_mut().zip(words).enumerate() {
        let words = [[words[0], words[1]], [words[2], words[3]]];
        let words = each(&words, u16::from_le_bytes);
        let points = each(&words, |word| magnitudes::IQ2_XS[word as usize & 511]);
        let signs = each(&words, |word| signs::eighth(u32::from(word >> 9)));
        magnitudes::write(ops, x, part_scale(scale, scales, n), points, signs);
    }
}

searched!(Iq2SLanes, encode_s, 82, 16, 8, RULE_S, pack_s);

#[inline(always)]
fn pack_s(block: &IqBlock, out: &mut [u8; 82]) {
    out.fill(0);
    out[..2].copy_from_slice(&block.scale.to_le_bytes());
    for (at, part) in block.parts.iter().enumerate() {
        for k in 0..2 {
            let at = 2 * at + k;
            let index = part.picks[k] >> 16;
            out[2 + at] = index as u8;
            out[34 + at] = part.signs[k];
            out[66 + at / 4] |= ((index >> 8) as u8) << (2 * (at % 4));
        }
        out[74 + at / 2] |= part.scale << (4 * (at % 2));
    }
}

#[inline(always)]
fn decode_s<O: Simd>(ops: O, bytes: &[u8; 82], x: &mut [f32; BLOCK]) {
    let scale = ops.f16(bytes, 0);
    for (n, x) in x.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let points = each(&[2 * n, 2 * n + 1], |at| {
            let high = bytes[66 + at / 4] >> (2 * (at % 4)) & 3;
            magnitudes::IQ2_S[bytes[2 + at] as usize | (high as usize) << 8]
        });
        let signs = [bytes[34 + 2 * n], bytes[35 + 2 * n]];
        magnitudes::write(ops, x, part_scale(scale, &bytes[74..], n), points, signs);
    }
}

/// Returns the scale of 16 values, decoded from its 4 stored bits.
#[inline(always)]
fn part_scale(scale: f32, scales: &[u8], at: usize) -> f32 {
    scale * (0.5 + f32::from(scales[at / 2] >> (4 * (at % 2)) & 15)) * 0.25
}
