//! Findings of a check, as data; `report/text.rs` formats them for a terminal.

mod causes;
mod text;

use registry::dtype::Dtype;
use serde::Serialize;

use crate::cause::Diagnosis;
use crate::dump::Phase;
use crate::gate::{Gate, Mode, Subject, Verdict, dtype_name};
use crate::limit::{Limit, Unproven};
use crate::route::RouterRow;
use crate::schedules::ScheduleRow;

pub use causes::causes;
pub(crate) use causes::{ignored, restores};
pub(crate) use text::place_in_sequence;
pub use text::{schedules, text};

/// Name and version of the JSON format.
pub const SCHEMA: &str = "onboard-parity/1";

/// Complete result of a check.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Compared model, engine and reference.
    pub subject: ReportSubject,
    /// Runs, one per dtype.
    pub runs: Vec<RunReport>,
    /// Comparisons of the engine with itself under other schedules.
    pub schedules: Vec<ScheduleRow>,
    /// Parts that the check leaves unproven although nothing differs.
    pub limits: Vec<Limit>,
    /// Remarks that are not findings.
    pub notes: Vec<String>,
    /// Edits of the model that explain a difference, if they were searched for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<Diagnosis>,
}

/// Compared model, engine and reference.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ReportSubject {
    /// The spec.
    pub spec: String,
    /// `architectures[0]`.
    pub architecture: String,
    /// The only layers that were compared, if the dump is of some alone: `layers 1, 4 of 6`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<String>,
    /// The checkpoint.
    pub model: String,
    /// The engine.
    pub engine: String,
    /// The dump.
    pub reference: String,
    /// Producer of the dump, with versions.
    pub producer: String,
    /// Hashes of the compared files.
    pub sha256: FileHashes,
}

/// SHA-256 of the compared files; none if there is no such file.
#[derive(Debug, Clone, Default, Serialize)]
pub struct FileHashes {
    /// `config.json`.
    pub config: Option<String>,
    /// Fingerprint of a checkpoint's weights, as in dumps, or hash of the whole GGUF file.
    pub weights: Option<String>,
    /// Hash of the spec, with the specs that it extends.
    pub spec: Option<String>,
    /// Hash of every file of the dump.
    pub dump: Option<String>,
}

/// Measures of the rule, in the order of a table's columns.
pub const MEASURES: [&str; 6] = ["noise", "gain", "flips", "units", "row", "rms"];

/// Largest value of each measure in a run, as multiples of the rule's constants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct MeasureRatios {
    /// Values in the order of [`MEASURES`].
    pub values: [f64; 6],
    /// True if a failure depends on no constant: a missing module, a state of a narrower dtype, a router.
    pub other: bool,
}

/// Findings in one dtype.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport {
    /// The dtype.
    #[serde(serialize_with = "dtype_name")]
    pub dtype: Dtype,
    /// Part of the model that was run, such as its `nextn` head; none for the model itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<&'static str>,
    /// Log-probabilities by phase, all prompts together.
    pub phases: Vec<PhaseRow>,
    /// Every comparison.
    pub gates: Vec<Gate>,
    /// Free-running tokens.
    pub greedy: Vec<GreedyRow>,
    /// Agreement of expert choices; empty for a model without routers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routers: Vec<RouterRow>,
    /// Taps that only one side has, which is not a finding.
    pub uncovered: Uncovered,
    /// Coverage of the comparisons of single ops.
    pub coverage: OpCoverage,
    /// Largest value of each measure, as judged by `parity fit`.
    pub strengths: MeasureRatios,
    /// First finding in order of execution, including errors of earlier ops.
    pub first: Option<Divergence>,
    /// First op that is wrong on the reference's own inputs.
    pub first_local: Option<Divergence>,
}

/// Log-probabilities of one phase; values are NaN (`null` in JSON) if nothing was compared.
#[derive(Debug, Clone, Serialize)]
pub struct PhaseRow {
    /// The phase.
    pub phase: Phase,
    /// Number of rows compared.
    pub rows: usize,
    /// Largest `|Δlogprob|`.
    pub max: f64,
    /// Bound of the largest difference.
    pub limit: f64,
    /// Mean `|Δlogprob|`.
    pub mean: f64,
    /// Mean divergence from the reference in nats.
    pub kl: f64,
    /// Share of rows with the same most likely token.
    pub top1: f64,
    /// Tap with the largest error, and the error.
    pub worst_tap: Option<(String, f64)>,
    /// Verdict of all gates of this phase.
    pub verdict: Verdict,
}

/// Agreement of the engine with the reference's greedy tokens.
#[derive(Debug, Clone, Serialize)]
pub struct GreedyRow {
    /// The prompt.
    pub prompt: String,
    /// Number of tokens compared.
    pub tokens: usize,
    /// Number of tokens that the engine would choose too, each after the reference's own.
    pub agree: usize,
    /// First flip that noise does not explain, else the first flip.
    pub first_flip: Option<Flip>,
    /// Verdict; fails if a flip is wider than noise explains.
    pub verdict: Verdict,
}

/// Token chosen differently.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Flip {
    /// Index of the token among the chosen ones.
    pub index: usize,
    /// Log-probability of the engine's choice less that of the reference's choice.
    pub margin: f64,
    /// Margin that noise explains.
    pub noise: f64,
}

