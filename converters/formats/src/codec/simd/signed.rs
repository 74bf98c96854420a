//! Vectorized [`signed`](crate::codec::search::signed), with one group per lane.

use super::Groups;
use crate::codec::rounding::nearest;
use crate::codec::search::TINY;

/// Search results of each lane.
#[derive(Default)]
pub(in crate::codec) struct SignedLanes {
    pub(in crate::codec) scale: [f32; 16],
    /// Factor that maps values to their levels; 0 if all are treated as zero.
    inverse: [f32; 16],
}

impl SignedLanes {
    /// Returns the levels of a lane's group.
    pub(in crate::codec) fn levels<const N: usize>(
        &self,
        lane: usize,
        half: i32,
        x: &[f32; N],
    ) -> [u8; N] {
        let inverse = self.inverse[lane];
        if inverse == 0.0 {
            return [0; N];
        }
        x.map(|x| (nearest(inverse * x).clamp(-half, half - 1) + half) as u8)
    }
}

/// Solves `x ~ scale * (level - half)` for each lane.
#[inline(always)]
pub(in crate::codec) fn signed<S: Groups, const N: usize>(
    s: S,
    half: f32,
    x: &[S::F; N],
    weights: &[S::F; N],
) -> SignedLanes {
    let zero = s.splat(0.0);
    let (max, magnitude) = s.peak(x);
    let none = s.lt(magnitude, s.splat(TINY));
    let mut weighted = *weights;
    for (to, &x) in weighted.iter_mut().zip(x) {
        *to = *to * x;
    }
    let group = [x, weights, &weighted];
    let mut chosen = s.splat(-half) / max;
    let (xl, l2) = sums(s, half, group, chosen);
    let nothing = s.and(s.le(zero, l2), s.le(l2, zero));
    let mut scale = s.select(nothing, zero, xl / l2);
    let mut best = scale * xl;
    for step in -9..=9 {
        if step == 0 {
            continue;
        }
        let inverse = s.splat(-(half + 0.1 * step as f32)) / max;
        let (xl, l2) = sums(s, half, group, inverse);
        let better = s.and(s.lt(zero, l2), s.lt(best * l2, xl * xl));
        chosen = s.select(better, inverse, chosen);
        scale = s.select(better, xl / l2, scale);
        best = s.select(better, scale * xl, best);
    }
    SignedLanes {
        scale: s.array(s.select(none, zero, scale)),
        inverse: s.array(s.select(none, zero, chosen)),
    }
}

/// Returns the sums of `weight * x * level` and `weight * level * level`. Levels are small: no value
/// exceeds the peak, whose level is at most slightly above `half`.
#[inline(always)]
fn sums<S: Groups, const N: usize>(
    s: S,
    half: f32,
    [x, weights, weighted]: [&[S::F; N]; 3],
    inverse: S::F,
) -> (S::F, S::F) {
    let mut xl = s.splat(0.0);
    let mut l2 = s.splat(0.0);
    for at in 0..N {
        let l = s.small_level(inverse * x[at], -half, half - 1.0);
        xl = xl + weighted[at] * l;
        l2 = l2 + weights[at] * l * l;
    }
    (xl, l2)
}
