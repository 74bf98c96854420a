//! What a check found, as data; how it looks on a terminal is `report/text.rs`.

mod causes;
mod text;

use registry::dtype::Dtype;
use serde::Serialize;

use crate::cause::Diagnosis;
use crate::dump::Phase;
use crate::gate::{Gate, Mode, Subject, Verdict, dtype_name};
use crate::route::RouterRow;
use crate::schedules::ScheduleRow;

pub use causes::causes;
pub(crate) use causes::share;
pub(crate) use text::when;
pub use text::{schedules, text};

/// The name and version of the JSON form.
pub const SCHEMA: &str = "onboard-parity/1";

/// All that a check found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What was compared with what.
    pub subject: About,
    /// One entry per dtype.
    pub runs: Vec<RunReport>,
    /// The engine against itself, fed in other ways.
    pub schedules: Vec<ScheduleRow>,
    /// Remarks that are no findings.
    pub notes: Vec<String>,
    /// Edits of the model that explain what differs, where they were looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<Diagnosis>,
}

/// What was compared with what.
#[derive(Debug, Clone, Default, Serialize)]
pub struct About {
    /// The spec.
    pub spec: String,
    /// `architectures[0]`.
    pub architecture: String,
    /// The checkpoint.
    pub model: String,
    /// The engine.
    pub engine: String,
    /// The dump.
    pub reference: String,
    /// Who wrote the dump, with versions.
    pub producer: String,
    /// Hashes of what was compared.
    pub sha256: Hashes,
}

/// SHA-256 of what was compared; none where there is no such file.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Hashes {
    /// `config.json`.
    pub config: Option<String>,
    /// The fingerprint of a checkpoint's weights, as dumps have it; the whole file, of a GGUF file.
    pub weights: Option<String>,
    /// The spec, with what it extends.
    pub spec: Option<String>,
    /// Every file of the dump.
    pub dump: Option<String>,
}

/// Measures of the rule, in the order of a table's columns.
pub const MEASURES: [&str; 6] = ["noise", "gain", "flips", "units", "row", "rms"];

/// Largest value of each measure in a run, as multiples of the rule's numbers times these numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Strengths {
    /// In the order of [`MEASURES`].
    pub values: [f64; 6],
    /// True if something fails that no number decides: a missing module, a state of a narrower dtype, a router.
    pub other: bool,
}

/// What was found in one dtype.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport {
    /// The dtype.
    #[serde(serialize_with = "dtype_name")]
    pub dtype: Dtype,
    /// What was run, where it is not the model: its `nextn` head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<&'static str>,
    /// Log-probabilities by phase, all prompts together.
    pub phases: Vec<PhaseRow>,
    /// Every comparison.
    pub gates: Vec<Gate>,
    /// Free-running tokens.
    pub greedy: Vec<GreedyRow>,
    /// Which experts tokens were sent to; none for a model without routers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routers: Vec<RouterRow>,
    /// Taps that only one side has; no finding.
    pub uncovered: Uncovered,
    /// Reach of the comparisons of ops by themselves.
    pub coverage: Coverage,
    /// The largest value of each measure, as `parity fit` judges it.
    pub strengths: Strengths,
    /// The first finding in order of execution, errors of earlier ops included.
    pub first: Option<Divergence>,
    /// The first op that is wrong on the reference's own inputs.
    pub first_local: Option<Divergence>,
}

/// Log-probabilities of one phase; numbers are NaN (`null` in JSON) where nothing was compared.
#[derive(Debug, Clone, Serialize)]
pub struct PhaseRow {
    /// The phase.
    pub phase: Phase,
    /// Rows compared.
    pub rows: usize,
    /// Largest `|Δlogprob|`.
    pub max: f64,
    /// Its bound.
    pub limit: f64,
    /// Mean `|Δlogprob|`.
    pub mean: f64,
    /// Mean divergence from the reference in nats.
    pub kl: f64,
    /// Share of rows with the same likeliest token.
    pub top1: f64,
    /// The tap with the largest error, and the error.
    pub worst_tap: Option<(String, f64)>,
    /// Of all gates of this phase.
    pub verdict: Verdict,
}

/// Tokens that the reference chose greedily, and whether the engine chooses them too.
#[derive(Debug, Clone, Serialize)]
pub struct GreedyRow {
    /// The prompt.
    pub prompt: String,
    /// Tokens compared.
    pub tokens: usize,
    /// How many the engine would choose too, each after the reference's own.
    pub agree: usize,
    /// The first that noise does not explain, else the first that it would not.
    pub first_flip: Option<Flip>,
    /// Fails if a flip is wider than noise explains.
    pub verdict: Verdict,
}

/// A token chosen otherwise.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Flip {
    /// Which of the chosen tokens.
    pub index: usize,
    /// Log-probability of the engine's choice less that of the reference's choice.
    pub margin: f64,
    /// What noise explains.
    pub noise: f64,
}

/// Taps and states that only one side has.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Uncovered {
    /// Only the engine's graph has them.
    pub ours: Vec<String>,
    /// Only the dump has them: containers, or modules without weights.
    pub reference: Vec<String>,
}

/// Reach and strength of the comparisons of ops on the reference's own inputs.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Coverage {
    /// The largest position compared in prefill; none where ops were not compared there.
    pub prefill: Option<usize>,
    /// The largest position compared in decode.
    pub decode: Option<usize>,
    /// True if both phases and every state were compared.
    pub whole: bool,
    /// The op that would hide the largest error, and that error as a share of the rms of a row.
    pub weakest: Option<(String, f64)>,
    /// Experts that a token was sent to, and all of them.
    pub experts: Option<(usize, usize)>,
    /// Windows that no compared position lies behind.
    pub windows: Vec<usize>,
}

/// Where two runs part.
#[derive(Debug, Clone, Serialize)]
pub struct Divergence {
    /// What differs first.
    pub subject: Subject,
    /// Fed by what.
    pub mode: Mode,
    /// On which prompt.
    pub prompt: String,
    /// In which phase.
    pub phase: Phase,
    /// Decode: 0 is what the prefix left, j the j-th single token. Prefill: the position.
    pub step: usize,
    /// What is wrong, in numbers.
    pub message: String,
    /// Likely causes, likeliest first.
    pub hints: Vec<String>,
}

impl RunReport {
    /// The dtype, and what was run if it was not the model.
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

    /// The finding to show first: the local one where there is one, since it is not a
    /// consequence of another.
    pub fn headline(&self) -> Option<&Divergence> {
        self.first_local.as_ref().or(self.first.as_ref())
    }
}

impl Report {
    /// Adds a remark, once.
    pub(crate) fn note(&mut self, note: Option<String>) {
        self.notes.extend(note.filter(|note| !self.notes.contains(note)));
    }

    /// Whether both agree.
    pub fn verdict(&self) -> Verdict {
        let fails = self.runs.iter().any(|r| r.verdict() == Verdict::Fail)
            || self.schedules.iter().any(|s| s.verdict == Verdict::Fail);
        if fails { Verdict::Fail } else { Verdict::Pass }
    }

    /// 0 when both agree, 1 when they differ. (2, "could not run", is an error, not a report.)
    pub fn exit_code(&self) -> u8 {
        u8::from(self.verdict() == Verdict::Fail)
    }

    /// The run to look at first: f32 if it fails, since there the arithmetic is exact enough
    /// that only the program can be wrong.
    pub fn first_failing(&self) -> Option<&RunReport> {
        self.runs.iter().filter(|r| r.verdict() == Verdict::Fail).min_by_key(|r| r.dtype)
    }
}
