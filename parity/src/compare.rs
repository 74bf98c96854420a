//! Compares an engine's results in one dtype, on one prompt, with the reference.

mod logprobs;
mod states;
mod structure;
mod taps;

use std::borrow::Cow;
use std::collections::BTreeMap;

use registry::dtype::Dtype;
use registry::model::Model;

use crate::dump::{self, Dump, DumpTensor, EnsembleSpread, Logprobs, Phase, Prompt, TrustedPhase};
use crate::flips;
use crate::gate::{Gate, Mode, RowLimits, Subject};
use crate::measure::{OpChain, distances};
use crate::metrics::log_softmax;
use crate::order::{self, ExecutionOrder};
use crate::run::{ReferenceTaps, Trace};

pub(crate) use structure::structure;

/// Reference data of one prompt in one dtype.
#[derive(Debug, Default)]
pub(crate) struct ReferenceResults {
    /// Log-probabilities, by phase.
    pub(crate) logprobs: BTreeMap<Phase, Logprobs>,
    /// Log-probabilities of decode itself, if those of prefill replace them.
    pub(crate) stepped: Option<Logprobs>,
    /// Taps that the graph also has.
    pub(crate) taps: ReferenceTaps,
    /// States by phase, layer and part.
    pub(crate) states: BTreeMap<(Phase, usize, String), DumpTensor>,
    /// Distance of the ensemble from the f32 run.
    pub(crate) spread: Option<EnsembleSpread>,
}

/// Name of the logits among the taps.
pub(crate) const LOGITS: &str = "logits";

impl ReferenceResults {
    /// Reads the reference data. If only the reference's prefill is trusted, its rows replace those of
    /// decode.
    pub(crate) fn load(
        dump: &Dump,
        run: Dtype,
        prompt: &Prompt,
        order: &ExecutionOrder,
    ) -> Result<Self, dump::Error> {
        let mut side = Self { spread: dump.spread(run, prompt)?, ..Self::default() };
        let substitute = dump.manifest.audit.truth() == TrustedPhase::Prefill;
        for phase in Phase::ALL {
            if let Some(rows) = dump.logprobs(run, prompt, phase)? {
                side.logprobs.insert(phase, rows);
            }
        }
        let steps = prompt.positions(Phase::Decode).len();
        if substitute && let Some(rows) = side.logprobs.get(&Phase::Prefill) {
            side.stepped = side.logprobs.insert(Phase::Decode, tail_rows(rows, steps));
        }
        side.taps.prefill_choices = dump.choices(run, prompt, Phase::Prefill.name())?;
        side.taps.decode_choices = if substitute {
            side.taps
                .prefill_choices
                .iter()
                .map(|(module, rows): (&String, _)| {
                    (module.clone(), tail_tensor(rows, prompt.tokens.len() - prompt.split))
                })
                .collect()
        } else {
            dump.choices(run, prompt, Phase::Decode.name())?
        };
        let taps = dump.manifest.taps.0.iter().filter(|(tap, _)| order.taps.contains_key(tap));
        for (tap, info) in taps {
            if info.has(Phase::Prefill)
                && prompt.tapped(Phase::Prefill)
                && let Some(tensor) = dump.tap(run, prompt, Phase::Prefill, tap)?
            {
                if substitute {
                    side.taps.decode.insert(tap.clone(), tail_tensor(&tensor, steps));
                }
                side.taps.prefill.insert(tap.clone(), tensor);
            }
            if info.has(Phase::Decode)
                && prompt.tapped(Phase::Decode)
                && !substitute
                && let Some(tensor) = dump.tap(run, prompt, Phase::Decode, tap)?
            {
                side.taps.decode.insert(tap.clone(), tensor);
            }
        }
        for phase in Phase::ALL.into_iter().filter(|phase| prompt.tapped(*phase)) {
            if let Some(logits) = dump.logits(run, prompt, phase)? {
                side.taps.of_mut(phase).insert(LOGITS.to_owned(), logits);
            }
        }
        for state in &dump.manifest.states {
            for part in &state.parts {
                for phase in Phase::ALL.into_iter().filter(|phase| prompt.tapped(*phase)) {
                    if substitute && phase == Phase::Decode {
                        continue;
                    }
                    if let Some(tensor) = dump.state(run, prompt, phase, state.layer, part)? {
                        side.states.insert((phase, state.layer, part.clone()), tensor);
                    }
                }
            }
        }
        Ok(side)
    }
}

/// Returns the last rows.
fn tail_rows(rows: &Logprobs, count: usize) -> Logprobs {
    let from = rows.rows.saturating_sub(count);
    Logprobs {
        rows: rows.rows - from,
        width: rows.width,
        ids: rows.ids.as_ref().map(|ids| ids[from * rows.width..].to_vec()),
        values: rows.values[from * rows.width..].to_vec(),
        targets: rows.targets.as_ref().map(|t| t[from..].to_vec()),
    }
}

