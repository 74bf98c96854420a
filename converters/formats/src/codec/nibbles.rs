//! Levels of 4 and 5 bits in blocks of 32: number `j` in the low half of byte `j`, number
//! `j + 16` in the high half; fifth bits apart.

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

/// Packs 32 levels of 5 bits into 4 bytes of fifth bits and 16 of the others.
#[inline(always)]
pub(super) fn join5(levels: &[u8; 32], out: &mut [u8]) {
    for (byte, levels) in out.iter_mut().zip(levels.as_chunks::<8>().0) {
        let fifth = u64::from_le_bytes(*levels) >> 4 & 0x0101_0101_0101_0101;
        // The product has the lowest bit of byte `j` at bit 56 + j.
        *byte = (fifth.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
    }
    join4(&each(levels, |level| level & 15), &mut out[4..]);
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
