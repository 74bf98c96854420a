//! Schedules of a server: the same request alone, repeated, in batches, with a warm prefix cache, after
//! another one.
//!
//! A server's answer must not depend on its other requests. If it does, slots, caches or batches leak, and
//! the schedule shows which.

use std::thread;

use endpoints::{
    Endpoint, Error, Generation, LogprobRow, PrefixCache, PromptRequest, PromptScores,
};
use registry::dtype::Dtype;

use super::EvidenceOptions;
use super::cases::{ServerPrompt, arbitrary_tokens};
use super::distance::{distance, logprob_gap, top};
use super::judge::ScheduleTolerance;
use crate::gate::Verdict;
use crate::rule;
use crate::schedules::ScheduleRow;

/// Number of prompts in the schedules.
const PROMPTS: usize = 3;

/// Maximum length of a prompt in the schedules.
const LONGEST: usize = 1024;

/// Number of tokens after a truncated prompt.
const MORE: usize = 12;

/// Answers to each prompt by itself.
pub(super) struct SingleAnswers<'a> {
    pub(super) cases: &'a [ServerPrompt],
    /// Rows of prompts; empty if the server provides none.
    pub(super) scored: &'a [PromptScores],
    /// Generated tokens; empty if the server provides none.
    pub(super) generated: &'a [Generation],
    pub(super) vocab: usize,
    /// Maximum length of a sequence.
    pub(super) room: usize,
}

