//! Format-independent damage to bytes.

use crate::random::Random;

/// Integers at which lengths, counts, kinds and offsets commonly fail.
pub(crate) const NUMBERS: &[u64] = &[
    0,
    1,
    2,
    3,
    7,
    8,
    9,
    13,
    31,
    32,
    63,
    64,
    127,
    128,
    255,
    256,
    1 << 16,
    (1 << 30) - 1,
    1 << 30,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 40,
    1 << 60,
    (1 << 61) + 1,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 31,
    u64::MAX - 7,
    u64::MAX,
];

/// Chooses a position, more often in the first bytes, which contain headers.
fn place(len: usize, random: &mut Random) -> usize {
    if random.one_in(2) { random.below(len.min(512)) } else { random.below(len) }
}

/// Chooses the end of a short range.
fn end(at: usize, len: usize, random: &mut Random) -> usize {
    (at + 1 + random.below(40)).min(len)
}

/// Applies one piece of damage; `other` is a file of the same kind, as a source of bytes.
pub(crate) fn damage(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    if bytes.is_empty() {
        bytes.extend_from_slice(&random.next().to_le_bytes());
        return;
    }
    let at = place(bytes.len(), random);
    match random.below(11) {
        0 | 1 => bytes[at] ^= 1 << random.below(8),
        2 => bytes[at] = *random.pick(&[0, 1, 8, 9, b'"', b'{', b'[', 0x7f, 0x80, 0xfe, 0xff]),
        3..=5 => {
            let number = if random.one_in(3) { random.next() } else { *random.pick(NUMBERS) };
            let width = 1 << random.below(4);
            let new = number.to_le_bytes();
            for (old, new) in bytes[at..].iter_mut().zip(&new[..width]) {
                *old = *new;
            }
        }
        6 if random.one_in(2) => bytes.truncate(at),
        6 => {
            let last = bytes.len() - random.below(bytes.len().min(64));
            bytes.truncate(last);
        }
        7 => {
            let new = random.next().to_le_bytes();
            let width = 1 + random.below(8);
            bytes.splice(at..at, new[..width].iter().copied());
        }
        8 => {
            let end = end(at, bytes.len(), random);
            bytes.drain(at..end);
        }
        9 => {
            let end = end(at, bytes.len(), random);
            let copy = bytes[at..end].to_vec();
            bytes.splice(end..end, copy);
        }
        _ if other.is_empty() => bytes[at] = 0,
        _ => {
            // Replaces bytes by a piece of another file.
            let from = place(other.len(), random);
            let count = 1 + random.below(200);
            let piece = &other[from..(from + count).min(other.len())];
            let end = (at + piece.len()).min(bytes.len());
            bytes.splice(at..end, piece.iter().copied());
        }
    }
}
