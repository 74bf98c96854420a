//! Levels of 4 and 5 bits in blocks of 32: number `j` in the low half of byte `j`, number
//! `j + 16` in the high half; fifth bits apart.

#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "intrinsics"))]

use lanes::Simd;

use super::decoder::VectorSink;
use super::layout::each;

/// Packs 32 levels of 4 bits into 16 bytes.
#[inline(always)]
pub(super) fn join4(levels: &[u8; 32], out: &mut [u8]) {
    let (low, high) = levels.split_at(16);
    for ((to, low), high) in out.iter_mut().zip(low).zip(high) {
        *to = low | high << 4;
    }
}

/// Unpacks 32 levels of 4 bits.
#[inline(always)]
pub(super) fn split4(bytes: &[u8]) -> [u8; 32] {
    let mut levels = [0; 32];
    let (low, high) = levels.split_at_mut(16);
    for ((&byte, low), high) in bytes.iter().zip(low).zip(high) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
    levels
}

/// Returns the value of sixteen levels in order, of which the lowest is `first`.
pub(super) const fn values_from(first: i32) -> [f32; 16] {
    let mut values = [0.0; 16];
    let mut level = 0;
    while level < 16 {
        values[level as usize] = (first + level) as f32;
        level += 1;
    }
    values
}

/// Hands on the value of each of 32 levels of 4 bits.
#[inline(always)]
pub(super) fn values4<O: Simd>(ops: O, table: O::Wide, bytes: &[u8], out: &mut impl VectorSink<O>) {
    let Some(bytes) = bytes.first_chunk() else { return };
    for values in ops.lookup4([table; 2], bytes) {
        out.push(values);
    }
}

/// Hands on the value of each of 32 levels of 5 bits.
#[inline(always)]
pub(super) fn values5<O: Simd>(
    ops: O,
    tables: [O::Wide; 2],
    bytes: &[u8],
    out: &mut impl VectorSink<O>,
) {
    let (Some(fifths), Some(bytes)) = (bytes.first_chunk::<4>(), bytes[4..].first_chunk()) else {
        return;
    };
    let fifths = [[fifths[0], fifths[1]], [fifths[2], fifths[3]]].map(u16::from_le_bytes);
    for values in ops.lookup5([tables; 2], bytes, fifths) {
        out.push(values);
    }
}

/// Packs 32 levels of 5 bits into 4 bytes of fifth bits and 16 of the others.
#[inline(always)]
pub(super) fn join5(levels: &[u8; 32], out: &mut [u8]) {
    out[..4].copy_from_slice(&fifth_bits(levels).to_le_bytes());
    join4(&each(levels, |level| level & 15), &mut out[4..]);
}

/// Returns a word with the fifth bit of level `j` at bit `j`.
#[inline(always)]
fn fifth_bits(levels: &[u8; 32]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        let (halves, _) = levels.as_chunks::<16>();
        (sixteen_fifth_bits(&halves[0]) | sixteen_fifth_bits(&halves[1]) << 16).cast_unsigned()
    }
    #[cfg(not(target_arch = "x86_64"))]
    plain_fifth_bits(levels)
}

/// Returns the fifth bits of sixteen levels, that of level `j` at bit `j`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn sixteen_fifth_bits(levels: &[u8; 16]) -> i32 {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_movemask_epi8, _mm_slli_epi16};
    // SAFETY: every CPU of this kind has SSE2, and sixteen bytes are read.
    unsafe { _mm_movemask_epi8(_mm_slli_epi16::<3>(_mm_loadu_si128(levels.as_ptr().cast()))) }
}

/// Scalar form of [`fifth_bits`].
#[cfg(any(test, not(target_arch = "x86_64")))]
fn plain_fifth_bits(levels: &[u8; 32]) -> u32 {
    let bits = levels.iter().enumerate().map(|(j, &level)| u32::from(level >> 4) << j);
    bits.fold(0, |word, bit| word | bit)
}

/// Unpacks 32 levels of 5 bits.
#[inline(always)]
pub(super) fn split5(bytes: &[u8]) -> [u8; 32] {
    let fifth = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut levels = split4(&bytes[4..]);
    for (j, level) in levels.iter_mut().enumerate() {
        *level |= ((fifth >> j & 1) << 4) as u8;
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifth_bits_are_those_of_the_scalar_form() {
        let mut word = 0x2545_f491_u32;
        for _ in 0..100 {
            let levels = std::array::from_fn(|_| {
                word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (word >> 27) as u8
            });
            assert_eq!(fifth_bits(&levels), plain_fifth_bits(&levels));
        }
    }

    #[test]
    fn levels_survive_packing() {
        let levels: [u8; 32] = std::array::from_fn(|j| (j as u8).wrapping_mul(13) & 31);
        let mut bytes = [0; 20];
        join5(&levels, &mut bytes);
        assert_eq!(split5(&bytes), levels);
        let levels = levels.map(|level| level & 15);
        join4(&levels, &mut bytes);
        assert_eq!(split4(&bytes[..16]), levels);
    }
}
