//! [Splits](super::split) of several parts at once, with a part per lane.
//!
//! Every lane tries the positions and shifts in the order of the reference, and rounds as it does.

use super::split::{Split, TINY_M, TINY_S, VALUES, ascending, largest};
use crate::codec::simd::Groups;

/// Best split of each lane so far.
struct BestSplits<S: Groups> {
    score: S::F,
    scale: S::F,
    /// First position, below zero if there is no split.
    first: S::F,
    second: S::F,
    shift: S::F,
}

impl<S: Groups> BestSplits<S> {
    #[inline(always)]
    fn new(s: S, largest: &[Option<f32>; 16]) -> Self {
        let zero = s.splat(0.0);
        Self {
            score: s.splat(-f32::MAX),
            scale: s.load(&largest.map(Option::unwrap_or_default)),
            first: s.splat(-1.0),
            second: zero,
            shift: zero,
        }
    }

    #[inline(always)]
    fn offer(&mut self, s: S, qx: S::F, q2: S::F, (first, second, shift): (usize, usize, usize)) {
        let better = s.and(s.lt(s.splat(0.0), q2), s.lt(self.score * q2, qx * qx));
        // Improvements are rare, and a division costs as much as all else.
        if s.any(better) {
            let scale = qx / q2;
            self.scale = s.select(better, scale, self.scale);
            self.score = s.select(better, scale * qx, self.score);
            self.first = s.select(better, s.splat(first as f32), self.first);
            self.second = s.select(better, s.splat(second as f32), self.second);
            self.shift = s.select(better, s.splat(shift as f32), self.shift);
        }
    }

    /// Writes the split of each lane that has one.
    #[inline(always)]
    fn write<const M: usize>(
        &self,
        s: S,
        orders: &[[usize; M]; 16],
        largest: &[Option<f32>; 16],
        down: impl Fn(usize) -> [bool; 2],
        out: &mut [Option<Split<M>>],
    ) {
        let scale = s.array(self.scale);
        let shift = s.array(self.shift);
        let first = s.array(self.first);
        let second = s.array(self.second);
        for (lane, to) in out.iter_mut().enumerate() {
            let there = largest[lane].is_some() && first[lane] >= 0.0;
            *to = there.then(|| {
                let at = (first[lane] as usize, second[lane] as usize);
                Split::at(scale[lane], &orders[lane], at, down(shift[lane] as usize))
            });
        }
    }
}

/// Parts in ascending order.
struct SortedParts<const M: usize> {
    orders: [[usize; M]; 16],
    largest: [Option<f32>; 16],
}

impl<const M: usize> SortedParts<M> {
    /// Sorts parts, and passes each position with its lane, its value's index, product and weight.
    #[inline(always)]
    fn new(
        parts: &[[f32; M]],
        weights: &[[f32; M]],
        tiny: f32,
        mut visit: impl FnMut(usize, usize, usize, f32, f32),
    ) -> Self {
        let mut orders = [[0; M]; 16];
        let mut peaks = [None; 16];
        for (lane, (x, weight)) in parts.iter().zip(weights).enumerate() {
            peaks[lane] = largest(x, tiny);
            orders[lane] = ascending(x);
            for (at, &i) in orders[lane].iter().enumerate() {
                visit(at, lane, i, weight[i] * x[i], weight[i]);
            }
        }
        Self { orders, largest: peaks }
    }
}

/// Returns a term for each half and shift.
#[inline(always)]
fn pairs<F>(term: impl Fn(usize, usize) -> F) -> [[F; 2]; 2] {
    let term = &term;
    std::array::from_fn(|half| std::array::from_fn(|shift| term(half, shift)))
}