/// Returns the last rows.
fn tail_tensor(tensor: &DumpTensor, count: usize) -> DumpTensor {
    let width: usize = tensor.shape.iter().skip(1).product();
    let mut shape = tensor.shape.clone();
    let all = shape.first().copied().unwrap_or(0);
    let from = all.saturating_sub(count);
    if let Some(rows) = shape.first_mut() {
        *rows = all - from;
    }
    let data = tensor.data.get(from * width..).unwrap_or_default().to_vec();
    DumpTensor { dtype: tensor.dtype, shape, data }
}

/// Returns the last values: the rows of a decode phase are the last ones.
fn last_values(values: &[f32], count: usize) -> Vec<f64> {
    values[values.len().saturating_sub(count)..].iter().map(|x| f64::from(*x)).collect()
}

/// One prompt of one run, with its reference.
pub(crate) struct Comparison<'a> {
    pub(crate) model: &'a Model,
    pub(crate) order: &'a ExecutionOrder,
    pub(crate) dump: &'a Dump,
    pub(crate) dtype: Dtype,
    pub(crate) prompt: &'a Prompt,
    /// Reference in this dtype.
    pub(crate) own: &'a ReferenceResults,
    /// Reference in f32.
    pub(crate) base: &'a ReferenceResults,
    /// Largest allowed `|Δlogprob|` of an f32 run, if given; by default the ensemble determines it.
    pub(crate) logprob: Option<f64>,
    /// True if the reference rounds rows to few bits: each of its own runs is then equally valid.
    pub(crate) rounds: bool,
    /// Widest spread of log-probabilities over all prompts.
    pub(crate) widest: Option<f32>,
}

/// The engine's and the reference's values; none if their shapes differ.
pub(crate) type ValuePair = Option<(Vec<f32>, Vec<f32>)>;

/// Subject, with a label that distinguishes comparisons of the same subject.
pub(crate) type ComparisonKey = (Subject, Option<&'static str>);

/// Rows of one tap or state, from both sides.
struct PairedRows<'a> {
    ours: Vec<f32>,
    own: Cow<'a, [f32]>,
    base: Option<Cow<'a, [f32]>>,
    count: usize,
    /// Step (decode) or position (prefill) of each row.
    steps: Vec<usize>,
    /// Dtype in which the reference stores them.
    kept: Dtype,
}

