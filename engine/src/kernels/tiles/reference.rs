//! The plain form: one result at a time.

#![cfg(test)]

use super::portable::{add_product, flushed};
use crate::kernels::round::round1;
use registry::dtype::Dtype;

/// Computes one result from a row, a row of the weight, and the bias.
pub(super) fn product(x: &[f32], weight: &[f32], bias: Option<f32>, round: Dtype) -> f32 {
    let mut sum = 0.0;
    for (x, weight) in x.chunks(32).zip(weight.chunks(32)) {
        let each = |odd: usize| {
            let pairs = x.iter().zip(weight).skip(odd).step_by(2);
            pairs.fold(0.0, |sum, (x, w)| add_product(*w, round1(Dtype::Bf16, *x), sum))
        };
        sum = flushed(sum + flushed(each(0) + each(1)));
    }
    round1(round, bias.map_or(sum, |bias| sum + bias))
}
