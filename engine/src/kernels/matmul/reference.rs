//! The plain form: one row of the weight at a time, widened, then a dot product per row of `x`.

use rayon::prelude::*;
use registry::dtype::Dtype;

use super::WeightView;
use crate::kernels::round::round1;

/// Outputs that one task makes.
const BLOCK: usize = 64;

/// See [`super::matmul`].
///
/// # Panics
/// If a slice is not as long as the shapes say.
pub fn matmul(
    x: &[f32],
    rows: usize,
    weight: &WeightView<'_>,
    bias: Option<&[f32]>,
    round: Dtype,
    y: &mut [f32],
) {
    let (outputs, inputs) = (weight.outputs, weight.inputs);
    assert_eq!(x.len(), rows * inputs, "x is [rows, inputs]");
    assert_eq!(y.len(), rows * outputs, "y is [rows, outputs]");
    assert!(bias.is_none_or(|b| b.len() == outputs), "bias is [outputs]");

    // Columns of y are made block by block, each by one thread, then put in their places.
    let blocks: Vec<Vec<f32>> = (0..outputs.div_ceil(BLOCK))
        .into_par_iter()
        .map(|block| {
            let from = block * BLOCK;
            let to = outputs.min(from + BLOCK);
            let mut row = vec![0.0; inputs];
            let mut out = vec![0.0; rows * (to - from)];
            for o in from..to {
                weight.widen_row(o, &mut row);
                for r in 0..rows {
                    let sum = dot(&x[r * inputs..(r + 1) * inputs], &row);
                    let sum = bias.map_or(sum, |b| sum + b[o]);
                    out[r * (to - from) + o - from] = round1(round, sum);
                }
            }
            out
        })
        .collect();
    for (block, part) in blocks.iter().enumerate() {
        let from = block * BLOCK;
        let width = outputs.min(from + BLOCK) - from;
        for r in 0..rows {
            y[r * outputs + from..r * outputs + from + width]
                .copy_from_slice(&part[r * width..(r + 1) * width]);
        }
    }
}

/// A dot product in f32 with eight running sums, which the compiler turns into vector code.
#[inline]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f32 = a8.remainder().iter().zip(b8.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a8.zip(b8) {
        for lane in 0..8 {
            sums[lane] += x[lane] * y[lane];
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (b + f)) + ((c + g) + (d + h)) + tail
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiplies_adds_the_bias_and_rounds_once() {
        // W = [[1, 2], [3, 4], [5, 6]]
        let bytes: Vec<u8> =
            [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let weight = WeightView { dtype: Dtype::F32, bytes: &bytes, outputs: 3, inputs: 2 };
        let mut y = [0.0; 6];
        matmul(&[1.0, 1.0, 0.5, -1.0], 2, &weight, Some(&[0.25, 0.0, 1000.0]), Dtype::F32, &mut y);
        assert_eq!(y, [3.25, 7.0, 1011.0, -1.25, -2.5, 996.5]);
        matmul(&[1.0, 1.0, 0.5, -1.0], 2, &weight, Some(&[0.25, 0.0, 1000.0]), Dtype::Bf16, &mut y);
        assert_eq!(y, [3.25, 7.0, 1012.0, -1.25, -2.5, 996.0]);
    }
}
