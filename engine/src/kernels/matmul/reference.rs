//! The plain form: one element at a time, in the order of additions that every kernel keeps.

use super::MatrixView;
use crate::kernels::round::round1;
use registry::dtype::Dtype;

/// Computes the same as [`super::matmul`], as a reference for tests.
///
/// # Panics
/// If a slice is not as long as the shapes say.
pub fn matmul(
    x: &[f32],
    rows: usize,
    weight: &MatrixView<'_>,
    bias: Option<&[f32]>,
    round: Dtype,
    y: &mut [f32],
) {
    let outputs = weight.outputs;
    let inputs = weight.inputs;
    assert_eq!(x.len(), rows * inputs, "x is [rows, inputs]");
    assert_eq!(y.len(), rows * outputs, "y is [rows, outputs]");
    assert!(bias.is_none_or(|b| b.len() == outputs), "bias is [outputs]");
    let mut row = vec![0.0; inputs];
    for o in 0..outputs {
        weight.widen_row(o, &mut row);
        for r in 0..rows {
            let sum = sum(dot(&x[r * inputs..(r + 1) * inputs], &row, weight.dtype));
            y[r * outputs + o] = round1(round, bias.map_or(sum, |bias| sum + bias[o]));
        }
    }
}

/// Computes the sixteen partial sums of one row of a weight of `dtype`.
fn dot(x: &[f32], weight: &[f32], dtype: Dtype) -> [f32; 16] {
    let mut lanes = [0.0_f32; 16];
    for block in (0..x.len()).step_by(32) {
        for (l, lane) in lanes.iter_mut().enumerate() {
            let order = if dtype == Dtype::Bf16 { [2 * l + 1, 2 * l] } else { [l, 16 + l] };
            for k in order.map(|k| block + k) {
                let (weight, x) = if k < x.len() { (weight[k], x[k]) } else { (0.0, 0.0) };
                *lane = f32::mul_add(weight, x, *lane);
            }
        }
    }
    lanes
}

/// Adds sixteen lanes in halves.
pub(super) fn sum(mut lanes: [f32; 16]) -> f32 {
    for half in [8, 4, 2, 1] {
        for l in 0..half {
            lanes[l] += lanes[l + half];
        }
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiplies_adds_the_bias_and_rounds_once() {
        // W = [[1, 2], [3, 4], [5, 6]]
        let bytes: Vec<u8> =
            [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let weight = MatrixView::plain(Dtype::F32, &bytes, 3, 2);
        let mut y = [0.0; 6];
        matmul(&[1.0, 1.0, 0.5, -1.0], 2, &weight, Some(&[0.25, 0.0, 1000.0]), Dtype::F32, &mut y);
        assert_eq!(y, [3.25, 7.0, 1011.0, -1.25, -2.5, 996.5]);
        matmul(&[1.0, 1.0, 0.5, -1.0], 2, &weight, Some(&[0.25, 0.0, 1000.0]), Dtype::Bf16, &mut y);
        assert_eq!(y, [3.25, 7.0, 1012.0, -1.25, -2.5, 996.0]);
    }
}
