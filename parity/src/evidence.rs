//! Judges a server by its responses: rows of prompts, generated tokens, and answers to the same request in
//! other batches.
//!
//! Rows of prompts are compared with the dump, or with the native engine if there is none. Generated tokens
//! are scored again by the native engine in f32, which tests decode parity at any length. Both are judged
//! by [`rule`](crate::rule), like a check of any other engine. Schedules compare the server with itself.

mod answers;
mod cases;
mod distance;
mod identity;
mod judge;
mod locate;
mod native;
mod products;
mod server_schedules;
mod text_only;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use endpoints::{
    Endpoint, Generation, LogprobRow, LogprobSupport, PrefixCache, PromptRequest, PromptScores,
    ServerFacts,
};
use engine::{Engine, ModelSource};
use registry::dtype::Dtype;

use crate::check::{Error as CheckError, summarize};
use crate::diagnose::ObservedPrompt;
use crate::dump::{Dump, Phase};
use crate::gate::{Gate, Verdict};
use crate::report::{FileHashes, GreedyRow, Report, ReportSubject, Uncovered};

use cases::{ServerPrompt, cases, noisy_cases};
use judge::{ComparedRows, Judge};
use native::NativeReference;
use products::EngineRounding;

pub use text_only::EncodeText;

/// Number of tokens of observed rows that are kept for the search of causes.
const OBSERVED: usize = 64;

/// Number of prompts whose generated tokens the native engine scores again, with a representative mix of
/// lengths. A large model on a CPU takes longer for them than its server for everything.
const RESCORED: usize = 16;

/// Number of prompts on which the effect of rounding is measured, if no dump provides it.
const MEASURED: usize = 4;

/// Maximum number of prompts that are requested one after the other; larger sets are requested in parallel.
const ALONE: usize = 16;

/// Scope of a check of a server.
#[derive(Clone)]
pub struct EvidenceOptions<'a> {
    /// Dtype of the server; by default the one that the server reports, or f32.
    pub dtype: Option<Dtype>,
    /// Maximum difference of a log-probability of an f32 run.
    pub bound: Option<f64>,
    /// Number of tokens to generate after each prompt.
    pub tokens: usize,
    /// Number of parallel requests.
    pub parallel: usize,
    /// True if the server is also compared with itself in other batches.
    pub schedules: bool,
    /// Worker threads of the native engine.
    pub threads: Option<usize>,
    /// The model's own tokenizer.
    pub tokenizer: Option<&'a EncodeText<'a>>,
}

impl Default for EvidenceOptions<'_> {
    fn default() -> Self {
        Self {
            dtype: None,
            bound: None,
            tokens: 16,
            parallel: 4,
            schedules: true,
            threads: None,
            tokenizer: None,
        }
    }
}

impl std::fmt::Debug for EvidenceOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EvidenceOptions").field("dtype", &self.dtype).finish_non_exhaustive()
    }
}

/// Result of a check of a server, with the data for a search of causes.
#[derive(Debug)]
pub struct ServerEvidence {
    /// The report.
    pub report: Report,
    /// The dtype that the server was judged in.
    pub dtype: Dtype,
    /// Rows of prompts from the server, few enough to run a model on repeatedly.
    pub observed: Vec<ObservedPrompt>,
    /// Root mean square of log-probability differences that rounding explains, in nats.
    pub noise: f64,
    /// Time of the check, by where it was spent.
    pub effort: CheckTimes,
}

/// Time of a check, by where it was spent.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckTimes {
    /// Time of waiting for the server and reading its answers.
    pub server: Duration,
    /// Time of the native engine.
    pub native: Duration,
}

/// Reason why a server could not be judged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server gave no usable answer.
    #[error(transparent)]
    Server(#[from] endpoints::Error),
    /// Error in the dump or the native engine.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The server runs another model.
    #[error(
        "`{url}` serves another model than `{model}`: {found}; give the folder of the model that is served, or the address \
         of the server that serves this one"
    )]
    OtherModel {
        /// The server.
        url: String,
        /// The model at hand.
        model: String,
        /// Evidence for another model.
        found: String,
    },
    /// The server exposes nothing that could prove parity.
    #[error("parity is not provable here: `{url}` {reason}{tokens}")]
    NotProvable {
        /// The server.
        url: String,
        /// Data that the server hides.
        reason: String,
        /// Result of comparing the tokenizers.
        tokens: String,
    },
}

