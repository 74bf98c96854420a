//! Checks of output paths.

use std::path::{Path, PathBuf};

use crate::error::{Result, ensure};

/// Checks that a file may be written: it is no input, and does not exist unless `force`.
pub fn refuse_existing(output: &Path, inputs: &[PathBuf], force: bool) -> Result<()> {
    ensure!(!output.is_dir(), "`{}` is a folder; name a file", output.display());
    if !output.exists() {
        return Ok(());
    }
    let target = fs_err::canonicalize(output)?;
    for input in inputs {
        let same = fs_err::canonicalize(input).is_ok_and(|input| input == target);
        ensure!(
            !same,
            "`{}` would be overwritten, and it is read; choose another name",
            output.display()
        );
    }
    ensure!(
        force,
        "`{}` is there already; remove it, choose another name, or allow it with the option `force`",
        output.display()
    );
    Ok(())
}
