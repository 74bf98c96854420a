//! Judges a server by its responses: rows of prompts, generated tokens, and answers to the same request in
//! other batches.
//!
//! Rows of prompts are compared with the dump, or with the native engine if there is none. Generated tokens
//! are scored again by the native engine in f32, which tests decode parity at any length. Both are judged
//! by [`rule`](crate::rule), like a check of any other engine. Schedules compare the server with itself.
//!
//! A server is judged by the evidence that it gives ([decision 3](../../docs/decisions/0003-judge-servers-by-evidence.md)).

mod answer_gates;
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

use std::path::Path;
use std::time::Duration;

use endpoints::{Endpoint, LogprobSupport, ServerFacts};
use engine::{Engine, ModelSource};
use registry::dtype::Dtype;

use crate::check::{Error as CheckError, summarize};
use crate::diagnose::ObservedPrompt;
use crate::dump::{Dump, Phase};
use crate::report::{FileHashes, Report, ReportSubject, Uncovered};

use answer_gates::{AnswerGates, observed, timed};
use cases::{ServerPrompt, cases, noisy_cases};
use judge::Judge;
use native::NativeReference;
use products::EngineRounding;

pub use text_only::EncodeText;

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
    let native = NativeReference::open(native, source, native::options(options.threads))?;
    let rounded = EngineRounding::of(facts, source).filter(|_| options.bound.is_none());
    // A dump is of weights before they were quantized.
    let reference = dump.filter(|_| rounded.is_none());
    let products = rounded.as_ref().map(|rounded| native.with_rounding(rounded)).transpose()?;
    let bound = if rounded.is_some() { None } else { options.bound.or(facts.bound) };
    let mut judge = Judge::new(dtype, bound.filter(|_| dtype == Dtype::F32));
    judge.least = facts.bound.filter(|_| rounded.is_some()).unwrap_or(0.0);
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
    report.notes.extend(unsent(dump));
    let mut answers = AnswerGates {
        server,
        source,
        options,
        reference,
        dtype,
        room,
        cases: &cases,
        native,
        products,
        judge,
        effort: CheckTimes::default(),
        identity: identity::RowFingerprint::default(),
        gates: Vec::new(),
        greedy: Vec::new(),
    };
    if rounded.is_none() && cases.iter().all(|case| case.spread.is_none()) {
        answers.measure()?;
    }
    let mut scored_rows = Vec::new();
    if facts.scores != LogprobSupport::None {
        scored_rows = answers.score_prompts()?;
    }
    let mut generations = Vec::new();
    if facts.generates.is_some() {
        let (generated, note) = answers.generate()?;
        generations = generated;
        report.notes.extend(note);
    }
    answers.check_judged()?;
    let phases = [Phase::Prefill, Phase::Decode].into_iter();
    answers.gates.extend(phases.filter_map(|phase| answers.judge.pooled(phase)));
    match &rounded {
        Some(rounded) => report.notes.extend(answers.judge.explain(rounded, dump.is_some())),
        None => report.note(left_out(dump, &cases, room)),
    }
    if options.schedules {
        report.schedules = answers.schedules(&scored_rows, &generations)?;
    }
    timed(&mut answers.effort.server, || server.alive())?;

    report.note(text_only::compare(server, options.tokenizer)?);
    let AnswerGates { judge, effort, gates, greedy, .. } = answers;
    let mut run = summarize(model, dtype, gates, greedy, Uncovered::default());
    // Rows within the noise of rounded products rule nothing out.
    if let (Some(first), None) = (&mut run.first, &rounded) {
        first.hints.extend(locate::ruled_out(&run.gates));
    }
    report.runs.push(run);
    report.notes.extend(exact_flags(facts, &report, dtype));
    let observed = observed(&cases, &scored_rows);
    Ok(ServerEvidence { report, dtype, observed, noise: judge.explained(&cases), effort })
}

/// Returns a note for each prompt of a dump that no request can hold.
fn unsent(dump: Option<&Dump>) -> Vec<String> {
    let prompts = dump.iter().flat_map(|dump| &dump.manifest.prompts);
    let unsent = prompts.filter(|prompt| !prompt.is_plain()).map(|prompt| {
        format!(
            "prompt `{}` was not sent: requests have no prefix and no packed documents",
            prompt.name
        )
    });
    unsent.collect()
}

/// Names the flags that make a server as exact as f32, if it failed without them.
fn exact_flags(facts: &ServerFacts, report: &Report, dtype: Dtype) -> Option<String> {
    let flags = facts.exact.as_ref().filter(|_| report.exit_code() != 0 && dtype == Dtype::F32)?;
    Some(format!("by default this server rounds more than f32 does: `{flags}` turns that off"))
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
