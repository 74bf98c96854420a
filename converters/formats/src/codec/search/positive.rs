//! Search for one scale for non-negative values, which are scales themselves (`make_qp_quants`).

use super::TINY;
use crate::codec::rounding::nearest;

/// Finds the scale for `x ~ scale * level`, `level` in `0..=top`, and the levels.
///
/// After the best of nine scales, levels are moved one by one as long as the fit improves.
pub(in crate::codec) fn positive<const N: usize>(
    x: &[f32; N],
    weights: &[f32; N],
    top: i32,
    levels: &mut [u8; N],
) -> f32 {
    let mut max = 0.0_f32;
    for &x in x {
        if x > max {
            max = x;
        }
    }
    if max < TINY {
        levels.fill(0);
        return 0.0;
    }
    let mut inverse = top as f32 / max;
    // Levels are bytes: a negative one wraps, here as in the reference.
    let mut least =
        weighted_error(x, weights, inverse, x.map(|x| (nearest(inverse * x) as u8).into()));
    for step in (-4..=4).filter(|&step| step != 0) {
        let tried = (0.1 * step as f32 + top as f32) / max;
        let new = weighted_error(x, weights, tried, x.map(|x| nearest(tried * x).min(top)));
        if new < least {
            least = new;
            inverse = tried;
        }
    }
    let mut sum_xl = 0.0_f32;
    let mut sum_l2 = 0.0_f32;
    for ((to, &x), &w) in levels.iter_mut().zip(x).zip(weights) {
        let l = nearest(inverse * x).min(top);
        *to = l as u8;
        sum_xl += w * x * l as f32;
        sum_l2 += w * l as f32 * l as f32;
    }
    for _ in 0..5 {
        let mut moved = false;
        for ((level, &x), &w) in levels.iter_mut().zip(x).zip(weights) {
            let old = *level as f32;
            let mut xl = sum_xl - w * x * old;
            let mut l2 = sum_l2 - w * old * old;
            if xl > 0.0 && l2 > 0.0 {
                let new = nearest(x * l2 / xl).min(top);
                if new != *level as i32 {
                    xl += w * x * new as f32;
                    l2 += w * new as f32 * new as f32;
                    if xl * xl * sum_l2 > sum_xl * sum_xl * l2 {
                        *level = new as u8;
                        (sum_xl, sum_l2) = (xl, l2);
                        moved = true;
                    }
                }
            }
        }
        if !moved {
            break;
        }
    }
    if sum_l2 > 0.0 { sum_xl / sum_l2 } else { 0.0 }
}

/// Returns the sum of weighted squared errors of some levels, for an inverse scale.
fn weighted_error<const N: usize>(
    x: &[f32; N],
    weights: &[f32; N],
    inverse: f32,
    levels: [i32; N],
) -> f32 {
    let scale = 1.0 / inverse;
    let mut error = 0.0_f32;
    for ((&x, &w), l) in x.iter().zip(weights).zip(levels) {
        let off = x - scale * l as f32;
        error += w * off * off;
    }
    error
}
