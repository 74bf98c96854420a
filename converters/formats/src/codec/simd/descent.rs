//! Vectorized [`descend`](crate::codec::search::descend), with one group per lane.

use super::Groups;
use crate::codec::layout::each;
use crate::codec::search::TINY;

/// Search results of each lane.
pub(in crate::codec) struct DescentLanes<S: Groups, const N: usize> {
    pub(in crate::codec) scale: [f32; 16],
    /// Levels, from `-half` on.
    levels: [S::F; N],
}

impl<S: Groups, const N: usize> DescentLanes<S, N> {
    /// Returns the levels of a lane's group, which are needed only if a scale rounds to zero.
    pub(in crate::codec) fn levels(&self, s: S, lane: usize, half: i32) -> [u8; N] {
        self.levels.map(|level| (s.array(level)[lane] as i32 + half) as u8)
    }
}

/// Solves `x ~ scale * (level - half)` for each lane of two vectors, moving levels one by one. Every step
/// waits for the one before; those of the other vector fill the time.
#[inline(always)]
pub(in crate::codec) fn descend<S: Groups, const N: usize>(
    s: S,
    half: f32,
    x: &[[S::F; N]; 2],
) -> [DescentLanes<S, N>; 2] {
    let zero = s.splat(0.0);
    let mut sum_xl = [zero; 2];
    let mut sum_l2 = [zero; 2];
    let mut levels = [[zero; N]; 2];
    let mut weights = [[zero; N]; 2];
    let mut weighted = [[zero; N]; 2];
    let mut none = [s.lt(zero, zero); 2];
    for v in 0..2 {
        let (max, magnitude) = s.peak(&x[v]);
        none[v] = s.lt(magnitude, s.splat(TINY));
        let inverse = s.splat(-half) / max;
        for at in 0..N {
            let l = s.nearest_level(inverse * x[v][at], -half, half - 1.0);
            levels[v][at] = l;
            weights[v][at] = x[v][at] * x[v][at];
            weighted[v][at] = weights[v][at] * x[v][at];
            sum_xl[v] = sum_xl[v] + weighted[v][at] * l;
            sum_l2[v] = sum_l2[v] + weights[v][at] * l * l;
        }
    }
    for _ in 0..5 {
        // A lane that does not move stays as it is in later rounds too, so it can go on with the others.
        let mut moved = s.lt(zero, zero);
        for at in 0..N {
            for v in 0..2 {
                let old = levels[v][at];
                let xl = sum_xl[v] - weighted[v][at] * old;
                let l2 = sum_l2[v] - weights[v][at] * old * old;
                let new = s.nearest_level(x[v][at] * l2 / xl, -half, half - 1.0);
                let differs = s.or(s.lt(new, old), s.lt(old, new));
                let may = s.and(s.lt(zero, xl), differs);
                let xl = xl + weighted[v][at] * new;
                let l2 = l2 + weights[v][at] * new * new;
                let improves = s.lt(sum_xl[v] * sum_xl[v] * l2, xl * xl * sum_l2[v]);
                let moves = s.and(may, s.and(s.lt(zero, l2), improves));
                levels[v][at] = s.select(moves, new, old);
                sum_xl[v] = s.select(moves, xl, sum_xl[v]);
                sum_l2[v] = s.select(moves, l2, sum_l2[v]);
                moved = s.or(moved, moves);
            }
        }
        if !s.any(moved) {
            break;
        }
    }
    [
        finished(s, half, none[0], [sum_xl[0], sum_l2[0]], &levels[0]),
        finished(s, half, none[1], [sum_xl[1], sum_l2[1]], &levels[1]),
    ]
}

/// Returns the results of a vector, given the lanes of zeros, both sums and the levels.
#[inline(always)]
fn finished<S: Groups, const N: usize>(
    s: S,
    half: f32,
    none: S::M,
    [sum_xl, sum_l2]: [S::F; 2],
    levels: &[S::F; N],
) -> DescentLanes<S, N> {
    let zero = s.splat(0.0);
    let scale = s.select(s.lt(zero, sum_l2), sum_xl / sum_l2, zero);
    DescentLanes {
        scale: s.array(s.select(none, zero, scale)),
        levels: each(levels, |level| s.select(none, s.splat(-half), level)),
    }
}
