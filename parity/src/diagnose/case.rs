//! Finds causes of a failing check: rounds of a search, and the whole check with the best edits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use checkpoints::Checkpoint;
use engine::{Engine, ModelSource};
use registry::dtype::Dtype;
use registry::model::{Model, is_buffer};
use registry::ops::OpSet;

use super::edit_trials::EditSearch;
use super::phase_trial::PhaseTrial;
use super::search::{EditGroup, PARTIAL, cause, described, rank, shortlist};
use super::suspects::suspects;
use super::{DiagnoseOptions, Diagnosis, EditSummary};
use crate::check::{self, CheckOptions, check_engine, prepared};
use crate::diverge;
use crate::dump::{Dump, Phase};
use crate::edit::{Clues, candidates, rearrangements};
use crate::gate::{Gate, Mode, Verdict};
use crate::report::{Report, RunReport};

/// Searches for the edit that restores the reference, or for a few edits that do so together. If an edit
/// restores the first divergence, the next divergence is searched in the same way.
pub(super) fn run(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    dump: &Dump,
    report: &Report,
    options: &DiagnoseOptions,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<Option<Diagnosis>, check::Error> {
    let until = Instant::now() + options.budget;
    let Some(run) = report.first_failing() else { return Ok(None) };
    let head = if run.part == Some("nextn") { dump.nextn()? } else { None };
    let layer = source.model.nextn.as_ref().and_then(|nextn| nextn.layers.first());
    let (source, dump) = match (run.part, &head, layer) {
        (None, ..) => (source.clone(), dump),
        (_, Some(head), Some(layer)) => {
            (ModelSource { model: Arc::clone(layer), dir: source.dir }, head)
        }
        _ => return Ok(None),
    };
    let (prepared, followed) = prepared(&source, dump, &options.check)?;
    let dump = followed.as_ref().unwrap_or(dump);
    let case = SearchContext { engine, dump, options, until, dtype: run.dtype };
    let Some(mut round) = case.round(&prepared, run, progress)? else { return Ok(None) };
    let mut diagnosis = round.diagnosis;
    let mut model = Arc::clone(&prepared.model);
    let mut together: Vec<EditSummary> = Vec::new();
    for _ in 1..MOST_TOGETHER {
        // Of the edits that restore the first place, the one with the least remaining difference.
        let mut groups = round.groups.iter();
        let group = groups.find(|g| g.score.first <= 1.0 && g.score.rest < PARTIAL);
        let Some(group) = group.filter(|_| !diagnosis.explained) else { break };
        together.extend(described(group).next());
        model = Arc::new(group.model(&model));
        let edited = ModelSource { model: Arc::clone(&model), dir: source.dir };
        let Some(report) = case.check(&edited) else { break };
        let Some(run) = report.first_failing().filter(|run| run.part.is_none()) else { break };
        let Some(next) = case.round(&edited, run, progress)? else { break };
        diagnosis.tried += next.diagnosis.tried;
        diagnosis.cut |= next.diagnosis.cut;
        if next.diagnosis.explained {
            let mut causes = next.diagnosis.causes;
            for cause in &mut causes {
                cause.with.clone_from(&together);
            }
            causes.append(&mut diagnosis.causes);
            (diagnosis.causes, diagnosis.explained) = (causes, true);
            break;
        }
        round.groups = next.groups;
    }
    if diagnosis.explained {
        diagnosis.ignored.clear();
    }
    Ok(Some(diagnosis))
}

/// Number of edits with equal results on one prompt that are each run in full.
const ALTERNATIVES: usize = 4;

/// Maximum number of edits that explain a difference only together.
const MOST_TOGETHER: usize = 3;

/// Data shared by all rounds of a search.
struct SearchContext<'a> {
    engine: &'a dyn Engine,
    dump: &'a Dump,
    options: &'a DiagnoseOptions,
    until: Instant,
    dtype: Dtype,
}

/// All edits of one model, run on the first place that differs.
struct SearchRound {
    diagnosis: Diagnosis,
    groups: Vec<EditGroup>,
}

