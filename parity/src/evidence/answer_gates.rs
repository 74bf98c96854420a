//! Requests of a check to a server, and the gates of its answers.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use endpoints::{
    Endpoint, Generation, LogprobRow, LogprobSupport, PrefixCache, PromptRequest, PromptScores,
};
use engine::ModelSource;
use registry::dtype::Dtype;

use super::cases::ServerPrompt;
use super::identity::RowFingerprint;
use super::judge::{ComparedRows, Judge};
use super::native::NativeReference;
use super::server_schedules::{self, SingleAnswers};
use super::{CheckTimes, Error, EvidenceOptions, answers};
use crate::diagnose::ObservedPrompt;
use crate::dump::{Dump, Phase};
use crate::gate::{Gate, Verdict};
use crate::report::GreedyRow;
use crate::schedules::ScheduleRow;

/// Number of tokens of observed rows that are kept for the search of causes.
const OBSERVED: usize = 64;

/// Number of prompts whose generated tokens the native engine scores again, with a representative mix of
/// lengths. A large model on a CPU takes longer for them than its server for everything.
const RESCORED: usize = 16;

/// Number of prompts on which the effect of rounding is measured, if no dump provides it.
const MEASURED: usize = 4;

/// Maximum number of prompts that are requested one after the other; larger sets are requested in parallel.
const ALONE: usize = 16;

/// Gates of a server's answers so far, and what they are judged by.
pub(super) struct AnswerGates<'a> {
    pub(super) server: &'a dyn Endpoint,
    pub(super) source: &'a ModelSource<'a>,
    pub(super) options: &'a EvidenceOptions<'a>,
    /// Dump of the weights that the server runs.
    pub(super) reference: Option<&'a Dump>,
    pub(super) dtype: Dtype,
    /// Positions that both the server and the model support.
    pub(super) room: usize,
    pub(super) cases: &'a [ServerPrompt],
    pub(super) native: NativeReference<'a>,
    /// The native engine with rows rounded as the server's engine rounds them.
    pub(super) products: Option<NativeReference<'a>>,
    pub(super) judge: Judge,
    pub(super) effort: CheckTimes,
    pub(super) identity: RowFingerprint,
    pub(super) gates: Vec<Gate>,
    pub(super) greedy: Vec<GreedyRow>,
}

