//! Runs edits one after another, ranks them, and runs the best in full.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use engine::{Engine, Source};
use registry::dtype::Dtype;
use registry::model::Model;
use registry::ops::OpSet;

use super::scene::{Numbers, Scene};
use super::score::{Score, Wanted, apart, score};
use super::suspects::suspects;
use super::{Cause, Described, DiagnoseOptions, Diagnosis, fit};
use crate::check::{self, CheckOptions, check, prepared};
use crate::diverge;
use crate::dump::{Dump, Phase};
use crate::edit::{Candidate, Clues, Edit, candidates};
use crate::gate::{Gate, Mode, Verdict};
use crate::report::{Report, RunReport};

/// Times the noise of the best edit within which another one is as good, so that the simpler one is named.
const AS_GOOD: f64 = 1.5;

/// Share of what noise explains by which the numbers of two edits may differ that cannot be told apart.
const ALIKE: f64 = 0.125;

/// Largest distance that is left, as a share, of edits that are reported though they do not explain everything.
const PARTIAL: f64 = 0.9;

/// Runs models and gives their numbers; none where the engine does not show them.
pub(super) trait Trial {
    fn numbers(&self, model: &Arc<Model>) -> Result<Option<Numbers>, engine::Error>;
}

impl Trial for Scene<'_> {
    fn numbers(&self, model: &Arc<Model>) -> Result<Option<Numbers>, engine::Error> {
        Scene::numbers(self, model)
    }
}

/// A search among edits.
pub(super) struct Search<'a> {
    pub(super) trial: &'a dyn Trial,
    pub(super) model: &'a Arc<Model>,
    pub(super) wanted: &'a [Wanted],
    /// Numbers of the model as it is.
    pub(super) unedited: Numbers,
    pub(super) until: Instant,
    pub(super) tried: usize,
    pub(super) cut: bool,
}

/// Edits that give the same numbers, bit for bit.
pub(super) struct Group {
    edits: Vec<Edit>,
    bits: u64,
    /// Of edits that explain everything.
    numbers: Option<Numbers>,
    pub(super) score: Score,
    /// Place of its first edit among the candidates.
    order: usize,
}

impl Group {
    /// The model with the group's first edit.
    pub(super) fn model(&self, model: &Model) -> Model {
        let mut model = model.clone();
        if let Some(edit) = self.edits.first() {
            edit.change.apply(&mut model);
        }
        model
    }
}

impl Search<'_> {
    /// Runs one edit; none where the engine refuses it.
    pub(super) fn attempt(&mut self, edit: &Edit) -> Option<(Numbers, Score)> {
        if Instant::now() > self.until {
            self.cut = true;
            return None;
        }
        self.tried += 1;
        let mut model = Model::clone(self.model);
        edit.change.apply(&mut model);
        let model = Arc::new(model);
        // An edited graph may break what an engine relies on.
        let run = catch_unwind(AssertUnwindSafe(|| self.trial.numbers(&model)));
        let numbers = run.ok()?.ok()??;
        let score = score(&numbers, self.wanted);
        Some((numbers, score))
    }

    /// Runs all candidates and groups them by their numbers, best first.
    pub(super) fn run(
        &mut self,
        candidates: &[Candidate],
        progress: &mut dyn FnMut(usize, usize, &str),
    ) -> Vec<Group> {
        let unedited = bits(&self.unedited);
        let mut groups: Vec<Group> = Vec::new();
        for (order, candidate) in candidates.iter().enumerate() {
            if self.cut {
                break;
            }
            let (order, found) = match candidate {
                Candidate::Edit(edit) => {
                    progress(order, candidates.len(), &edit.words);
                    let found = self.attempt(edit);
                    (order, found.map(|(numbers, score)| (edit.clone(), numbers, score)))
                }
                Candidate::Knob(knob) => {
                    progress(order, candidates.len(), "a number to fit");
                    // A number that is written somewhere is likelier than one that is only fitted.
                    (order + candidates.len(), fit::fit(self, knob))
                }
            };
            let Some((edit, numbers, score)) = found else { continue };
            let bits = bits(&numbers);
            if bits == unedited {
                continue;
            }
            match groups.iter_mut().find(|group| group.bits == bits) {
                Some(group) if group.edits.iter().all(|other| other.change != edit.change) => {
                    group.edits.push(edit);
                }
                Some(_) => {}
                None => {
                    let numbers = score.exact().then_some(numbers);
                    groups.push(Group { edits: vec![edit], bits, numbers, score, order });
                }
            }
        }
        rank(&mut groups);
        merge(groups, self.wanted)
    }
}

