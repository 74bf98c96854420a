//! Gate: one comparison with its values, bounds and verdict.

use std::collections::BTreeSet;

use registry::diag::Span;
use registry::dtype::Dtype;
use registry::graph::{State, ValueId};
use registry::model::Model;
use serde::Serialize;

pub use crate::bound::{Bound, Mode};
use crate::dump::Phase;
use crate::measure::{OpChain, distances, measure, quietness};
use crate::metrics::{Spread, TensorError, grid, tensor_error};
use crate::order::GraphPlace;
use crate::rule::{self, GRID_COUNT, GateBounds};

/// True if the ensemble allows every row to be unrelated to the reference's rows, whose rms is `scale`.
pub(crate) fn is_blind(spread: &[f64], scale: f64) -> bool {
    scale > 0.0 && spread.iter().all(|spread| rule::FACTOR * spread >= rule::UNRELATED * scale)
}

/// Reason for not judging a gate that cannot fail.
pub(crate) const BLIND: &str =
    "runs of the reference itself are as far apart as those of unrelated models";

/// Result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All bounds hold.
    Pass,
    /// The comparison could not be judged, for the stated reason.
    Skip,
    /// A bound is exceeded.
    Fail,
}

/// Subject of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum Subject {
    /// The log-probabilities.
    Logprobs,
    /// A module's output.
    Tap {
        /// The module path.
        name: String,
    },
    /// A part of a state.
    State {
        /// `conv of model.layers.0`.
        name: String,
        /// The layer.
        layer: usize,
        /// `k`, `v`, `conv`.
        part: String,
    },
}

impl Subject {
    /// Returns the call of a spec that makes a tap, or the declaration of a state.
    pub fn place<'m>(&self, model: &'m Model) -> Option<&'m Span> {
        let graph = &model.graph;
        match self {
            Self::Logprobs => None,
            Self::Tap { name } => graph
                .nodes
                .iter()
                .find(|node| {
                    node.outputs.iter().any(|id: &ValueId| {
                        graph.values[id.0].tap.as_deref() == Some(name.as_str())
                    })
                })
                .map(|node| &node.at),
            Self::State { name, layer, .. } => {
                let name = name.split([' ', '.']).next().unwrap_or(name);
                graph
                    .states
                    .iter()
                    .find(|state: &&State| state.layer == *layer && state.name == name)
                    .map(|state| &state.dtype_at)
            }
        }
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Logprobs => f.write_str("logprobs"),
            Self::Tap { name } => f.write_str(name),
            Self::State { name, .. } => write!(f, "state {name}"),
        }
    }
}

/// Statistics of rows of log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RowStats {
    /// Number of rows.
    pub rows: usize,
    /// Mean divergence from the reference in nats.
    pub kl: f64,
    /// Largest divergence in nats.
    pub kl_max: f64,
    /// Number of rows with the reference's most likely token.
    pub top1: usize,
}

/// One comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Gate {
    /// Subject of the comparison.
    pub subject: Subject,
    /// Name of the prompt.
    pub prompt: String,
    /// Phase of the comparison; see [`crate::order`] for the phase of a state.
    pub phase: Phase,
    /// Kind of inputs.
    pub mode: Mode,
    /// Label that distinguishes otherwise equal gates (`after prefill`).
    pub moment: Option<&'static str>,
    /// Place in the graph.
    #[serde(skip)]
    pub place: GraphPlace,
    /// Error: `|Δ| / rms`, or `|Δlogprob|`; `null` in reports if nothing was compared.
    #[serde(serialize_with = "compared")]
    pub error: Spread,
    /// The reference's own error at this dtype.
    pub floor: Option<Spread>,
    /// Relative scale of the engine's values, less 1.
    pub gain: f64,
    /// Cosine of the angle between the engine's values and the reference.
    pub cosine: f64,
    /// Local mode in 16 bits: number of elements that are not bit-identical to the reference's. None if the
    /// reference stores f32.
    pub unequal: Option<usize>,
    /// Statistics of log-probability rows.
    pub rows: Option<RowStats>,
    /// Largest error of each position (prefill) or step (decode; 0 is the prefix); none if nothing was
    /// compared.
    pub by_step: Vec<Option<f64>>,
    /// Bounds of the gate, all of which must hold.
    pub bounds: Vec<Bound>,
    /// Positions (prefill) or steps (decode) of the rows beyond their bounds.
    pub off: BTreeSet<usize>,
    /// Smallest error that the gate would have detected, relative to the rms of a row; none if nothing was
    /// judged.
    pub sees: Option<f64>,
    /// Description of a fault that is no exceeded bound, or the reason for not judging the gate.
    pub finding: Option<String>,
    /// First step (decode) or position (prefill) at fault.
    pub step: Option<usize>,
    /// The outcome.
    pub verdict: Verdict,
}

/// Spread of rows by an ensemble.
#[derive(Debug)]
pub struct RowLimits {
    /// Spread of each row.
    pub spread: Vec<f64>,
    /// True if it is the one of all rows together, relative to all of them: quiet rows are compared by the size of all.
    pub of_all: bool,
}

