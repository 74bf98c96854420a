//! Integers of a few bits packed in 32-bit words.

/// Order of the codes of a line in its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CodeOrder {
    /// Consecutive, also across word boundaries.
    Stream,
    /// Blocks of 32 codes in bit planes of 4, 2 and 1 bits, the lowest bits first.
    Planes,
    /// Eight 4-bit codes per word, the even ones in its lower half.
    Interleaved,
    /// Signed bytes, not packed in words. They are read with an offset of 128, as signed codes in words
    /// have an offset of half their range.
    Bytes,
}

/// Lines of codes: word `k` of line `m` is word `m * line + k * step` of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedCodes {
    pub(super) layout: CodeOrder,
    /// 1 to 8.
    pub(super) bits: u32,
    pub(super) line: usize,
    pub(super) step: usize,
    /// Offset added to each word, or to each byte, before codes are extracted.
    pub(super) plus: u32,
}

impl PackedCodes {
    /// Returns the default layout for codes of `bits` bits.
    pub(super) fn stream(bits: u32, line: usize, step: usize) -> Self {
        Self { layout: CodeOrder::Stream, bits, line, step, plus: 0 }
    }

    /// Returns the layout of signed bytes in lines of a given length.
    pub(super) fn bytes(line: usize) -> Self {
        Self { layout: CodeOrder::Bytes, ..Self::stream(8, line, 1) }
    }

    /// Returns code `n` of line `m`.
    pub(super) fn at(&self, bytes: &[u8], m: usize, n: usize) -> u32 {
        /// Position of each of eight codes in its word.
        const PLACE: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
        let bits = self.bits as usize;
        let mask = (1 << self.bits) - 1;
        match self.layout {
            CodeOrder::Stream => {
                let k = n * bits / 32;
                let shift = n * bits % 32;
                let low = self.word(bytes, m, k) >> shift;
                let more = shift + bits > 32;
                let next = if more { self.word(bytes, m, k + 1) << (32 - shift) } else { 0 };
                (low | next) & mask
            }
            CodeOrder::Planes => {
                let mut k = n / 32 * bits;
                let mut done = 0;
                let mut number = 0;
                for width in [8, 4, 2, 1].into_iter().filter(|width| bits & width != 0) {
                    let bit = n % 32 * width;
                    let word = self.word(bytes, m, k + bit / 32);
                    let part = word >> (bit % 32) & ((1 << width) - 1);
                    number |= part << done;
                    (k, done) = (k + width, done + width);
                }
                number
            }
            CodeOrder::Interleaved => self.word(bytes, m, n / 8) >> (PLACE[n % 8] * 4) & mask,
            CodeOrder::Bytes => {
                let byte = bytes.get(m * self.line + n * self.step).map_or(0, |byte| byte ^ 0x80);
                u32::from(byte).wrapping_add(self.plus)
            }
        }
    }

    /// Returns word `k` of line `m`; one that is missing is zero.
    #[inline]
    fn word(&self, bytes: &[u8], m: usize, k: usize) -> u32 {
        let word = bytes.as_chunks::<4>().0.get(m * self.line + k * self.step);
        word.map_or(0, |word| u32::from_le_bytes(*word)).wrapping_add(self.plus)
    }

    /// Returns the number of words that `numbers` codes need.
    pub(super) fn needed(numbers: usize, bits: u32) -> usize {
        // 32 codes take exactly `bits` words.
        numbers / 32 * bits as usize + (numbers % 32 * bits as usize).div_ceil(32)
    }
}

#[cfg(test)]
mod tests {
    use super::{CodeOrder, PackedCodes};

    #[test]
    fn numbers_are_found_in_their_words() {
        let numbers: Vec<u32> = (0..64).map(|n| n * 37 + n / 5).collect();
        for bits in 1..=8_u32 {
            let mask = (1 << bits) - 1;
            let mut stream = vec![0_u32; PackedCodes::needed(64, bits)];
            let mut planes = stream.clone();
            for (n, number) in numbers.iter().enumerate() {
                for bit in 0..bits as usize {
                    let one = number >> bit & 1;
                    let at = n * bits as usize + bit;
                    stream[at / 32] |= one << (at % 32);
                    // Width of the plane of this bit, and bits that precede the plane in its block.
                    let mut width = 0;
                    let mut below = 0;
                    for plane in [8, 4, 2, 1].into_iter().filter(|w| bits as usize & w != 0) {
                        if bit >= below {
                            width = plane;
                        }
                        if bit < below + plane {
                            break;
                        }
                        below += plane;
                    }
                    let at = n % 32 * width + bit - below;
                    planes[n / 32 * bits as usize + below + at / 32] |= one << (at % 32);
                }
            }
            for (layout, words) in [(CodeOrder::Stream, &stream), (CodeOrder::Planes, &planes)] {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                let all = PackedCodes { layout, ..PackedCodes::stream(bits, 0, 1) };
                for (n, number) in numbers.iter().enumerate() {
                    assert_eq!(all.at(&bytes, 0, n), number & mask, "{layout:?} {bits} {n}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_there_is_zero() {
        assert_eq!(PackedCodes::stream(4, 1, 1).at(&[0xff; 4], 0, 8), 0);
        assert_eq!(PackedCodes::stream(3, 1, 1).at(&[0xff; 4], 0, 10), 3);
        assert_eq!(PackedCodes::bytes(1).at(&[0xff], 0, 0), 127);
        assert_eq!(PackedCodes::bytes(1).at(&[0xff], 9, 0), 0);
    }

    #[test]
    fn words_needed() {
        for (numbers, bits, words) in [(0, 4, 0), (1, 4, 1), (8, 4, 1), (9, 4, 2), (33, 3, 4)] {
            assert_eq!(PackedCodes::needed(numbers, bits), words);
        }
        assert!(PackedCodes::needed(usize::MAX / 8, 8) > usize::MAX / 64);
    }
}