impl AnswerGates<'_> {
    /// Measures the effect of rounding on some prompts.
    pub(super) fn measure(&mut self) -> Result<(), Error> {
        let begun = Instant::now();
        self.judge.measure(&mut self.native, &mixed(self.cases, MEASURED))?;
        self.effort.native += begun.elapsed();
        Ok(())
    }

    /// Requests the rows of all prompts and judges them. Returns the rows.
    pub(super) fn score_prompts(&mut self) -> Result<Vec<PromptScores>, Error> {
        let mut scored_rows = Vec::new();
        let cases = self.cases;
        for group in cases.chunks(width(cases, self.options)) {
            let group_scores = timed(&mut self.effort.server, || score(self.server, group))?;
            for (case, scored) in group.iter().zip(group_scores) {
                let begun = Instant::now();
                self.judge_prompt(case, &scored)?;
                self.effort.native += begun.elapsed();
                scored_rows.push(scored);
            }
        }
        if are_distributions(&self.gates) {
            self.identity.refuse(self.server.facts(), self.source)?;
        }
        Ok(scored_rows)
    }

    /// Adds the gates of the rows of a prompt.
    fn judge_prompt(&mut self, case: &ServerPrompt, scored: &PromptScores) -> Result<(), Error> {
        let vocab = self.source.model.vocab;
        self.gates.extend(answers::scored(case, scored, self.server.facts(), vocab));
        let truth = match case.truth(self.reference)? {
            Some(truth) => truth,
            None => self.native.rows(&case.tokens, &case.positions)?,
        };
        self.identity.add(&case.positions, &scored.rows, &truth);
        let products = self.products.as_mut();
        let rounded =
            products.map(|products| products.rows(&case.tokens, &case.positions)).transpose()?;
        let compared = ComparedRows {
            steps: &case.positions,
            server: &scored.rows,
            truth: &truth,
            rounded: rounded.as_deref(),
            spread: case.spread.as_deref(),
        };
        self.gates.push(self.judge.gate(case, Phase::Prefill, compared));
        Ok(())
    }

    /// Requests tokens behind all prompts and judges them. Returns the answers, and a note if the native engine
    /// did not score all of them again.
    pub(super) fn generate(&mut self) -> Result<(Vec<Generation>, Option<String>), Error> {
        let mut generations = Vec::new();
        let cases = self.cases;
        let facts = self.server.facts();
        let shows_prompts = matches!(facts.scores, LogprobSupport::Full | LogprobSupport::Top(_));
        let rescored: BTreeSet<&str> =
            mixed(cases, RESCORED).into_iter().map(|case| case.name.as_str()).collect();
        let note = (rescored.len() < cases.len()).then(|| {
            format!(
                "generated tokens of {} of {} prompts were scored again by the native engine",
                rescored.len(),
                cases.len()
            )
        });
        let count = self.options.tokens;
        for group in cases.chunks(width(cases, self.options)) {
            let group_answers =
                timed(&mut self.effort.server, || generate(self.server, group, count))?;
            for (case, generated) in group.iter().zip(group_answers) {
                let begun = Instant::now();
                let vocab = self.source.model.vocab;
                self.gates.extend(answers::generated(case, &generated, count, facts, vocab));
                if rescored.contains(case.name.as_str()) {
                    let decoded = self.decode(case, &generated)?;
                    if !shows_prompts {
                        self.identity.add_generated(&generated.rows, &decoded.truth);
                    }
                    self.gates.push(decoded.gate);
                    self.greedy.push(decoded.greedy);
                }
                self.effort.native += begun.elapsed();
                generations.push(generated);
            }
        }
        if !shows_prompts && are_distributions(&self.gates) {
            self.identity.refuse(facts, self.source)?;
        }
        Ok((generations, note))
    }

    /// Scores generated tokens with the native engine and compares.
    fn decode(
        &mut self,
        case: &ServerPrompt,
        generated: &Generation,
    ) -> Result<GeneratedResult, Error> {
        let all_tokens: Vec<u32> = case.tokens.iter().chain(&generated.ids).copied().collect();
        let first = case.tokens.len() - 1;
        let positions: Vec<usize> = (first..first + generated.ids.len()).collect();
        let truth = self.native.rows(&all_tokens, &positions)?;
        let steps: Vec<usize> = (1..=positions.len()).collect();
        let widest = case.widest.map(|widest| vec![widest; positions.len()]);
        let products = self.products.as_mut();
        let rounded =
            products.map(|products| products.rows(&all_tokens, &positions)).transpose()?;
        let compared = ComparedRows {
            steps: &steps,
            server: &generated.rows,
            truth: &truth,
            rounded: rounded.as_deref(),
            spread: widest.as_deref(),
        };
        let mut gate = self.judge.gate(case, Phase::Decode, compared);
        if generated.ids.is_empty() {
            gate = gate.skipped("the server ended before the first token");
        }
        let greedy = self.judge.greedy(case, generated, &truth);
        Ok(GeneratedResult { gate, greedy, truth })
    }

    /// Returns an error if no answer had a number that could be judged.
    pub(super) fn check_judged(&self) -> Result<(), Error> {
        if self.gates.iter().any(|gate| gate.verdict != Verdict::Skip) {
            return Ok(());
        }
        let reason = if self.cases.is_empty() {
            format!(
                "has room for {} tokens, and every prompt with the tokens behind it is longer",
                self.room
            )
        } else {
            let why = self.gates.iter().find_map(|gate| gate.finding.as_deref());
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            format!("gave no number that could be judged{why}")
        };
        let url = self.server.facts().url.clone();
        let tokens = String::new();
        Err(Error::NotProvable { url, reason, tokens })
    }

    /// Compares the server with its own answers in other batches.
    pub(super) fn schedules(
        &mut self,
        scored: &[PromptScores],
        generated: &[Generation],
    ) -> Result<Vec<ScheduleRow>, Error> {
        let tolerance = self.judge.tolerance(&self.gates);
        let alone = SingleAnswers {
            cases: self.cases,
            scored,
            generated,
            vocab: self.source.model.vocab,
            room: self.room,
        };
        Ok(timed(&mut self.effort.server, || {
            server_schedules::schedules(self.server, &alone, self.dtype, tolerance, self.options)
        })?)
    }
}