impl Comparison<'_> {
    /// Returns the gates of a whole run.
    pub(crate) fn cumulative(&self, phase: Phase, trace: &Trace) -> Vec<Gate> {
        let pairs = self.pairs(phase, Mode::Cumulative, trace).into_iter();
        let gates = pairs.map(|(gate, rows)| self.whole_gate(gate, rows));
        self.logprobs(phase, trace).into_iter().chain(gates).collect()
    }

    /// Judges the rows of a tap or state of a whole run.
    fn whole_gate(&self, gate: Gate, rows: Result<PairedRows<'_>, String>) -> Gate {
        match self.comparable(gate, rows) {
            Ok((gate, rows)) => {
                let base = rows.base.as_ref().filter(|base| base.len() == rows.ours.len());
                let mut gate = match base {
                    Some(base) => {
                        let limits = self.row_limits(&gate.subject, &rows, base);
                        gate.whole(self.dtype, &rows.ours, &rows.own, base, limits, &rows.steps)
                    }
                    None => gate.skipped("the f32 run of the dump has it in another shape"),
                };
                gate.kept_narrow(&rows.ours, &rows.own, &rows.steps);
                gate
            }
            Err(gate) => *gate,
        }
    }

    /// Returns the gates of ops on the reference's inputs. `moved` holds runs with slightly perturbed
    /// inputs.
    pub(crate) fn local(&self, phase: Phase, trace: &Trace, moved: &[Trace]) -> Vec<Gate> {
        let mut moved: Vec<_> =
            moved.iter().map(|trace| self.pairs(phase, Mode::Local, trace).into_iter()).collect();
        let mut gates = Vec::new();
        for (gate, rows) in self.pairs(phase, Mode::Local, trace) {
            let perturbed: Vec<Vec<f32>> =
                moved.iter_mut().filter_map(|pairs| Some(pairs.next()?.1.ok()?.ours)).collect();
            gates.push(self.local_gate(gate, rows, &perturbed).unwrap_or_else(|ended| *ended));
        }
        gates
    }

    /// Judges the rows of an op on the reference's inputs; the error is a gate that was not judged by them.
    fn local_gate(
        &self,
        gate: Gate,
        rows: Result<PairedRows<'_>, String>,
        perturbed: &[Vec<f32>],
    ) -> Result<Gate, Box<Gate>> {
        let (gate, mut rows) = self.comparable(gate, rows)?;
        if self.rounds && self.dtype == Dtype::F32 {
            rows.ours = flips::settle_flips(&rows.ours, &rows.own, rows.count);
        }
        let span = self.order.span(gate.place);
        if span.nodes >= order::FAR {
            let why = "too many ops lie between recorded values and this one";
            return Err(Box::new(gate.skipped(why)));
        }
        let exact = rows.kept != Dtype::F32;
        let dtype = self.dtype;
        let coded = self.rounds;
        let op = OpChain { dtype, exact, span: span.nodes, terms: span.terms, coded };
        let mut gate = gate.local(op, &rows.ours, &rows.own, perturbed, &rows.steps);
        gate.kept_narrow(&rows.ours, &rows.own, &rows.steps);
        Ok(gate)
    }

    /// Returns the values of each comparison of a run, the engine's and the reference's; none if their
    /// shapes differ.
    pub(crate) fn numbers(
        &self,
        phase: Phase,
        mode: Mode,
        trace: &Trace,
    ) -> Vec<(ComparisonKey, ValuePair)> {
        let mut all = Vec::new();
        let vocab = self.dump.manifest.vocab;
        if mode == Mode::Cumulative
            && let Some(reference) = self.base.logprobs.get(&phase)
            && trace.logits.len() == reference.rows * vocab
        {
            let mut ours = vec![0.0; trace.logits.len()];
            for (logits, out) in trace.logits.chunks(vocab).zip(ours.chunks_mut(vocab)) {
                log_softmax(logits, out);
            }
            if let Some(ids) = &reference.ids {
                ours = ids
                    .iter()
                    .enumerate()
                    .map(|(n, id)| ours[n / reference.width * vocab + *id as usize])
                    .collect();
            }
            all.push(((Subject::Logprobs, None), Some((ours, reference.values.clone()))));
        }
        for (gate, rows) in self.pairs(phase, mode, trace) {
            let sides = rows.ok().map(|rows| {
                // Whole runs are compared with the f32 reference, ops with the reference in their dtype.
                let reference = match (mode, &rows.base) {
                    (Mode::Cumulative, Some(base)) => base.to_vec(),
                    _ => rows.own.to_vec(),
                };
                (rows.ours, reference)
            });
            all.push(((gate.subject, gate.moment), sides));
        }
        all
    }

    /// Returns a gate whose two sides can be compared, or else the finished gate.
    fn comparable<'r>(
        &self,
        gate: Gate,
        rows: Result<PairedRows<'r>, String>,
    ) -> Result<(Gate, PairedRows<'r>), Box<Gate>> {
        match rows {
            Err(finding) => Err(Box::new(gate.failed(finding))),
            Ok(rows) if rows.own.iter().any(|x| !x.is_finite()) => {
                Err(Box::new(gate.unproven(self.dtype)))
            }
            Ok(rows) => Ok((gate, rows)),
        }
    }

    /// True if the reference's own decode steps are compared, and not its prefill in their place.
    pub(crate) fn is_followed(&self) -> bool {
        self.dump.manifest.audit.truth() == TrustedPhase::Decode
    }

    fn pairs(
        &self,
        phase: Phase,
        mode: Mode,
        trace: &Trace,
    ) -> Vec<(Gate, Result<PairedRows<'_>, String>)> {
        if !self.prompt.tapped(phase) {
            return Vec::new();
        }
        let mut pairs = self.taps(phase, mode, trace);
        if self.order.shows_states {
            pairs.extend(self.states(phase, mode, trace));
        }
        pairs
    }

    /// Returns the limits of rows. The ensemble's spread of a state is one of all rows together. Without an ensemble, the
    /// distance of the reference's own 16-bit run from its f32 run takes its place for states, whose rows show faults at
    /// positions whose ops were not recorded.
    fn row_limits(
        &self,
        subject: &Subject,
        rows: &PairedRows<'_>,
        base: &[f32],
    ) -> Option<RowLimits> {
        let is_state = matches!(subject, Subject::State { .. });
        if let Some(spread) = self.limits(subject, rows.count) {
            return Some(RowLimits { spread, of_all: is_state });
        }
        let judged = is_state && self.dtype != Dtype::F32;
        judged.then(|| RowLimits::of_rows(distances(&rows.own, base, rows.count)))
    }

    /// Returns the spread of the ensemble in each row; none if the dump has no ensemble for it.
    /// Log-probabilities of a prompt without an ensemble use the widest spread of the other prompts.
    pub(crate) fn limits(&self, subject: &Subject, count: usize) -> Option<Vec<f64>> {
        let Some(spread) = self.own.spread.as_ref() else {
            let widest = self.widest.filter(|_| *subject == Subject::Logprobs)?;
            return Some(vec![f64::from(widest); count]);
        };
        let rows = match subject {
            Subject::Logprobs => last_values(&spread.logprobs, count),
            Subject::Tap { name } => last_values(spread.taps.get(name)?, count),
            Subject::State { layer, part, .. } => {
                // One value for all snapshots, so that no state counts as more stable than most.
                let mut all: Vec<f32> = spread.states.values().copied().collect();
                all.sort_by(f32::total_cmp);
                let state_spread = *spread.states.get(&(*layer, part.clone()))?;
                vec![f64::from(state_spread.max(all[all.len() / 2])); count]
            }
        };
        (rows.len() == count).then_some(rows)
    }
}
