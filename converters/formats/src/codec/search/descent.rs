//! Search for one scale for values of both signs, moving levels one by one (`make_q3_quants`).

use super::TINY;
use crate::codec::layout::peak;
use crate::codec::rounding::nearest;

/// Finds the scale for `x ~ scale * (level - half)`, `level` in `0..2*half`, and the levels. Squared errors
/// are weighted by `x*x`.
pub(in crate::codec) fn descend<const N: usize>(
    x: &[f32; N],
    half: i32,
    levels: &mut [u8; N],
) -> f32 {
    let max = peak(x);
    if max.abs() < TINY {
        levels.fill(0);
        return 0.0;
    }
    let inverse = -half as f32 / max;
    let mut sum_xl = 0.0_f32;
    let mut sum_l2 = 0.0_f32;
    for (to, &x) in levels.iter_mut().zip(x) {
        let l = nearest(inverse * x).clamp(-half, half - 1);
        *to = (l + half) as u8;
        let w = x * x;
        sum_xl += w * x * l as f32;
        sum_l2 += w * l as f32 * l as f32;
    }
    for _ in 0..5 {
        let mut moved = false;
        for (level, &x) in levels.iter_mut().zip(x) {
            let w = x * x;
            let old = *level as i32 - half;
            let mut xl = sum_xl - w * x * old as f32;
            if xl > 0.0 {
                let mut l2 = sum_l2 - w * old as f32 * old as f32;
                let new = nearest(x * l2 / xl).clamp(-half, half - 1);
                if new != old {
                    xl += w * x * new as f32;
                    l2 += w * new as f32 * new as f32;
                    if l2 > 0.0 && xl * xl * sum_l2 > sum_xl * sum_xl * l2 {
                        *level = (new + half) as u8;
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
