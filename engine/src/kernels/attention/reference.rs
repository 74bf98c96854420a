//! The plain form: one query and one position at a time, in the order of additions that every kind of vectors keeps.

use std::ops::Range;

use registry::dtype::Dtype;

use super::softmax::{SoftmaxSums, exponentials, scale};
use super::spans::SPAN;
use super::{AttendBlock, AttentionParams, CachedColumns, SoftmaxForm};
use crate::kernels::round::round1;

/// Computes the same as [`super::attend`] for one block.
pub(super) fn attend(rule: &AttentionParams, block: &AttendBlock<'_>) -> Vec<f32> {
    let mut y = Vec::new();
    for query in &block.queries {
        let positions = query.from..query.to;
        let mut scores: Vec<f32> = positions
            .clone()
            .map(|key| block.head.position(key))
            .map(|at| chain(query.q, &read(&block.head.keys, at, rule.key_dim), 0))
            .collect();
        scale(rule, &mut scores, query, query.from);
        let spans: Vec<Range<usize>> = (query.from / SPAN..query.to.div_ceil(SPAN))
            .map(|n| (n * SPAN).max(query.from)..((n + 1) * SPAN).min(query.to))
            .map(|span| span.start - query.from..span.end - query.from)
            .collect();
        let mut remaining = scores.as_mut_slice();
        let mut parts = Vec::new();
        for span in &spans {
            let (part, after) = remaining.split_at_mut(span.len());
            parts.push(part);
            remaining = after;
        }
        let SoftmaxSums { total, gate } = exponentials(rule, query, &mut parts);
        let round = if rule.softmax == SoftmaxForm::Unrounded { Dtype::F32 } else { rule.round };
        let weights: Vec<f32> = scores.iter().map(|s| round1(round, s / total)).collect();
        let values: Vec<Vec<f32>> = positions
            .map(|key| read(&block.head.values, block.head.position(key), rule.value_dim))
            .collect();
        for dim in 0..rule.value_dim {
            let column: Vec<f32> = values.iter().map(|value| value[dim]).collect();
            let mut sum = 0.0;
            for span in &spans {
                let first = (query.from + span.start) % 2;
                sum += chain(&weights[span.clone()], &column[span.clone()], first);
            }
            let rounded = round1(rule.round, sum);
            y.push(gate.map_or(rounded, |gate| round1(rule.round, rounded * gate)));
        }
    }
    y
}

/// Reads the row of one position.
fn read(parts: &[CachedColumns<'_>; 2], position: usize, dim: usize) -> Vec<f32> {
    let mut row = vec![0.0; dim];
    parts[0].widen(position, &mut row);
    parts[1].widen(position, &mut row[parts[0].len..]);
    row
}

/// Computes `Σ a · b`, in pairs of which the odd number comes first; `first` is 1 if the first number is odd.
fn chain(a: &[f32], b: &[f32], first: usize) -> f32 {
    let mut sum = 0.0;
    if first == 1 {
        sum = add_product(a, b, 0, sum);
    }
    for even in (first..a.len()).step_by(2) {
        sum = add_product(a, b, even, add_product(a, b, even + 1, sum));
    }
    sum
}

/// Adds the product of two numbers to a sum, if there are as many numbers.
fn add_product(a: &[f32], b: &[f32], n: usize, sum: f32) -> f32 {
    if n < a.len() { a[n].mul_add(b[n], sum) } else { sum }
}
