//! Finds edits of a correct model that reproduce the results of another engine.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use engine::{Chunk, Engine, ModelSource, NoProbe, OutputRows, SessionOptions};
use registry::dtype::Dtype;
use registry::model::Model;
use registry::ops::OpSet;

use super::edit_trials::{EditSearch, Trial};
use super::phase_trial::TrialDifferences;
use super::score::{ComparisonTarget, Score, rms, score};
use super::search::{EditGroup, cause, described, rank, shortlist};
use super::{DiagnoseOptions, Diagnosis};
use crate::check::CheckOptions;
use crate::dump::{self, Dump};
use crate::edit::{
    Candidate, Change, Clues, ConfigReader, Edit, Suspects, TokenEdit, candidates, rearrangements,
};
use crate::metrics::log_softmax;
use crate::rule;
use crate::run::{feed_chunk, feed_masked};

/// Number of rows with which edits are tried before the best are run on every prompt.
const ROWS: usize = 16;

/// Maximum remaining difference, as a share, of edits that are reported although they do not explain everything.
/// Rows of a wrong model are as far from one edited model as from another: edits of no importance are nearer by 10
/// to 40 %.
const PARTIAL_RUN: f64 = 0.5;

/// Number of edits behind which another is searched.
const FOLLOWS: usize = 2;

/// Log-probabilities of another engine for one prompt.
#[derive(Debug, Clone, Default)]
pub struct ObservedPrompt {
    /// Name of the prompt, for reports.
    pub name: String,
    /// Tokens of the prompt.
    pub tokens: Vec<u32>,
    /// Log-probabilities of token ids, all of them or the most likely, by position of the token that a row
    /// follows.
    pub rows: Vec<(usize, Vec<(u32, f32)>)>,
}

impl ObservedPrompt {
    /// Returns the log-probabilities that a comparison can use, with their position and token.
    fn entries(&self) -> impl Iterator<Item = (usize, u32, f32)> + '_ {
        let rows = self.rows.iter();
        let each =
            rows.flat_map(|(at, row)| row.iter().map(|(token, value)| (*at, *token, *value)));
        each.filter(|(_, _, value)| value.is_finite())
    }

    fn check(&self, vocab: usize) -> Result<(), engine::Error> {
        if self.tokens.is_empty() {
            return Err(self.error("have no tokens; give the ids that the engine was sent"));
        }
        if let Some(token) = self.tokens.iter().find(|token| **token as usize >= vocab) {
            return Err(self.error(&format!("begin with token {token}; the model has {vocab}")));
        }
        for (at, token, _) in self.entries() {
            if at >= self.tokens.len() || token as usize >= vocab {
                return Err(self.error(&format!(
                    "have token {token} at position {at}; expected positions below {} and tokens below {vocab}",
                    self.tokens.len()
                )));
            }
        }
        Ok(())
    }

    /// Returns the error of rows that cannot be compared.
    fn error(&self, why: &str) -> engine::Error {
        engine::Error::Other(format!("the observed rows of prompt `{}` {why}", self.name))
    }
}

/// Prompts that are run with one edit after another.
struct LogprobTrial<'a> {
    engine: &'a dyn Engine,
    dir: &'a Path,
    options: &'a SessionOptions,
    observed: Vec<&'a ObservedPrompt>,
}

impl Trial for LogprobTrial<'_> {
    fn numbers(
        &self,
        model: &Arc<Model>,
        edit: &TokenEdit,
    ) -> Result<Option<TrialDifferences>, engine::Error> {
        let source = ModelSource { model: Arc::clone(model), dir: self.dir };
        let mut session = self.engine.open(&source, self.options)?;
        let mut all = Vec::new();
        for observed in &self.observed {
            let remaining = observed.tokens.get(edit.skip..).unwrap_or_default();
            let tokens = [&edit.before, remaining].concat();
            let slot = session.open_slot();
            let run = feed_chunk(&mut *session, slot, &tokens, OutputRows::All, &mut NoProbe);
            session.release(slot)?;
            let logits = run?;
            let mut row = vec![0.0; logits.vocab];
            let mut last = None;
            let mut values = Vec::new();
            for (at, token, value) in observed.entries() {
                if last != Some(at) {
                    let Some(moved) = (at + edit.before.len()).checked_sub(edit.skip) else {
                        return Ok(None);
                    };
                    log_softmax(logits.row(moved), &mut row);
                    last = Some(at);
                }
                values.push(row.get(token as usize).map_or(f32::NAN, |ours| ours - value));
            }
            all.push(Some(values));
        }
        Ok(Some(all))
    }
}