impl SearchContext<'_> {
    fn full(&self) -> CheckOptions {
        CheckOptions {
            dtypes: vec![self.dtype],
            schedules: false,
            allow_dtype_mismatch: true,
            same_model: false,
            ..self.options.check.clone()
        }
    }

    /// Runs the whole check with an edited model; none if it cannot run.
    fn check(&self, source: &ModelSource<'_>) -> Option<Report> {
        catch_unwind(AssertUnwindSafe(|| {
            check_engine(self.engine, source, self.dump, &self.full())
        }))
        .ok()?
        .ok()
    }

    fn round(
        &self,
        source: &ModelSource<'_>,
        run: &RunReport,
        progress: &mut dyn FnMut(usize, usize, &str),
    ) -> Result<Option<SearchRound>, check::Error> {
        let local = diverge::gate(&run.gates, Mode::Local);
        let Some(gate) = local.or_else(|| diverge::gate(&run.gates, Mode::Cumulative)) else {
            return Ok(None);
        };
        let model = &source.model;
        let mut diagnosis = Diagnosis {
            dtype: self.dtype,
            observed: observed(gate),
            before: gate.error.max,
            noise: 0.0,
            tried: 0,
            explained: false,
            cut: false,
            ignored: Vec::new(),
            causes: Vec::new(),
        };
        let scene =
            PhaseTrial::new(self.engine, source, self.dump, &self.full(), self.dtype, gate)?;
        let Some(mut scene) = scene else {
            return Ok(Some(SearchRound { diagnosis, groups: Vec::new() }));
        };
        let Some(targets) = scene.begin(model, &run.gates, gate)? else {
            return Ok(Some(SearchRound { diagnosis, groups: Vec::new() }));
        };
        diagnosis.before = 0.0;
        for target in targets.iter().filter(|target| target.differs) {
            diagnosis.before = diagnosis.before.max(target.before / target.size);
            diagnosis.noise = diagnosis.noise.max(target.limit / target.size);
        }
        let suspects = suspects(model, self.dump, run, gate);
        let clues = clues(self.dump, self.dtype, gate);
        let edits = candidates(model, &OpSet::builtin(), &suspects, &clues);
        let unedited = scene.numbers(model)?.unwrap_or_default();
        let trial = &scene;
        let until = self.until;
        let targets = &targets;
        let mut search =
            EditSearch { trial, model, targets, unedited, until, tried: 0, cut: false };
        let mut groups = search.run(&edits, 0, progress);
        if !groups.iter().any(|group| group.score.exact()) {
            let moves = rearrangements(model, &OpSet::builtin(), &suspects);
            groups.extend(search.run(&moves, edits.len(), progress));
            rank(&mut groups);
        }
        (diagnosis.tried, diagnosis.cut) = (search.tried, search.cut);
        for group in shortlist(&groups, self.options.most, PARTIAL) {
            let mut explanation = cause(group, None);
            if group.score.exact() && !diagnosis.explained {
                progress(edits.len(), edits.len(), "the whole check");
                // Edits with equal results on this prompt may differ on another.
                let right = group.edits.iter().take(ALTERNATIVES).position(|edit| {
                    let mut edited = Model::clone(model);
                    edit.change.apply(&mut edited);
                    let edited = ModelSource { model: Arc::new(edited), dir: source.dir };
                    self.check(&edited).is_some_and(|report| agrees(&report))
                });
                explanation.verified = Some(right.is_some());
                explanation.edits.rotate_left(right.unwrap_or(0));
            }
            diagnosis.explained |= explanation.verified == Some(true);
            diagnosis.causes.push(explanation);
        }
        diagnosis.causes.sort_by_key(|cause| cause.verified != Some(true));
        if !diagnosis.explained {
            diagnosis.ignored = ignored(source, gate);
        }
        Ok(Some(SearchRound { diagnosis, groups }))
    }
}

/// Returns the tensors that the spec ignores in the layer of a gate, or in the whole model for a gate of no layer.
fn ignored(source: &ModelSource<'_>, gate: &Gate) -> Vec<String> {
    let Ok(checkpoint) = Checkpoint::open(source.dir) else { return Vec::new() };
    let Model { graph, .. } = &*source.model;
    let layer = graph.nodes.get(gate.place.node).and_then(|node| graph.layers.get(node.layer?));
    let prefix = layer.map_or_else(String::new, |layer| format!("{}.", layer.prefix));
    let names = checkpoint.tensors().keys().filter(|name| name.starts_with(prefix.as_str()));
    let ignored = names.filter(|name| source.model.passes_over(name) && !is_buffer(name));
    ignored.filter(|name| !source.model.is_beside(name)).cloned().collect()
}

/// True if the model itself agrees. A separate head has a graph of its own, which an edit does not change.
fn agrees(report: &Report) -> bool {
    report.runs.iter().filter(|run| run.part.is_none()).all(|run| run.verdict() != Verdict::Fail)
}

/// Names a gate with its prompt, phase and inputs.
fn observed(gate: &Gate) -> String {
    format!("{}, {} of prompt `{}`, {}", gate.subject, gate.phase, gate.prompt, gate.mode.inputs())
}

/// Extracts the positions at which the difference begins from a gate.
fn clues(dump: &Dump, dtype: Dtype, gate: &Gate) -> Clues {
    let prompts = &dump.manifest.prompts;
    let longest = prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
    let split = prompts.iter().find(|prompt| prompt.name == gate.prompt).map_or(0, |p| p.split);
    let first = if gate.phase == Phase::Decode { split.saturating_sub(1) } else { 0 };
    let positions = gate.off.iter().take(2).map(|step| first + step).collect();
    Clues { positions, longest, dtype: Some(dtype), foreign: false }
}
