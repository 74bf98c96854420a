//! Table of replacements in a SentencePiece normalizer: a trie and its replacement texts.
//!
//! The layout is that of Darts: a little-endian length in bytes, units of four bytes, then zero-terminated
//! texts. Readers follow units without bounds checks, so every reachable unit is checked.

use std::collections::VecDeque;

/// Checked table of replacements.
#[derive(Debug)]
pub(crate) struct Charsmap {
    units: Vec<u32>,
    texts: String,
    /// Maximum number of bytes that one byte of text becomes.
    pub(crate) growth: f64,
}

impl Charsmap {
    /// Checks the bytes of a table. The error is the reason, as part of a sentence.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let (length, remaining) =
            bytes.split_first_chunk::<4>().ok_or("it is shorter than its length field")?;
        let length = u32::from_le_bytes(*length) as usize;
        if length > remaining.len() {
            return Err(format!(
                "its trie is said to have {length} bytes, and {} follow",
                remaining.len()
            ));
        }
        let (trie, texts) = remaining.split_at(length / 4 * 4);
        let units: Vec<u32> = trie
            .chunks_exact(4)
            .map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]))
            .collect();
        let texts = std::str::from_utf8(texts).map_err(|_| "its texts are not UTF-8")?.to_owned();
        let mut map = Self { units, texts, growth: 1.0 };
        map.walk()?;
        Ok(map)
    }

    /// Visits every unit that a text can reach.
    fn walk(&mut self) -> Result<(), String> {
        let root = *self.units.first().ok_or("its trie is empty")?;
        let mut seen = vec![false; self.units.len()];
        let mut queue = VecDeque::from([(offset(root), 0_usize)]);
        while let Some((base, depth)) = queue.pop_front() {
            // A reader accesses `base` with any byte in its lowest eight bits.
            if base | 0xff >= self.units.len() {
                return Err(format!(
                    "a unit leads to {base}, and there are {} units",
                    self.units.len()
                ));
            }
            if std::mem::replace(&mut seen[base], true) {
                continue;
            }
            for byte in 1..=0xff_usize {
                let unit = self.units[base ^ byte];
                if label(unit) != byte {
                    continue;
                }
                let next = base ^ byte ^ offset(unit);
                if leaf(unit) {
                    let value = self.units.get(next).map(|&unit| value(unit));
                    let text = value.and_then(|at| self.text(at));
                    let text = text.ok_or("a leaf leads beyond its texts")?;
                    // Nodes are visited from the root down, so this is the shortest path to them.
                    self.growth = self.growth.max(text.len() as f64 / (depth + 1) as f64);
                }
                queue.push_back((next, depth + 1));
            }
        }
        Ok(())
    }

    fn text(&self, at: usize) -> Option<&str> {
        self.texts.get(at..)?.split('\0').next()
    }

    /// Returns the longest replaced prefix of `text`, and its replacement.
    pub(crate) fn longest(&self, text: &[u8]) -> Option<(usize, &str)> {
        let mut at = offset(*self.units.first()?);
        let mut replacement = None;
        for (n, &byte) in text.iter().enumerate() {
            if byte == 0 {
                break;
            }
            let unit = *self.units.get(at ^ usize::from(byte))?;
            if label(unit) != usize::from(byte) {
                break;
            }
            at ^= usize::from(byte) ^ offset(unit);
            if leaf(unit) {
                replacement = self.text(value(*self.units.get(at)?)).map(|text| (n + 1, text));
            }
        }
        replacement
    }
}

fn leaf(unit: u32) -> bool {
    unit >> 8 & 1 == 1
}

fn value(unit: u32) -> usize {
    (unit & 0x7fff_ffff) as usize
}

fn label(unit: u32) -> usize {
    (unit & 0x8000_00ff) as usize
}

fn offset(unit: u32) -> usize {
    (unit as usize >> 10) << ((unit & 1 << 9) >> 6)
}

/// Returns a table that replaces one byte by a text.
#[cfg(test)]
pub(crate) fn trial(byte: u8, text: &str) -> Vec<u8> {
    let mut units = vec![0_u32; 1024];
    let root = 256;
    let node = 512;
    units[0] = root << 10;
    units[(root ^ u32::from(byte)) as usize] =
        (root ^ u32::from(byte) ^ node) << 10 | 1 << 8 | u32::from(byte);
    units[node as usize] = 1 << 31;
    let mut bytes = 4096_u32.to_le_bytes().to_vec();
    bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
    bytes.extend(text.as_bytes());
    bytes.push(0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_replaced_by_the_longest_match() {
        let map = Charsmap::parse(&trial(b'q', "sss")).unwrap();
        assert_eq!(map.longest(b"qa"), Some((1, "sss")));
        assert_eq!(map.longest(b"aq"), None);
        assert_eq!(map.growth, 3.0);
    }

    #[test]
    fn units_that_lead_outside_are_refused() {
        let sound = trial(b'q', "sss");
        for (at, expected) in [(4, "a unit leads to"), (4 + 4 * (256 ^ 0x71), "beyond its texts")] {
            let mut bytes = sound.clone();
            bytes[at + 3] = 0x7f;
            assert!(Charsmap::parse(&bytes).unwrap_err().contains(expected));
        }
        let mut bytes = sound.clone();
        bytes[4 + 4 * 512] = 200;
        assert!(Charsmap::parse(&bytes).unwrap_err().contains("beyond its texts"));
        let mut bytes = sound.clone();
        bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Charsmap::parse(&bytes).unwrap_err().contains("4294967295 bytes"));
        for cut in [0, 3, 4, 7] {
            assert!(Charsmap::parse(&sound[..cut]).is_err(), "{cut}");
        }
        assert!(Charsmap::parse(&[0; 8]).unwrap_err().contains("empty"));
    }
}
