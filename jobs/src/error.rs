//! Errors of divisions, and their construction in one line.

use std::fmt::Display;

/// Reason why a command cannot be divided, or why a record or an input cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The command, a record or an option does not fit.
    #[error("{message}")]
    Refused {
        /// Place, value found, value expected and remedy.
        message: String,
    },
    /// A step failed.
    #[error("{message}")]
    Context {
        /// Description of the step.
        message: String,
        /// Error of the step.
        source: Box<Self>,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Error in JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// Error of a checkpoint among the inputs.
    #[error(transparent)]
    Checkpoint(#[from] checkpoints::checkpoint::Error),
}

/// Returns the error with a message.
pub(crate) fn refused(message: impl Into<String>) -> Error {
    Error::Refused { message: message.into() }
}

/// Names the step that failed.
pub(crate) trait StepContext<T> {
    /// Adds a description of the step, which is made for an error alone.
    fn with_context<D: Display>(self, message: impl FnOnce() -> D) -> Result<T, Error>;
}

impl<T, E: Into<Error>> StepContext<T> for Result<T, E> {
    fn with_context<D: Display>(self, message: impl FnOnce() -> D) -> Result<T, Error> {
        self.map_err(|error| Error::Context {
            message: message().to_string(),
            source: Box::new(error.into()),
        })
    }
}

/// Returns from the function with a refusal.
macro_rules! bail {
    ($($message:tt)+) => {
        return Err($crate::error::refused(format!($($message)+)))
    };
}

/// Returns from the function with a refusal unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::error::refused(format!($($message)+)));
        }
    };
}

pub(crate) use {bail, ensure};
