//! Failures of requests, by kind.

use std::fmt;

/// Kind of a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoadFailureKind {
    /// No connection.
    Connect,
    /// No complete answer in time.
    Timeout,
    /// An answer with another status than 200.
    Status(u16),
    /// An answer that breaks off.
    BrokenOff,
    /// An answer that is no stream of events, or an event of another form.
    Malformed,
    /// An answer beyond the limits of size.
    TooLong,
    /// An error in place of a chunk.
    ErrorEvent,
    /// An answer without a single token.
    NoOutput,
}

impl fmt::Display for LoadFailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Status(code) => return write!(f, "status {code}"),
            Self::BrokenOff => "broken off",
            Self::Malformed => "malformed",
            Self::TooLong => "too long",
            Self::ErrorEvent => "error event",
            Self::NoOutput => "no output",
        };
        f.write_str(word)
    }
}

/// Reason why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {words}")]
pub struct LoadFailure {
    /// The kind.
    pub kind: LoadFailureKind,
    /// Description of the fault; text of the server is shortened and escaped.
    pub words: String,
}

impl LoadFailure {
    pub(super) fn new(kind: LoadFailureKind, words: impl Into<String>) -> Self {
        Self { kind, words: words.into() }
    }

    /// Returns the failure of an answer of another form.
    pub(super) fn malformed(words: String) -> Self {
        Self { kind: LoadFailureKind::Malformed, words }
    }
}
