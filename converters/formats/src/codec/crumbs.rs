//! Levels of 2 bits in blocks of 256: byte `l` of a 32 byte half holds numbers `l`, `l + 32`,
//! `l + 64` and `l + 96` of 128, lowest bits first.

use super::layout::each;

/// Packs 256 levels of 2 bits into 64 bytes.
#[inline(always)]
pub(super) fn join2(levels: &[u8; 256], out: &mut [u8]) {
    for (levels, out) in levels.as_chunks::<128>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        for (l, to) in out.iter_mut().enumerate() {
            *to = levels[l] | levels[l + 32] << 2 | levels[l + 64] << 4 | levels[l + 96] << 6;
        }
    }
}

/// Unpacks 256 levels of 2 bits.
#[inline(always)]
pub(super) fn split2(bytes: &[u8]) -> [u8; 256] {
    let mut levels = [0; 256];
    let halves = levels.as_chunks_mut::<128>().0;
    for (levels, bytes) in halves.iter_mut().zip(bytes.as_chunks::<32>().0) {
        for (quarter, levels) in levels.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            *levels = each(bytes, |byte| byte >> (2 * quarter) & 3);
        }
    }
    levels
}