/// Runs an engine to get the log-probabilities of a dump's prompts.
pub fn observe(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    dump: &Dump,
    dtype: Dtype,
    options: &CheckOptions,
) -> Result<Vec<ObservedPrompt>, engine::Error> {
    let mut session = engine.open(source, &options.engine(dtype))?;
    let mut all = Vec::new();
    for prompt in dump.manifest.prompts.iter().filter(|prompt| !prompt.has_rows()) {
        let slot = session.open_slot();
        let chunk = Chunk { slot, tokens: &prompt.tokens, rows: OutputRows::All };
        let mask = prompt.mask(prompt.tokens.len());
        let run = feed_masked(&mut *session, chunk, mask, &mut NoProbe);
        session.release(slot)?;
        let logits = run?;
        let mut row = vec![0.0; logits.vocab];
        let rows = (0..logits.rows.min(prompt.tokens.len()))
            .map(|at: usize| {
                log_softmax(logits.row(at), &mut row);
                (at, (0..).zip(row.iter().copied()).collect())
            })
            .collect();
        all.push(ObservedPrompt { name: prompt.name.clone(), tokens: prompt.tokens.clone(), rows });
    }
    Ok(all)
}

/// Returns the distance of log-probabilities that rounding explains, in nats, from the ensemble of a dump.
pub fn noise(dump: &Dump, dtype: Dtype) -> Result<f64, dump::Error> {
    let mut widest = 0.0_f64;
    for prompt in dump.manifest.prompts.iter().filter(|prompt| !prompt.has_rows()) {
        let spread = dump.spread(dtype, prompt)?;
        let rows = spread.iter().flat_map(|spread| &spread.logprobs);
        widest = rows.map(|x| f64::from(*x)).fold(widest, f64::max);
    }
    Ok(rule::FACTOR * widest.max(rule::least_distance(dtype, 1.0)))
}

