//! Vectorized [`Ladder::climb`], with one group per lane.

use super::Groups;
use crate::codec::rounding::nearest;
use crate::codec::search::Ladder;

/// Search results of each lane.
#[derive(Default)]
pub(in crate::codec) struct AffineLanes {
    pub(in crate::codec) scale: [f32; 16],
    pub(in crate::codec) minus_min: [f32; 16],
    /// The sum of the weights.
    pub(in crate::codec) weight: [f32; 16],
    /// Scale and minimum that give the levels; a scale of 0 gives levels of 0.
    chosen: ([f32; 16], [f32; 16]),
}

impl AffineLanes {
    /// Returns the levels of a lane's group, which are needed only if a scale rounds to zero.
    pub(in crate::codec) fn levels<const N: usize>(
        &self,
        lane: usize,
        top: i32,
        x: &[f32; N],
    ) -> [u8; N] {
        let inverse = self.chosen.0[lane];
        let min = self.chosen.1[lane];
        x.map(|x| nearest(inverse * (x - min)).clamp(0, top) as u8)
    }
}

/// Solves `x ~ scale * level - minus_min` for each lane.
#[inline(always)]
pub(in crate::codec) fn climb<S: Groups, const N: usize>(
    s: S,
    ladder: Ladder,
    x: &[S::F; N],
    weights: &[S::F; N],
) -> AffineLanes {
    let zero = s.splat(0.0);
    let top = ladder.top as f32;
    let mut low = x[0];
    let mut high = x[0];
    let mut sum_w = weights[0];
    let mut sum_x = weights[0] * x[0];
    for (&x, &w) in x.iter().zip(weights).skip(1) {
        low = s.lesser(x, low);
        high = s.greater(x, high);
        sum_w = sum_w + w;
        sum_x = sum_x + w * x;
    }
    let mut min = s.select(s.lt(zero, low), zero, low);
    let flat = s.le(high, min);

    let mut levels = [zero; N];
    let mut chosen = (s.splat(top) / (high - min), min);
    let mut scale = s.splat(1.0) / chosen.0;
    // A lane of equal values is NaN throughout, which no step improves.
    round(s, ladder, x, chosen, (low, high, flat), &mut levels, |_, _| {});
    let mut least = error(s, ladder, (x, weights), &levels, scale, min);
    for i in 0..=ladder.last {
        let width = ladder.first + ladder.step * i as f32 + top;
        let tried = (s.splat(width) / (high - min), min);
        let mut sum_l = zero;
        let mut sum_l2 = zero;
        let mut sum_xl = zero;
        round(s, ladder, x, tried, (low, high, flat), &mut levels, |at, l| {
            let weighted = weights[at] * l;
            sum_l = sum_l + weighted;
            sum_l2 = sum_l2 + weighted * l;
            sum_xl = sum_xl + weighted * x[at];
        });
        let det = sum_w * sum_l2 - sum_l * sum_l;
        let new_scale = (sum_w * sum_xl - sum_x * sum_l) / det;
        let new_min = (sum_l2 * sum_x - sum_l * sum_xl) / det;
        let above = s.lt(zero, new_min);
        let new_min = s.select(above, zero, new_min);
        let new_scale = s.select(above, sum_xl / sum_l2, new_scale);
        let new = error(s, ladder, (x, weights), &levels, new_scale, new_min);
        let better = s.and(s.lt(zero, det), s.lt(new, least));
        least = s.select(better, new, least);
        scale = s.select(better, new_scale, scale);
        min = s.select(better, new_min, min);
        chosen.0 = s.select(better, tried.0, chosen.0);
        chosen.1 = s.select(better, tried.1, chosen.1);
    }
    let scale = s.select(flat, zero, scale);
    let inverse = s.select(flat, zero, chosen.0);
    AffineLanes {
        scale: s.array(scale),
        minus_min: s.array(min).map(|min| -min),
        weight: s.array(sum_w),
        chosen: (s.array(inverse), s.array(chosen.1)),
    }
}

/// Rounds every value to its level and passes each to `add`.
#[inline(always)]
fn round<S: Groups, const N: usize>(
    s: S,
    ladder: Ladder,
    x: &[S::F; N],
    (inverse, min): (S::F, S::F),
    (low, high, flat): (S::F, S::F, S::M),
    levels: &mut [S::F; N],
    mut add: impl FnMut(usize, S::F),
) {
    // Rounding is monotonic, so the rounded ends bound all other values.
    let small = s.splat(4_194_303.0);
    let low_is_small = s.lt(s.abs(inverse * (low - min)), small);
    let high_is_small = s.lt(s.abs(inverse * (high - min)), small);
    let top = ladder.top as f32;
    if s.all(s.or(flat, s.and(low_is_small, high_is_small))) {
        for at in 0..N {
            levels[at] = s.small_level(inverse * (x[at] - min), 0.0, top);
            add(at, levels[at]);
        }
    } else {
        for at in 0..N {
            levels[at] = s.nearest_level(inverse * (x[at] - min), 0.0, top);
            add(at, levels[at]);
        }
    }
}

/// Returns the weighted sum of errors.
#[inline(always)]
fn error<S: Groups, const N: usize>(
    s: S,
    ladder: Ladder,
    (x, weights): (&[S::F; N], &[S::F; N]),
    levels: &[S::F; N],
    scale: S::F,
    min: S::F,
) -> S::F {
    let mut error = s.splat(0.0);
    for ((&x, &w), &l) in x.iter().zip(weights).zip(levels) {
        let off = scale * l + min - x;
        error = error + w * if ladder.absolute { s.abs(off) } else { off * off };
    }
    error
}
