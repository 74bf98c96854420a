//! Codebook formats: groups of 8 or 4 values are written as the index of a point in a table.
//!
//! | formats | point | levels | signs | block of 256 holds scales for |
//! |---|---|---|---|---|
//! | IQ2_XXS, IQ2_XS, IQ2_S | 8 numbers | 3 | apart | 8, 16, 16 parts |
//! | IQ3_XXS, IQ3_S | 4 numbers | 8 | apart | 8 parts |
//! | IQ1_S, IQ1_M | 8 numbers | 3 (-1, 0, 1) and a shift | in the levels | 8, 16 parts |
//!
//! The searches follow ggml-quants.c: their candidates, the order of their sums and their tie-breaking
//! determine the bytes. If no candidate has a finite error (values around 1e19 and beyond), ggml-quants.c
//! stops the program; these searches continue with the first candidate.

mod grids;
mod lattice;
mod magnitudes;
mod one;
mod search;
mod signs;
mod split;
mod splits;
mod three;
mod two;
mod vectors;

pub(super) use one::{IQ1_M, IQ1_S};
pub(super) use three::{IQ3_S, IQ3_XXS};
pub(super) use two::{IQ2_S, IQ2_XS, IQ2_XXS};

use super::layout;

/// Values per block.
const BLOCK: usize = 256;

/// Declares a vectorized encoder that calls a function of the format with its search for points.
macro_rules! vectorized {
    ($name:ident, $encode:ident) => {
        pub(in crate::codec) struct $name;

        impl crate::codec::simd::SimdEncoder for $name {
            #[inline(always)]
            fn encode<S: crate::codec::simd::Groups>(
                simd: S,
                numbers: &[f32],
                row: usize,
                importance: Option<&[f32]>,
                out: &mut [u8],
            ) {
                $encode(super::vectors::InLanes(simd), numbers, row, importance, out);
            }
        }
    };
}
use vectorized;

/// Declares both encoders of a format whose blocks are searched by themselves: its bytes, values that share a
/// scale, values of a point, rules, and the function that packs what was found.
macro_rules! searched {
    ($name:ident, $encode:ident, $bytes:literal, $part:literal, $point:literal, $rule:ident, $pack:ident) => {
        vectorized!($name, $encode);

        #[inline(always)]
        fn $encode(
            search: impl CodebookSearch,
            numbers: &[f32],
            row: usize,
            importance: Option<&[f32]>,
            out: &mut [u8],
        ) {
            for (x, importance, out) in blocks::<$bytes>(numbers, row, importance, out) {
                $pack(&search::block::<$part, $point>(search, &$rule, x, importance), out);
            }
        }
    };
}
use searched;

/// Iterates over the blocks of rows: values, their importance, bytes.
fn blocks<'a, const B: usize>(
    numbers: &'a [f32],
    row: usize,
    importance: Option<&'a [f32]>,
    out: &'a mut [u8],
) -> impl Iterator<Item = (&'a [f32; BLOCK], Option<&'a [f32; BLOCK]>, &'a mut [u8; B])> {
    let rows = numbers.len() / row;
    let mut importance = importance.map(|row| layout::weights_of::<BLOCK>(row, rows));
    layout::blocks(numbers, out)
        .map(move |(x, out)| (x, importance.as_mut().and_then(Iterator::next), out))
}

/// Returns `factor` times the mean square of a block.
fn mean_square(x: &[f32; BLOCK], factor: f32) -> f32 {
    factor * layout::squares(x) / BLOCK as f32
}

/// Returns the larger value; the second if they cannot be compared. `f32::max` would return the non-NaN
/// one.
#[inline]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}
