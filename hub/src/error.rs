//! Errors of the client.

use std::path::PathBuf;

/// Reasons why a listing or a file could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An id, a revision or a file name that cannot be one.
    #[error("the {kind} `{name}` is refused: expected {expected}")]
    Name {
        /// The kind of name.
        kind: &'static str,
        /// The name, safe to show.
        name: String,
        /// The form that it should have.
        expected: &'static str,
    },
    /// The address of the hub is none.
    #[error("`{0}` is no address of a hub; expected one like `https://huggingface.co`")]
    Endpoint(String),
    /// The token cannot be put into a header.
    #[error("the token holds characters that no token has; copy it again from the hub's page")]
    Token,
    /// A refusal, or a failure that did not pass.
    #[error("{host} answered {code} for {what}")]
    Status {
        /// The status code.
        code: u16,
        /// The origin that answered.
        host: String,
        /// The thing asked for.
        what: String,
    },
    /// The connection failed, timed out or broke, in every attempt.
    #[error("cannot fetch {what} from {host}: {why}")]
    Connection {
        /// The origin that was asked.
        host: String,
        /// The thing asked for.
        what: String,
        /// The last failure.
        why: String,
    },
    /// An answer that breaks the protocol.
    #[error("{host} sent an unusable answer for {what}: {why}")]
    Answer {
        /// The origin that answered.
        host: String,
        /// The thing asked for.
        what: String,
        /// The violation, and what was expected.
        why: String,
    },
    /// The bytes are not those that the hub announced.
    #[error(
        "{what} arrived damaged: its {kind} is {found}, the hub states {stated}; it was removed, \
         run the command again"
    )]
    Damaged {
        /// The file.
        what: String,
        /// The kind of hash.
        kind: &'static str,
        /// The hash of the bytes.
        found: String,
        /// The hash that the hub states.
        stated: String,
    },
    /// Another process holds the lock of the file and makes no progress.
    #[error(
        "another process is fetching {what} and makes no progress; stop it, or remove `{}` if \
         there is none", lock.display()
    )]
    Locked {
        /// The file.
        what: String,
        /// The lock file.
        lock: PathBuf,
    },
    /// The cache could not be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl Error {
    /// The status code, where the hub refused.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }
}
