//! Weights of resampling as integers.

use super::{BackEnd, ResampleFilter};

/// Bits after the point of Pillow's weights: 32, less 8 of a byte and 2 for overshoot.
const PIL_BITS: u32 = 32 - 8 - 2;
/// Most bits after the point of ATen's weights.
const TORCH_BITS: u32 = 22;
/// First weight that does not fit in ATen's 16 bits.
const TORCH_LIMIT: i64 = 1 << 15;

/// Inputs and weights of every output along one axis.
pub(super) struct Windows {
    starts: Vec<usize>,
    /// Ends of each output's weights.
    ends: Vec<usize>,
    weights: Vec<i32>,
    bits: u32,
}

impl Windows {
    /// Computes the weights for a change from `input` to `output` pixels.
    pub(super) fn new(
        input: usize,
        output: usize,
        filter: ResampleFilter,
        back_end: BackEnd,
    ) -> Self {
        let scale = input as f64 / output as f64;
        let stretch = scale.max(1.0);
        let support = filter.support() * stretch;
        // Pillow multiplies by the inverse of the stretch, ATen too.
        let inverse = 1.0 / stretch;
        let mut windows =
            Self { starts: Vec::new(), ends: Vec::new(), weights: Vec::new(), bits: PIL_BITS };
        let mut exact = Vec::new();
        let mut largest: f64 = 0.0;
        for n in 0..output {
            let center = (n as f64 + 0.5) * scale;
            let start = ((center - support + 0.5) as i64).max(0) as usize;
            let end = ((center + support + 0.5) as usize).min(input);
            let from = exact.len();
            let mut total = 0.0;
            for at in start..end {
                let weight = filter.weight((at as f64 - center + 0.5) * inverse);
                exact.push(weight);
                total += weight;
            }
            if total != 0.0 {
                for weight in &mut exact[from..] {
                    *weight /= total;
                    largest = largest.max(*weight);
                }
            }
            windows.starts.push(start);
            windows.ends.push(exact.len());
        }
        if back_end == BackEnd::Torchvision {
            windows.bits = torch_bits(largest);
        }
        let unit = f64::from(1_u32 << windows.bits);
        windows.weights = exact.iter().map(|weight| rounded(weight * unit)).collect();
        windows
    }

    /// Returns the number of outputs.
    pub(super) fn count(&self) -> usize {
        self.starts.len()
    }

    /// Returns the first input and the weights of each output.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &[i32])> {
        let mut from = 0;
        self.starts.iter().zip(&self.ends).map(move |(&start, &end)| {
            let weights = &self.weights[from..end];
            from = end;
            (start, weights)
        })
    }

    /// Returns the half of a level, with which sums begin.
    pub(super) fn half(&self) -> i32 {
        1 << (self.bits - 1)
    }

    /// Returns the level of a sum.
    pub(super) fn level(&self, sum: i32) -> u8 {
        (sum >> self.bits).clamp(0, 255) as u8
    }
}

/// Returns the bits after the point with which the largest weight fits in 16 bits.
fn torch_bits(largest: f64) -> u32 {
    let mut bits = 0;
    while bits < TORCH_BITS
        && ((0.5 + largest * f64::from(1_u32 << (bits + 1))) as i64) < TORCH_LIMIT
    {
        bits += 1;
    }
    bits.max(1)
}

/// Rounds halves away from zero.
fn rounded(weight: f64) -> i32 {
    (if weight < 0.0 { weight - 0.5 } else { weight + 0.5 }) as i32
}
