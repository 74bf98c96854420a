//! Finds edits of a correct model that reproduce the results of another engine.

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
use super::search::{cause, shortlist};
use super::{DiagnoseOptions, Diagnosis};
use crate::check::CheckOptions;
use crate::dump::{self, Dump};
use crate::edit::{Clues, Suspects, candidates};
use crate::metrics::log_softmax;
use crate::rule;
use crate::run::{feed_chunk, feed_masked};

/// Number of rows with which edits are tried before the best are run on every prompt.
const ROWS: usize = 16;

/// Maximum remaining difference, as a share, of edits that are reported although they do not explain everything.
/// Rows of a wrong model are as far from one edited model as from another: edits of no importance are nearer by 10
/// to 40 %.
const PARTIAL_RUN: f64 = 0.5;

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
        let bad = |why: String| {
            Err(engine::Error::Other(format!("the observed rows of prompt `{}` {why}", self.name)))
        };
        if self.tokens.is_empty() {
            return bad("have no tokens; give the ids that the engine was sent".to_owned());
        }
        if let Some(token) = self.tokens.iter().find(|token| **token as usize >= vocab) {
            return bad(format!("begin with token {token}; the model has {vocab}"));
        }
        for (at, token, _) in self.entries() {
            if at >= self.tokens.len() || token as usize >= vocab {
                return bad(format!(
                    "have token {token} at position {at}; expected positions below {} and tokens below {vocab}",
                    self.tokens.len()
                ));
            }
        }
        Ok(())
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
    fn numbers(&self, model: &Arc<Model>) -> Result<Option<TrialDifferences>, engine::Error> {
        let source = ModelSource { model: Arc::clone(model), dir: self.dir };
        let mut session = self.engine.open(&source, self.options)?;
        let mut all = Vec::new();
        for observed in &self.observed {
            let slot = session.open_slot();
            let run =
                feed_chunk(&mut *session, slot, &observed.tokens, OutputRows::All, &mut NoProbe);
            session.release(slot)?;
            let logits = run?;
            let (mut row, mut last) = (vec![0.0; logits.vocab], None);
            let mut values = Vec::new();
            for (at, token, value) in observed.entries() {
                if last != Some(at) {
                    log_softmax(logits.row(at), &mut row);
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
    for prompt in &dump.manifest.prompts {
        let slot = session.open_slot();
        let chunk = Chunk { slot, tokens: &prompt.tokens, rows: OutputRows::All };
        let mask = prompt.mask(prompt.tokens.len());
        let run = feed_masked(&mut *session, chunk, mask, &mut NoProbe);
        session.release(slot)?;
        let logits = run?;
        let mut row = vec![0.0; logits.vocab];
        let row = |at: usize| {
            log_softmax(logits.row(at), &mut row);
            (at, (0..).zip(row.iter().copied()).collect())
        };
        let rows = (0..logits.rows.min(prompt.tokens.len())).map(row).collect();
        all.push(ObservedPrompt { name: prompt.name.clone(), tokens: prompt.tokens.clone(), rows });
    }
    Ok(all)
}

/// Returns the distance of log-probabilities that rounding explains, in nats, from the ensemble of a dump.
pub fn noise(dump: &Dump, dtype: Dtype) -> Result<f64, dump::Error> {
    let mut widest = 0.0_f64;
    for prompt in &dump.manifest.prompts {
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
    let until = Instant::now() + options.budget;
    for prompt in observed {
        prompt.check(source.model.vocab)?;
    }
    let session = SessionOptions { finite: false, ..options.check.engine(dtype) };
    let model = &source.model;
    let mut prompts: Vec<&ObservedPrompt> =
        observed.iter().filter(|o| o.entries().next().is_some()).collect();
    prompts.sort_by_key(|prompt| prompt.tokens.len());
    let trial = |observed| LogprobTrial { engine, dir: source.dir, options: &session, observed };
    let whole = trial(prompts.clone());
    let unedited = whole.numbers(model)?.unwrap_or_default();
    let of = |differences: &Option<Vec<f32>>| {
        let before = differences.as_deref().map_or(f64::INFINITY, rms);
        let differs = before > noise;
        ComparisonTarget { limit: noise, before, size: 1.0, differs, missing: false, first: false }
    };
    let mut wanted: Vec<ComparisonTarget> = unedited.iter().map(of).collect();
    let Some(first) = wanted.iter().position(|wanted| wanted.differs) else { return Ok(None) };
    wanted[first].first = true;
    let last = last_prompt(&prompts, first);
    let short = trial(prompts[..=last].to_vec());
    let few = &wanted[..=last];
    let mut search = EditSearch {
        trial: &short,
        model,
        wanted: few,
        unedited: unedited[..=last].to_vec(),
        until,
        tried: 0,
        cut: false,
    };
    let clues = Clues {
        positions: position(prompts[first], unedited[first].as_deref(), noise)
            .into_iter()
            .collect(),
        longest: prompts.last().map_or(0, |prompt| prompt.tokens.len()),
        dtype: Some(dtype),
    };
    let suspects = Suspects::everything(&model.graph);
    let edits = candidates(model, &OpSet::builtin(), &suspects, &clues);
    let groups = search.run(&edits, progress);
    let (tried, cut) = (search.tried, search.cut);
    let mut causes = Vec::new();
    for group in shortlist(&groups, options.most, PARTIAL_RUN) {
        let full: Option<Score> = if last + 1 == wanted.len() {
            Some(group.score)
        } else {
            let edited = Arc::new(group.model(model));
            whole.numbers(&edited)?.map(|numbers| score(&numbers, &wanted))
        };
        causes.push(cause(group, full.map(|full| full.exact())));
    }
    causes.sort_by_key(|cause| cause.verified != Some(true));
    Ok(Some(Diagnosis {
        dtype,
        observed: format!("log-probabilities of prompt `{}`", prompts[first].name),
        before: few.iter().map(|wanted| wanted.before).fold(0.0, f64::max),
        noise,
        tried,
        explained: causes.first().is_some_and(|cause| cause.verified == Some(true)),
        cut,
        causes,
    }))
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
