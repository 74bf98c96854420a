//! `onboard convert`: reserved for the converters.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use crate::Ended;

/// Writes a checkpoint in another format (not part of this version).
#[derive(Debug, Args)]
#[command(
    after_help = "This version reads checkpoints and proves models; it does not write other formats yet.\n\
    The arguments are the ones that conversion will take, so that scripts can be prepared:\n\
    \n  convert MODEL --to gguf:q4_k_m -o model.gguf\n  convert MODEL --to fp8 -o FOLDER"
)]
pub(crate) struct Convert {
    /// The checkpoint's folder
    model: PathBuf,
    /// The format: gguf:TYPE or fp8
    #[arg(long, value_name = "FORMAT")]
    to: String,
    /// Where to write
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
}

impl Convert {
    pub(crate) fn run(self) -> Result<Ended> {
        let Self { model, to, output } = self;
        bail!(
            "cannot convert `{}` to `{to}` in `{}`: conversion is not built yet and arrives with the converters; \
             nothing was written",
            model.display(),
            output.display()
        )
    }
}
