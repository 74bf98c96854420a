//! Reasons why a benchmark, or another program in it, does not run.

use std::path::PathBuf;

/// Reason why a test cannot be read, or a program does not run it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum BenchError {
    #[error("`{name}` is not known; expected NAME or NAME=PROGRAM, with one of {known}")]
    UnknownPeer { name: String, known: String },
    #[error("`{text}` is not an integer from {least} to {limit}")]
    Number { text: String, least: usize, limit: usize },
    #[error("`{text}` is no pair; expected PROMPT,GENERATED as in 512,128")]
    Pair { text: String },
    #[error("{reason}")]
    Unsuited { reason: &'static str },
    #[error("cannot start `{}`: {why}{remedy}", program.display())]
    Start { program: PathBuf, why: String, remedy: &'static str },
    #[error("`{}` {status}: {message}", program.display())]
    Failed { program: PathBuf, status: String, message: String },
}