/// Returns rows of some prompts, for a search of causes.
pub(super) fn observed(cases: &[ServerPrompt], scored: &[PromptScores]) -> Vec<ObservedPrompt> {
    let mut observed = Vec::new();
    for (case, scored) in cases.iter().zip(scored) {
        keep(&mut observed, case, scored);
    }
    observed
}

/// Chooses up to `count` cases whose lengths represent those of all.
fn mixed(cases: &[ServerPrompt], count: usize) -> Vec<&ServerPrompt> {
    let mut sorted: Vec<&ServerPrompt> = cases.iter().collect();
    sorted.sort_by_key(|case| case.tokens.len());
    let last = sorted.len().saturating_sub(1);
    let mut places: Vec<usize> = (0..count).map(|n| n * last / (count - 1).max(1)).collect();
    places.dedup();
    places.into_iter().filter_map(|place| sorted.get(place).copied()).collect()
}

/// Returns the number of parallel requests. It is one for few prompts, so that a fault of batches shows
/// only in its schedule.
fn width(cases: &[ServerPrompt], options: &EvidenceOptions<'_>) -> usize {
    if cases.len() <= ALONE { 1 } else { options.parallel.max(1) }
}

pub(super) fn timed<T>(total: &mut Duration, run: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = run();
    *total += begun.elapsed();
    result
}

fn score(
    server: &dyn Endpoint,
    cases: &[ServerPrompt],
) -> Result<Vec<PromptScores>, endpoints::Error> {
    server_schedules::together(cases, &|case: &ServerPrompt| {
        server.score(
            &PromptRequest { tokens: &case.tokens, cache: PrefixCache::Off },
            &case.positions,
        )
    })
}

fn generate(
    server: &dyn Endpoint,
    cases: &[ServerPrompt],
    count: usize,
) -> Result<Vec<Generation>, endpoints::Error> {
    server_schedules::together(cases, &|case: &ServerPrompt| {
        server.generate(&PromptRequest { tokens: &case.tokens, cache: PrefixCache::Off }, count)
    })
}

/// True if all rows are distributions over the tokens that were sent: others do not identify a model.
fn are_distributions(gates: &[Gate]) -> bool {
    gates.iter().all(|gate| gate.bounds.len() == 1 || !gate.fails())
}

/// Result for the generated tokens of one prompt.
struct GeneratedResult {
    gate: Gate,
    greedy: GreedyRow,
    /// Rows of the native engine after the same tokens.
    truth: Vec<LogprobRow>,
}

/// Keeps rows for a search of causes. A row with only the next token has one entry.
fn keep(observed: &mut Vec<ObservedPrompt>, case: &ServerPrompt, scored: &PromptScores) {
    let so_far: usize = observed.iter().map(|o: &ObservedPrompt| o.rows.len()).sum();
    if so_far + scored.rows.len() > OBSERVED && !observed.is_empty() {
        return;
    }
    let rows = case.positions.iter().zip(&scored.rows);
    let rows = rows.map(|(at, row)| (*at, entries_of(row, case.tokens.get(at + 1)))).collect();
    observed.push(ObservedPrompt { name: case.name.clone(), tokens: case.tokens.clone(), rows });
}

/// Returns the entries of a row, or the next token alone. An entry with zero probability has no distance.
fn entries_of(row: &LogprobRow, next: Option<&u32>) -> Vec<(u32, f32)> {
    let mut entries: Vec<(u32, f32)> =
        row.entries().map(|(id, value)| (id as u32, value)).collect();
    if let (true, Some(next), Some(value)) = (entries.is_empty(), next, row.target) {
        entries.push((*next, value));
    }
    entries.retain(|(_, value)| *value > endpoints::FLOOR);
    entries
}
