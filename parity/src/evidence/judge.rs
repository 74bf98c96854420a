//! Gates of a server's rows, by the same rule as for any other engine.

use std::collections::BTreeMap;

use endpoints::{Generation, LogprobRow};
use registry::dtype::Dtype;

use super::Error;
use super::cases::ServerPrompt;
use super::distance::{RowDistance, distance, top};
use super::native::NativeReference;
use super::products::{self, EngineRounding};
use crate::dump::Phase;
use crate::gate::{BLIND, Bound, Gate, Mode, RowStats, Subject, is_blind};
use crate::metrics::Spread;
use crate::order::LAST;
use crate::report::{Flip, GreedyRow};
use crate::rule::{self, GateBounds};

/// Distance of answers to the same request that is no fault.
#[derive(Debug, Clone, Copy)]
pub(super) enum ScheduleTolerance {
    /// Largest difference of a log-probability.
    Largest(f64),
    /// Noise of the server's products, as a mean of root mean square differences: a row may be [`rule::FACTOR`] times as
    /// far, and the mean of an answer's rows half of that.
    Noise(f64),
}

/// Bounds of a check.
#[derive(Debug)]
pub(super) struct Judge {
    dtype: Dtype,
    /// Maximum difference of a log-probability, if given.
    pub(super) bound: Option<f64>,
    /// Noise of a server whose products round rows that its other arithmetic explains.
    pub(super) least: f64,
    /// Without a dump: spread caused by rounding in this dtype, measured on the native engine.
    measured: Option<f64>,
    scale: f64,
    /// Distances of rows so far from exact arithmetic, of a server whose products round rows.
    distances: BTreeMap<Phase, Vec<ProductDistance>>,
    /// Largest distance of the native engine with rounded rows from itself without, by prompt.
    largest: BTreeMap<String, f64>,
}

/// Distance of a row from exact arithmetic, in nats, and that of the native engine with the same rounding.
#[derive(Debug, Clone, Copy)]
struct ProductDistance {
    server: f64,
    rounding: f64,
}

/// Compared rows of one phase of a prompt.
#[derive(Clone, Copy)]
pub(super) struct ComparedRows<'a> {
    /// Positions (prefill) or steps (decode).
    pub(super) steps: &'a [usize],
    /// The server's rows.
    pub(super) server: &'a [LogprobRow],
    /// Rows of the reference.
    pub(super) truth: &'a [LogprobRow],
    /// Rows of the native engine with rounded products, if the server's engine rounds them.
    pub(super) rounded: Option<&'a [LogprobRow]>,
    /// Spread of the reference's ensemble by row, if the dump has one.
    pub(super) spread: Option<&'a [f64]>,
}

