//! Magnitudes of the points of grids, as decoders read them: a byte for each value.

use super::{grids, lattice};
use lanes::Simd;

pub(super) static IQ2_XXS: [[u8; 8]; 256] = of_points(grids::IQ2_XXS, &OF_TWO);
pub(super) static IQ2_XS: [[u8; 8]; 512] = of_points(grids::IQ2_XS, &OF_TWO);
pub(super) static IQ2_S: [[u8; 8]; 1024] = of_points(grids::IQ2_S, &OF_TWO);
pub(super) static IQ3_XXS: [[u8; 4]; 256] =
    of_points(grids::IQ3_XXS, &[4, 12, 20, 28, 36, 44, 52, 62]);
pub(super) static IQ3_S: [[u8; 4]; 512] = of_points(grids::IQ3_S, &[1, 3, 5, 7, 9, 11, 13, 15]);

/// Magnitudes of the levels of IQ2; no point has the fourth.
const OF_TWO: [u8; 4] = [8, 25, 43, 0];

const fn of_points<const N: usize, const POINTS: usize>(
    grid: &[u16; POINTS],
    of_levels: &[u8],
) -> [[u8; N]; POINTS] {
    let mut points = [[0; N]; POINTS];
    let mut at = 0;
    while at < POINTS {
        let mut i = 0;
        while i < N {
            let level = grid[at] as usize >> (lattice::bits(N) * i);
            points[at][i] = of_levels[level & ((1 << lattice::bits(N)) - 1)];
            i += 1;
        }
        at += 1;
    }
    points
}

/// Writes sixteen values: magnitudes of eight and of eight more, with their signs.
#[inline(always)]
pub(super) fn write<O: Simd>(
    ops: O,
    x: &mut [f32; 16],
    scale: f32,
    magnitudes: [[u8; 8]; 2],
    signs: [u8; 2],
) {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&magnitudes[0]);
    bytes[8..].copy_from_slice(&magnitudes[1]);
    let values = ops.times(ops.signed16(&bytes), scale);
    ops.store16(ops.negate16(values, u16::from_le_bytes(signs)), x);
}
