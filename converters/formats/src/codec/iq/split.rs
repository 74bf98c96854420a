//! Finds the best split of values into three levels, by exhaustive search.
//!
//! Values of one level are contiguous in ascending order. A split is therefore two positions in that order,
//! and prefix sums give its error without another pass over the values.

use super::larger;

/// Best split: a scale, and for each value 0, 1 or 2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Split<const M: usize> {
    pub(super) scale: f32,
    pub(super) levels: [u8; M],
    /// True if the values are shifted down, for each half.
    pub(super) down: [bool; 2],
}

/// Shift of all values of a half, up or down.
pub(super) const SHIFT: f32 = 0.125;

/// Values of the levels, shifted up and down.
pub(super) const VALUES: [[f32; 8]; 2] = [
    [-1.0 + SHIFT, SHIFT, 1.0 + SHIFT, 0.0, 0.0, 0.0, 0.0, 0.0],
    [-1.0 - SHIFT, -SHIFT, 1.0 - SHIFT, 0.0, 0.0, 0.0, 0.0, 0.0],
];

/// Magnitude below which a part of IQ1_S counts as zero.
pub(super) const TINY_S: f32 = 1e-12;

/// Magnitude below which a part of IQ1_M counts as zero.
pub(super) const TINY_M: f32 = 1e-7;

/// Best split so far.
struct BestSplit {
    score: f32,
    scale: f32,
    /// Two positions, and the index of the shift.
    at: Option<(usize, usize, usize)>,
}

impl BestSplit {
    #[inline]
    fn offer(&mut self, qx: f32, q2: f32, at: (usize, usize, usize)) {
        if q2 > 0.0 && qx * qx > self.score * q2 {
            self.scale = qx / q2;
            self.score = self.scale * qx;
            self.at = Some(at);
        }
    }
}

impl<const M: usize> Split<M> {
    /// Returns the split of values in this order at two positions.
    pub(super) fn at(
        scale: f32,
        order: &[usize; M],
        (first, second): (usize, usize),
        down: [bool; 2],
    ) -> Self {
        let mut levels = [0; M];
        for (at, &i) in order.iter().enumerate() {
            levels[i] = u8::from(at >= first) + u8::from(at >= second);
        }
        Self { scale, levels, down }
    }
}

/// Returns the best split of values that are shifted together; none if they are nearly zero.
pub(super) fn with_one_shift(x: &[f32; 32], weight: &[f32; 32]) -> Option<Split<32>> {
    let scale = largest(x, TINY_S)?;
    let order = ascending(x);
    let mut sx = [0.0; 33];
    let mut sw = [0.0; 33];
    for (at, &i) in order.iter().enumerate() {
        sx[at + 1] = sx[at] + weight[i] * x[i];
        sw[at + 1] = sw[at] + weight[i];
    }
    let mut best = BestSplit { score: -f32::MAX, scale, at: None };
    for i in 0..=32 {
        for j in i..=32 {
            let x = [sx[i] - sx[0], sx[j] - sx[i], sx[32] - sx[j]];
            let w = [sw[i] - sw[0], sw[j] - sw[i], sw[32] - sw[j]];
            for (shift, v) in VALUES.iter().enumerate() {
                let qx = x[0] * v[0] + x[1] * v[1] + x[2] * v[2];
                let q2 = w[0] * v[0] * v[0] + w[1] * v[1] * v[1] + w[2] * v[2] * v[2];
                best.offer(qx, q2, (i, j, shift));
            }
        }
    }
    let (first, second, shift) = best.at?;
    Some(Split::at(best.scale, &order, (first, second), [shift == 1; 2]))
}

/// Returns the best split of values whose halves have a shift each.
pub(super) fn with_two_shifts(x: &[f32; 16], weight: &[f32; 16]) -> Option<Split<16>> {
    let scale = largest(x, TINY_M)?;
    let order = ascending(x);
    // Prefix sums of each half, over its values in ascending order.
    let mut sx = [[0.0; 17]; 2];
    let mut sw = [[0.0; 17]; 2];
    for (at, &i) in order.iter().enumerate() {
        for half in 0..2 {
            let here = i / 8 == half;
            sx[half][at + 1] = if here { sx[half][at] + weight[i] * x[i] } else { sx[half][at] };
            sw[half][at + 1] = if here { sw[half][at] + weight[i] } else { sw[half][at] };
        }
    }
    let mut best = BestSplit { score: -f32::MAX, scale, at: None };
    for i in 0..=16 {
        for j in i..=16 {
            // Values are one apart: the contribution of a half is its largest value times the whole sum,
            // less the sums up to both positions.
            let mut qx = [[0.0; 2]; 2];
            let mut q2 = [[0.0; 2]; 2];
            for half in 0..2 {
                let x = &sx[half];
                let w = &sw[half];
                let below = x[i] + x[j];
                for (shift, v) in VALUES.iter().enumerate() {
                    let steps = [v[0] * v[0] - v[1] * v[1], v[1] * v[1] - v[2] * v[2]];
                    qx[half][shift] = x[16] * v[2] - below;
                    q2[half][shift] = w[16] * v[2] * v[2] + w[i] * steps[0] + w[j] * steps[1];
                }
            }
            for shifts in 0..4 {
                let a = shifts / 2;
                let b = shifts % 2;
                best.offer(qx[0][a] + qx[1][b], q2[0][a] + q2[1][b], (i, j, shifts));
            }
        }
    }
    let (first, second, shifts) = best.at?;
    Some(Split::at(best.scale, &order, (first, second), [shifts / 2 == 1, shifts % 2 == 1]))
}

/// Returns the largest magnitude, unless it is less than `tiny`.
pub(super) fn largest(x: &[f32], tiny: f32) -> Option<f32> {
    let max = x[1..].iter().fold(x[0].abs(), |max, x| larger(max, x.abs()));
    if max < tiny { None } else { Some(max) }
}

/// Returns the indices of the values in ascending order; the order of equal values is kept.
pub(super) fn ascending<const M: usize>(x: &[f32; M]) -> [usize; M] {
    let mut keys: [u64; M] = std::array::from_fn(|i| {
        // Positive and negative zero compare equal.
        let bits = (x[i] + 0.0).to_bits();
        let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        u64::from(ordered) << 32 | i as u64
    });
    keys.sort_unstable();
    keys.map(|key| key as u32 as usize)
}
