//! Result files of evaluations: reads them, compares two of them, and scores tasks on an engine.
//!
//! [`read`] detects the format of a file by its content and returns one [`Sample`] per question. [`diff`]
//! pairs the samples of two files and returns one verdict with its evidence: different inputs, a server
//! that cannot score, another implementation, different extraction or sampling, noise, or agreement.
//! [`run`] scores the items of a task file on a session, with the arithmetic of lm-eval 0.4.13.
//! `docs/evals.md` describes the formats.

mod answers;
mod comparison;
mod diff;
mod diff_error;
mod inputs;
mod items;
mod logprobs;
mod pair;
mod read;
mod run;
mod sample;
mod scoring;
mod show;
pub mod stats;
mod summary;
mod tree;

pub use comparison::{EvalComparison, EvalVerdict, Example, LogprobDistances, ResultFile};
pub use diff::diff;
pub use diff_error::DiffError;
pub use items::{Error as TaskError, EvalItem, PromptInput, Question, items};
pub use logprobs::{Noise, unit};
pub use read::{Error, ReadOptions, read};
pub use run::{ScoredItem, ScoringError, ScoringOptions, TextCodec, TextCodecError, head, run};
pub use sample::{ResultFormat, Results, Sample};
pub use show::{json, text};
pub use summary::{EvalSummary, MetricSummary};
