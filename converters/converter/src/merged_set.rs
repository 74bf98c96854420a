//! Sets of split files: the check that they make up a model.

use std::path::Path;

use checkpoints::Checkpoint;
use formats::gguf::GgufFile;

use crate::error::{Context as _, Result};
use crate::verified::sound;

/// Complete set of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompleteSet {
    /// Number of files.
    pub files: usize,
    /// Number of tensors.
    pub tensors: usize,
    /// Bytes of all tensors.
    pub bytes: u64,
}

/// Checks that the set of a GGUF file, or the files of a folder, is complete and sound.
pub fn complete_set(path: &Path) -> Result<CompleteSet> {
    if path.is_dir() {
        return complete_folder(path);
    }
    let file = GgufFile::open(path)
        .with_context(|| format!("`{}` is not part of a complete set", path.display()))?;
    for info in file.tensors() {
        sound(&file, info)?;
    }
    let bytes: u64 = file.tensors().iter().map(|info| info.bytes).sum();
    Ok(CompleteSet { files: file.files().len(), tensors: file.tensors().len(), bytes })
}

/// Checks a folder: `Checkpoint::open` compares its files with the index and requires a single conversion.
fn complete_folder(path: &Path) -> Result<CompleteSet> {
    let checkpoint = Checkpoint::open(path)
        .with_context(|| format!("`{}` is no complete set", path.display()))?;
    Ok(CompleteSet {
        files: checkpoint.files().len(),
        tensors: checkpoint.stored_len(),
        bytes: checkpoint.total_bytes(),
    })
}
