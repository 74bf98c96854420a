//! Gates of a server's rows, by the same rule as for any other engine.

use endpoints::{Generation, LogprobRow};
use registry::dtype::Dtype;

use super::Error;
use super::cases::ServerPrompt;
use super::distance::{RowDistance, distance, top};
use super::native::NativeReference;
use crate::dump::Phase;
use crate::gate::{BLIND, Bound, Gate, Mode, RowStats, Subject, is_blind};
use crate::metrics::Spread;
use crate::order::LAST;
use crate::report::{Flip, GreedyRow};
use crate::rule::{self, GateBounds};

/// Bounds of a check.
#[derive(Debug)]
pub(super) struct Judge {
    dtype: Dtype,
    /// Maximum difference of a log-probability, if given.
    pub(super) bound: Option<f64>,
    /// Without a dump: spread caused by rounding in this dtype, measured on the native engine.
    measured: Option<f64>,
    scale: f64,
}

impl Judge {
    pub(super) fn new(dtype: Dtype, bound: Option<f64>) -> Self {
        Self { dtype, bound, measured: None, scale: 1.0 }
    }

    /// Returns the root mean square of the logits.
    pub(super) fn scale(&self) -> f64 {
        self.scale
    }

    /// Measures the effect of rounding on this model. Rows of a native run in bf16 are compared with those
    /// in f32, scaled to the dtype. A model that amplifies errors does so in every dtype.
    pub(super) fn measure(
        &mut self,
        native: &mut NativeReference<'_>,
        cases: &[&ServerPrompt],
    ) -> Result<(), Error> {
        let mut clean = Vec::new();
        for case in cases {
            clean.push(native.rows(&case.tokens, &case.positions)?);
        }
        self.scale = native.scale();
        let near = if self.dtype == Dtype::F16 { Dtype::F16 } else { Dtype::Bf16 };
        let prompts: Vec<_> =
            cases.iter().map(|c| (c.tokens.as_slice(), c.positions.as_slice())).collect();
        let Some(rounded) = native.rounded(near, &prompts) else { return Ok(()) };
        let pairs = clean.iter().flatten().zip(rounded.iter().flatten());
        let widest = pairs.map(|(a, b)| distance(b, a, &mut Vec::new()).rms).fold(0.0, f64::max);
        let scaled = widest * rule::roundoff(self.dtype) / rule::roundoff(near);
        // 16-bit runs round the outputs of ops. f32 sums round internally, more so the longer they are.
        let within = match self.dtype {
            Dtype::F32 => rule::schedule(Dtype::F32, self.scale, None) / rule::FACTOR,
            Dtype::Bf16 | Dtype::F16 => 0.0,
        };
        self.measured = Some(scaled.max(within));
        Ok(())
    }

    /// Compares rows of one phase and judges them.
    pub(super) fn gate(
        &self,
        case: &ServerPrompt,
        phase: Phase,
        steps: &[usize],
        rows: &[LogprobRow],
        truth: &[LogprobRow],
        spread: Option<&[f64]>,
    ) -> Gate {
        let mut gate = Gate::new(Subject::Logprobs, &case.name, phase, Mode::Cumulative, LAST);
        if truth.iter().any(|row| row.values.iter().any(|x| x.is_nan() || *x == f32::INFINITY)) {
            return gate.unproven(Dtype::F32);
        }
        if rows.len() != steps.len() || truth.len() != steps.len() {
            return gate.failed(format!(
                "the server gave {} rows; expected {}",
                rows.len(),
                steps.len()
            ));
        }
        let mut deltas = Vec::new();
        let far: Vec<RowDistance> =
            rows.iter().zip(truth).map(|(row, truth)| distance(row, truth, &mut deltas)).collect();
        if deltas.is_empty() {
            return gate.skipped("the server shows no number of these rows");
        }
        let mut kl: Vec<f32> = far.iter().map(|row| row.kl as f32).collect();
        let kl = Spread::of(&mut kl);
        gate.error = Spread::of(&mut deltas);
        let top1 = far.iter().filter(|row| row.agrees).count();
        gate.rows = Some(RowStats { rows: far.len(), kl: kl.mean, kl_max: kl.max, top1 });
        for (row, &step) in far.iter().zip(steps) {
            gate.by_step.resize(gate.by_step.len().max(step + 1), None);
            gate.by_step[step] = Some(row.max);
        }
        if let Some(limit) = self.bound {
            let worst: Vec<f64> = far.iter().map(|row| row.max / limit).collect();
            let bounds = vec![Bound { measure: "max", value: gate.error.max, limit }];
            gate.judge(GateBounds { bounds, rows: worst, sees: limit }, steps);
            return gate;
        }
        let spread = match (spread, self.measured) {
            (Some(spread), _) => spread.to_vec(),
            (None, Some(measured)) => vec![measured; steps.len()],
            (None, None) => {
                return gate.skipped(
                    "nothing says how far rounding moves this model: give the option `bound NATS`",
                );
            }
        };
        let scale = size(truth);
        if is_blind(&spread, scale) {
            return gate.skipped(BLIND);
        }
        let errors: Vec<f64> = far.iter().map(|row| row.rms).collect();
        gate.judge(
            rule::whole("rms", &errors, &spread, rule::least_distance(self.dtype, scale)),
            steps,
        );
        gate
    }

