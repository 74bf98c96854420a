//! Log-probabilities.

use registry::dtype::Dtype;

use super::{Comparison, Side};
use crate::dump::{Logprobs, Phase};
use crate::flips;
use crate::gate::{Bound, Gate, Mode, RowStats, Subject};
use crate::metrics::{Row, RowError, Spread, gap, log_softmax, row_error};
use crate::order::LAST;
use crate::run::Trace;
use crate::tolerance::{Bounds, noise_kl};

/// The distance of two sets of rows.
struct Distance {
    deltas: Spread,
    kl: Spread,
    rows: Vec<RowError>,
}

impl Distance {
    fn of(mut deltas: Vec<f32>, rows: Vec<RowError>) -> Self {
        let mut kl: Vec<f32> = rows.iter().map(|r| r.kl as f32).collect();
        Self { deltas: Spread::of(&mut deltas), kl: Spread::of(&mut kl), rows }
    }
}

impl Comparison<'_> {
    pub(super) fn logprobs(&self, phase: Phase, trace: &Trace) -> Option<Gate> {
        let own = self.own.logprobs.get(&phase)?;
        let gate = Gate::new(Subject::Logprobs, &self.prompt.name, phase, Mode::Cumulative, LAST);
        // A masked token's log-probability is minus infinity.
        if own.values.iter().any(|x| x.is_nan() || *x == f32::INFINITY) {
            return Some(gate.unproven(self.dtype));
        }
        let vocab = self.dump.manifest.vocab;
        if trace.logits.len() != own.rows * vocab {
            return Some(gate.failed(format!(
                "{} logits came back for {} rows of {vocab}",
                trace.logits.len(),
                own.rows
            )));
        }
        let mut ours = vec![0.0; trace.logits.len()];
        let mut power = 0.0_f64;
        for (logits, out) in trace.logits.chunks(vocab).zip(ours.chunks_mut(vocab)) {
            log_softmax(logits, out);
            power += logits
                .iter()
                .filter(|x| x.is_finite())
                .map(|x| f64::from(*x) * f64::from(*x))
                .sum::<f64>();
        }
        let scale = (power / trace.logits.len().max(1) as f64).sqrt();
        let against = |side: &Logprobs| {
            self.distance(
                phase,
                side,
                |row| Row { ids: None, values: &ours[row * vocab..(row + 1) * vocab] },
                |row| {
                    let next = self.next_token(phase, row)?;
                    ours.get(row * vocab + next as usize).copied()
                },
            )
        };
        if self.dtype == Dtype::F32 {
            let limits = Bounds { max: self.f32_logprob, ..Bounds::NONE };
            let stepped = self.own.stepped.as_ref().filter(|_| self.rounds);
            let from = if phase == Phase::Prefill { self.prompt.split } else { 0 };
            let nearer = stepped.map(|stepped| flips::nearer(own, stepped, from, &ours));
            let distance = against(nearer.as_ref().unwrap_or(own));
            return Some(finish(gate, &distance, None, &limits, phase));
        }
        let Some(base) = self.base.and_then(|side: &Side| side.logprobs.get(&phase)) else {
            return Some(gate.skipped("the dump has no f32 run to measure the noise floor with"));
        };
        let floor = self.distance(
            phase,
            base,
            |row| own.row(row),
            |row| own.targets.as_ref().map(|t| t[row]),
        );
        let limits = Bounds::noise_logprobs(self.dtype, &floor.deltas, own.rows, scale);
        let kl = noise_kl(self.dtype, &floor.kl, &limits, own.rows, scale);
        let mut gate = finish(gate, &against(base), Some(kl), &limits, phase);
        gate.floor = Some(floor.deltas);
        Some(gate)
    }

    fn distance<'r>(
        &self,
        phase: Phase,
        reference: &Logprobs,
        row_of: impl Fn(usize) -> Row<'r>,
        target_of: impl Fn(usize) -> Option<f32>,
    ) -> Distance {
        let mut deltas = Vec::new();
        let mut rows = Vec::with_capacity(reference.rows);
        for row in 0..reference.rows {
            let mut error = row_error(row_of(row), reference.row(row), &mut deltas);
            // The token that follows in the prompt need not be among the likeliest.
            if let (Some(targets), Some(_)) = (&reference.targets, self.next_token(phase, row))
                && let Some(got) = target_of(row)
            {
                let delta = gap(got, targets[row]);
                deltas.push(delta);
                error.max = error.max.max(delta);
            }
            rows.push(error);
        }
        Distance::of(deltas, rows)
    }

    fn next_token(&self, phase: Phase, row: usize) -> Option<u32> {
        let at = match phase {
            Phase::Prefill => row + 1,
            Phase::Decode => self.prompt.split + row + 1,
        };
        self.prompt.tokens.get(at).copied()
    }
}

/// Puts the numbers into a gate and judges it.
fn finish(
    mut gate: Gate,
    distance: &Distance,
    kl: Option<(f64, f64)>,
    limits: &Bounds,
    phase: Phase,
) -> Gate {
    gate.error = distance.deltas;
    gate.rows = Some(RowStats {
        rows: distance.rows.len(),
        kl: distance.kl.mean,
        kl_max: distance.kl.max,
        top1: distance.rows.iter().filter(|r| r.agrees).count(),
    });
    let d = &distance.deltas;
    for (measure, value, limit) in [
        ("p50", d.p50, limits.p50),
        ("p90", d.p90, limits.p90),
        ("p99", d.p99, limits.p99),
        ("max", d.max, limits.max),
    ] {
        if limit < f64::INFINITY {
            gate.bounds.push(Bound { measure, value, limit });
        }
    }
    if let Some((mean, max)) = kl {
        gate.bounds.push(Bound { measure: "kl.mean", value: distance.kl.mean, limit: mean });
        gate.bounds.push(Bound { measure: "kl.max", value: distance.kl.max, limit: max });
    }
    if phase == Phase::Decode {
        gate.by_step.push(None); // the prefix has no row of its own
    }
    gate.by_step.extend(distance.rows.iter().map(|r| Some(f64::from(r.max))));
    gate.judge(limits.max);
    gate
}
