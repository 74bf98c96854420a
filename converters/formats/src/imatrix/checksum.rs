//! Checksums of importance, which find flipped bits in files of sums.

use std::path::Path;

use super::Error;
use crate::shown;

/// Checksum of parts, each with its length.
///
/// Every step can be undone, so two texts that differ in one word have different checksums.
#[derive(Default)]
pub(super) struct Checksum(u64);

impl Checksum {
    /// Adds parts.
    pub(super) fn add(&mut self, parts: &[impl AsRef<[u8]>]) {
        for part in parts.iter().map(AsRef::as_ref) {
            self.word(part.len() as u64);
            for piece in part.chunks(8) {
                let mut word = [0; 8];
                word[..piece.len()].copy_from_slice(piece);
                self.word(u64::from_le_bytes(word));
            }
        }
    }

    fn word(&mut self, word: u64) {
        /// Odd, with as many ones as zeros: 2^64 over the golden ratio.
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (self.0 ^ word).wrapping_mul(FACTOR);
        self.0 ^= self.0 >> 32;
    }

    /// Returns the checksum as hexadecimal digits.
    pub(super) fn text(&self) -> String {
        format!("{:016x}", self.0)
    }

    /// Returns an error if a checksum is not the one in the file.
    pub(super) fn check(path: &Path, checksum: String, expected: &str) -> Result<(), Error> {
        if checksum == expected {
            return Ok(());
        }
        Err(Error::Checksum { file: path.into(), found: checksum, expected: shown(expected) })
    }
}
