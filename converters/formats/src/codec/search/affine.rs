//! Search for a scale and a minimum (`make_qkx2_quants`, `make_qkx3_quants`, which agree on finite values).

use crate::codec::rounding::nearest;

/// Parameters of the scales to try: they make the range `top + first + step * i` levels wide.
#[derive(Debug, Clone, Copy)]
pub(in crate::codec) struct Ladder {
    pub(in crate::codec) top: i32,
    pub(in crate::codec) first: f32,
    pub(in crate::codec) step: f32,
    /// Last value of `i`.
    pub(in crate::codec) last: i32,
    /// True if errors count by magnitude instead of squared.
    pub(in crate::codec) absolute: bool,
}

/// `x ~ scale * level - minus_min`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(in crate::codec) struct AffineFit {
    pub(in crate::codec) scale: f32,
    pub(in crate::codec) minus_min: f32,
}

/// Values with their weights.
type WeightedValues<'a, const N: usize> = (&'a [f32; N], &'a [f32; N]);

impl Ladder {
    /// Solves for scale and minimum with levels in `0..=top`. The minimum is never above zero.
    pub(in crate::codec) fn climb<const N: usize>(
        self,
        (x, weights): WeightedValues<N>,
        levels: &mut [u8; N],
    ) -> AffineFit {
        let mut min = x[0];
        let mut max = x[0];
        let mut sum_w = weights[0];
        let mut sum_x = weights[0] * x[0];
        for (&x, &w) in x.iter().zip(weights).skip(1) {
            if x < min {
                min = x;
            }
            if x > max {
                max = x;
            }
            sum_w += w;
            sum_x += w * x;
        }
        if min > 0.0 {
            min = 0.0;
        }
        if max <= min {
            levels.fill(0);
            return AffineFit { scale: 0.0, minus_min: -min };
        }
        // The levels of the best try follow from its scale and its initial minimum.
        let mut chosen = (self.top as f32 / (max - min), min);
        let mut scale = 1.0 / chosen.0;
        let mut least = self.error((x, weights), &self.levels(x, chosen), scale, min);
        for i in 0..=self.last {
            let tried = ((self.first + self.step * i as f32 + self.top as f32) / (max - min), min);
            let l = self.levels(x, tried);
            let mut sum_l = 0.0_f32;
            let mut sum_l2 = 0.0_f32;
            let mut sum_xl = 0.0_f32;
            for ((&x, &w), &l) in x.iter().zip(weights).zip(&l) {
                sum_l += w * l;
                sum_l2 += w * l * l;
                sum_xl += w * l * x;
            }
            let det = sum_w * sum_l2 - sum_l * sum_l;
            if det > 0.0 {
                let mut new_scale = (sum_w * sum_xl - sum_x * sum_l) / det;
                let mut new_min = (sum_l2 * sum_x - sum_l * sum_xl) / det;
                if new_min > 0.0 {
                    new_min = 0.0;
                    new_scale = sum_xl / sum_l2;
                }
                let new = self.error((x, weights), &l, new_scale, new_min);
                if new < least {
                    chosen = tried;
                    least = new;
                    scale = new_scale;
                    min = new_min;
                }
            }
        }
        for (to, l) in levels.iter_mut().zip(self.levels(x, chosen)) {
            *to = l as u8;
        }
        AffineFit { scale, minus_min: -min }
    }

    fn levels<const N: usize>(self, x: &[f32; N], (inverse, min): (f32, f32)) -> [f32; N] {
        x.map(|x| nearest(inverse * (x - min)).clamp(0, self.top) as f32)
    }

    fn error<const N: usize>(
        self,
        (x, weights): WeightedValues<N>,
        levels: &[f32; N],
        scale: f32,
        min: f32,
    ) -> f32 {
        let mut error = 0.0;
        for ((&x, &w), &l) in x.iter().zip(weights).zip(levels) {
            let off = scale * l + min - x;
            error += w * if self.absolute { off.abs() } else { off * off };
        }
        error
    }
}
