//! Products of bf16 rows and bf16 weights in tiles: the matrix unit of newer processors (AMX).
//!
//! **One order of additions.** Inputs go in steps of 32, the last one filled up with zeros. A step adds the
//! products of its even inputs, one after the other, by fused multiply-adds from zero; those of its odd inputs
//! likewise; then both sums together; then that to the sum of the steps before it. Before and after each
//! operation a number below 2^-126 is zero. This is what the instruction `tdpbf16ps` does, and it is another
//! order than that of [`matmul`](super::matmul). Neither rows, threads nor the shape of a call change a bit.
//!
//! The reasons are in [decision 98](../../../docs/decisions/0098-products-in-tiles.md).

use rayon::prelude::*;
use registry::dtype::Dtype;

use super::finish;

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod amx;
mod portable;
mod reference;

/// Rows of a tile: outputs in a tile of weights, rows of `x` in a tile of those.
const SIDE: usize = 16;
/// Outputs, and rows of `x`, of one square of sums: two tiles each way.
const SQUARE: usize = 2 * SIDE;
/// Inputs of a step.
const STEP: usize = 32;

/// A unit that multiplies tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TileUnit {
    /// Any CPU; slow, for tests.
    Portable,
    /// AMX with bf16, on Linux.
    Amx,
}

impl TileUnit {
    /// Every unit.
    pub const ALL: [Self; 2] = [Self::Portable, Self::Amx];

    /// True if this CPU has the unit, and the system lets this process use it. The first call asks the system, and
    /// compares a product of the unit with the portable form; a unit with other bits is not used.
    pub fn available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
            Self::Amx => amx::available(),
            #[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
            Self::Amx => false,
        }
    }

    /// Returns the unit that is faster than products in lanes, if this CPU has it.
    pub fn fast() -> Option<Self> {
        Some(Self::Amx).filter(|unit| unit.available())
    }
}

/// One product: a weight `[outputs, inputs]` in bf16, a bias, and the result.
#[derive(Debug)]
pub struct Bf16Product<'a> {
    /// `outputs * inputs` numbers in bf16, little endian, of any alignment.
    pub weight: &'a [u8],
    /// Rows of the weight.
    pub outputs: usize,
    /// `[outputs]`, added in f32 before the one rounding.
    pub bias: Option<&'a [f32]>,
    /// The grid that results are rounded to.
    pub round: Dtype,
    /// `[rows, outputs]`.
    pub y: &'a mut [f32],
}

/// Sums of a square: `[tile of weights, tile of rows, output, row]`.
type TileSums = [[[[f32; SIDE]; SIDE]; 2]; 2];

/// Two tiles of weights for each step: sixteen rows of 32 numbers, `stride` bytes apart.
#[derive(Debug, Clone, Copy)]
struct WeightTiles<'a> {
    /// Both tiles, from their first byte on.
    tiles: [&'a [u8]; 2],
    stride: usize,
    #[cfg_attr(
        not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")),
        expect(dead_code, reason = "the matrix unit alone counts its steps")
    )]
    steps: usize,
}

/// Step of sixteen rows of `x`: sixteen pairs of inputs, each of sixteen rows; the even input is the low half.
type InputTile = [[u32; SIDE]; SIDE];