impl RowLimits {
    /// Returns the limits by spreads that are relative to each row.
    pub fn of_rows(spread: Vec<f64>) -> Self {
        Self { spread, of_all: false }
    }
}

impl Gate {
    /// Returns a gate without measurements.
    pub fn new(
        subject: Subject,
        prompt: &str,
        phase: Phase,
        mode: Mode,
        place: GraphPlace,
    ) -> Self {
        Self {
            subject,
            prompt: prompt.to_owned(),
            phase,
            mode,
            moment: None,
            place,
            error: Spread::default(),
            floor: None,
            gain: 0.0,
            cosine: 1.0,
            unequal: None,
            rows: None,
            by_step: Vec::new(),
            bounds: Vec::new(),
            off: BTreeSet::new(),
            sees: None,
            finding: None,
            step: None,
            verdict: Verdict::Pass,
        }
    }

    /// Returns the gate as failed for a reason other than a bound.
    #[must_use]
    pub fn failed(mut self, finding: impl Into<String>) -> Self {
        self.finding = Some(finding.into());
        self.verdict = Verdict::Fail;
        self
    }

    /// Describes the fault of a failed gate in one line.
    pub(crate) fn message(&self) -> String {
        let numbers = self.worst_bound().filter(|b| !b.holds()).map(|b| {
            let times = b.value / b.limit;
            let measure = match (b.measure, &self.subject) {
                ("noise", _) => "largest difference, in units of the op's own noise,",
                ("gain", _) => "scaled, in units of the op's own noise, by",
                ("flips", _) => "share of elements that are not the reference's, beyond what rounding in f32 explains:",
                ("units", _) => "mean square difference, in units of rounding, beyond what rounding in f32 explains:",
                ("max", _) => "max of |dlogprob|",
                ("mean", Subject::Logprobs) => "mean of the rows' rms of |dlogprob|",
                (_, Subject::Logprobs) => "rms of |dlogprob|",
                _ => "rms of |d| / rms",
            };
            format!("{measure} {:.1e}, bound {:.1e} ({times:.1}x)", b.value, b.limit)
        });
        match (&self.finding, numbers) {
            (Some(finding), Some(numbers)) => format!("{finding}; {numbers}"),
            (Some(finding), None) => finding.clone(),
            (None, Some(numbers)) => numbers,
            (None, None) if self.verdict == Verdict::Fail => "failed".to_owned(),
            (None, None) => "within its bounds".to_owned(),
        }
    }

    /// Returns the gate as not judged.
    #[must_use]
    pub fn skipped(mut self, why: impl Into<String>) -> Self {
        self.finding = Some(why.into());
        self.verdict = Verdict::Skip;
        self
    }

