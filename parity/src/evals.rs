//! Result files of evaluations: reads them, compares two of them, and scores tasks on an engine.
//!
//! [`read`] detects the format of a file by its content and returns one [`Sample`] per question. [`diff`]
//! pairs the samples of two files and returns one verdict with its evidence: different inputs, a server
//! that cannot score, another implementation, different extraction or sampling, noise, or agreement.
//! [`run`] scores the items of a task file on a session, with the arithmetic of lm-eval 0.4.13.
//! `docs/evals.md` describes the formats.

mod answers;
mod diff;
mod inputs;
mod items;
mod logprobs;
mod outcome;
mod pair;
mod read;
mod run;
mod sample;
mod scoring;
mod show;
pub mod stats;
mod summary;
mod tree;

pub use diff::{DiffError, diff};
pub use items::{Asked, Error as TaskError, Item, Question, items};
pub use logprobs::{Noise, unit};
pub use outcome::{Example, LogprobFacts, Outcome, Side, Verdict};
pub use read::{Error, ReadOptions, read};
pub use run::{Run, Scored, Text, TextError, Trouble, head, run};
pub use sample::{Format, Results, Sample};
pub use show::{json, text};
pub use summary::{Line, summary};
