//! Blocks as integers: levels of 8 bits with their scales and minima, in the one form that all formats share.
//!
//! Kernels that multiply in integers read blocks in this form. The value of a level is
//! `d * scale * level - dmin * min`, each product rounded to f32, which is what [`super::decode`] returns.

use super::BlockType;
use super::crumbs::split2;
use super::layout::get_f16;
use super::nibbles::{split4, split5};

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
    /// Returns the values of the first `count` levels.
    pub fn values(&self, out: &mut [f32]) {
        for (at, (out, &level)) in out.iter_mut().zip(&self.levels).enumerate() {
            let scale = self.d * f32::from(self.scales[at / 16]);
            *out = scale * f32::from(level) - self.dmin * f32::from(self.mins[at / 16]);
        }
    }

    /// Sets the scale of the 32 values of a group.
    fn scale32(&mut self, group: usize, scale: i8) {
        self.scales[2 * group..2 * group + 2].fill(scale);
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
    match ty {
        BlockType::Q40 => {
            small(to, get_f16(block, 0), &split4(&block[2..]), |q| q.cast_signed() - 8)
        }
        BlockType::Q50 => {
            small(to, get_f16(block, 0), &split5(&block[2..]), |q| q.cast_signed() - 16)
        }
        BlockType::Q41 | BlockType::Q51 => {
            let levels =
                if ty == BlockType::Q41 { split4(&block[4..]) } else { split5(&block[4..]) };
            small(to, get_f16(block, 0), &levels, u8::cast_signed);
            to.dmin = -get_f16(block, 2);
            to.mins.fill(1);
        }
        BlockType::Q80 => small(to, get_f16(block, 0), &block[2..], u8::cast_signed),
        BlockType::Iq4Nl => small(to, get_f16(block, 0), &split4(&block[2..]), super::iq4::entry),
        BlockType::Mxfp4 => {
            small(to, super::fp4::half_e8m0(block[0]), &split4(&block[1..]), super::fp4::entry);
        }
        BlockType::Iq4Xs => super::iq4::levels_xs(block, to),
        BlockType::Q2K => super::q2_k::levels(block, to),
        BlockType::Q3K => super::q3_k::levels(block, to),
        BlockType::Q4K => super::q4_k::levels::<144>(block, to),
        BlockType::Q5K => super::q4_k::levels::<176>(block, to),
        BlockType::Q6K => super::q6_k::levels(block, to),
        BlockType::Tq20 => {
            to.d = get_f16(block, 64);
            to.levels = split2(&block[..64]).map(|trit| trit.cast_signed() - 1);
        }
        BlockType::Q10 | BlockType::Q20 => {
            let bits = if ty == BlockType::Q10 { 1 } else { 2 };
            to.d = get_f16(block, 0);
            for (at, level) in to.levels[..ty.elements()].iter_mut().enumerate() {
                let field = block[2 + at * bits / 8] >> (at * bits % 8) & ((1 << bits) - 1);
                *level =
                    if bits == 1 { 2 * field.cast_signed() - 1 } else { field.cast_signed() - 1 };
            }
        }
        _ => return false,
    }
    true
}

fn small(to: &mut Levels, d: f32, levels: &[u8], level: impl Fn(u8) -> i8) {
    to.d = d;
    for (to, &from) in to.levels.iter_mut().zip(levels) {
        *to = level(from);
    }
}

impl Levels {
    /// Sets the scales and levels of eight groups of 32 values.
    pub(super) fn groups32(&mut self, scales: [i8; 8]) {
        for (group, scale) in scales.into_iter().enumerate() {
            self.scale32(group, scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::decode;

    #[test]
    fn levels_have_the_values_of_the_decoder() {
        let mut seed = 11_u32;
        let mut random = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        };
        let mut found = 0;
        for ty in BlockType::all().filter(|ty| ty.is_quantized()) {
            for _ in 0..200 {
                let block: Vec<u8> = (0..ty.bytes()).map(|_| random()).collect();
                let mut levels = Levels::default();
                if !super::levels(ty, &block, &mut levels) {
                    break;
                }
                let (mut ours, mut theirs) = (vec![0.0; ty.elements()], vec![0.0; ty.elements()]);
                levels.values(&mut ours);
                decode(ty, &block, &mut theirs).unwrap();
                for (at, (a, b)) in ours.iter().zip(&theirs).enumerate() {
                    let same = a.to_bits() == b.to_bits()
                        || a.is_nan() && b.is_nan()
                        || *a == 0.0 && *b == 0.0;
                    assert!(same, "{ty}, value {at}: {a:e} {b:e}");
                }
                found += 1;
            }
        }
        assert!(found >= 15 * 200);
    }
}
