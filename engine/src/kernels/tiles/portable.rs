//! Tiles without a unit for them, in the order of [`tiles`](super).

use super::{InputTile, SIDE, TileSums, WeightTiles};

/// Computes the sums of a square.
pub(super) fn square(weight: WeightTiles<'_>, x: [&[InputTile]; 2], sums: &mut TileSums) {
    for (tile, sums) in weight.tiles.iter().zip(sums) {
        for (x, sums) in x.iter().zip(sums) {
            *sums = [[0.0; SIDE]; SIDE];
            for (step, x) in x.iter().enumerate() {
                for (output, sums) in sums.iter_mut().enumerate() {
                    let pairs = &tile[output * weight.stride + step * 64..][..64];
                    add_step(pairs, x, sums);
                }
            }
        }
    }
}

/// Adds one step of one output to the sums of sixteen rows.
fn add_step(pairs: &[u8], x: &InputTile, sums: &mut [f32; SIDE]) {
    let mut even = [0.0; SIDE];
    let mut odd = [0.0; SIDE];
    for (w, x) in pairs.as_chunks::<4>().0.iter().zip(x) {
        let w = u32::from_le_bytes(*w);
        for ((even, odd), x) in even.iter_mut().zip(&mut odd).zip(x) {
            *even = add_product(low(w), low(*x), *even);
            *odd = add_product(high(w), high(*x), *odd);
        }
    }
    for ((sum, even), odd) in sums.iter_mut().zip(even).zip(odd) {
        *sum = flushed(*sum + flushed(even + odd));
    }
}

fn low(pair: u32) -> f32 {
    f32::from_bits(pair << 16)
}

fn high(pair: u32) -> f32 {
    f32::from_bits(pair & 0xffff_0000)
}

/// Adds a product to a sum, as the unit does.
pub(super) fn add_product(a: f32, b: f32, sum: f32) -> f32 {
    flushed(flushed(a).mul_add(flushed(b), sum))
}

/// Returns zero for numbers below 2^-126.
pub(super) fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
}