impl From<engine::Error> for Error {
    fn from(error: engine::Error) -> Self {
        Self::Check(error.into())
    }
}

impl From<crate::dump::Error> for Error {
    fn from(error: crate::dump::Error) -> Self {
        Self::Check(error.into())
    }
}

/// Compares a server with a dump and with the native engine. Without a dump, only the native engine is the
/// reference.
pub fn check_server(
    server: &dyn Endpoint,
    native: &dyn Engine,
    source: &ModelSource<'_>,
    dump: Option<&Dump>,
    options: &EvidenceOptions<'_>,
) -> Result<ServerEvidence, Error> {
    let facts = server.facts();
    let model = &*source.model;
    identity::vocabulary(facts, source, dump)?;
    if facts.scores == LogprobSupport::None && facts.generates.is_none() {
        return Err(text_only::not_provable(server, options.tokenizer)?);
    }
    let stated =
        facts.dtype.as_deref().and_then(|name| Dtype::ALL.into_iter().find(|d| d.name() == name));
    let dtype = options.dtype.or(stated).unwrap_or(Dtype::F32);
    let mut native = NativeReference::open(native, source, native::options(options.threads))?;
    let rounded = EngineRounding::of(facts, source).filter(|_| options.bound.is_none());
    // A dump is of weights before they were quantized.
    let reference = dump.filter(|_| rounded.is_none());
    let mut products = rounded.as_ref().map(|rounded| native.with_rounding(rounded)).transpose()?;
    let mut effort = CheckTimes::default();
    let bound = if rounded.is_some() { None } else { options.bound.or(facts.bound) };
    let mut judge = Judge::new(dtype, bound.filter(|_| dtype == Dtype::F32));
    judge.least = facts.bound.filter(|_| rounded.is_some()).unwrap_or(0.0);
    // Positions that both the server and the model support.
    let room = facts.context.into_iter().chain(model.context).min().unwrap_or(usize::MAX);
    let cases = match &rounded {
        Some(_) => noisy_cases(model, dump, |text| server.tokenize(text), room, options.tokens)?,
        None => cases(model, dump, dtype, room, options.tokens)?,
    };
    let mut report = Report {
        limits: Vec::new(),
        subject: about(facts, source, reference, native::hashes(source, dump)?),
        runs: Vec::new(),
        schedules: Vec::new(),
        notes: notes(facts, dtype, stated.is_some() || options.dtype.is_some()),
        diagnosis: None,
    };
    for prompt in dump.iter().flat_map(|dump| &dump.manifest.prompts) {
        if !prompt.is_causal() {
            report.notes.push(format!(
                "prompt `{}` was not sent: requests have no prefix and no packed documents",
                prompt.name
            ));
        }
    }
    if rounded.is_none() && cases.iter().all(|case| case.spread.is_none()) {
        let begun = Instant::now();
        judge.measure(&mut native, &mixed(&cases, MEASURED))?;
        effort.native += begun.elapsed();
    }

    let mut gates = Vec::new();
    let mut greedy = Vec::new();
    let mut observed = Vec::new();
    let mut identity = identity::RowFingerprint::default();
    let mut scored_rows = Vec::new();
    let shows_prompts = matches!(facts.scores, LogprobSupport::Full | LogprobSupport::Top(_));
    if facts.scores != LogprobSupport::None {
        for group in cases.chunks(width(&cases, options)) {
            let group_scores = timed(&mut effort.server, || score(server, group))?;
            for (case, scored) in group.iter().zip(group_scores) {
                let begun = Instant::now();
                gates.extend(answers::scored(case, &scored, facts, model.vocab));
                let truth = match case.truth(reference)? {
                    Some(truth) => truth,
                    None => native.rows(&case.tokens, &case.positions)?,
                };
                identity.add(&case.positions, &scored.rows, &truth);
                let products = products.as_mut();
                let rounded = products
                    .map(|products| products.rows(&case.tokens, &case.positions))
                    .transpose()?;
                let compared = ComparedRows {
                    steps: &case.positions,
                    server: &scored.rows,
                    truth: &truth,
                    rounded: rounded.as_deref(),
                    spread: case.spread.as_deref(),
                };
                gates.push(judge.gate(case, Phase::Prefill, compared));
                effort.native += begun.elapsed();
                keep(&mut observed, case, &scored);
                scored_rows.push(scored);
            }
        }
        if are_distributions(&gates) {
            identity.refuse(facts, source)?;
        }
    }
    let mut generations = Vec::new();
    if facts.generates.is_some() {
        let rescored: BTreeSet<String> =
            mixed(&cases, RESCORED).into_iter().map(|case| case.name.clone()).collect();
        if rescored.len() < cases.len() {
            report.notes.push(format!(
                "generated tokens of {} of {} prompts were scored again by the native engine",
                rescored.len(),
                cases.len()
            ));
        }
        for group in cases.chunks(width(&cases, options)) {
            let group_answers =
                timed(&mut effort.server, || generate(server, group, options.tokens))?;
            for (case, generated) in group.iter().zip(group_answers) {
                let begun = Instant::now();
                gates.extend(answers::generated(
                    case,
                    &generated,
                    options.tokens,
                    facts,
                    model.vocab,
                ));
                if rescored.contains(&case.name) {
                    let engines = (&mut native, products.as_mut());
                    let decoded = decode(engines, &mut judge, case, &generated)?;
                    if !shows_prompts {
                        identity.add_generated(&generated.rows, &decoded.truth);
                    }
                    gates.push(decoded.gate);
                    greedy.push(decoded.greedy);
                }
                effort.native += begun.elapsed();
                generations.push(generated);
            }
        }
        if !shows_prompts && are_distributions(&gates) {
            identity.refuse(facts, source)?;
        }
    }
    if gates.iter().all(|gate| gate.verdict == Verdict::Skip) {
        let reason = if cases.is_empty() {
            format!(
                "has room for {room} tokens, and every prompt with the tokens behind it is longer"
            )
        } else {
            let why = gates.iter().find_map(|gate| gate.finding.as_deref());
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            format!("gave no number that could be judged{why}")
        };
        let url = facts.url.clone();
        let tokens = String::new();
        return Err(Error::NotProvable { url, reason, tokens });
    }
    gates.extend([Phase::Prefill, Phase::Decode].into_iter().filter_map(|p| judge.pooled(p)));
    match &rounded {
        Some(rounded) => report.notes.extend(judge.explain(rounded, dump.is_some())),
        None => report.note(left_out(dump, &cases, room)),
    }
    if options.schedules {
        let tolerance = judge.tolerance(&gates);
        let alone = server_schedules::SingleAnswers {
            cases: &cases,
            scored: &scored_rows,
            generated: &generations,
            vocab: model.vocab,
            room,
        };
        report.schedules = timed(&mut effort.server, || {
            server_schedules::schedules(server, &alone, dtype, tolerance, options)
        })?;
    }
    timed(&mut effort.server, || server.alive())?;

    report.note(text_only::compare(server, options.tokenizer)?);
    let mut run = summarize(model, dtype, gates, greedy, Uncovered::default());
    // Rows within the noise of rounded products rule nothing out.
    if let (Some(first), None) = (&mut run.first, &rounded) {
        first.hints.extend(locate::ruled_out(&run.gates));
    }
    report.runs.push(run);
    if let Some(flags) =
        facts.exact.as_ref().filter(|_| report.exit_code() != 0 && dtype == Dtype::F32)
    {
        report.notes.push(format!(
            "by default this server rounds more than f32 does: `{flags}` turns that off"
        ));
    }
    Ok(ServerEvidence { report, dtype, observed, noise: judge.explained(&cases), effort })
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

/// Names the prompts that exceed the server's context.
fn left_out(dump: Option<&Dump>, cases: &[ServerPrompt], room: usize) -> Option<String> {
    let names: Vec<&str> = dump?
        .manifest
        .prompts
        .iter()
        .map(|prompt| prompt.name.as_str())
        .filter(|name| !cases.iter().any(|case| case.name == *name))
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "the server has room for {room} tokens: not compared are the prompts {}",
            registry::listing::items(&names)
        )
    })
}

