//! Reasons why a check could not run.

use std::path::PathBuf;

use registry::dtype::Dtype;

use crate::dump;

/// Reason why a check could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The dump.
    #[error(transparent)]
    Dump(#[from] dump::Error),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// A file of the model could not be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] checkpoints::checkpoint::Error),
    /// A dtype was asked for that the reference was not run in.
    #[error("the dump `{dump}` has no {wanted} run; it has {have}")]
    NoRun {
        /// The dump.
        dump: PathBuf,
        /// The dtype asked for.
        wanted: Dtype,
        /// What there is.
        have: String,
    },
    /// A 16-bit run has nothing to be measured against.
    #[error(
        "the dump `{dump}` has no f32 run, which the {wanted} run is measured against; write the \
         dump again with `parity dump` and the option `dtypes f32,{wanted}`"
    )]
    NoFloor {
        /// The dump.
        dump: PathBuf,
        /// The dtype asked for.
        wanted: Dtype,
    },
    /// The reference rounded keys and values with scales that are not there.
    #[error(
        "the dump says that its reference rounded keys and values with scales of the checkpoint (`caches`), and \
         `{root}` has none: no tensor `{name}`, nor one of another layer"
    )]
    NoScales {
        /// The checkpoint.
        root: PathBuf,
        /// The first tensor that was looked for.
        name: String,
    },
    /// The dump has other rows than the model gives.
    #[error(
        "the dump has rows of {dump} log-probabilities; the model gives {model}: the dump is of another model, so give its own \
         with the option `reference`, or make it with `parity dump`"
    )]
    Vocab {
        /// In the manifest.
        dump: usize,
        /// Of the model.
        model: usize,
    },
}