    /// Ends the comparison with a reference that has NaN or infinite values. The range of 16 bits is
    /// narrow, so such a gate is not judged; an f32 reference with such values proves nothing, and the gate
    /// fails.
    #[must_use]
    pub fn unproven(self, dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => self
                .failed("the reference itself has NaN or infinite numbers here: it proves nothing"),
            _ => self.skipped(format!("the reference itself leaves the range of {dtype} here")),
        }
    }

    /// Measures an op on the reference's own inputs and judges it. `moved` holds its outputs on slightly
    /// perturbed inputs, `steps` the steps of the rows.
    #[must_use]
    pub fn local(
        self,
        op: OpChain,
        ours: &[f32],
        reference: &[f32],
        moved: &[Vec<f32>],
        steps: &[usize],
    ) -> Self {
        let judged = rule::local(op, &measure(op, ours, reference, moved, steps.len()));
        let mut gate = self.measured(&tensor_error(ours, reference, steps.len()), steps);
        gate.unequal =
            op.exact.then_some(ours.iter().zip(reference).filter(|(x, y)| x != y).count());
        gate.judge(judged, steps);
        gate
    }

    /// Measures a whole run by its distance from the f32 reference, and judges it by the spread of the ensemble.
    #[must_use]
    pub fn whole(
        self,
        dtype: Dtype,
        ours: &[f32],
        reference: &[f32],
        base: &[f32],
        limits: Option<RowLimits>,
        steps: &[usize],
    ) -> Self {
        let rows = steps.len();
        let mut gate = self.measured(&tensor_error(ours, base, rows), steps);
        gate.floor = (dtype != Dtype::F32).then(|| tensor_error(reference, base, rows).spread);
        let Some(RowLimits { spread, of_all }) = limits else {
            return gate.skipped("the dump has no ensemble for it");
        };
        if is_blind(&spread, 1.0) {
            return gate.skipped(BLIND);
        }
        let mut errors = distances(ours, base, rows);
        if of_all {
            errors.iter_mut().zip(quietness(base, rows)).for_each(|(error, quiet)| *error /= quiet);
        }
        gate.judge(rule::whole("row", &errors, &spread, rule::least_distance(dtype, 1.0)), steps);
        gate
    }

    fn measured(mut self, error: &TensorError, steps: &[usize]) -> Self {
        self.error = error.spread;
        (self.gain, self.cosine) = (error.gain, error.cosine);
        for (value, &step) in error.rows.iter().zip(steps) {
            if self.by_step.len() <= step {
                self.by_step.resize(step + 1, None);
            }
            let so_far = self.by_step[step].unwrap_or(0.0);
            self.by_step[step] = Some(so_far.max(*value));
        }
        self
    }

    /// Fails if a bound does not hold, and finds the first step at fault. It is the first step beyond its
    /// bound, or else with more than half the error share of the worst.
    pub fn judge(&mut self, judged: GateBounds, steps: &[usize]) {
        self.bounds = judged.bounds;
        self.sees = Some(judged.sees);
        let off = judged.rows.iter().zip(steps).filter(|(part, _)| **part > 1.0);
        self.off = off.map(|(_, step)| *step).collect();
        if self.bounds.iter().all(Bound::holds) {
            return;
        }
        self.verdict = Verdict::Fail;
        let worst = judged.rows.iter().copied().fold(0.0, f64::max);
        let bar = if worst > 1.0 { 1.0 } else { worst / 2.0 };
        let beyond =
            judged.rows.iter().zip(steps).filter(|(part, _)| **part > bar || part.is_nan());
        self.step = beyond.map(|(_, step)| *step).min();
    }

    /// Fails if the engine's values lie on a coarser grid than the reference's, whatever their bounds. A
    /// value was then rounded, or is stored, in fewer bits.
    pub fn kept_narrow(&mut self, ours: &[f32], reference: &[f32], steps: &[usize]) {
        let (bits, count) = grid(ours);
        let (want, reference_count) = grid(reference);
        // Sums of narrow values use an arbitrary number of bits.
        if count.min(reference_count) < GRID_COUNT
            || narrowest_dtype(bits) == Dtype::F32
            || bits + 2 > want
        {
            return;
        }
        let stored_dtype = narrowest_dtype(bits);
        let keeps = narrowest_dtype(want);
        self.finding = Some(format!(
            "kept in {stored_dtype}, as its numbers show; the reference keeps {keeps}"
        ));
        self.verdict = Verdict::Fail;
        self.step = steps.iter().copied().min();
    }

    /// Returns the bound that is exceeded by the largest factor; a gain only if no other is exceeded.
    pub fn worst_bound(&self) -> Option<&Bound> {
        self.bounds.iter().max_by(|a, b| {
            let by_class = excess_class(a).cmp(&excess_class(b));
            by_class.then((a.value / a.limit).total_cmp(&(b.value / b.limit)))
        })
    }

    /// Takes the verdict of a passing gate back if its bound allows rows that are unrelated to the reference's, whose
    /// rms is `scale`.
    pub(crate) fn skip_unrelated(&mut self, scale: f64) {
        if self.verdict == Verdict::Pass
            && self
                .bounds
                .iter()
                .any(|bound: &Bound| scale > 0.0 && bound.limit >= rule::UNRELATED * scale)
        {
            self.verdict = Verdict::Skip;
            self.finding = Some(BLIND.to_owned());
        }
    }

    /// True if log-probabilities failed because one side has NaN or infinite values.
    pub fn is_not_finite(&self) -> bool {
        self.subject == Subject::Logprobs
            && self.fails()
            && (self.error.count == 0 || self.error.max.is_infinite())
    }

    /// True if the gate failed.
    pub fn fails(&self) -> bool {
        self.verdict == Verdict::Fail
    }
}

/// Returns the narrowest dtype with a number of mantissa bits.
fn narrowest_dtype(bits: u32) -> Dtype {
    match bits {
        0..=7 => Dtype::Bf16,
        8..=10 => Dtype::F16,
        _ => Dtype::F32,
    }
}

/// Ranks bounds: those that hold, exceeded gains, and other exceeded ones.
fn excess_class(bound: &Bound) -> u8 {
    match (bound.holds(), bound.measure) {
        (true, _) => 0,
        (false, "gain") => 1,
        (false, _) => 2,
    }
}

/// Serializes an error, as `null` if no value was compared.
fn compared<S: serde::Serializer>(error: &Spread, s: S) -> Result<S::Ok, S::Error> {
    (error.count > 0).then_some(error).serialize(s)
}

/// Serializes a dtype by its short name.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
pub(crate) fn dtype_name<S: serde::Serializer>(dtype: &Dtype, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(dtype.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::LAST;

    #[test]
    fn what_was_not_compared_is_null() {
        let subject = Subject::State { name: "kv".into(), layer: 0, part: "k".into() };
        let gate = Gate::new(subject, "main", Phase::Prefill, Mode::Local, LAST);
        let skipped = serde_json::to_value(gate.clone().skipped("why")).unwrap();
        assert!(skipped["error"].is_null(), "{skipped}");
        // A window of two keeps the last positions of four.
        let op = OpChain { dtype: Dtype::F32, exact: false, span: 1, terms: 1, coded: false };
        let gate = gate.local(op, &[1.0, 2.0], &[1.0, 2.0], &[], &[2, 3]);
        let json = serde_json::to_value(&gate).unwrap();
        assert_eq!(json["by_step"], serde_json::json!([null, null, 0.0, 0.0]));
        assert_eq!(json["error"]["max"], 0.0);
    }
}
