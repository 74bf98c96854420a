//! Causal attention of a block of queries over one key/value head.
//!
//! Every score is a sum over the head's dims in order, and every output a sum over the
//! positions in order, whatever the blocking: a sequence fed in chunks gives the same bits as
//! one fed at once. The inner loops work on 4 queries by 16 lanes and are compiled a second
//! time for AVX2, with the same arithmetic.

#![expect(unsafe_code, reason = "calls the copy of the loops that is compiled for AVX2")]
#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for AVX2")]

use registry::dtype::Dtype;

use super::math;
use super::round::{round, round1};

/// Positions that one block of keys holds.
const LANES: usize = 16;
/// Queries handled together.
const QUERIES: usize = 4;

/// The rounding of attention scores before the softmax.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScoreRounding {
    /// The product is rounded, and again after the scale; a bias then stays f32.
    Rounded,
    /// Scores are rounded once, after the scale and a bias that is itself rounded: one fused product.
    Once,
    /// Scores are not rounded.
    None,
}

/// The parameters of attention that all heads share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionParams {
    /// Numbers of a query or key.
    pub key_dim: usize,
    /// Numbers of a value.
    pub value_dim: usize,
    /// Multiplies each score.
    pub scale: f32,
    /// `c * tanh(score / c)`, if given.
    pub softcap: Option<f32>,
    /// Every step is rounded to this.
    pub round: Dtype,
    /// True if the largest score is subtracted and the difference rounded before the softmax. Models that run
    /// the softmax in their own dtype take this form.
    pub softmax_rounds: bool,
    /// The rounding of the scores.
    pub scores: ScoreRounding,
    /// True if a sink takes its share by a sigmoid on the output, and not in the softmax.
    pub gated: bool,
}

/// One query: its numbers, and the positions `from..to` it sees, counted from the first key.
#[derive(Debug, Clone, Copy, Default)]
pub struct Query<'a> {
    /// `[key_dim]`.
    pub q: &'a [f32],
    /// First key seen.
    pub from: usize,
    /// One past the last key seen.
    pub to: usize,
    /// A logit that takes part in the softmax and has no value.
    pub sink: Option<f32>,
    /// The ALiBi slope, which times the position is added to the score, and the position of the first key.
    pub slope: Option<(f32, usize)>,
    /// The salience that each key adds to its score, by index, and the largest number of keys that count. The
    /// keys with the largest salience are kept.
    pub salience: Option<(&'a [f32], usize)>,
}

/// Keys and values of one head, laid out for the loops.
#[derive(Debug, Default)]
pub struct Keys {
    count: usize,
    by_lane: Vec<f32>, // [count / LANES, key_dim, LANES]
    values: Vec<f32>,  // [count, value_dim rounded up to LANES]
    scores: Vec<f32>,  // [QUERIES, count rounded up to LANES]
    out: Vec<f32>,     // [QUERIES, value_dim rounded up to LANES]
}

impl Keys {
    /// Makes room for `count` keys; all of them have to be set. Lanes after the last key hold anything.
    pub fn clear(&mut self, rule: &AttentionParams, count: usize) {
        let blocks = count.div_ceil(LANES);
        let width = rule.value_dim.next_multiple_of(LANES);
        self.count = count;
        self.by_lane.resize(blocks * LANES * rule.key_dim, 0.0);
        self.values.resize(count * width, 0.0);
        self.scores.resize(QUERIES * blocks * LANES, 0.0);
        self.out.resize(QUERIES * width, 0.0);
    }

    /// Puts one position's key and value in place.
    ///
    /// # Panics
    /// If `n` is not below the count given to [`Keys::clear`].
    pub fn set(&mut self, rule: &AttentionParams, n: usize, key: &[f32], value: &[f32]) {
        let block = &mut self.by_lane[n / LANES * LANES * rule.key_dim..][..LANES * rule.key_dim];
        for (lanes, &x) in block.chunks_exact_mut(LANES).zip(key) {
            lanes[n % LANES] = x;
        }
        let width = rule.value_dim.next_multiple_of(LANES);
        self.values[n * width..n * width + rule.value_dim].copy_from_slice(value);
    }

