//! `convert merge-check`: whether split files make up a model.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use converters::gguf::File;

use crate::text::bytes as size;
use crate::{Ended, term};

/// Whether a set of split files is complete and sound
#[derive(Debug, Args)]
pub(crate) struct MergeCheck {
    /// Any file of the set, or its first: model-00001-of-00008.gguf
    file: PathBuf,
}

impl MergeCheck {
    pub(super) fn run(&self) -> Result<Ended> {
        let file = File::open(&self.file)
            .with_context(|| format!("`{}` is not part of a complete set", self.file.display()))?;
        for info in file.tensors() {
            super::verify::sound(&file, info)?;
        }
        let bytes: u64 = file.tensors().iter().map(|info| info.bytes).sum();
        term::print(&format!(
            "complete: {} files, {} tensors, {}",
            file.files().len(),
            file.tensors().len(),
            size(bytes)
        ))?;
        Ok(Ended::Well)
    }
}