fn bits(numbers: &Numbers) -> u64 {
    let mut hasher = DefaultHasher::new();
    for part in numbers {
        part.is_some().hash(&mut hasher);
        for x in part.iter().flatten() {
            // Both zeros are one number.
            (x + 0.0).to_bits().hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Sorts groups: those that explain everything first, the simplest of those that are as good; then by what is left.
fn rank(groups: &mut [Group]) {
    let exact = groups.iter().filter(|group| group.score.exact());
    let best = exact.map(|group| group.score.noise).fold(f64::INFINITY, f64::min);
    let class = |group: &Group| match group.score.exact() {
        true if group.score.noise <= best * AS_GOOD + 0.02 => 0,
        true => 1,
        false => 2,
    };
    groups.sort_by(|a, b| {
        class(a).cmp(&class(b)).then_with(|| match class(a) {
            0 => a.order.cmp(&b.order),
            1 => a.score.noise.total_cmp(&b.score.noise),
            _ => a.score.rest.total_cmp(&b.score.rest).then(a.order.cmp(&b.order)),
        })
    });
}

/// Joins groups that explain everything and differ by less than noise: forms of one function. The nearest is named first.
fn merge(groups: Vec<Group>, wanted: &[Wanted]) -> Vec<Group> {
    let mut merged: Vec<Group> = Vec::new();
    for group in groups {
        let alike = |other: &&mut Group| {
            let (Some(a), Some(b)) = (&other.numbers, &group.numbers) else { return false };
            a.iter().zip(b).zip(wanted).all(|((a, b), wanted)| match (a, b) {
                (Some(a), Some(b)) => apart(a, b) <= ALIKE * wanted.limit,
                (a, b) => a.is_none() && b.is_none(),
            })
        };
        match merged.iter_mut().find(alike) {
            Some(other) if group.score.noise < other.score.noise / AS_GOOD => {
                let mut edits = group.edits;
                edits.append(&mut other.edits);
                (other.edits, other.score) = (edits, group.score);
            }
            Some(other) => other.edits.extend(group.edits),
            None => merged.push(group),
        }
    }
    merged
}

/// Describes the edits of a group.
fn described(group: &Group) -> impl Iterator<Item = Described> + '_ {
    group.edits.iter().map(|edit| Described {
        edit: edit.words.clone(),
        place: edit.place.clone(),
        change: edit.change.clone(),
    })
}

/// Turns a group into a cause.
pub(super) fn cause(group: &Group, verified: Option<bool>) -> Cause {
    Cause {
        edits: described(group).collect(),
        with: Vec::new(),
        restored: 1.0 - group.score.rest.min(1.0),
        left: group.score.left,
        exact: group.score.exact(),
        verified,
    }
}

/// Keeps the groups that are run in full: those that explain everything, else the best.
pub(super) fn shortlist(groups: &[Group], most: usize) -> impl Iterator<Item = &Group> {
    groups.iter().filter(|group| group.score.rest < PARTIAL).take(most)
}

/// Looks for the edit that restores the reference, or for a few edits that do together: where one restores the first
/// place that differs, what differs then is looked at in the same way.
pub(super) fn run(
    engine: &dyn Engine,
    source: &Source<'_>,
    dump: &Dump,
    report: &Report,
    options: &DiagnoseOptions,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<Option<Diagnosis>, check::Error> {
    let until = Instant::now() + options.budget;
    let (prepared, followed) = prepared(source, dump, &options.check)?;
    let dump = followed.as_ref().unwrap_or(dump);
    let Some(run) = report.first_failing().filter(|run| run.part.is_none()) else {
        return Ok(None);
    };
    let case = Case { engine, dump, options, until, dtype: run.dtype };
    let Some(mut round) = case.round(&prepared, run, progress)? else { return Ok(None) };
    let mut diagnosis = round.diagnosis;
    let mut model = Arc::clone(&prepared.model);
    let mut together: Vec<Described> = Vec::new();
    for _ in 1..MOST_TOGETHER {
        // Of the edits that restore the first place, the one that leaves least elsewhere.
        let first = |group: &&Group| group.score.first <= 1.0 && group.score.rest < PARTIAL;
        let Some(group) = round.groups.iter().find(first).filter(|_| !diagnosis.explained) else {
            break;
        };
        together.extend(described(group).next());
        model = Arc::new(group.model(&model));
        let edited = Source { model: Arc::clone(&model), dir: source.dir };
        let Some(report) = case.check(&edited) else { break };
        let Some(run) = report.first_failing() else { break };
        let Some(next) = case.round(&edited, run, progress)? else { break };
        diagnosis.tried += next.diagnosis.tried;
        diagnosis.cut |= next.diagnosis.cut;
        if next.diagnosis.explained {
            let mut causes = next.diagnosis.causes;
            causes.iter_mut().for_each(|cause| cause.with.clone_from(&together));
            causes.append(&mut diagnosis.causes);
            (diagnosis.causes, diagnosis.explained) = (causes, true);
            break;
        }
        round.groups = next.groups;
    }
    Ok(Some(diagnosis))
}

/// Edits with equal numbers on one prompt of which each is run in full.
const ALTERNATIVES: usize = 4;

/// Most edits that explain a difference only together.
const MOST_TOGETHER: usize = 3;

/// What stays the same from one round of a search to the next.
struct Case<'a> {
    engine: &'a dyn Engine,
    dump: &'a Dump,
    options: &'a DiagnoseOptions,
    until: Instant,
    dtype: Dtype,
}

/// All edits of one model, run on the first place that differs.
struct Round {
    diagnosis: Diagnosis,
    groups: Vec<Group>,
}

impl Case<'_> {
    fn full(&self) -> CheckOptions {
        CheckOptions {
            dtypes: vec![self.dtype],
            schedules: false,
            allow_dtype_mismatch: true,
            same_model: false,
            ..self.options.check.clone()
        }
    }

    /// Runs the whole check with an edited model; none where it cannot be run.
    fn check(&self, source: &Source<'_>) -> Option<Report> {
        let whole = || check(self.engine, source, self.dump, &self.full());
        catch_unwind(AssertUnwindSafe(whole)).ok()?.ok()
    }

    fn round(
        &self,
        source: &Source<'_>,
        run: &RunReport,
        progress: &mut dyn FnMut(usize, usize, &str),
    ) -> Result<Option<Round>, check::Error> {
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
            causes: Vec::new(),
        };
        let nothing = |diagnosis| Ok(Some(Round { diagnosis, groups: Vec::new() }));
        let scene = Scene::new(self.engine, source, self.dump, &self.full(), self.dtype, gate)?;
        let Some(mut scene) = scene else { return nothing(diagnosis) };
        let Some(wanted) = scene.begin(model, &run.gates, gate)? else {
            return nothing(diagnosis);
        };
        let differing = || wanted.iter().filter(|wanted| wanted.differs);
        diagnosis.before = differing().map(|w| w.before / w.size).fold(0.0, f64::max);
        diagnosis.noise = differing().map(|w| w.limit / w.size).fold(0.0, f64::max);
        let suspects = suspects(model, self.dump, run, gate);
        let clues = clues(self.dump, self.dtype, gate);
        let edits = candidates(model, &OpSet::builtin(), &suspects, &clues);
        let unedited = scene.numbers(model)?.unwrap_or_default();
        let (trial, until) = (&scene, self.until);
        let wanted = &wanted;
        let mut search = Search { trial, model, wanted, unedited, until, tried: 0, cut: false };
        let groups = search.run(&edits, progress);
        (diagnosis.tried, diagnosis.cut) = (search.tried, search.cut);
        for group in shortlist(&groups, self.options.most) {
            let mut found = cause(group, None);
            if group.score.exact() && !diagnosis.explained {
                progress(edits.len(), edits.len(), "the whole check");
                // Edits that this prompt cannot tell apart may differ on another.
                let right = group.edits.iter().take(ALTERNATIVES).position(|edit| {
                    let mut edited = Model::clone(model);
                    edit.change.apply(&mut edited);
                    let edited = Source { model: Arc::new(edited), dir: source.dir };
                    self.check(&edited).is_some_and(|report| report.verdict() != Verdict::Fail)
                });
                found.verified = Some(right.is_some());
                found.edits.rotate_left(right.unwrap_or(0));
            }
            diagnosis.explained |= found.verified == Some(true);
            diagnosis.causes.push(found);
        }
        diagnosis.causes.sort_by_key(|cause| cause.verified != Some(true));
        Ok(Some(Round { diagnosis, groups }))
    }
}

