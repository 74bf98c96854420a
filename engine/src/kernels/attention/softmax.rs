//! From products of one query to its weights.
//!
//! Plain loops that the compiler vectorizes: each caller compiles them for the CPU features that it has asked for.
#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for vectors")]

use registry::dtype::Dtype;

use super::{AttentionParams, LANES, Query, ScoreRounding};
use crate::kernels::finish::finish;
use crate::kernels::math;
use crate::kernels::round::round1;

/// The sum that weights are divided by, and the factor on the output, if any.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SoftmaxSums {
    pub(super) total: f32,
    pub(super) gate: Option<f32>,
}

/// Turns products of one query into scores, in place; `bias` is a slope and the first position.
#[inline(always)]
pub(super) fn scale(rule: &AttentionParams, scores: &mut [f32], bias: Option<(f32, usize)>) {
    let dtype = rule.round;
    if rule.scores == ScoreRounding::Rounded {
        finish(scores, None, dtype);
    }
    for s in scores.iter_mut() {
        *s *= rule.scale;
    }
    if rule.scores == ScoreRounding::Rounded {
        finish(scores, None, dtype);
    }
    if let Some((slope, first)) = bias {
        for (n, s) in scores.iter_mut().enumerate() {
            let bias = slope * (first + n) as f32;
            *s += if rule.scores == ScoreRounding::Once { round1(dtype, bias) } else { bias };
        }
    }
    if rule.scores == ScoreRounding::Once {
        finish(scores, None, dtype);
    }
}

/// Turns scores of one query into exponentials, in place; `parts` are the stretches of its row. Exponentials are
/// summed by stretches, and the sums of stretches in f64.
#[inline(always)]
pub(super) fn exponentials(
    rule: &AttentionParams,
    query: &Query<'_>,
    parts: &mut [&mut [f32]],
) -> SoftmaxSums {
    let dtype = rule.round;
    if let Some((salience, most)) = query.salience {
        let mut all = parts.concat();
        keep_salient(rule, &mut all, salience, most);
        let mut all = all.as_slice();
        for part in parts.iter_mut() {
            let (own, rest) = all.split_at(part.len());
            part.copy_from_slice(own);
            all = rest;
        }
    }
    let gate = query.sink.filter(|_| rule.gated).map(|sink| gate(rule, parts, sink));
    let sink = query.sink.filter(|_| !rule.gated);
    if let Some(cap) = rule.softcap {
        for part in parts.iter_mut() {
            for s in part.iter_mut() {
                *s = round1(dtype, round1(dtype, round1(dtype, *s / cap).tanh()) * cap);
            }
        }
    }
    let mut top = sink.unwrap_or(f32::NEG_INFINITY);
    for part in parts.iter() {
        top = largest(part, top);
    }
    let mut sum = 0.0_f64;
    for part in parts {
        for s in part.iter_mut() {
            *s -= top;
        }
        if rule.softmax_rounds {
            finish(part, None, dtype);
        }
        for s in part.iter_mut() {
            *s = math::exp(*s);
        }
        sum += f64::from(math::sum(part));
    }
    let sink = sink.map_or(0.0, |sink| {
        math::exp(if rule.softmax_rounds { round1(dtype, sink - top) } else { sink - top })
    });
    SoftmaxSums { total: sum as f32 + sink, gate }
}

/// Turns exponentials into weights, in place.
#[inline(always)]
pub(super) fn divide(dtype: Dtype, part: &mut [f32], total: f32) {
    for s in part.iter_mut() {
        *s /= total;
    }
    finish(part, None, dtype);
}

/// Adds to each score what its key is worth; only the `most` that are worth most stay.
fn keep_salient(rule: &AttentionParams, scores: &mut [f32], salience: &[f32], most: usize) {
    for (s, x) in scores.iter_mut().zip(salience) {
        *s += x;
    }
    finish(scores, None, rule.round);
    if most < scores.len() {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        // Of equals the earlier ones stay.
        order.sort_by(|a, b| salience[*b].total_cmp(&salience[*a]));
        for n in &order[most..] {
            scores[*n] = f32::NEG_INFINITY;
        }
    }
}

/// Returns the share of the output that a sink leaves. The share is the sigmoid of the log of the summed
/// exponentials minus the sink. Each step is rounded, as tensor operations of the dtype are.
fn gate(rule: &AttentionParams, parts: &[&mut [f32]], sink: f32) -> f32 {
    let r = |x| round1(rule.round, x);
    let scores = || parts.iter().flat_map(|part| part.iter().copied());
    let top = scores().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = scores().map(|s| r(math::exp(r(s - top)))).sum();
    r(math::sigmoid(r(r(r(r(total).ln()) + top) - sink)))
}

/// Returns the largest of the scores and a bound from below; NaN if a score is.
#[inline(always)]
fn largest(scores: &[f32], least: f32) -> f32 {
    let mut tops = [least; LANES];
    let mut nan = least.is_nan();
    let parts = scores.chunks_exact(LANES);
    for &s in parts.remainder() {
        tops[0] = if s > tops[0] { s } else { tops[0] };
        nan |= s.is_nan();
    }
    for part in parts {
        for (top, &s) in tops.iter_mut().zip(part) {
            *top = if s > *top { s } else { *top };
            nan |= s.is_nan();
        }
    }
    if nan { f32::NAN } else { tops.into_iter().fold(least, f32::max) }
}