/// Multiplies `rows` rows of `x` `[rows, inputs]`, rounded to bf16, with several weights.
///
/// # Panics
/// If a slice is not as long as the shapes say, or this CPU does not have `unit`.
pub fn products(unit: TileUnit, x: &[f32], rows: usize, products: &mut [Bf16Product<'_>]) {
    assert!(unit.available(), "this CPU has no {unit:?}");
    if rows == 0 {
        return;
    }
    assert!(x.len().is_multiple_of(rows), "x is [rows, inputs]");
    let inputs = x.len() / rows;
    let packed = packed(x, rows, inputs);
    for Bf16Product { weight, outputs, bias, round, y } in products {
        let outputs = *outputs;
        let bytes = outputs.checked_mul(inputs).and_then(|numbers| numbers.checked_mul(2));
        assert_eq!(Some(weight.len()), bytes, "the weight is [outputs, inputs]");
        assert_eq!(Some(y.len()), rows.checked_mul(outputs), "y is [rows, outputs]");
        assert!(bias.is_none_or(|bias| bias.len() == outputs), "bias is [outputs]");
        let parts: Vec<_> = (0..outputs).step_by(SQUARE).collect();
        // Columns of one square each, so that threads share no memory; they are put into rows below.
        let columns: Vec<Vec<[f32; SQUARE]>> = parts
            .par_iter()
            .map(|&first| {
                let count = SQUARE.min(outputs - first);
                let weight = &weight[first * inputs * 2..(first + count) * inputs * 2];
                let bias = bias.map(|bias| &bias[first..first + count]);
                columns(unit, &packed, rows, weight, inputs, bias, *round)
            })
            .collect();
        y.par_chunks_exact_mut(outputs.max(1)).enumerate().for_each(|(row, y)| {
            for (to, columns) in y.chunks_mut(SQUARE).zip(&columns) {
                to.copy_from_slice(&columns[row][..to.len()]);
            }
        });
    }
}

/// Computes up to 32 columns of the result: 32 numbers of each row.
fn columns(
    unit: TileUnit,
    packed: &[InputTile],
    rows: usize,
    weight: &[u8],
    inputs: usize,
    bias: Option<&[f32]>,
    round: Dtype,
) -> Vec<[f32; SQUARE]> {
    let steps = inputs.div_ceil(STEP);
    let row = inputs * 2;
    let stride = steps * STEP * 2;
    let mut filled = Vec::new();
    // Weights that fill their tiles are read where they are.
    let (weight, stride) = if row == stride && weight.len() == SQUARE * row {
        (weight, row)
    } else {
        filled.resize(SQUARE * stride, 0);
        for (from, to) in weight.chunks_exact(row.max(1)).zip(filled.chunks_exact_mut(stride)) {
            to[..row].copy_from_slice(from);
        }
        (&filled[..], stride)
    };
    let (low, high) = weight.split_at(SIDE * stride);
    let weight = WeightTiles { tiles: [low, high], stride, steps };
    let mut outputs = vec![[0.0; SQUARE]; rows];
    let mut sums = TileSums::default();
    // Both tiles of rows lie one after the other.
    let squares = packed.chunks_exact(2 * steps.max(1));
    for (outputs, square) in outputs.chunks_mut(SQUARE).zip(squares) {
        let (low, high) = square.split_at(steps);
        match unit {
            TileUnit::Portable => portable::square(weight, [low, high], &mut sums),
            #[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
            TileUnit::Amx => amx::square(weight, [low, high], &mut sums),
            #[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
            TileUnit::Amx => unreachable!("`products` asked for the unit"),
        }
        for (row, outputs) in outputs.iter_mut().enumerate() {
            for (output, y) in outputs.iter_mut().enumerate() {
                *y = sums[output / SIDE][row / SIDE][output % SIDE][row % SIDE];
            }
        }
    }
    let used = bias.map_or(SQUARE, <[f32]>::len);
    for row in &mut outputs {
        finish::finish(&mut row[..used], bias, round);
    }
    outputs
}

/// Rounds rows to bf16, in tiles: `[tile of rows, step]`, an even number of tiles of rows.
fn packed(x: &[f32], rows: usize, inputs: usize) -> Vec<InputTile> {
    let steps = inputs.div_ceil(STEP);
    let mut packed = vec![InputTile::default(); rows.next_multiple_of(SQUARE) / SIDE * steps];
    let tiles = packed.par_chunks_exact_mut(steps.max(1));
    tiles.zip(x.par_chunks((SIDE * inputs).max(1))).for_each(|(tile, x)| {
        for (row, x) in x.chunks_exact(inputs.max(1)).enumerate() {
            for (tile, x) in tile.iter_mut().zip(x.chunks(STEP)) {
                for (pair, x) in tile.iter_mut().zip(x.chunks(2)) {
                    pair[row] = bf16_bits(x.first()) | bf16_bits(x.get(1)) << 16;
                }
            }
        }
    });
    packed
}

/// Returns the bits of a number in bf16, or 0 for none.
fn bf16_bits(x: Option<&f32>) -> u32 {
    x.map_or(0, |x| finish::bf16(*x).to_bits() >> 16)
}

#[cfg(test)]
mod tests;