    /// Computes attention: `[queries, value_dim]` into `y`.
    ///
    /// # Panics
    /// If a query sees positions that are not there, or `y` has another length.
    pub fn attend(&mut self, rule: &AttentionParams, queries: &[Query<'_>], y: &mut [f32]) {
        assert_eq!(y.len(), queries.len() * rule.value_dim, "y is [queries, value_dim]");
        assert!(
            queries
                .iter()
                .all(|q| q.from < q.to && q.to <= self.count && q.q.len() == rule.key_dim),
            "a query sees at least one of the keys"
        );
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, as just asked.
            unsafe { attend_avx2(self, rule, queries, y) };
            return;
        }
        attend_plain(self, rule, queries, y);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn attend_avx2(keys: &mut Keys, rule: &AttentionParams, queries: &[Query<'_>], y: &mut [f32]) {
    attend_plain(keys, rule, queries, y);
}

#[inline(always)]
fn attend_plain(keys: &mut Keys, rule: &AttentionParams, queries: &[Query<'_>], y: &mut [f32]) {
    for (group, out) in queries.chunks(QUERIES).zip(y.chunks_mut(QUERIES * rule.value_dim)) {
        score(keys, rule, group);
        let stride = keys.scores.len() / QUERIES;
        let mut gates = [None; QUERIES];
        for (n, query) in group.iter().enumerate() {
            let row = &mut keys.scores[n * stride..(n + 1) * stride];
            let seen = &mut row[query.from..query.to];
            scale(rule, seen, query.slope.map(|(slope, first)| (slope, first + query.from)));
            if let Some((salience, most)) = query.salience {
                keep_salient(rule, seen, &salience[query.from..query.to], most);
            }
            let inside = query.sink.filter(|_| !rule.gated);
            gates[n] = query.sink.filter(|_| rule.gated).map(|sink| gate(rule, seen, sink));
            softmax(rule, seen, inside);
            // What other queries of the group see and this one does not weighs nothing.
            row[..query.from].fill(0.0);
            row[query.to..].fill(0.0);
        }
        mix(keys, rule, group);
        let width = rule.value_dim.next_multiple_of(LANES);
        for (n, out) in out.chunks_exact_mut(rule.value_dim).enumerate() {
            out.copy_from_slice(&keys.out[n * width..n * width + rule.value_dim]);
            round(rule.round, out);
            if let Some(gate) = gates[n] {
                for x in out.iter_mut() {
                    *x *= gate;
                }
                round(rule.round, out);
            }
        }
    }
}

/// Returns the positions that some query of a group sees.
#[inline(always)]
fn visible_range(group: &[Query<'_>]) -> (usize, usize) {
    let from = group.iter().map(|q| q.from).min().unwrap_or(0);
    let to = group.iter().map(|q| q.to).max().unwrap_or(0);
    (from, to)
}

/// Computes `scores[query][position] = q · k`, sums over the dims in order.
#[inline(always)]
fn score(keys: &mut Keys, rule: &AttentionParams, group: &[Query<'_>]) {
    let (from, to) = visible_range(group);
    let stride = keys.scores.len() / QUERIES;
    // A short group repeats its last query; the copies are not read.
    let q: [&[f32]; QUERIES] = std::array::from_fn(|n| group[n.min(group.len() - 1)].q);
    for block in from / LANES..to.div_ceil(LANES) {
        let tile = &keys.by_lane[block * LANES * rule.key_dim..][..LANES * rule.key_dim];
        let sums = accumulate(q, tile, LANES, 0);
        for (n, sums) in sums.iter().enumerate() {
            keys.scores[n * stride + block * LANES..][..LANES].copy_from_slice(sums);
        }
    }
}

/// Computes `sums[n] = Σ factors[n][i] · rows[i][column..column + LANES]`, in the order of `i`. A function of
/// its own with four plain arrays keeps the sums in registers.
#[inline(always)]
fn accumulate(
    factors: [&[f32]; QUERIES],
    rows: &[f32],
    stride: usize,
    column: usize,
) -> [[f32; LANES]; QUERIES] {
    let [mut s0, mut s1, mut s2, mut s3] = [[0.0f32; LANES]; QUERIES];
    let [f0, f1, f2, f3] = factors;
    let factors = f0.iter().zip(f1).zip(f2).zip(f3);
    for (row, (((a, b), c), d)) in rows.chunks_exact(stride).zip(factors) {
        let row = &row[column..column + LANES];
        for (((s0, s1), (s2, s3)), x) in
            s0.iter_mut().zip(&mut s1).zip(s2.iter_mut().zip(&mut s3)).zip(row)
        {
            *s0 += a * x;
            *s1 += b * x;
            *s2 += c * x;
            *s3 += d * x;
        }
    }
    [s0, s1, s2, s3]
}

/// Products of one query become scores, in place; `bias` is a slope and the first position.
#[inline(always)]
fn scale(rule: &AttentionParams, scores: &mut [f32], bias: Option<(f32, usize)>) {
    let dtype = rule.round;
    if rule.scores == ScoreRounding::Rounded {
        round(dtype, scores);
    }
    for s in scores.iter_mut() {
        *s *= rule.scale;
    }
    if rule.scores == ScoreRounding::Rounded {
        round(dtype, scores);
    }
    if let Some((slope, first)) = bias {
        for (n, s) in scores.iter_mut().enumerate() {
            let bias = slope * (first + n) as f32;
            *s += if rule.scores == ScoreRounding::Once { round1(dtype, bias) } else { bias };
        }
    }
    if rule.scores == ScoreRounding::Once {
        round(dtype, scores);
    }
}

/// Adds to each score what its key is worth; only the `most` that are worth most stay.
#[inline(always)]
fn keep_salient(rule: &AttentionParams, scores: &mut [f32], salience: &[f32], most: usize) {
    for (s, x) in scores.iter_mut().zip(salience) {
        *s += x;
    }
    round(rule.round, scores);
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
#[inline(always)]
fn gate(rule: &AttentionParams, scores: &[f32], sink: f32) -> f32 {
    let r = |x| round1(rule.round, x);
    let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = scores.iter().map(|s| r(math::exp(r(s - top)))).sum();
    r(math::sigmoid(r(r(r(r(total).ln()) + top) - sink)))
}

/// Returns the largest of the scores and a bound from below; NaN if a score is.
#[inline(always)]
fn largest(scores: &[f32], least: f32) -> f32 {
    let mut tops = [least; LANES];
    let mut nan = false;
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

/// Scores of one query become weights, in place.
#[inline(always)]
fn softmax(rule: &AttentionParams, scores: &mut [f32], sink: Option<f32>) {
    let dtype = rule.round;
    if let Some(cap) = rule.softcap {
        for s in scores.iter_mut() {
            *s = round1(dtype, round1(dtype, round1(dtype, *s / cap).tanh()) * cap);
        }
    }
    let top = largest(scores, sink.unwrap_or(f32::NEG_INFINITY));
    let mut sink = sink.map(|s| s - top);
    for s in scores.iter_mut() {
        *s -= top;
    }
    if rule.softmax_rounds {
        round(dtype, scores);
        sink = sink.map(|s| round1(dtype, s));
    }
    for s in scores.iter_mut() {
        *s = math::exp(*s);
    }
    let total = math::sum(scores) + sink.map_or(0.0, math::exp);
    for s in scores.iter_mut() {
        *s /= total;
    }
    round(dtype, scores);
}

/// Computes `out[query] = Σ weight · value`, sums over the positions in order.
#[inline(always)]
fn mix(keys: &mut Keys, rule: &AttentionParams, group: &[Query<'_>]) {
    let (from, to) = visible_range(group);
    let stride = keys.scores.len() / QUERIES;
    let width = rule.value_dim.next_multiple_of(LANES);
    let values = &keys.values[from * width..to * width];
    let weights: [&[f32]; QUERIES] =
        std::array::from_fn(|n| &keys.scores[n * stride + from..n * stride + to]);
    for column in (0..width).step_by(LANES) {
        let sums = accumulate(weights, values, width, column);
        for (n, sums) in sums.iter().enumerate() {
            keys.out[n * width + column..][..LANES].copy_from_slice(sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(round: Dtype) -> AttentionParams {
        AttentionParams {
            key_dim: 2,
            value_dim: 3,
            scale: 0.5,
            softcap: None,
            round,
            softmax_rounds: false,
            scores: ScoreRounding::Rounded,
            gated: false,
        }
    }

    fn keys(rule: &AttentionParams) -> Keys {
        let mut keys = Keys::default();
        keys.clear(rule, 3);
        keys.set(rule, 0, &[1.0, 0.0], &[1.0, 2.0, 3.0]);
        keys.set(rule, 1, &[0.0, 2.0], &[-1.0, 0.0, 4.0]);
        keys.set(rule, 2, &[9.0, 9.0], &[f32::MAX, 0.0, 0.0]);
        keys
    }

    #[test]
    fn weighs_values_by_the_softmax_of_the_scores_it_sees() {
        let rule = rule(Dtype::F32);
        let mut y = [0.0; 6];
        let query = |q, from, to, sink| Query { q, from, to, sink, slope: None, salience: None };
        keys(&rule).attend(
            &rule,
            &[query(&[2.0, 1.0], 0, 2, None), query(&[2.0, 1.0], 1, 2, None)],
            &mut y,
        );
        // Both scores are 2 * 0.5 = 1.
        assert_eq!(y, [0.0, 1.0, 3.5, -1.0, 0.0, 4.0]);
        // With a sink of the same size each weighs a third.
        let mut y = [0.0; 3];
        keys(&rule).attend(&rule, &[query(&[2.0, 1.0], 0, 2, Some(1.0))], &mut y);
        approx::assert_relative_eq!(y[2], 7.0 / 3.0, max_relative = 1e-6);
    }

    #[test]
    fn sixteen_bit_steps_are_rounded_in_order() {
        let rule = AttentionParams { softcap: Some(2.0), ..rule(Dtype::Bf16) };
        let r = |x: f32| round1(Dtype::Bf16, x);
        let score = |s: f32| r(r(r(r(r(s) * 0.5) / 2.0).tanh()) * 2.0);
        let (a, b) = (score(1.3), score(0.7 * 2.0));
        let (ea, eb) = (math::exp(a - a.max(b)), math::exp(b - a.max(b)));
        let (wa, wb) = (r(ea / (ea + eb)), r(eb / (ea + eb)));
        let mut y = [0.0; 3];
        let query =
            Query { q: &[1.3, 0.7], from: 0, to: 2, sink: None, slope: None, salience: None };
        keys(&rule).attend(&rule, &[query], &mut y);
        assert_eq!(y, [r(wa - wb), r(wa * 2.0), r(wa * 3.0 + wb * 4.0)]);
    }

    #[test]
    fn a_slope_adds_to_the_score_of_each_position() {
        let r = |x: f32| round1(Dtype::Bf16, x);
        for (scores, a, b) in [
            (ScoreRounding::Rounded, r(r(1.3) * 0.5) + 0.3 * 7.0, r(r(1.4) * 0.5) + 0.3 * 8.0),
            (ScoreRounding::Once, r(1.3 * 0.5 + r(0.3 * 7.0)), r(1.4 * 0.5 + r(0.3 * 8.0))),
            (ScoreRounding::None, 1.3 * 0.5 + 0.3 * 7.0, 1.4 * 0.5 + 0.3 * 8.0),
        ] {
            let rule = AttentionParams { scores, ..rule(Dtype::Bf16) };
            let mut y = [0.0; 3];
            let slope = Some((0.3, 7));
            let query = Query { q: &[1.3, 0.7], from: 0, to: 2, sink: None, slope, salience: None };
            keys(&rule).attend(&rule, &[query], &mut y);
            let (a, b) = (math::exp(a - b), 1.0);
            assert_eq!(y[1], r(r(a / (a + b)) * 2.0), "{scores:?}");
        }
    }

    #[test]
    fn only_the_keys_worth_most_are_seen() {
        let rule = rule(Dtype::F32);
        let mut y = [0.0; 3];
        let salience = Some((&[0.5f32, 0.2, 0.9][..], 1));
        let query = Query { q: &[2.0, 1.0], from: 0, to: 2, sink: None, slope: None, salience };
        keys(&rule).attend(&rule, &[query], &mut y);
        assert_eq!(y, [1.0, 2.0, 3.0]);
        let salience = Some((&[0.0f32, 2.0f32.ln(), 0.9][..], 2));
        keys(&rule).attend(&rule, &[Query { salience, ..query }], &mut y);
        approx::assert_relative_eq!(y[2], 11.0 / 3.0, max_relative = 1e-6);
    }

    #[test]
    fn a_gate_takes_what_the_sink_would_have_taken() {
        let inside = rule(Dtype::F32);
        let gated = AttentionParams { gated: true, ..inside };
        let query =
            Query { q: &[2.0, 1.0], from: 0, to: 2, sink: Some(0.4), slope: None, salience: None };
        let (mut a, mut b) = ([0.0; 3], [0.0; 3]);
        keys(&inside).attend(&inside, &[query], &mut a);
        keys(&gated).attend(&gated, &[query], &mut b);
        approx::assert_relative_eq!(a[2], b[2], max_relative = 1e-6);
    }
}