/// Splits parts whose values are shifted together.
#[inline(always)]
pub(super) fn with_one_shift<S: Groups>(
    s: S,
    parts: &[[f32; 32]],
    weights: &[[f32; 32]],
    out: &mut [Option<Split<32>>],
) {
    let lanes = parts.chunks(S::LANES).zip(weights.chunks(S::LANES)).zip(out.chunks_mut(S::LANES));
    for ((parts, weights), out) in lanes {
        let mut products = [[0.0; 16]; 32];
        let mut sorted_weights = [[0.0; 16]; 32];
        let sorted = SortedParts::new(parts, weights, TINY_S, |at, lane, _, product, weight| {
            products[at][lane] = product;
            sorted_weights[at][lane] = weight;
        });
        let mut sx = [s.splat(0.0); 33];
        let mut sw = [s.splat(0.0); 33];
        for at in 0..32 {
            sx[at + 1] = sx[at] + s.load(&products[at]);
            sw[at + 1] = sw[at] + s.load(&sorted_weights[at]);
        }
        let values = VALUES.map(|v| [s.splat(v[0]), s.splat(v[1]), s.splat(v[2])]);
        // Terms of the values above the second position.
        let above: [[(S::F, S::F); 2]; 33] = std::array::from_fn(|j| {
            let x = sx[32] - sx[j];
            let w = sw[32] - sw[j];
            values.map(|v| (x * v[2], w * v[2] * v[2]))
        });
        let mut best = BestSplits::new(s, &sorted.largest);
        for i in 0..=32 {
            let x = sx[i] - sx[0];
            let w = sw[i] - sw[0];
            let below = values.map(|v| (x * v[0], w * v[0] * v[0]));
            for j in i..=32 {
                let x = sx[j] - sx[i];
                let w = sw[j] - sw[i];
                for (shift, v) in values.iter().enumerate() {
                    let qx = below[shift].0 + x * v[1] + above[j][shift].0;
                    let q2 = below[shift].1 + w * v[1] * v[1] + above[j][shift].1;
                    best.offer(s, qx, q2, (i, j, shift));
                }
            }
        }
        best.write(s, &sorted.orders, &sorted.largest, |shift| [shift == 1; 2], out);
    }
}

/// Splits parts whose halves have a shift each.
#[inline(always)]
pub(super) fn with_two_shifts<S: Groups>(
    s: S,
    parts: &[[f32; 16]],
    weights: &[[f32; 16]],
    out: &mut [Option<Split<16>>],
) {
    let lanes = parts.chunks(S::LANES).zip(weights.chunks(S::LANES)).zip(out.chunks_mut(S::LANES));
    for ((parts, weights), out) in lanes {
        let mut products = [[[0.0; 16]; 16]; 2];
        let mut sorted_weights = [[[0.0; 16]; 16]; 2];
        let sorted = SortedParts::new(parts, weights, TINY_M, |at, lane, i, product, weight| {
            products[i / 8][at][lane] = product;
            sorted_weights[i / 8][at][lane] = weight;
        });
        // Values of the other half add zero, which changes no sum: none is a negative zero.
        let mut sx = [[s.splat(0.0); 17]; 2];
        let mut sw = [[s.splat(0.0); 17]; 2];
        for half in 0..2 {
            for at in 0..16 {
                sx[half][at + 1] = sx[half][at] + s.load(&products[half][at]);
                sw[half][at + 1] = sw[half][at] + s.load(&sorted_weights[half][at]);
            }
        }
        let values = VALUES.map(|v| s.splat(v[2]));
        let steps = VALUES
            .map(|v| [s.splat(v[0] * v[0] - v[1] * v[1]), s.splat(v[1] * v[1] - v[2] * v[2])]);
        // Terms of the second position.
        let second: [[[S::F; 2]; 2]; 17] = std::array::from_fn(|j| {
            std::array::from_fn(|half| steps.map(|steps| sw[half][j] * steps[1]))
        });
        let whole_x = pairs(|half, shift| sx[half][16] * values[shift]);
        let whole_w = pairs(|half, shift| sw[half][16] * values[shift] * values[shift]);
        let mut best = BestSplits::new(s, &sorted.largest);
        for i in 0..=16 {
            let first = pairs(|half, shift| whole_w[half][shift] + sw[half][i] * steps[shift][0]);
            for j in i..=16 {
                let below = [sx[0][i] + sx[0][j], sx[1][i] + sx[1][j]];
                let qx = pairs(|half, shift| whole_x[half][shift] - below[half]);
                let q2 = pairs(|half, shift| first[half][shift] + second[j][half][shift]);
                for shifts in 0..4 {
                    let a = shifts / 2;
                    let b = shifts % 2;
                    best.offer(s, qx[0][a] + qx[1][b], q2[0][a] + q2[1][b], (i, j, shifts));
                }
            }
        }
        best.write(
            s,
            &sorted.orders,
            &sorted.largest,
            |shifts| [shifts / 2 == 1, shifts % 2 == 1],
            out,
        );
    }
}
