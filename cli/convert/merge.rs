//! Implements `convert merge-check`, which checks that split files make up a model.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use checkpoints::Checkpoint;
use clap::Args;
use formats::gguf::GgufFile;
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
        if self.file.is_dir() {
            return self.folder();
        }
        let file = GgufFile::open(&self.file)
            .with_context(|| format!("`{}` is not part of a complete set", self.file.display()))?;
        for info in file.tensors() {
            crate::verify::sound(&file, info)?;
        }
        let bytes: u64 = file.tensors().iter().map(|info| info.bytes).sum();
        complete(file.files().len(), file.tensors().len(), bytes)
    }

    /// Checks a folder: `Checkpoint::open` compares its files with the index and requires a single
    /// conversion.
    fn folder(&self) -> Result<CommandOutcome> {
        let checkpoint = Checkpoint::open(&self.file)
            .with_context(|| format!("`{}` is no complete set", self.file.display()))?;
        complete(checkpoint.files().len(), checkpoint.stored_len(), checkpoint.total_bytes())
    }
}

fn complete(files: usize, tensors: usize, bytes: u64) -> Result<CommandOutcome> {
    term::print(&format!("complete: {files} files, {tensors} tensors, {}", size(bytes)))?;
    Ok(CommandOutcome::Ok)
}
