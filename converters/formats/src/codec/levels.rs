//! Blocks as integers: levels of 8 bits with their scales and minima, in the one form that all formats share.
//!
//! Kernels that multiply in integers read blocks in this form. The value of a level is
//! `d * scale * level - dmin * min`, each product rounded to f32, which is what [`super::decode`] returns.

use super::BlockType;

/// Most values of a block.
const BLOCK: usize = 256;

/// The levels of one block. A block of fewer values fills the front.
#[derive(Debug, Clone, PartialEq)]
pub struct Levels {
    /// The factor of all scales.
    pub d: f32,
    /// The factor of all minima.
    pub dmin: f32,
    /// The scale of each 16 values.
    pub scales: [i8; BLOCK / 16],
    /// The minimum of each 16 values.
    pub mins: [u8; BLOCK / 16],
    /// A level per value.
    pub levels: [i8; BLOCK],
}

impl Default for Levels {
    fn default() -> Self {
        Self { d: 0.0, dmin: 0.0, scales: [1; 16], mins: [0; 16], levels: [0; BLOCK] }
    }
}

impl Levels {
    /// Writes the values of as many levels as there is room for.
    pub fn values(&self, out: &mut [f32]) {
        for (at, (out, &level)) in out.iter_mut().zip(&self.levels).enumerate() {
            let scale = self.d * f32::from(self.scales[at / 16]);
            *out = scale * f32::from(level) - self.dmin * f32::from(self.mins[at / 16]);
        }
    }

    /// Sets levels with one scale.
    pub(super) fn set(&mut self, d: f32, codes: &[u8], level: impl Fn(u8) -> i8) {
        self.d = d;
        for (to, &code) in self.levels.iter_mut().zip(codes) {
            *to = level(code);
        }
    }

    /// Sets levels with one scale and a number that is added to all.
    pub(super) fn set_shifted(&mut self, d: f32, shift: f32, codes: &[u8]) {
        self.set(d, codes, u8::cast_signed);
        self.dmin = -shift;
        self.mins.fill(1);
    }

    /// Sets the scales of eight groups of 32 values.
    pub(super) fn scales32(&mut self, scales: [i8; 8]) {
        for (two, scale) in self.scales.as_chunks_mut::<2>().0.iter_mut().zip(scales) {
            two.fill(scale);
        }
    }
}

/// Reads a block as levels; false if the format has none (plain numbers).
///
/// # Panics
/// If `block` is not one block of the format.
pub fn levels(ty: BlockType, block: &[u8], to: &mut Levels) -> bool {
    assert_eq!(block.len(), ty.bytes(), "one block of {ty}");
    to.scales.fill(1);
    to.mins.fill(0);
    to.dmin = 0.0;
    let read = ty.declaration().levels;
    if let Some(read) = read {
        read(block, to);
    }
    read.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::decode;

    #[test]
    fn levels_have_the_values_of_the_decoder() {
        let mut seed = 11_u32;
        let mut count = 0;
        for ty in BlockType::all().filter(|ty| ty.is_quantized()) {
            for _ in 0..200 {
                let bytes = (0..ty.bytes()).map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (seed >> 24) as u8
                });
                let block: Vec<u8> = bytes.collect();
                let mut levels = Levels::default();
                if !super::levels(ty, &block, &mut levels) {
                    break;
                }
                let mut ours = vec![0.0; ty.elements()];
                let mut theirs = vec![0.0; ty.elements()];
                levels.values(&mut ours);
                decode(ty, &block, &mut theirs).unwrap();
                for (at, (a, b)) in ours.iter().zip(&theirs).enumerate() {
                    let same = a.to_bits() == b.to_bits()
                        || a.is_nan() && b.is_nan()
                        || *a == 0.0 && *b == 0.0;
                    assert!(same, "{ty}, value {at}: {a:e} {b:e}");
                }
                count += 1;
            }
        }
        assert!(count >= 15 * 200);
    }
}
