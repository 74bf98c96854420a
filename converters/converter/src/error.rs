//! Errors of conversions, and their construction in one line.

use std::fmt::Display;
use std::path::PathBuf;

use registry::diag::Finding;

/// Reason why a model cannot be converted or a file cannot be verified.
///
/// Errors of the libraries below keep their types. [`Error::Refused`] is a fact about the options, the model or the
/// output that no other library knows, as a complete sentence. [`Error::Context`] adds the step that failed; its source is
/// the error of that step.
///
/// ```
/// use onboard_converter::{Error, GgufFormat};
///
/// let error = GgufFormat::parse("gguf:q9_x").unwrap_err();
/// assert!(matches!(error, Error::Mix(_)));
/// assert!(error.to_string().starts_with("there is no target `q9_x`"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The options, the model or the output do not fit each other.
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
    /// A spec refuses the conversion.
    #[error("{message}")]
    Findings {
        /// Consequence of the findings.
        message: String,
        /// Findings of the spec.
        findings: Vec<Finding>,
    },
    /// A folder cannot be compared: it has no hashes, and no format explains its config.
    #[error(
        "`{}` has no hashes, and its `{key}` is none that this program writes for the model: nothing can be compared; \
         what a folder costs is measured by `parity check` with the option `reference DUMP` and the option `source {}`",
        folder.display(), source_model.display()
    )]
    NothingToCompare {
        /// Folder of the checkpoint.
        folder: PathBuf,
        /// Key of the config that names the format.
        key: &'static str,
        /// Checkpoint that the folder should have been made of.
        source_model: PathBuf,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Error in JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A count does not fit its type.
    #[error(transparent)]
    Count(#[from] std::num::TryFromIntError),
    /// Error of the opened model.
    #[error(transparent)]
    Model(#[from] models::Error),
    /// Error of the engine.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// Error of a comparison with a reference.
    #[error(transparent)]
    Check(#[from] parity::Error),
    /// Error of a dump.
    #[error(transparent)]
    Dump(#[from] parity::dump::Error),
    /// Error of the checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] checkpoints::checkpoint::Error),
    /// Error of the writer.
    #[error(transparent)]
    Conversion(#[from] conversion::Error),
    /// Error of a GGUF file.
    #[error(transparent)]
    Gguf(#[from] formats::gguf::Error),
    /// Error of a safetensors file.
    #[error(transparent)]
    Safetensors(#[from] formats::safetensors::Error),
    /// Error of an importance matrix.
    #[error(transparent)]
    Imatrix(#[from] formats::imatrix::Error),
    /// A block of a tensor cannot be used.
    #[error(transparent)]
    Block(#[from] formats::codec::BadBlock),
    /// Error of the weights of a model.
    #[error(transparent)]
    Weights(#[from] checkpoints::weights::Error),
    /// Error of the weights of a GGUF file.
    #[error(transparent)]
    GgufWeights(#[from] checkpoints::gguf_weights::Error),
    /// The source cannot be read as tensors of a folder.
    #[error(transparent)]
    Tensors(#[from] conversion::folder::TensorsError),
    /// Error of the largest values of matrices.
    #[error(transparent)]
    Peaks(#[from] conversion::peaks::Error),
    /// Error of the hashes beside a file.
    #[error(transparent)]
    Hashes(#[from] conversion::hashes::Error),
    /// The tokenizer of a file would not be that of the checkpoint.
    #[error(transparent)]
    Mismatch(#[from] tokenizer::Mismatch),
    /// Error of a type or a mix of types.
    #[error(transparent)]
    Mix(#[from] conversion::mix::Error),
    /// Error of the tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] tokenizer::Error),
}

/// Result of a step of a conversion.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns the error with a message.
pub(crate) fn refused(message: impl Into<String>) -> Error {
    Error::Refused { message: message.into() }
}

/// Combines several faults into one error.
pub(crate) fn several(faults: impl IntoIterator<Item = impl ToString>) -> Error {
    let lines: Vec<String> = faults.into_iter().map(|fault| fault.to_string()).collect();
    refused(lines.join("\n"))
}

/// Names the step that failed.
pub(crate) trait Context<T> {
    /// Adds a description of the step.
    fn context(self, message: impl Display) -> Result<T>;
    /// Adds a description of the step, which is made for an error alone.
    fn with_context<D: Display>(self, message: impl FnOnce() -> D) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, message: impl Display) -> Result<T> {
        self.with_context(|| message)
    }

    fn with_context<D: Display>(self, message: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|error| Error::Context {
            message: message().to_string(),
            source: Box::new(error.into()),
        })
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, message: impl Display) -> Result<T> {
        self.with_context(|| message)
    }

    fn with_context<D: Display>(self, message: impl FnOnce() -> D) -> Result<T> {
        self.ok_or_else(|| refused(message().to_string()))
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
        let holds: bool = $condition;
        if !holds {
            return Err($crate::error::refused(format!($($message)+)));
        }
    };
}

pub(crate) use {bail, ensure};