/// Finds edits of a model that reproduce the results of another engine. `noise` is the root mean square of
/// log-probability differences, in nats, that rounding explains. Returns none if the rows do not differ
/// beyond it.
pub fn explain(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    dtype: Dtype,
    observed: &[ObservedPrompt],
    noise: f64,
    options: &DiagnoseOptions,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<Option<Diagnosis>, engine::Error> {
    let near = BTreeSet::new();
    explain_near(engine, source, dtype, (observed, noise), options, &near, progress)
}

/// Finds edits like [`explain`]; those of the nodes in `near` are run before the others.
pub(super) fn explain_near(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    dtype: Dtype,
    (observed, noise): (&[ObservedPrompt], f64),
    options: &DiagnoseOptions,
    near: &BTreeSet<usize>,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<Option<Diagnosis>, engine::Error> {
    let until = Instant::now() + options.budget;
    for prompt in observed {
        prompt.check(source.model.vocab)?;
    }
    let session = SessionOptions { finite: false, ..options.check.engine(dtype) };
    let mut prompts: Vec<&ObservedPrompt> =
        observed.iter().filter(|o| o.entries().next().is_some()).collect();
    prompts.sort_by_key(|prompt| prompt.tokens.len());
    let case =
        ObservedCase { engine, dir: source.dir, session, dtype, prompts, noise, options, until };
    let model = &source.model;
    // A large model takes long to resolve, and edits of the model have to be run too.
    let resolved = Instant::now() + options.budget / 4;
    let first = readings(options.config.as_ref(), model, &case.first_tokens(), resolved);
    let Some(ObservedRound { mut diagnosis, groups }) = case.round(model, first, near, progress)?
    else {
        return Ok(None);
    };
    // Two faults at once: the other one is searched behind the edits that come nearest.
    let models = groups.iter().filter(|group| group.tokens() == TokenEdit::default());
    let begun: Vec<&EditGroup> =
        models.filter(|group| group.score.rest <= PARTIAL_RUN).take(FOLLOWS).collect();
    for group in begun {
        if diagnosis.explained || diagnosis.cut || group.score.exact() {
            break;
        }
        let edited = Arc::new(group.model(model));
        let Some(next) = case.round(&edited, Vec::new(), &BTreeSet::new(), progress)? else {
            continue;
        };
        diagnosis.tried += next.diagnosis.tried;
        diagnosis.cut |= next.diagnosis.cut;
        if next.diagnosis.explained {
            let mut causes = next.diagnosis.causes;
            causes.retain(|cause| cause.verified == Some(true));
            for cause in &mut causes {
                cause.with = described(group).take(1).collect();
            }
            causes.append(&mut diagnosis.causes);
            (diagnosis.causes, diagnosis.explained) = (causes, true);
        }
    }
    Ok(Some(diagnosis))
}

/// Data shared by all rounds of a search.
struct ObservedCase<'a> {
    engine: &'a dyn Engine,
    dir: &'a Path,
    session: SessionOptions,
    dtype: Dtype,
    /// Prompts with rows, shortest first.
    prompts: Vec<&'a ObservedPrompt>,
    noise: f64,
    options: &'a DiagnoseOptions,
    until: Instant,
}

/// All edits of one model, run on the observed prompts.
struct ObservedRound {
    diagnosis: Diagnosis,
    groups: Vec<EditGroup>,
}

impl ObservedCase<'_> {
    /// Returns the first token of each prompt.
    fn first_tokens(&self) -> Vec<u32> {
        self.prompts.iter().filter_map(|prompt| prompt.tokens.first()).copied().collect()
    }

    fn trial(&self, count: usize) -> LogprobTrial<'_> {
        LogprobTrial {
            engine: self.engine,
            dir: self.dir,
            options: &self.session,
            observed: self.prompts[..count].to_vec(),
        }
    }

    /// Runs `before`, then every edit of the model: those of the nodes in `near` first. The others are not run
    /// if one of these explains everything. Returns none if the model's rows do not differ.
    fn round(
        &self,
        model: &Arc<Model>,
        before: Vec<Candidate>,
        near: &BTreeSet<usize>,
        progress: &mut dyn FnMut(usize, usize, &str),
    ) -> Result<Option<ObservedRound>, engine::Error> {
        let prompts = &self.prompts;
        let noise = self.noise;
        let full_trial = self.trial(prompts.len());
        let unedited = full_trial.numbers(model, &TokenEdit::default())?.unwrap_or_default();
        let mut targets: Vec<ComparisonTarget> =
            unedited.iter().map(|differences| target(differences.as_deref(), noise)).collect();
        let Some(first) = targets.iter().position(|target| target.differs) else {
            return Ok(None);
        };
        targets[first].first = true;
        let last = last_prompt(prompts, first);
        let short = self.trial(last + 1);
        let few = &targets[..=last];
        let mut search = EditSearch {
            trial: &short,
            model,
            targets: few,
            unedited: unedited[..=last].to_vec(),
            until: self.until,
            tried: 0,
            cut: false,
        };
        let clues = Clues {
            positions: position(prompts[first], unedited[first].as_deref(), noise)
                .into_iter()
                .collect(),
            longest: prompts.last().map_or(0, |prompt| prompt.tokens.len()),
            dtype: Some(self.dtype),
            foreign: true,
        };
        let mut edits = before;
        if !near.is_empty() {
            let first = near.clone();
            let all = near.clone();
            let suspects = Suspects { first, all, single: true };
            edits.extend(candidates(model, &OpSet::builtin(), &suspects, &clues));
        }
        let mut groups = search.run(&edits, 0, progress);
        let full = |group: &EditGroup| -> Result<Option<Score>, engine::Error> {
            if last + 1 == targets.len() {
                return Ok(Some(group.score));
            }
            let edited = Arc::new(group.model(model));
            let numbers = full_trial.numbers(&edited, &group.tokens())?;
            Ok(numbers.map(|numbers| score(&numbers, &targets)))
        };
        let mut explained = false;
        for group in groups.iter().filter(|group| group.score.exact()).take(self.options.most) {
            explained |= full(group)?.is_some_and(|full| full.exact());
        }
        if !explained {
            let everything = Suspects::everything(&model.graph);
            let moved = rearrangements(model, &OpSet::builtin(), &everything);
            let mut later = candidates(model, &OpSet::builtin(), &everything, &clues);
            later.extend(moved);
            later.retain(|candidate| !edits.contains(candidate));
            groups.extend(search.run(&later, edits.len(), progress));
            rank(&mut groups);
        }
        let tried = search.tried;
        let cut = search.cut;
        let mut causes = Vec::new();
        for group in shortlist(&groups, self.options.most, PARTIAL_RUN) {
            causes.push(cause(group, full(group)?.map(|full| full.exact())));
        }
        causes.sort_by_key(|cause| cause.verified != Some(true));
        let diagnosis = Diagnosis {
            dtype: self.dtype,
            observed: format!("log-probabilities of prompt `{}`", prompts[first].name),
            before: few.iter().map(|target| target.before).fold(0.0, f64::max),
            noise,
            tried,
            explained: causes.first().is_some_and(|cause| cause.verified == Some(true)),
            cut,
            ignored: Vec::new(),
            causes,
        };
        Ok(Some(ObservedRound { diagnosis, groups }))
    }
}

