//! From products of one query to its weights.
//!
//! Plain loops that the compiler vectorizes: each caller compiles them for the CPU features that it has asked for.
#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for vectors")]

use registry::dtype::Dtype;

use super::{AttentionParams, LANES, Query, ScoreRounding, SoftmaxForm};
use crate::kernels::finish::{bf16, f16, finish};
use crate::kernels::math;
use crate::kernels::round::round1;

/// The sum that weights are divided by, and the factor on the output, if any.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SoftmaxSums {
    pub(super) total: f32,
    pub(super) gate: Option<f32>,
}

/// Turns products of one query with keys from position `first` on into scores, in place.
#[inline(always)]
pub(super) fn scale(rule: &AttentionParams, scores: &mut [f32], query: &Query<'_>, first: usize) {
    match rule.round {
        Dtype::F32 => scale_rounded(rule, scores, query, first, |s| s),
        Dtype::Bf16 => scale_rounded(rule, scores, query, first, bf16),
        Dtype::F16 => scale_rounded(rule, scores, query, first, f16),
    }
}

/// Computes [`scale`] with the function that rounds.
#[inline(always)]
fn scale_rounded(
    rule: &AttentionParams,
    scores: &mut [f32],
    query: &Query<'_>,
    first: usize,
    round: impl Fn(f32) -> f32,
) {
    let scale = rule.scale;
    let form = rule.scores;
    let Some(slope) = query.slope else {
        let all = scores.iter_mut();
        match form {
            ScoreRounding::Rounded => all.for_each(|s| *s = round(round(*s) * scale)),
            ScoreRounding::Once => all.for_each(|s| *s = round(*s * scale)),
            ScoreRounding::None => all.for_each(|s| *s *= scale),
        }
        if let Some(relative) = query.relative {
            // A span that the query does not see has no scores.
            let distances = query.to.saturating_sub(first);
            let near = scores.iter_mut().skip(distances.saturating_sub(relative.len()));
            // The first number is that of the last position.
            for (s, x) in near.zip(relative[..distances.min(relative.len())].iter().rev()) {
                *s = if form == ScoreRounding::Rounded { round(*s + x) } else { *s + x };
            }
        }
        return;
    };
    for (n, s) in scores.iter_mut().enumerate() {
        let bias = slope * (first + n) as f32;
        *s = match form {
            ScoreRounding::Rounded => round(round(*s) * scale) + bias,
            ScoreRounding::Once => round(*s * scale + round(bias)),
            ScoreRounding::None => *s * scale + bias,
        };
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
    if let Some((salience, count)) = query.salience {
        let mut scores = parts.concat();
        keep_salient(rule, &mut scores, salience, count);
        let mut scores = scores.as_slice();
        for part in parts.iter_mut() {
            let (part_scores, remaining) = scores.split_at(part.len());
            part.copy_from_slice(part_scores);
            scores = remaining;
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
    let differences_round = rule.softmax == SoftmaxForm::Activation;
    for part in parts {
        if differences_round {
            part.iter_mut().for_each(|s| *s -= top);
            finish(part, None, dtype);
            part.iter_mut().for_each(|s| *s = math::exp(*s));
        } else {
            part.iter_mut().for_each(|s| *s = math::exp(*s - top));
        }
        sum += f64::from(math::sum(part));
    }
    let sink = sink.map_or(0.0, |sink| {
        math::exp(if differences_round { round1(dtype, sink - top) } else { sink - top })
    });
    SoftmaxSums { total: sum as f32 + sink, gate }
}

/// Turns exponentials into weights, in place.
#[inline(always)]
pub(super) fn divide(rule: &AttentionParams, part: &mut [f32], total: f32) {
    let round = if rule.softmax == SoftmaxForm::Unrounded { Dtype::F32 } else { rule.round };
    match round {
        Dtype::F32 => part.iter_mut().for_each(|s| *s /= total),
        Dtype::Bf16 => part.iter_mut().for_each(|s| *s = bf16(*s / total)),
        Dtype::F16 => part.iter_mut().for_each(|s| *s = f16(*s / total)),
    }
}

/// Adds to each score what its key is worth; only the `count` that are worth most stay.
fn keep_salient(rule: &AttentionParams, scores: &mut [f32], salience: &[f32], count: usize) {
    for (s, x) in scores.iter_mut().zip(salience) {
        *s += x;
    }
    finish(scores, None, rule.round);
    if count < scores.len() {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        // Of equals the earlier ones stay.
        order.sort_by(|a, b| salience[*b].total_cmp(&salience[*a]));
        for n in &order[count..] {
            scores[*n] = f32::NEG_INFINITY;
        }
    }
}

/// Returns the share of the output that a sink leaves. The share is the sigmoid of the log of the summed
/// exponentials minus the sink. Each step is rounded, as tensor operations of the dtype are.
fn gate(rule: &AttentionParams, parts: &[&mut [f32]], sink: f32) -> f32 {
    let r = |x| round1(rule.round, x);
    let scores = parts.iter().flat_map(|part| part.iter().copied());
    let top = scores.clone().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = scores.map(|s| r(math::exp(r(s - top)))).sum();
    r(math::sigmoid(r(r(r(r(total).ln()) + top) - sink)))
}

/// Numbers that are compared side by side: more than a vector has, so that the loop is one of vectors.
const SIDES: usize = 4 * LANES;

/// The largest numbers so far, and the largest bits of magnitudes, which tell NaN.
struct LargestScores {
    tops: [f32; SIDES],
    magnitudes: [u32; SIDES],
}

impl LargestScores {
    #[inline(always)]
    fn add(&mut self, scores: &[f32; SIDES]) {
        for ((&s, top), magnitude) in scores.iter().zip(&mut self.tops).zip(&mut self.magnitudes) {
            *top = if s > *top { s } else { *top };
            *magnitude = (*magnitude).max(s.to_bits() & 0x7fff_ffff);
        }
    }
}

/// Returns the largest of the scores and a bound from below; NaN if a score is.
#[inline(always)]
fn largest(scores: &[f32], least: f32) -> f32 {
    let mut all = LargestScores { tops: [least; SIDES], magnitudes: [0; SIDES] };
    let parts = scores.chunks_exact(SIDES);
    let mut partial = [least; SIDES];
    partial[..parts.remainder().len()].copy_from_slice(parts.remainder());
    all.add(&partial);
    for part in parts {
        let mut scores = [0.0; SIDES];
        scores.copy_from_slice(part);
        all.add(&scores);
    }
    let LargestScores { mut tops, mut magnitudes } = all;
    for half in [32, 16, 8, 4, 2, 1] {
        for n in 0..half {
            tops[n] = if tops[n + half] > tops[n] { tops[n + half] } else { tops[n] };
            magnitudes[n] = magnitudes[n].max(magnitudes[n + half]);
        }
    }
    if magnitudes[0] > f32::INFINITY.to_bits() || least.is_nan() { f32::NAN } else { tops[0] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_score_is_found_wherever_it_is() {
        for len in [1, 15, 16, 17, 63, 64, 65, 200] {
            for at in 0..len {
                let mut scores: Vec<f32> = (0..len).map(|n| -1.0 - n as f32).collect();
                scores[at] = 2.5;
                assert_eq!(largest(&scores, f32::NEG_INFINITY), 2.5);
                assert_eq!(largest(&scores, 3.0), 3.0);
                scores[at] = f32::INFINITY;
                assert_eq!(largest(&scores, 0.0), f32::INFINITY);
                scores[at] = -f32::NAN;
                assert!(largest(&scores, 0.0).is_nan());
            }
        }
        assert_eq!(largest(&[], -1.0), -1.0);
        assert_eq!(largest(&[f32::NEG_INFINITY], f32::NEG_INFINITY), f32::NEG_INFINITY);
        assert!(largest(&[1.0], f32::NAN).is_nan());
    }
}
