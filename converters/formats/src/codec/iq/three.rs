//! IQ3_XXS, IQ3_S: 4 values of 8 magnitudes as a point of 256 or 512.

use super::lattice;
use super::search::{self, CodebookSearch, IqBlock, OneByOne, SearchParams, SecondSearch};
use super::{BLOCK, blocks, magnitudes, searched, signs, vectorized};
use crate::codec::declaration::{BlockDeclaration, FileType, ImportanceNeed, ScaleRule};
use crate::codec::layout::each;
use crate::codec::{BlockType, simd};
use lanes::Simd;

/// Bytes: scale, 64 indices, then per 32 values a word of 4 x 7 signs and 4 bits of scale.
pub(in crate::codec) const IQ3_XXS: BlockDeclaration = BlockDeclaration {
    scales: ScaleRule::F16(&[0]),
    importance: ImportanceNeed::Advised,
    error: Some(0.213),
    fallback: Some(BlockType::Iq4Nl),
    file_types: &[FileType::new("IQ3_XXS", 23)],
    encode: Some(|x, row, importance, out| encode_xxs(OneByOne, x, row, importance, out)),
    wide: Some(simd::encoder::<Iq3XxsLanes>),
    decode: decoder!(98, 256, |ops, block, out| decode_xxs(ops, block, out)),
    ..BlockDeclaration::new("IQ3_XXS", 18, 256, 98)
};

/// Bytes: scale, 64 low bytes of indices, 64 high bits, 256 signs, 8 scales of 4 bits.
pub(in crate::codec) const IQ3_S: BlockDeclaration = BlockDeclaration {
    scales: ScaleRule::F16(&[0]),
    error: Some(0.166),
    fallback: Some(BlockType::Iq4Nl),
    file_types: &[
        FileType::new("IQ3_M", 27),
        FileType::new("IQ3_S", 26),
        FileType::new("IQ3_XS", 22),
    ],
    encode: Some(|x, row, importance, out| encode_s(OneByOne, x, row, importance, out)),
    wide: Some(simd::encoder::<Iq3SLanes>),
    decode: decoder!(110, 256, |ops, block, out| decode_s(ops, block, out)),
    ..BlockDeclaration::new("IQ3_S", 21, 256, 110)
};

const RULE_XXS: SearchParams<4> = SearchParams {
    lattice: || &lattice::IQ3_XXS,
    sigma: 2.0,
    unweighted: |x, _| x * x,
    even: true,
    tiny: 1e-8,
    tries: 15,
    step: 0.2,
    again: SecondSearch::Off,
    gain: 1.0125,
};

const RULE_S: SearchParams<4> = SearchParams {
    lattice: || &lattice::IQ3_S,
    even: false,
    // The smallest positive number: only zeros are less.
    tiny: f32::from_bits(1),
    tries: 9,
    again: SecondSearch::AllIfOff,
    gain: 1.033,
    ..RULE_XXS
};

searched!(Iq3XxsLanes, encode_xxs, 98, 32, 4, RULE_XXS, pack_xxs);

#[inline(always)]
fn pack_xxs(block: &IqBlock, out: &mut [u8; 98]) {
    out.fill(0);
    if block.zero {
        return;
    }
    out[..2].copy_from_slice(&block.scale.to_le_bytes());
    let (indices, words) = out[2..].split_at_mut(64);
    for (at, part) in block.parts[..8].iter().enumerate() {
        indices[8 * at..][..8].copy_from_slice(&part.picks.map(|pick| (pick >> 16) as u8));
        let mut word = u32::from(part.scale) << 28;
        for (k, &signs) in part.signs.iter().enumerate() {
            word |= u32::from(signs) << (7 * k);
        }
        words[4 * at..][..4].copy_from_slice(&word.to_le_bytes());
    }
}

#[inline(always)]
fn decode_xxs<O: Simd>(ops: O, bytes: &[u8; 98], x: &mut [f32; BLOCK]) {
    let scale = ops.f16(bytes, 0);
    let (indices, words) = bytes[2..].split_at(64);
    let words = words.as_chunks::<4>().0.iter().map(|&word| u32::from_le_bytes(word));
    for (at, (x, word)) in x.as_chunks_mut::<32>().0.iter_mut().zip(words).enumerate() {
        let scale = scale * (0.5 + (word >> 28) as f32) * 0.5;
        for (n, x) in x.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let k = [2 * n, 2 * n + 1];
            let points = each(&k, |k| {
                let first = indices[8 * at + 2 * k] as usize;
                let second = indices[8 * at + 2 * k + 1] as usize;
                joined(magnitudes::IQ3_XXS[first], magnitudes::IQ3_XXS[second])
            });
            let signs = each(&k, |k| signs::eighth(word >> (7 * k)));
            magnitudes::write(ops, x, scale, points, signs);
        }
    }
}

searched!(Iq3SLanes, encode_s, 110, 32, 4, RULE_S, pack_s);

#[inline(always)]
fn pack_s(block: &IqBlock, out: &mut [u8; 110]) {
    out.fill(0);
    out[..2].copy_from_slice(&block.scale.to_le_bytes());
    // The reference does not advance past a part of zeros: low bytes and signs of the parts after it are
    // written one part early, high bits and scales are not.
    let mut early = 0;
    for (at, part) in block.parts[..8].iter().enumerate() {
        if part.empty {
            continue;
        }
        for k in 0..8 {
            let index = part.picks[k] >> 16;
            out[2 + 8 * early + k] = index as u8;
            out[66 + at] |= ((index >> 8) as u8) << k;
        }
        out[74 + 4 * early..][..4].copy_from_slice(&part.signs);
        early += 1;
    }
    for (at, part) in block.parts[..8].iter().enumerate() {
        out[106 + at / 2] |= part.scale << (4 * (at % 2));
    }
}

#[inline(always)]
fn decode_s<O: Simd>(ops: O, bytes: &[u8; 110], x: &mut [f32; BLOCK]) {
    let scale = ops.f16(bytes, 0);
    for (n, x) in x.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let of_part = bytes[106 + n / 4] >> (4 * (n / 2 % 2)) & 15;
        let scale = scale * (1.0 + 2.0 * f32::from(of_part));
        let points = each(&[2 * n, 2 * n + 1], |at| {
            joined(point_s(bytes, 2 * at), point_s(bytes, 2 * at + 1))
        });
        magnitudes::write(ops, x, scale, points, [bytes[74 + 2 * n], bytes[75 + 2 * n]]);
    }
}

/// Returns the magnitudes of point `n` of a block of IQ3_S.
#[inline(always)]
fn point_s(bytes: &[u8; 110], n: usize) -> [u8; 4] {
    let high = bytes[66 + n / 8] >> (n % 8) & 1;
    magnitudes::IQ3_S[bytes[2 + n] as usize | (high as usize) << 8]
}

/// Joins the magnitudes of two points.
#[inline(always)]
fn joined(a: [u8; 4], b: [u8; 4]) -> [u8; 8] {
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
}