/// Returns the target of a prompt, given the unedited model's differences from its observed rows.
fn target(differences: Option<&[f32]>, noise: f64) -> ComparisonTarget {
    ComparisonTarget {
        limit: noise,
        before: differences.map_or(f64::INFINITY, rms),
        size: 1.0,
        differs: differences.is_none_or(|all| rms(all) > noise),
        missing: false,
        first: false,
    }
}

/// Returns edits of the tokens and of the config, which an engine reads by itself.
fn readings(
    config: Option<&ConfigReader>,
    model: &Model,
    firsts: &[u32],
    until: Instant,
) -> Vec<Candidate> {
    let mut tokens = config.map(ConfigReader::tokens).unwrap_or_default();
    if let [first, tail @ ..] = firsts
        && tail.iter().all(|other| other == first)
    {
        tokens.push(("the first token of the prompt".to_owned(), *first));
    }
    tokens.push(("the first of the vocabulary".to_owned(), 0));
    let mut all: Vec<Edit> = Vec::new();
    for (name, token) in tokens.into_iter().filter(|(_, token)| (*token as usize) < model.vocab) {
        for (skip, way) in [(0, "before the prompt"), (1, "in the place of the prompt's first")] {
            let change = Change::Tokens(TokenEdit { before: vec![token], skip });
            if all.iter().all(|edit| edit.change != change) {
                let words = format!("token {token} ({name}) {way}");
                all.push(Edit { words, place: "the tokens".to_owned(), change });
            }
        }
    }
    all.extend(config.map(|config| config.edits(model, until)).unwrap_or_default());
    all.into_iter().map(Candidate::Edit).collect()
}

/// Returns the index of the last prompt, shortest first, to run with every edit. One prompt up to it
/// differs, and there are enough rows.
fn last_prompt(prompts: &[&ObservedPrompt], first: usize) -> usize {
    let mut rows = 0;
    for (n, prompt) in prompts.iter().enumerate() {
        rows += prompt.rows.len();
        if n >= first && rows >= ROWS {
            return n;
        }
    }
    prompts.len() - 1
}

/// Returns the first position that differs.
fn position(prompt: &ObservedPrompt, differences: Option<&[f32]>, noise: f64) -> Option<usize> {
    let mut pairs = prompt.entries().zip(differences?);
    pairs.find(|(_, gap)| f64::from(gap.abs()) > 4.0 * noise).map(|((at, _, _), _)| at)
}
