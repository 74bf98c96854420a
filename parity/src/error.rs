//! Errors of a check that could not run.

use std::path::{Path, PathBuf};

use registry::dtype::Dtype;
use registry::layer_choice::LayerChoiceError;

use crate::dump;

/// Reason why a check could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Error in the dump.
    #[error(transparent)]
    Dump(#[from] dump::Error),
    /// Error of the engine.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// A file of the model could not be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Error in the checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] checkpoints::checkpoint::Error),
    /// There is no dump beside the model, and none was given.
    #[error("{}", no_reference(place))]
    NoReference {
        /// Folder or file of the model.
        place: PathBuf,
    },
    /// The dump cannot be opened.
    #[error("cannot read the reference `{}`", dump.display())]
    Reference {
        /// The dump.
        dump: PathBuf,
        /// Reason.
        #[source]
        why: Box<dump::Error>,
    },
    /// The reference has no run in a requested dtype.
    #[error("the dump `{dump}` has no {wanted} run; it has {have}")]
    NoRun {
        /// The dump.
        dump: PathBuf,
        /// Requested dtype.
        wanted: Dtype,
        /// Dtypes that exist.
        have: String,
    },
    /// A 16-bit run lacks its f32 baseline.
    #[error(
        "the dump `{dump}` has no f32 run, which the {wanted} run is measured against; write the \
         dump again with `parity dump` and the option `dtypes f32,{wanted}`"
    )]
    NoFloor {
        /// The dump.
        dump: PathBuf,
        /// Requested dtype.
        wanted: Dtype,
    },
    /// The reference rounded keys and values with scales that are missing.
    #[error(
        "the dump says that its reference rounded keys and values with scales of the checkpoint (`caches`), and \
         `{root}` has none: no tensor `{name}`, nor one of another layer"
    )]
    NoScales {
        /// The checkpoint.
        root: PathBuf,
        /// Name of the first tensor that was searched for.
        name: String,
    },
    /// The layers that the dump is of cannot be taken out of the model.
    #[error("the dump `{dump}` is of some layers alone: {why}")]
    Layers {
        /// The dump.
        dump: PathBuf,
        /// Reason.
        why: LayerChoiceError,
    },
    /// The dump's rows differ in length from the model's.
    #[error(
        "the dump has rows of {dump} log-probabilities; the model gives {model}: the dump is of another model, so give its own \
         with the option `reference`, or make it with `parity dump`"
    )]
    Vocab {
        /// Vocabulary size in the manifest.
        dump: usize,
        /// Vocabulary size of the model.
        model: usize,
    },
}

/// Describes a model without a dump: nothing to compare with, and how to make it.
fn no_reference(model: &Path) -> String {
    let place = model.display();
    let (beside, source) = if model.is_file() {
        (" beside it", "CHECKPOINT".to_owned())
    } else {
        ("", place.to_string())
    };
    format!(
        "`{place}` has no reference dump{beside} (reference/ or dump/), so there is nothing to compare with; \
         make one with the real code: parity dump {source} -o DUMP, then give the option `reference DUMP`"
    )
}