/// Taps and states that only one side has.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Uncovered {
    /// Taps and states of the engine's graph only.
    pub ours: Vec<String>,
    /// Taps and states of the dump only: containers, or modules without weights.
    pub reference: Vec<String>,
}

/// Coverage and strength of the comparisons of ops on the reference's own inputs.
#[derive(Debug, Clone, Default, Serialize)]
pub struct OpCoverage {
    /// Largest position compared in prefill; none if ops were not compared there.
    pub prefill: Option<usize>,
    /// Largest position compared in decode.
    pub decode: Option<usize>,
    /// True if both phases and every state were compared.
    pub whole: bool,
    /// Op that would hide the largest error, and that error relative to the rms of a row.
    pub weakest: Option<(String, f64)>,
    /// Number of experts that received a token, and of all experts.
    pub experts: Option<(usize, usize)>,
    /// Windows that no compared position exceeds.
    pub windows: Vec<usize>,
    /// Number of rows beyond the bounds of their ops in 16 bits that pass: at most [`STRAYS`](crate::rule::STRAYS) of an
    /// op, and none next to another.
    pub strays: usize,
}

/// First difference of two runs.
#[derive(Debug, Clone, Serialize)]
pub struct Divergence {
    /// Subject that differs first.
    pub subject: Subject,
    /// Kind of inputs.
    pub mode: Mode,
    /// Name of the prompt.
    pub prompt: String,
    /// Phase of the difference.
    pub phase: Phase,
    /// Step. Decode: 0 is the state after the prefix, j the j-th single token. Prefill: the position.
    pub step: usize,
    /// Description of the difference, with values.
    pub message: String,
    /// Likely causes, likeliest first.
    pub hints: Vec<String>,
}

impl Divergence {
    /// Returns the phase and the position or step in words.
    pub fn place(&self) -> String {
        place_in_sequence(self.phase, self.step, None)
    }
}

impl RunReport {
    /// Returns the dtype, and the part that was run unless it is the model.
    pub fn label(&self) -> String {
        self.part.map_or_else(|| self.dtype.to_string(), |part| format!("{} {part}", self.dtype))
    }

    /// Fails if a gate, a greedy row or a router fails.
    pub fn verdict(&self) -> Verdict {
        let fails = self.gates.iter().any(Gate::fails)
            || self.greedy.iter().any(|g| g.verdict == Verdict::Fail)
            || self.routers.iter().any(|r| r.verdict == Verdict::Fail);
        if fails { Verdict::Fail } else { Verdict::Pass }
    }

    /// Returns the finding to show first: the local one if there is one, because it is no consequence of
    /// another.
    pub fn headline(&self) -> Option<&Divergence> {
        self.first_local.as_ref().or(self.first.as_ref())
    }
}

impl Report {
    /// Adds a remark, unless it exists.
    pub(crate) fn note(&mut self, note: Option<String>) {
        self.notes.extend(note.filter(|note| !self.notes.contains(note)));
    }

    /// Returns the combined verdict of all runs and schedules.
    pub fn verdict(&self) -> Verdict {
        let fails = self.runs.iter().any(|r| r.verdict() == Verdict::Fail)
            || self.schedules.iter().any(|s| s.verdict == Verdict::Fail);
        if fails { Verdict::Fail } else { Verdict::Pass }
    }

    /// Adds what another part of the check leaves unproven.
    pub(crate) fn limit(&mut self, limit: Limit) {
        if !self.limits.contains(&limit) {
            self.limits.push(limit);
            self.limits.sort_by_key(|limit| limit.kind);
        }
    }

    /// Lists what the check leaves unproven; none if it proves the whole model.
    pub fn unproven(&self) -> Option<String> {
        let limits: Vec<String> = self.limits.iter().map(Limit::to_string).collect();
        (!limits.is_empty()).then(|| limits.join("; "))
    }

    /// True if steps were not proven.
    pub(crate) fn is_prefill_only(&self) -> bool {
        self.limits.iter().any(|limit| limit.kind == Unproven::Decode)
    }

    /// Returns the diagnosis, if it is of a run.
    pub(crate) fn diagnosis_of(&self, run: &RunReport) -> Option<&Diagnosis> {
        let first = self.first_failing()?;
        let diagnosed = (first.dtype, first.part) == (run.dtype, run.part);
        self.diagnosis.as_ref().filter(|_| diagnosed)
    }

    /// Returns the cause of a run's failure in one line; none if no diagnosis found one. One run is diagnosed, and the others
    /// that fail name its cause as that of the diagnosed run.
    pub fn cause_of(&self, run: &RunReport) -> Option<String> {
        let cause = causes::headline(self.diagnosis.as_ref()?)?;
        if self.diagnosis_of(run).is_some() {
            return Some(format!("cause: {cause}"));
        }
        let diagnosed = self.first_failing().filter(|first| first.part == run.part)?;
        Some(format!("cause of the {} run: {cause}", diagnosed.label()))
    }

    /// Returns the exit code: 0 if both agree, 1 if they differ. Code 2, "could not run", is an error, not
    /// a report.
    pub fn exit_code(&self) -> u8 {
        u8::from(self.verdict() == Verdict::Fail)
    }

    /// Returns the run to show first. It is f32 if that fails, because its arithmetic is exact enough that
    /// only the program can be wrong.
    pub fn first_failing(&self) -> Option<&RunReport> {
        self.runs.iter().filter(|r| r.verdict() == Verdict::Fail).min_by_key(|r| r.dtype)
    }
}
