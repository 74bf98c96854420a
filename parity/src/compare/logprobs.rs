//! Compares log-probabilities.

use registry::dtype::Dtype;

use super::Comparison;
use crate::dump::{Logprobs, Phase};
use crate::flips;
use crate::gate::{BLIND, Bound, Gate, Mode, RowStats, Subject, is_blind};
use crate::metrics::{ReferenceRow, RowError, Spread, gap, log_softmax, row_error};
use crate::order::LAST;
use crate::rule::{self, GateBounds};
use crate::run::Trace;

/// Distance of two sets of rows.
struct LogprobDistance {
    deltas: Spread,
    kl: Spread,
    rows: Vec<RowError>,
}

impl LogprobDistance {
    fn of(mut deltas: Vec<f32>, rows: Vec<RowError>) -> Self {
        let mut kl: Vec<f32> = rows.iter().map(|r| r.kl as f32).collect();
        Self { deltas: Spread::of(&mut deltas), kl: Spread::of(&mut kl), rows }
    }
}

impl Comparison<'_> {
    pub(super) fn logprobs(&self, phase: Phase, trace: &Trace) -> Option<Gate> {
        let reference = self.own.logprobs.get(&phase)?;
        let mut gate =
            Gate::new(Subject::Logprobs, &self.prompt.name, phase, Mode::Cumulative, LAST);
        // A masked token's log-probability is minus infinity.
        if reference.values.iter().any(|x| x.is_nan() || *x == f32::INFINITY) {
            return Some(gate.unproven(self.dtype));
        }
        let vocab = self.dump.manifest.vocab;
        if trace.logits.len() != reference.rows * vocab {
            return Some(gate.failed(format!(
                "{} logits came back for {} rows of {vocab}",
                trace.logits.len(),
                reference.rows
            )));
        }
        let mut ours = vec![0.0; trace.logits.len()];
        let mut power = 0.0_f64;
        for (logits, out) in trace.logits.chunks(vocab).zip(ours.chunks_mut(vocab)) {
            log_softmax(logits, out);
            let finite = logits.iter().filter(|x| x.is_finite());
            power += finite.map(|x| f64::from(*x).powi(2)).sum::<f64>();
        }
        let scale = (power / trace.logits.len().max(1) as f64).sqrt();
        let first = if phase == Phase::Decode { self.prompt.split - 1 } else { 0 };
        let steps: Vec<usize> =
            self.prompt.positions(phase).iter().map(|position| position - first).collect();
        let Some(base) = self.base.logprobs.get(&phase) else {
            return Some(gate.skipped("the dump has no f32 run to compare with"));
        };
        let stepped = self.own.stepped.as_ref().filter(|_| self.rounds && self.dtype == Dtype::F32);
        let from = if phase == Phase::Prefill {
            reference.rows - stepped.map_or(0, |rows| rows.rows)
        } else {
            0
        };
        let nearer = stepped.map(|stepped| flips::nearer_rows(reference, stepped, from, &ours));
        let base = nearer.as_ref().unwrap_or(base);
        let far = distance(
            base,
            &|row| self.next_token(phase, row),
            |row| ReferenceRow { ids: None, values: &ours[row * vocab..(row + 1) * vocab] },
            |row| ours.get(row * vocab + self.next_token(phase, row)? as usize).copied(),
        );
        if self.dtype != Dtype::F32 {
            let floor = distance(
                base,
                &|row| self.next_token(phase, row),
                |row| reference.row(row),
                |row| reference.targets.as_ref().map(|t| t[row]),
            );
            gate.floor = Some(floor.deltas);
        }
        gate.error = far.deltas;
        gate.rows = Some(RowStats {
            rows: far.rows.len(),
            kl: far.kl.mean,
            kl_max: far.kl.max,
            top1: far.rows.iter().filter(|r| r.agrees).count(),
        });
        if phase == Phase::Decode {
            gate.by_step.push(None); // the prefix has no row of its own
        }
        for (row, &step) in far.rows.iter().zip(&steps) {
            gate.by_step.resize(gate.by_step.len().max(step + 1), None);
            gate.by_step[step] = Some(f64::from(row.max));
        }
        if let Some(limit) = self.logprob.filter(|_| self.dtype == Dtype::F32) {
            let value = far.deltas.max;
            let rows = far.rows.iter().map(|row| f64::from(row.max) / limit).collect();
            let bounds = vec![Bound { measure: "max", value, limit }];
            gate.judge(GateBounds { bounds, rows, sees: limit }, &steps);
            return Some(gate);
        }
        let Some(spread) = self.limits(&Subject::Logprobs, steps.len()) else {
            // A dump without an ensemble, such as one of an engine, is compared within a number of
            // roundings.
            let limit = rule::schedule(self.dtype, scale, None);
            let errors: Vec<f64> = far.rows.iter().map(|row| row.rms).collect();
            let value = errors.iter().copied().fold(0.0, f64::max);
            let rows = errors.iter().map(|error| error / limit).collect();
            let bounds = vec![Bound { measure: "rms", value, limit }];
            gate.judge(GateBounds { bounds, rows, sees: limit }, &steps);
            return Some(gate);
        };
        if is_blind(&spread, scale) {
            return Some(gate.skipped(BLIND));
        }
        let least = rule::least_distance(self.dtype, scale);
        let errors: Vec<f64> = far.rows.iter().map(|row| row.rms).collect();
        gate.judge(rule::whole("rms", &errors, &spread, least), &steps);
        gate.skip_unrelated(scale);
        Some(gate)
    }

    /// Returns the token of the prompt that a row predicts; none after the last token.
    fn next_token(&self, phase: Phase, row: usize) -> Option<u32> {
        let position = self.prompt.positions(phase).get(row)? + 1;
        self.prompt.tokens.get(position).copied()
    }
}

fn distance<'r>(
    reference: &Logprobs,
    next: &dyn Fn(usize) -> Option<u32>,
    row_of: impl Fn(usize) -> ReferenceRow<'r>,
    target_of: impl Fn(usize) -> Option<f32>,
) -> LogprobDistance {
    let mut deltas = Vec::new();
    let mut rows = Vec::with_capacity(reference.rows);
    for row in 0..reference.rows {
        let mut error = row_error(row_of(row), reference.row(row), &mut deltas);
        // The next token of the prompt need not be among the most likely.
        if let (Some(targets), Some(_)) = (&reference.targets, next(row))
            && let Some(got) = target_of(row)
        {
            let delta = gap(got, targets[row]);
            deltas.push(delta);
            error.max = error.max.max(delta);
        }
        rows.push(error);
    }
    LogprobDistance::of(deltas, rows)
}