/// Runs `one` for all items in parallel.
pub(super) fn together<I: Sync, T: Send>(
    items: &[I],
    one: &(dyn Fn(&I) -> Result<T, Error> + Sync),
) -> Result<Vec<T>, Error> {
    if items.len() == 1 {
        return items.iter().map(one).collect();
    }
    thread::scope(|scope| {
        let handles: Vec<_> = items.iter().map(|item| scope.spawn(move || one(item))).collect();
        let ended = handles.into_iter().map(thread::ScopedJoinHandle::join);
        ended
            .map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Answer of either kind.
struct AnswerRows {
    ids: Vec<u32>,
    rows: Vec<LogprobRow>,
    /// Position of the first row in the sequence.
    from: usize,
}

impl From<&Generation> for AnswerRows {
    fn from(generation: &Generation) -> Self {
        Self { ids: generation.ids.clone(), rows: generation.rows.clone(), from: 0 }
    }
}

impl From<&PromptScores> for AnswerRows {
    fn from(scored: &PromptScores) -> Self {
        Self { ids: Vec::new(), rows: scored.rows.clone(), from: 0 }
    }
}

/// Progress of one schedule.
struct ScheduleProgress {
    row: ScheduleRow,
    tolerance: ScheduleTolerance,
}

impl ScheduleProgress {
    fn new(dtype: Dtype, name: &str, why: &'static str, tolerance: ScheduleTolerance) -> Self {
        let limit = match tolerance {
            ScheduleTolerance::Largest(limit) => limit,
            ScheduleTolerance::Noise(noise) => rule::FACTOR / 2.0 * noise,
        };
        let steps = 0;
        let position = None;
        let note = None;
        let name = name.to_owned();
        let max = f64::NAN;
        let distance = f64::NAN;
        let verdict = Verdict::Pass;
        Self {
            row: ScheduleRow {
                dtype,
                name,
                why,
                steps,
                max,
                distance,
                limit,
                position,
                note,
                verdict,
            },
            tolerance,
        }
    }

    /// Compares an answer with the one that the prompt had alone. After a different token, sequences are
    /// not comparable.
    fn compare(&mut self, case: &ServerPrompt, what: &str, alone: &AnswerRows, got: &AnswerRows) {
        self.row.steps += 1;
        let end = case.tokens.len();
        let same = alone.ids.iter().zip(&got.ids).all(|(a, b)| a == b);
        if same && (alone.rows.len() != got.rows.len() || alone.ids.len() != got.ids.len()) {
            let want = alone.rows.len();
            let count = got.rows.len();
            self.fail(case, end, &format!("{what}: {count} rows come back, and {want} alone"));
        }
        let mut distances = Vec::new();
        for (n, (want, row)) in alone.rows.iter().zip(&got.rows).enumerate() {
            let entry_gap: f64 = row
                .entries()
                .filter_map(|(id, value)| Some(f64::from(logprob_gap(want.at(id as u32)?, value))))
                .fold(0.0, f64::max);
            let targets =
                want.target.zip(row.target).filter(|_| alone.ids.get(n) == got.ids.get(n));
            let delta =
                targets.map_or(entry_gap, |(a, b)| entry_gap.max(f64::from(logprob_gap(a, b))));
            // Rows without a common token only show that they have none.
            let apart_tops =
                want.values.len() > 1 && row.values.len() > 1 && want.at(top(row) as u32).is_none();
            let delta = if apart_tops { delta.max(1.0) } else { delta };
            // A row that lost its values agrees with nothing.
            let lost = want.values.len() > row.values.len() && row.values.len() < 2
                || want.is_full() != row.is_full()
                || want.target.is_some() && row.target.is_none();
            let delta = if lost { f64::INFINITY } else { delta };
            self.row.max = self.row.max.max(delta);
            let position =
                if alone.ids.is_empty() { case.positions[n] } else { end - 1 + n + alone.from };
            match self.tolerance {
                ScheduleTolerance::Largest(_) => {
                    self.row.distance = self.row.max;
                    if delta > self.row.limit {
                        self.fail(case, position, what);
                    }
                }
                ScheduleTolerance::Noise(_) if lost || apart_tops => {
                    self.fail(case, position, what);
                }
                ScheduleTolerance::Noise(_) => {
                    distances.push((position, distance(row, want, &mut Vec::new()).rms));
                }
            }
            if !alone.ids.is_empty() && alone.ids.get(n) != got.ids.get(n) {
                break;
            }
        }
        self.judge_mean(case, what, &distances);
    }

    /// Judges the mean distance of an answer's rows, by position.
    fn judge_mean(&mut self, case: &ServerPrompt, what: &str, distances: &[(usize, f64)]) {
        if distances.is_empty() {
            return;
        }
        let mean = distances.iter().map(|row| row.1).sum::<f64>() / distances.len() as f64;
        self.row.distance = self.row.distance.max(mean);
        // A row may be as far as two means.
        let far = distances.iter().find(|row| row.1.is_nan() || row.1 > 2.0 * self.row.limit);
        if let Some(&(position, _)) = far {
            self.fail(case, position, what);
        } else if mean > self.row.limit {
            let first = distances.iter().find(|row| row.1 > self.row.limit);
            self.fail(case, first.unwrap_or(&distances[0]).0, what);
        }
    }
}

impl ScheduleProgress {
    fn fail(&mut self, case: &ServerPrompt, position: usize, what: &str) {
        if self.row.verdict != Verdict::Fail {
            self.row.verdict = Verdict::Fail;
            self.row.position = Some(position);
            self.row.note = Some(format!("prompt `{}`, {what}", case.name));
        }
    }

    /// Finishes the schedule. One that compared nothing is not judged.
    fn done(self) -> ScheduleRow {
        if self.row.steps > 0 {
            return self.row;
        }
        let note = Some("no prompt is long enough for it".to_owned());
        ScheduleRow { verdict: Verdict::Skip, note, ..self.row }
    }
}

/// Runs all schedules that the server's responses allow.
pub(super) fn schedules(
    server: &dyn Endpoint,
    alone: &SingleAnswers<'_>,
    dtype: Dtype,
    tolerance: ScheduleTolerance,
    options: &EvidenceOptions<'_>,
) -> Result<Vec<ScheduleRow>, Error> {
    let places = chosen(alone.cases);
    let Some(&main) = places.first() else { return Ok(Vec::new()) };
    let setting = ScheduleContext { server, alone, dtype, tolerance, count: options.tokens };
    let mut rows = Vec::new();
    if !alone.generated.is_empty() {
        rows.extend(setting.one_by_one(&places)?);
        rows.extend(setting.side_by_side(&places, main, options.parallel.max(2))?);
    }
    if !alone.scored.is_empty() {
        rows.extend(setting.scoring(&places)?);
    }
    if !alone.generated.is_empty() {
        rows.push(setting.at_the_end(&places)?);
    }
    Ok(rows)
}

/// Returns prompts of mixed lengths, the longest first.
fn chosen(cases: &[ServerPrompt]) -> Vec<usize> {
    let mut places: Vec<usize> =
        (0..cases.len()).filter(|n| cases[*n].tokens.len() <= LONGEST).collect();
    places.sort_by_key(|n| std::cmp::Reverse(cases[*n].tokens.len()));
    places.truncate(PROMPTS);
    places
}

struct ScheduleContext<'a> {
    server: &'a dyn Endpoint,
    alone: &'a SingleAnswers<'a>,
    dtype: Dtype,
    tolerance: ScheduleTolerance,
    count: usize,
}

impl ScheduleContext<'_> {
    fn run(&self, name: &str, why: &'static str) -> ScheduleProgress {
        ScheduleProgress::new(self.dtype, name, why, self.tolerance)
    }

    fn generate(
        &self,
        tokens: &[u32],
        cache: PrefixCache,
        count: usize,
    ) -> Result<Generation, Error> {
        self.server.generate(&PromptRequest { tokens, cache }, count.max(1))
    }

    /// Sends requests one after the other, with the server's own caching.
    fn one_by_one(&self, places: &[usize]) -> Result<Vec<ScheduleRow>, Error> {
        let mut again =
            self.run("again", "the same request twice: the second one finds its own caches");
        let mut other = self.run(
            "after another",
            "a request behind another conversation: nothing of it may be left in a slot",
        );
        let mut prefix = self.run("warm prefix", "the first half is cached, then the whole prompt");
        let mut beyond = self.run(
            "longer before",
            "a longer conversation is cached, then the prompt that it began with",
        );
        let mut goes_on = self.run(
            "continued",
            "the tokens generated so far as part of the prompt: decode and prefill agree",
        );
        for &n in places {
            let case = &self.alone.cases[n];
            let alone = AnswerRows::from(&self.alone.generated[n]);
            let tokens = &case.tokens;
            for time in ["the first time", "the second time"] {
                let got = self.generate(tokens, PrefixCache::Default, self.count)?;
                again.compare(case, time, &alone, &(&got).into());
            }
            let fits = (tokens.len() + 3).min(self.alone.room.saturating_sub(self.count + 1));
            let stranger = arbitrary_tokens(fits, self.alone.vocab);
            self.generate(&stranger, PrefixCache::Default, self.count)?;
            let got = self.generate(tokens, PrefixCache::Default, self.count)?;
            other.compare(case, "behind one of another text", &alone, &(&got).into());

            if tokens.len() > 1 {
                self.generate(&tokens[..tokens.len() / 2], PrefixCache::Default, 1)?;
                let got = self.generate(tokens, PrefixCache::Default, self.count)?;
                prefix.compare(case, "over its first half", &alone, &(&got).into());
            }
            let more = self.alone.room.saturating_sub(tokens.len() + self.count + 1).min(MORE);
            let longer: Vec<u32> =
                tokens.iter().chain(stranger.iter().take(more)).copied().collect();
            if longer.len() > tokens.len() {
                self.generate(&longer, PrefixCache::Default, 1)?;
                let got = self.generate(tokens, PrefixCache::Default, self.count)?;
                beyond.compare(case, "cut back from a longer one", &alone, &(&got).into());
            }
            let half = alone.ids.len() / 2;
            if half > 0 {
                let so_far: Vec<u32> = tokens.iter().chain(&alone.ids[..half]).copied().collect();
                let got = self.generate(&so_far, PrefixCache::Default, self.count - half)?;
                let remaining = AnswerRows {
                    ids: alone.ids[half..].to_vec(),
                    rows: alone.rows[half..].to_vec(),
                    from: half,
                };
                goes_on.compare(case, "with what it generated", &remaining, &(&got).into());
            }
        }
        Ok([again, other, prefix, beyond, goes_on].map(ScheduleProgress::done).into())
    }

    /// Sends requests at the same time.
    fn side_by_side(
        &self,
        places: &[usize],
        main: usize,
        parallel: usize,
    ) -> Result<Vec<ScheduleRow>, Error> {
        let mut batch = self.run(
            "mixed batch",
            "prompts of several lengths at the same time: padding and slots of others",
        );
        for _ in 0..2 {
            let got = together(places, &|n| {
                self.generate(&self.alone.cases[*n].tokens, PrefixCache::Off, self.count)
            })?;
            for (n, got) in places.iter().zip(&got) {
                let case = &self.alone.cases[*n];
                batch.compare(
                    case,
                    "beside prompts of other lengths",
                    &(&self.alone.generated[*n]).into(),
                    &got.into(),
                );
            }
        }
        let mut crowd = self.run("crowd", "the same prompt many times at once");
        let case = &self.alone.cases[main];
        let alone = AnswerRows::from(&self.alone.generated[main]);
        let all: Vec<usize> = (0..parallel).collect();
        let got =
            together(&all, &|_| self.generate(&case.tokens, PrefixCache::Default, self.count))?;
        for got in &got {
            crowd.compare(case, "beside itself", &alone, &got.into());
        }
        Ok(vec![batch.done(), crowd.done()])
    }

    /// Requests rows of prompts with warm caches, and in parallel.
    fn scoring(&self, places: &[usize]) -> Result<Vec<ScheduleRow>, Error> {
        let mut warm =
            self.run("scored warm", "rows of a prompt that is cached: stale rows, or too few");
        for n in places {
            for time in ["the first time", "the second time"] {
                let got = self.score(*n, PrefixCache::Default)?;
                warm.compare(
                    &self.alone.cases[*n],
                    time,
                    &(&self.alone.scored[*n]).into(),
                    &(&got).into(),
                );
            }
        }
        let mut batch =
            self.run("scored together", "rows of prompts of several lengths at the same time");
        let got = together(places, &|n: &usize| self.score(*n, PrefixCache::Off))?;
        for (n, got) in places.iter().zip(&got) {
            batch.compare(
                &self.alone.cases[*n],
                "beside others",
                &(&self.alone.scored[*n]).into(),
                &got.into(),
            );
        }
        Ok(vec![warm.done(), batch.done()])
    }

    /// Requests the rows of a prompt.
    fn score(&self, n: usize, cache: PrefixCache) -> Result<PromptScores, Error> {
        let case = &self.alone.cases[n];
        self.server.score(&PromptRequest { tokens: &case.tokens, cache }, &case.positions)
    }

    /// Repeats the first request.
    fn at_the_end(&self, places: &[usize]) -> Result<ScheduleRow, Error> {
        let mut run = self.run(
            "cache off",
            "without caches, behind all other requests: what the server remembers of them",
        );
        for n in places {
            let case = &self.alone.cases[*n];
            let got = self.generate(&case.tokens, PrefixCache::Off, self.count)?;
            run.compare(case, "at the end", &(&self.alone.generated[*n]).into(), &(&got).into());
        }
        Ok(run.done())
    }
}