/// Returns the number of parallel requests. It is one for few prompts, so that a fault of batches shows
/// only in its schedule.
fn width(cases: &[ServerPrompt], options: &EvidenceOptions<'_>) -> usize {
    if cases.len() <= ALONE { 1 } else { options.parallel.max(1) }
}

fn timed<T>(total: &mut Duration, run: impl FnOnce() -> T) -> T {
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

/// Scores generated tokens with the native engine and compares.
fn decode(
    (native, products): (&mut NativeReference<'_>, Option<&mut NativeReference<'_>>),
    judge: &mut Judge,
    case: &ServerPrompt,
    generated: &Generation,
) -> Result<GeneratedResult, Error> {
    let all_tokens: Vec<u32> = case.tokens.iter().chain(&generated.ids).copied().collect();
    let first = case.tokens.len() - 1;
    let positions: Vec<usize> = (first..first + generated.ids.len()).collect();
    let truth = native.rows(&all_tokens, &positions)?;
    let steps: Vec<usize> = (1..=positions.len()).collect();
    let widest = case.widest.map(|widest| vec![widest; positions.len()]);
    let rounded = products.map(|products| products.rows(&all_tokens, &positions)).transpose()?;
    let compared = ComparedRows {
        steps: &steps,
        server: &generated.rows,
        truth: &truth,
        rounded: rounded.as_deref(),
        spread: widest.as_deref(),
    };
    let mut gate = judge.gate(case, Phase::Decode, compared);
    if generated.ids.is_empty() {
        gate = gate.skipped("the server ended before the first token");
    }
    let greedy = judge.greedy(case, generated, &truth);
    Ok(GeneratedResult { gate, greedy, truth })
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

fn about(
    facts: &ServerFacts,
    source: &ModelSource<'_>,
    dump: Option<&Dump>,
    sha256: FileHashes,
) -> ReportSubject {
    let (reference, producer) = match dump {
        Some(dump) => (dump.dir.display().to_string(), crate::check::producer(dump)),
        None => ("no dump".to_owned(), "the native engine in f32".to_owned()),
    };
    ReportSubject {
        spec: source.model.name.clone(),
        architecture: source.model.architecture.clone(),
        layers: None,
        model: source.dir.display().to_string(),
        engine: facts.title(),
        reference,
        producer,
        sha256,
    }
}

/// Returns remarks about the data that the server exposes.
fn notes(facts: &ServerFacts, dtype: Dtype, known: bool) -> Vec<String> {
    let mut notes = Vec::new();
    let settings: Vec<String> =
        facts.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let root = facts.root.as_ref().map(|root| format!(" ({root})")).unwrap_or_default();
    let in_force = if settings.is_empty() {
        String::new()
    } else {
        format!(", in force: {}", settings.join(", "))
    };
    notes.push(format!("served as `{}`{root}{in_force}", facts.model));
    if let Some(range) = &facts.unverified {
        notes.push(format!(
            "unverified: the sheet of `{}`, which says how settings and flags are named, is true for `{range}`",
            facts.driver
        ));
    }
    notes.push(match facts.scores {
        LogprobSupport::Full => "rows of prompts: the whole vocabulary".to_owned(),
        LogprobSupport::Top(count) => format!(
            "rows of prompts: the {count} likeliest tokens and the next one; of the others only their bound was compared"
        ),
        LogprobSupport::Target => "rows of prompts: the next token alone".to_owned(),
        LogprobSupport::None => "prefill was not compared: the server gives no log-probabilities of prompts".to_owned(),
    });
    if facts.generates.is_none() {
        notes.push("decode and schedules of it were not compared: the server gives no ids of generated tokens".to_owned());
    }
    if !known {
        notes.push(format!("the server does not say which dtype it runs in: it is judged as {dtype}; the option `dtype` names another"));
    }
    notes.extend(facts.hidden.iter().map(|hidden| format!("hidden by the server: {hidden}")));
    notes
}

/// Returns the name of a model's folder.
fn name_of(dir: &Path) -> String {
    dir.display().to_string()
}
