//! Runs one prompt in one phase with one edit after another.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use engine::{Engine, ModelSource, Session as _, SessionOptions};
use registry::dtype::Dtype;
use registry::model::Model;

use super::score::{ComparisonTarget, distance};
use crate::check::CheckOptions;
use crate::compare::{Comparison, ComparisonKey, ReferenceResults, ValuePair};
use crate::dump::{self, Dump, Phase, Prompt};
use crate::gate::{Gate, Mode, Subject};
use crate::order::ExecutionOrder;
use crate::prompt_session;
use crate::route::{RouterRow, RoutingProbe, routers};
use crate::rule;
use crate::run::{self, InputSource};
use engine::RowsSession;

/// Differences of a trial from the target, one entry for each comparison; none if it could not be made.
pub(super) type TrialDifferences = Vec<Option<Vec<f32>>>;

/// Returns the root mean square, which is never zero.
fn size(numbers: &[f32]) -> f64 {
    let power: f64 = numbers.iter().map(|x| f64::from(*x).powi(2)).sum();
    (power / numbers.len().max(1) as f64).sqrt().max(f64::from(f32::MIN_POSITIVE))
}

/// Returns the differences of our values from the reference's, relative to the reference's size if `relative`; none if
/// the shapes differ.
fn differences(ours: &[f32], reference: &[f32], relative: bool) -> Option<Vec<f32>> {
    if ours.len() != reference.len() {
        return None;
    }
    let unit = if relative { size(reference) } else { 1.0 };
    let pairs = ours.iter().zip(reference);
    let differences = pairs
        .map(|(x, y)| if x == y { 0.0 } else { ((f64::from(*x) - f64::from(*y)) / unit) as f32 });
    Some(differences.collect())
}

/// Data shared by all edits.
pub(super) struct PhaseTrial<'a> {
    pub(super) engine: &'a dyn Engine,
    pub(super) dir: &'a Path,
    pub(super) dump: &'a Dump,
    pub(super) prompt: &'a Prompt,
    /// Phase that is run.
    pub(super) phase: Phase,
    pub(super) mode: Mode,
    pub(super) dtype: Dtype,
    pub(super) options: SessionOptions,
    own: ReferenceResults,
    base: ReferenceResults,
    /// Comparisons, with true for those that the unedited model cannot make: their values are relative
    /// differences.
    keys: Vec<(ComparisonKey, bool)>,
}

impl<'a> PhaseTrial<'a> {
    /// Reads the reference's values.
    pub(super) fn new(
        engine: &'a dyn Engine,
        source: &ModelSource<'a>,
        dump: &'a Dump,
        check: &CheckOptions,
        dtype: Dtype,
        gate: &Gate,
    ) -> Result<Option<Self>, dump::Error> {
        let Some(prompt) = dump.manifest.prompts.iter().find(|p| p.name == gate.prompt) else {
            return Ok(None);
        };
        let recorded: BTreeSet<&str> =
            dump.manifest.taps.0.iter().map(|(tap, _)| tap.as_str()).collect();
        let order = ExecutionOrder::of(&source.model.graph, |tap| recorded.contains(tap));
        let phase = if gate.moment.is_some() { Phase::Prefill } else { gate.phase };
        let options = check.engine(dtype);
        Ok(Some(Self {
            engine,
            dir: source.dir,
            dump,
            prompt,
            phase,
            mode: gate.mode,
            dtype,
            options,
            own: ReferenceResults::load(dump, dtype, prompt, &order)?,
            base: ReferenceResults::load(dump, Dtype::F32, prompt, &order)?,
            keys: Vec::new(),
        }))
    }

