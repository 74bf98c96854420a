//! Search for one scale for values of both signs (`make_qx_quants` with `rmse_type` 1).

use super::TINY;
use crate::codec::layout::peak;
use crate::codec::rounding::nearest;

/// Finds the scale for `x ~ scale * (level - half)`, `level` in `0..2*half`, and the levels.
///
/// The value of largest magnitude is mapped near the lowest level, which is one farther from zero than the
/// highest; 18 scales around that one are tried.
pub(in crate::codec) fn signed<const N: usize>(
    x: &[f32; N],
    weights: &[f32; N],
    half: i32,
    levels: &mut [u8; N],
) -> f32 {
    let max = peak(x);
    if max.abs() < TINY {
        levels.fill(0);
        return 0.0;
    }
    let mut chosen = -half as f32 / max;
    let (xl, l2) = sums(x, weights, half, chosen);
    let mut scale = if l2 == 0.0 { 0.0 } else { xl / l2 };
    let mut best = scale * xl;
    for step in (-9..=9).filter(|&step| step != 0) {
        let inverse = -(half as f32 + 0.1 * step as f32) / max;
        let (xl, l2) = sums(x, weights, half, inverse);
        if l2 > 0.0 && xl * xl > best * l2 {
            chosen = inverse;
            scale = xl / l2;
            best = scale * xl;
        }
    }
    for (to, &x) in levels.iter_mut().zip(x) {
        *to = (level(chosen * x, half) + half) as u8;
    }
    scale
}

/// Returns the nearest level, from `-half` to `half - 1`, of a value in units of the scale.
fn level(x: f32, half: i32) -> i32 {
    nearest(x).clamp(-half, half - 1)
}

/// Returns the weighted sums of value times level and of squared levels, for an inverse scale.
fn sums<const N: usize>(x: &[f32; N], weights: &[f32; N], half: i32, inverse: f32) -> (f32, f32) {
    let mut xl = 0.0_f32;
    let mut l2 = 0.0_f32;
    for (&x, &w) in x.iter().zip(weights) {
        let l = level(inverse * x, half) as f32;
        xl += w * x * l;
        l2 += w * l * l;
    }
    (xl, l2)
}
