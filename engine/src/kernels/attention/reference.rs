//! The plain form: one query and one position at a time, in the order of additions that every kind of vectors keeps.

use std::ops::Range;

use super::softmax::{SoftmaxSums, exponentials, scale};
use super::spans::SPAN;
use super::{AttendBlock, AttentionParams, CachedColumns};
use crate::kernels::round::round1;

/// Computes the same as [`super::attend`] for one block.
pub(super) fn attend(rule: &AttentionParams, block: &AttendBlock<'_>) -> Vec<f32> {
    let mut y = Vec::new();
    for query in &block.queries {
        let positions = query.from..query.to;
        let read = |parts: &[CachedColumns<'_>; 2], key: usize, dim: usize| {
            let mut row = vec![0.0; dim];
            let at = block.head.position(key);
            parts[0].widen(at, &mut row);
            parts[1].widen(at, &mut row[parts[0].len..]);
            row
        };
        let mut scores: Vec<f32> = positions
            .clone()
            .map(|key| chain(query.q, &read(&block.head.keys, key, rule.key_dim), 0))
            .collect();
        scale(rule, &mut scores, query.slope.map(|slope| (slope, query.from)));
        let spans: Vec<Range<usize>> = (query.from / SPAN..query.to.div_ceil(SPAN))
            .map(|n| (n * SPAN).max(query.from)..((n + 1) * SPAN).min(query.to))
            .map(|span| span.start - query.from..span.end - query.from)
            .collect();
        let mut rest = scores.as_mut_slice();
        let mut parts = Vec::new();
        for span in &spans {
            let (own, others) = rest.split_at_mut(span.len());
            parts.push(own);
            rest = others;
        }
        let SoftmaxSums { total, gate } = exponentials(rule, query, &mut parts);
        let weights: Vec<f32> = scores.iter().map(|s| round1(rule.round, s / total)).collect();
        let values: Vec<Vec<f32>> =
            positions.map(|key| read(&block.head.values, key, rule.value_dim)).collect();
        for dim in 0..rule.value_dim {
            let column: Vec<f32> = values.iter().map(|value| value[dim]).collect();
            let mut sum = 0.0;
            for span in &spans {
                let own = span.clone();
                sum += chain(&weights[own.clone()], &column[own], (query.from + span.start) % 2);
            }
            let rounded = round1(rule.round, sum);
            y.push(gate.map_or(rounded, |gate| round1(rule.round, rounded * gate)));
        }
    }
    y
}

/// Computes `Σ a · b`, in pairs of which the odd number comes first; `first` is 1 if the first number is odd.
fn chain(a: &[f32], b: &[f32], first: usize) -> f32 {
    let mut sum = 0.0;
    let add = |n: usize, sum: f32| if n < a.len() { a[n].mul_add(b[n], sum) } else { sum };
    if first == 1 {
        sum = add(0, sum);
    }
    for even in (first..a.len()).step_by(2) {
        sum = add(even, add(even + 1, sum));
    }
    sum
}
