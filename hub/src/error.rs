//! Errors of the client.

use std::path::PathBuf;

/// Reason why a listing or a file could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An id, a revision or a file name is invalid.
    #[error("the {kind} `{name}` is refused: expected {expected}")]
    Name {
        /// Kind of name.
        kind: &'static str,
        /// Name, safe to show.
        name: String,
        /// Expected form.
        expected: &'static str,
    },
    /// The address of the hub is invalid.
    #[error("`{0}` is no address of a hub; expected one like `https://huggingface.co`")]
    Endpoint(String),
    /// The token is not valid in a header.
    #[error("the token holds characters that no token has; copy it again from the hub's page")]
    Token,
    /// A request was rejected, or failed permanently.
    #[error("{host} answered {code} for {what}")]
    Status {
        /// The status code.
        code: u16,
        /// The origin that answered.
        host: String,
        /// Description of the requested resource.
        what: String,
    },
    /// The connection failed, timed out or broke in every attempt.
    #[error("cannot fetch {what} from {host}: {why}")]
    Connection {
        /// Origin of the request.
        host: String,
        /// Description of the requested resource.
        what: String,
        /// Last failure.
        why: String,
    },
    /// A response violates the protocol.
    #[error("{host} sent an unusable answer for {what}: {why}")]
    Answer {
        /// The origin that answered.
        host: String,
        /// Description of the requested resource.
        what: String,
        /// Violation, and the expected form.
        why: String,
    },
    /// The bytes differ from those that the hub announced.
    #[error(
        "{what} arrived damaged: its {kind} is {found}, the hub states {stated}; it was removed, \
         run the command again"
    )]
    Damaged {
        /// The file.
        what: String,
        /// The kind of hash.
        kind: &'static str,
        /// Hash of the bytes.
        found: String,
        /// Hash that the hub states.
        stated: String,
    },
    /// The bytes in the cache differ from the hash in their name.
    #[error(
        "`{}` in the cache is damaged: its {kind} is {found}, its name states {stated}; remove it and \
         run the command again", file.display()
    )]
    Altered {
        /// The file of the bytes.
        file: PathBuf,
        /// The kind of hash.
        kind: &'static str,
        /// Hash of the bytes.
        found: String,
        /// Hash in the name.
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
    /// Returns the status code, if the hub rejected the request.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }
}