    /// Runs the unedited model and keeps the comparisons that the gates of a report judge.
    pub(super) fn begin(
        &mut self,
        model: &Arc<Model>,
        gates: &[Gate],
        first: &Gate,
    ) -> Result<Option<Vec<ComparisonTarget>>, engine::Error> {
        let Some(parts) = self.parts(model)? else { return Ok(None) };
        let mut targets = Vec::new();
        for (key, sides) in parts {
            let gate = gates.iter().find(|gate| {
                gate.subject == key.0
                    && gate.moment == key.1
                    && gate.mode == self.mode
                    && gate.prompt == self.prompt.name
                    && (gate.phase == self.phase || gate.moment.is_some())
            });
            let Some(gate) = gate else { continue };
            let unit = rule::roundoff(self.dtype);
            let first = gate.subject == first.subject && gate.moment == first.moment;
            let Some((ours, reference)) = sides else {
                let limit = rule::OP * unit;
                let before = 1.0;
                let size = 1.0;
                let differs = true;
                let missing = true;
                targets.push(ComparisonTarget { limit, before, size, differs, missing, first });
                self.keys.push((key, true));
                continue;
            };
            let before = distance(&ours, &reference);
            if !before.is_finite() || reference.is_empty() {
                continue;
            }
            let size = if key.0 == Subject::Logprobs { 1.0 } else { size(&reference) };
            let floor = unit * size * 4.0;
            let times = gate.worst_bound().map(|bound| bound.value / bound.limit);
            // A gate may fail by the grid of its values, within its bounds.
            let limit = match times.filter(|times| *times > 0.0) {
                Some(times) if times > 1.0 || !gate.fails() => before / times,
                _ => floor,
            };
            targets.push(ComparisonTarget {
                limit: limit.max(floor),
                before: before.max(floor),
                size,
                differs: gate.fails(),
                missing: false,
                first,
            });
            self.keys.push((key, false));
        }
        Ok(Some(targets).filter(|targets| targets.iter().any(|target| target.differs)))
    }

    /// Runs a model and returns its differences from the reference.
    pub(super) fn numbers(
        &self,
        model: &Arc<Model>,
    ) -> Result<Option<TrialDifferences>, engine::Error> {
        let Some(mut parts) = self.parts(model)? else { return Ok(None) };
        let mut all = Vec::new();
        for (key, relative) in &self.keys {
            let at = parts.iter().position(|(other, _)| other == key);
            let values = at.and_then(|at| parts.swap_remove(at).1);
            all.push(values.and_then(|(ours, theirs)| differences(&ours, &theirs, *relative)));
        }
        Ok(Some(all))
    }

    /// Runs a model and returns each comparison with our values and the reference's.
    fn parts(
        &self,
        model: &Arc<Model>,
    ) -> Result<Option<Vec<(ComparisonKey, ValuePair)>>, engine::Error> {
        let source = ModelSource { model: Arc::clone(model), dir: self.dir };
        let mut session = RowsSession::new(self.engine.open(&source, &self.options)?);
        prompt_session::begin(&mut session, self.dump, self.dtype, self.prompt)
            .map_err(|error| engine::Error::Other(error.to_string()))?;
        let recorded: BTreeSet<&str> =
            self.dump.manifest.taps.0.iter().map(|(tap, _)| tap.as_str()).collect();
        let order = ExecutionOrder::of(&model.graph, |tap| recorded.contains(tap));
        let order = order.exposed(session.features(), session.shown_parts());
        let comparison = Comparison {
            model,
            order: &order,
            dump: self.dump,
            dtype: self.dtype,
            prompt: self.prompt,
            own: &self.own,
            base: &self.base,
            logprob: None,
            rounds: false,
            widest: None,
        };
        let routers = routers(&model.graph);
        let mut row = RouterRow::new(self.mode);
        let mut steer = RoutingProbe::new(&routers, self.dtype, String::new(), &mut row);
        let taps = &self.own.taps;
        let trace = match (self.mode, self.phase) {
            (Mode::Local, Phase::Prefill) => Some(run::prefill(
                &mut session,
                self.prompt,
                taps,
                InputSource::Reference,
                &mut steer,
            )?),
            (Mode::Local, Phase::Decode) => {
                let feed = InputSource::Reference;
                run::steps(&mut session, self.prompt, taps, feed, &mut steer, &comparison)?
            }
            (Mode::Cumulative, Phase::Prefill) => {
                Some(run::prefill(&mut session, self.prompt, taps, InputSource::Own, &mut steer)?)
            }
            (Mode::Cumulative, Phase::Decode) => {
                Some(run::decode(&mut session, self.prompt, taps, &mut steer)?)
            }
        };
        Ok(trace.map(|trace| comparison.numbers(self.phase, self.mode, &trace)))
    }
}