    /// Returns the maximum margin of two log-probabilities of a row for which rounding may choose either
    /// token.
    fn margin(&self, case: &ServerPrompt) -> f64 {
        let spread = case.widest.or(self.measured).unwrap_or(0.0) as f32;
        self.bound.map_or_else(|| rule::greedy(&[spread]), |bound| 2.0 * bound)
    }

    /// Compares tokens that the server chose with those that the native engine would choose after the same
    /// tokens.
    pub(super) fn greedy(
        &self,
        case: &ServerPrompt,
        generated: &Generation,
        truth: &[LogprobRow],
    ) -> GreedyRow {
        let noise = self.margin(case);
        let mut row = GreedyRow {
            prompt: case.name.clone(),
            tokens: generated.ids.len(),
            agree: 0,
            first_flip: None,
            verdict: crate::Verdict::Pass,
        };
        for (index, (id, truth)) in generated.ids.iter().zip(truth).enumerate() {
            let best = top(truth);
            if best == *id as usize {
                row.agree += 1;
                continue;
            }
            let at = |token: usize| truth.at(token as u32).map_or(f64::NAN, f64::from);
            let margin = at(best) - at(*id as usize);
            let flip = Flip { index, margin, noise };
            let explained = margin <= noise;
            if !explained && row.verdict != crate::Verdict::Fail {
                (row.first_flip, row.verdict) = (Some(flip), crate::Verdict::Fail);
            }
            row.first_flip.get_or_insert(flip);
        }
        row
    }

    /// Returns the root mean square of differences, in nats, that rounding explains in any prompt.
    pub(super) fn explained(&self, cases: &[ServerPrompt]) -> f64 {
        let widest = cases.iter().filter_map(|case| case.widest).reduce(f64::max);
        let spread = widest.or(self.measured).unwrap_or(0.0);
        self.bound
            .unwrap_or_else(|| rule::FACTOR * spread.max(rule::least_distance(self.dtype, 1.0)))
    }

    /// Returns the distance of the server's rows from the reference's, over gates that pass: the noise of
    /// its arithmetic.
    pub(super) fn noise(gates: &[Gate]) -> Option<f64> {
        let passed = gates.iter().filter(|gate| !gate.fails());
        passed.filter(|gate| gate.error.count > 0).map(|gate| gate.error.max).reduce(f64::max)
    }
}

/// Returns the root mean square of the log-probabilities about their mean: the size of the logits.
fn size(rows: &[LogprobRow]) -> f64 {
    let finite =
        || rows.iter().flat_map(|row| &row.values).filter(|x| x.is_finite()).map(|x| f64::from(*x));
    let count = finite().count().max(1) as f64;
    let mean = finite().sum::<f64>() / count;
    (finite().map(|x| (x - mean).powi(2)).sum::<f64>() / count).sqrt()
}
