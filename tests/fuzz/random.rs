//! Deterministic randomness: the same seed, kind and case number give the same case.

/// Steele, Lea and Flood's splitmix64.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// Returns a generator for one case of one kind.
    pub(crate) fn new(seed: u64, kind: &str, case: u64) -> Self {
        let mut random = Self(seed);
        for byte in kind.bytes() {
            random.0 ^= u64::from(byte);
            random.next();
        }
        random.0 ^= case.wrapping_mul(0xd134_2543_de82_ef95);
        random
    }

    /// Returns the next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns an integer below `end`; 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next() % end as u64) as usize }
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Returns a random element of a nonempty list.
    pub(crate) fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}
