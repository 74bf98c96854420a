//! Settings and results of opening a model.

use std::fmt;
use std::path::PathBuf;

use registry::diag::Finding;

use crate::error::Error;
use crate::local_model::LocalModel;

/// Settings of [`open`](crate::open::open).
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Spec to use whatever architecture it matches: a file, or the name of a known one.
    pub spec: Option<PathBuf>,
    /// True to open the encoder of images that the checkpoint holds, in place of its text model.
    pub encoder: bool,
    /// Overrides of the spec: `states.conv.dtype=bf16`.
    pub set: Vec<String>,
    /// `config.json` of a GGUF file that carries none, or its folder.
    pub model_config: Option<PathBuf>,
}

/// Opened model with what the caller should show of it.
#[derive(Debug)]
pub struct OpenedModel {
    /// The model.
    pub target: LocalModel,
    /// Warnings of the spec.
    pub warnings: Vec<Finding>,
    /// Remarks on the files.
    pub remarks: Vec<OpenRemark>,
}

/// Remark on a model's files, which does not prevent their use.
#[derive(Debug)]
pub enum OpenRemark {
    /// The config ties a weight to another, but the checkpoint stores both with different values.
    Untied {
        /// The weight that the config ties.
        weight: String,
        /// The weight that the config ties it to.
        owner: String,
    },
    /// A key of a GGUF file changes the results of other programs, and the model does not use it.
    UnusedKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// The keys of a GGUF file contradict the config or the overrides that the caller gave.
    Contradicted(Error),
}

impl fmt::Display for OpenRemark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untied { weight, owner } => write!(
                f,
                "the config ties `{weight}` to `{owner}`, but the checkpoint has both with other numbers: \
                 they are not tied"
            ),
            Self::UnusedKey { path, key } => write!(
                f,
                "`{}`: nothing uses the key `{key}`, by which llama.cpp changes rotations",
                path.display()
            ),
            Self::Contradicted(error) => error.fmt(f),
        }
    }
}