/// Names a gate with its prompt, phase and inputs.
fn observed(gate: &Gate) -> String {
    format!("{}, {} of prompt `{}`, {}", gate.subject, gate.phase, gate.prompt, gate.mode.inputs())
}

/// Reads off a gate where the difference begins.
fn clues(dump: &Dump, dtype: Dtype, gate: &Gate) -> Clues {
    let prompts = &dump.manifest.prompts;
    let longest = prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
    let split = prompts.iter().find(|prompt| prompt.name == gate.prompt).map_or(0, |p| p.split);
    let first = if gate.phase == Phase::Decode { split.saturating_sub(1) } else { 0 };
    let positions = gate.off.iter().take(2).map(|step| first + step).collect();
    Clues { positions, longest, dtype: Some(dtype) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simplest_of_those_that_explain_everything_is_first() {
        let group = |order, rest, noise, worst| Group {
            edits: Vec::new(),
            bits: order as u64,
            numbers: None,
            score: Score { rest, noise, worst, left: 0.0, first: 0.0 },
            order,
        };
        let mut all = vec![
            group(0, 0.5, 100.0, 200.0),
            group(1, 1e-5, 0.9, 1.0),
            group(2, 1e-6, 0.012, 0.1),
            group(3, 1e-6, 0.010, 0.1),
            group(4, 0.1, 10.0, 20.0),
        ];
        rank(&mut all);
        let order: Vec<usize> = all.iter().map(|group| group.order).collect();
        assert_eq!(order, [2, 3, 1, 4, 0]);
    }
}