impl Judge {
    pub(super) fn new(dtype: Dtype, bound: Option<f64>) -> Self {
        Self {
            dtype,
            bound,
            least: 0.0,
            measured: None,
            scale: 1.0,
            distances: BTreeMap::new(),
            largest: BTreeMap::new(),
        }
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
        &mut self,
        case: &ServerPrompt,
        phase: Phase,
        compared: ComparedRows<'_>,
    ) -> Gate {
        let ComparedRows { steps, server: rows, truth, rounded, spread } = compared;
        let mut gate = Gate::new(Subject::Logprobs, &case.name, phase, Mode::Cumulative, LAST);
        if truth.iter().any(|row| row.values.iter().any(|x| x.is_nan() || *x == f32::INFINITY)) {
            return gate.unproven(Dtype::F32);
        }
        if rounded.into_iter().flatten().flat_map(|row| &row.values).any(|x| x.is_nan()) {
            return gate.skipped(
                "the native engine leaves the range of the numbers that rows are rounded to",
            );
        }
        let counts = [Some(rows.len()), Some(truth.len()), rounded.map(<[LogprobRow]>::len)];
        if counts.into_iter().flatten().any(|count| count != steps.len()) {
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
        let noise = rounded.map(|rounded| self.noise_of_rows(rows, rounded, truth));
        let spread = match (&noise, spread, self.measured) {
            (Some(noise), ..) => noise.clone(),
            (None, Some(spread), _) => spread.to_vec(),
            (None, None, Some(measured)) => vec![measured; steps.len()],
            (None, None, None) => {
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
        if let Some(noise) = &noise {
            self.add_distances(case, phase, &errors, noise);
        }
        gate.judge(
            rule::whole("rms", &errors, &spread, rule::least_distance(self.dtype, scale)),
            steps,
        );
        gate
    }

    /// Returns the distances of the native engine's rows with rounded products from those without, over the tokens that
    /// the server shows.
    fn noise_of_rows(
        &self,
        server: &[LogprobRow],
        rounded: &[LogprobRow],
        truth: &[LogprobRow],
    ) -> Vec<f64> {
        let rows = server.iter().zip(rounded).zip(truth);
        let noise = rows.map(|((server, rounded), truth)| products::noise(server, rounded, truth));
        noise.map(|noise| noise.max(self.least)).collect()
    }

    /// Adds the rows of a prompt to those of its phase.
    fn add_distances(&mut self, case: &ServerPrompt, phase: Phase, errors: &[f64], noise: &[f64]) {
        let pairs = errors.iter().zip(noise);
        self.distances.entry(phase).or_default().extend(
            pairs
                .map(|(server, rounding)| ProductDistance { server: *server, rounding: *rounding }),
        );
        let largest = self.largest.entry(case.name.clone()).or_default();
        *largest = noise.iter().copied().fold(*largest, f64::max);
    }

    /// Returns the distance that schedules may have from each other.
    pub(super) fn tolerance(&self, gates: &[Gate]) -> ScheduleTolerance {
        if let Some(noise) = self.rounding() {
            return ScheduleTolerance::Noise(noise);
        }
        let limit = rule::schedule(self.dtype, self.scale, Self::noise(gates));
        ScheduleTolerance::Largest(limit.max(self.bound.unwrap_or(0.0)))
    }

    /// Returns the mean distance of the native engine with rounded rows from itself without, in the phase where it is
    /// larger.
    fn rounding(&self) -> Option<f64> {
        let means = self.distances.values().map(|rows| mean(rows, |row| row.rounding));
        means.reduce(f64::max)
    }

    /// Describes how a server whose products round rows was judged.
    pub(super) fn explain(&self, rounded: &EngineRounding, has_dump: bool) -> Vec<String> {
        let mut notes = vec![format!(
            "{}, as this engine does: it is judged by the noise of that rounding, measured on the native engine; a fault whose effect is smaller than the noise is not proven absent, and a file in f32 \
             proves the graph exactly",
            rounded.text()
        )];
        for (phase, rows) in &self.distances {
            notes.push(format!(
                "{phase}: {} rows are {:.2e} nats from exact arithmetic (mean of their rms), and those of the native engine \
                 with the same rounding {:.2e}",
                rows.len(),
                mean(rows, |row| row.server),
                mean(rows, |row| row.rounding)
            ));
        }
        if has_dump {
            notes.push(
                "the prompts are those of the dump, whose rows are of weights before they were quantized: the reference is \
                 the native engine on the served file"
                    .to_owned(),
            );
        }
        notes
    }

    /// Judges the rows of all prompts of a phase together, of a server whose products round rows: the mean distance from
    /// exact arithmetic is that of the native engine with the same rounding.
    pub(super) fn pooled(&self, phase: Phase) -> Option<Gate> {
        let rows = self.distances.get(&phase)?;
        let server = mean(rows, |row| row.server);
        let rounding = mean(rows, |row| row.rounding);
        let mut gate = Gate::new(Subject::Logprobs, "all", phase, Mode::Cumulative, LAST);
        let limit = rule::ROUNDED_ROWS * rounding.max(rule::least_distance(self.dtype, self.scale));
        let bounds = vec![Bound { measure: "mean", value: server, limit }];
        gate.judge(GateBounds { bounds, rows: Vec::new(), sees: limit }, &[]);
        Some(gate)
    }

    /// Returns the maximum margin of two log-probabilities of a row for which rounding may choose either
    /// token.
    fn margin(&self, case: &ServerPrompt) -> f64 {
        let noise = self.largest.get(&case.name).copied().or_else(|| self.rounding());
        if let Some(noise) = noise {
            return rule::FACTOR / 2.0 * noise;
        }
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
            let likeliest = truth.at(best as u32).map_or(f64::NAN, f64::from);
            let margin = likeliest - truth.at(*id).map_or(f64::NAN, f64::from);
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
        if let Some(noise) = self.rounding() {
            return rule::ROUNDED_ROWS * noise;
        }
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

fn mean(rows: &[ProductDistance], of: fn(&ProductDistance) -> f64) -> f64 {
    rows.iter().map(of).sum::<f64>() / rows.len().max(1) as f64
}

/// Returns the root mean square of the log-probabilities about their mean: the size of the logits.
fn size(rows: &[LogprobRow]) -> f64 {
    let finite =
        rows.iter().flat_map(|row| &row.values).filter(|x| x.is_finite()).map(|x| f64::from(*x));
    let count = finite.clone().count().max(1) as f64;
    let mean = finite.clone().sum::<f64>() / count;
    (finite.map(|x| (x - mean).powi(2)).sum::<f64>() / count).sqrt()
}
