//! Rounding f32 to the grid of a narrower dtype, to nearest, ties to even.
//!
//! Specs name the points of rounding ([decision 6](../../../docs/decisions/0006-f32-values-explicit-rounding.md)).

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for wide vectors")]

use half::{bf16, f16};
use rayon::prelude::*;
use registry::dtype::Dtype;

use super::wide::{Wide, wide};

/// Rounds one number.
#[inline(always)]
pub fn round1(dtype: Dtype, x: f32) -> f32 {
    match dtype {
        Dtype::F32 => x,
        Dtype::Bf16 => round_bf16(x),
        Dtype::F16 => round_f16(x),
    }
}

/// Rounds to bf16, without branches, so that loops over it vectorise; NaN stays NaN.
#[inline(always)]
pub fn round_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000;
    if x.is_nan() { x } else { f32::from_bits(rounded) }
}

/// Rounds to f16, like [`round_bf16`]. Below 2^-14 the grid is 2^-24 apart, which adding and subtracting 0.5
/// gives; from 65520 on, half precision has only infinity.
#[inline(always)]
pub fn round_f16(x: f32) -> f32 {
    let sign = x.to_bits() & 0x8000_0000;
    let bits = x.to_bits() & 0x7fff_ffff;
    let size = f32::from_bits(bits);
    let normal = f32::from_bits(bits.wrapping_add(0x0fff + ((bits >> 13) & 1)) & 0xffff_e000);
    let small = (size + 0.5) - 0.5;
    let rounded = if size < 6.103_515_6e-5 { small } else { normal };
    let rounded = if size >= 65520.0 { f32::INFINITY } else { rounded };
    let rounded = f32::from_bits(rounded.to_bits() | sign);
    if x.is_nan() { x } else { rounded }
}

/// Rounds every number, in place.
pub fn round(dtype: Dtype, data: &mut [f32]) {
    const PARALLEL: usize = 1 << 16;
    if dtype == Dtype::F32 {
        return;
    }
    if data.len() >= PARALLEL {
        data.par_chunks_mut(PARALLEL / 4).for_each(|part| wide(GridRounding(dtype, part)));
    } else {
        wide(GridRounding(dtype, data));
    }
}

/// Rounds every number, in place, as part of a loop that [`wide`] compiles.
#[inline(always)]
pub(crate) fn round_inline(dtype: Dtype, data: &mut [f32]) {
    match dtype {
        Dtype::F32 => {}
        Dtype::Bf16 => data.iter_mut().for_each(|x| *x = round_bf16(*x)),
        Dtype::F16 => data.iter_mut().for_each(|x| *x = round_f16(*x)),
    }
}

struct GridRounding<'a>(Dtype, &'a mut [f32]);

impl Wide for GridRounding<'_> {
    #[inline(always)]
    fn run(self) {
        round_inline(self.0, self.1);
    }
}

/// Returns the 16 bits of a number in a 16-bit dtype.
#[inline]
pub fn to_bits(dtype: Dtype, x: f32) -> u16 {
    match dtype {
        Dtype::F16 => f16::from_f32(x).to_bits(),
        Dtype::Bf16 | Dtype::F32 => bf16::from_f32(x).to_bits(),
    }
}

/// Returns the number that 16 bits encode.
#[inline]
pub fn from_bits(dtype: Dtype, bits: u16) -> f32 {
    match dtype {
        Dtype::F16 => f16::from_bits(bits).to_f32(),
        Dtype::Bf16 | Dtype::F32 => f32::from_bits(u32::from(bits) << 16),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_rounding_is_the_plain_one() {
        // Every exponent, with mantissas around each half-way point of both grids.
        for top in 0..=0xffff_u32 {
            for low in
                [0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff]
            {
                let x = f32::from_bits(top << 16 | low);
                let b = bf16::from_f32(x).to_f32();
                let h = f16::from_f32(x).to_f32();
                assert!(
                    round_bf16(x).to_bits() == b.to_bits() || x.is_nan() && b.is_nan(),
                    "{x:e}"
                );
                assert!(round_f16(x).to_bits() == h.to_bits() || x.is_nan() && h.is_nan(), "{x:e}");
            }
        }
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        for (x, want) in [
            (1.0, 1.0),
            (1.003_906_2, 1.0),       // half way: to even
            (1.011_718_8, 1.015_625), // half way: to even, upwards
            (1.003_907, 1.007_812_5),
            (f32::INFINITY, f32::INFINITY),
            (f32::MAX, f32::INFINITY),
            (-0.0, -0.0),
        ] {
            assert_eq!(round_bf16(x).to_bits(), f32::to_bits(want), "{x}");
            assert_eq!(bf16::from_f32(x).to_f32().to_bits(), f32::to_bits(want), "{x}");
        }
        assert!(round_bf16(f32::NAN).is_nan());
        assert!(round_bf16(f32::from_bits(0x7f80_0001)).is_nan());
    }
}
