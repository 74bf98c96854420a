//! Implements `convert merge-check`, which checks that split files make up a model.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use converter::{CompleteSet, complete_set};
use registry::quantity::bytes as size;

use crate::{CommandOutcome, term};

/// Checks that a set of split files is complete and sound
#[derive(Debug, Args)]
pub(crate) struct MergeCheckArgs {
    /// The first file of a set, or a folder of safetensors: model-00001-of-00008.gguf
    file: PathBuf,
}

impl MergeCheckArgs {
    pub(super) fn run(&self) -> Result<CommandOutcome> {
        let CompleteSet { files, tensors, bytes } = complete_set(&self.file)?;
        term::print(&format!("complete: {files} files, {tensors} tensors, {}", size(bytes)))?;
        Ok(CommandOutcome::Ok)
    }
}
