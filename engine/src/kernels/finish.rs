//! The end of an element: add the bias, round to the grid of a dtype.
//!
//! Without branches on the values, so that the compiler vectorizes it inside each kernel.
#![expect(
    clippy::inline_always,
    reason = "intrinsics are fast only inside a function with features"
)]

use registry::dtype::Dtype;

/// Adds a bias and rounds.
#[inline(always)]
pub(super) fn finish(values: &mut [f32], bias: Option<&[f32]>, dtype: Dtype) {
    if let Some(bias) = bias {
        for (value, bias) in values.iter_mut().zip(bias) {
            *value += bias;
        }
    }
    match dtype {
        Dtype::F32 => {}
        Dtype::Bf16 => values.iter_mut().for_each(|value| *value = bf16(*value)),
        Dtype::F16 => values.iter_mut().for_each(|value| *value = f16(*value)),
    }
}

/// Rounds to bf16.
#[inline(always)]
pub(super) fn bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000;
    let nan = (bits | 0x0040_0000) & 0xffff_0000;
    f32::from_bits(if value.is_nan() { nan } else { rounded })
}

/// Rounds to f16.
#[inline(always)]
pub(super) fn f16(value: f32) -> f32 {
    let bits = value.to_bits();
    let sign = bits & 0x8000_0000;
    let size = bits & 0x7fff_ffff;
    // Ten bits of mantissa; 65520 and above is infinite.
    let normal = size.wrapping_add(0x0fff + ((size >> 13) & 1)) & 0xffff_e000;
    let normal = if size >= 0x477f_f000 { 0x7f80_0000 } else { normal };
    // Below 2^-14 the grid is 2^-24, which is the spacing of f32 in [0.5, 1).
    let small = ((f32::from_bits(size) + 0.5) - 0.5).to_bits();
    let number = if size < 0x3880_0000 { small } else { normal };
    let nan = (size | 0x0040_0000) & 0xffff_e000;
    f32::from_bits(sign | if size > 0x7f80_0000 { nan } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::round::round1;

    #[test]
    fn rounds_as_round1_on_all_kinds_of_numbers() {
        for high in 0..=0xffff_u32 {
            for low in [0, 1, 0x0fff, 0x1000, 0x1001, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001] {
                let value = f32::from_bits(high << 16 | low);
                let mut ours = [value];
                finish(&mut ours, None, Dtype::Bf16);
                let theirs = round1(Dtype::Bf16, value);
                assert!(same(ours[0], theirs), "bf16 of {value:e}: {} {theirs}", ours[0]);
                let mut ours = [value];
                finish(&mut ours, None, Dtype::F16);
                let theirs = round1(Dtype::F16, value);
                assert!(same(ours[0], theirs), "f16 of {value:e}: {} {theirs}", ours[0]);
            }
        }
    }

    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
    }
}
