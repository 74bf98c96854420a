//! Files that are either whole or not there.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// Whether a file may be written: not where one is that is read, and not where any is unless that is meant.
pub(crate) fn allowed(output: &Path, inputs: &[PathBuf], force: bool) -> Result<()> {
    ensure!(!output.is_dir(), "`{}` is a folder; name a file", output.display());
    if !output.exists() {
        return Ok(());
    }
    let own = fs_err::canonicalize(output)?;
    for input in inputs {
        let same = fs_err::canonicalize(input).is_ok_and(|input| input == own);
        ensure!(
            !same,
            "`{}` would be overwritten, and it is read; choose another name",
            output.display()
        );
    }
    ensure!(
        force,
        "`{}` is there already; remove it, choose another name, or allow it with --force",
        output.display()
    );
    Ok(())
}

/// Writes a file next to its place, then renames it there.
pub(crate) fn atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs_err::create_dir_all(folder)?;
    let mut file = tempfile::Builder::new()
        .prefix(".onboard-")
        .suffix(".part")
        .tempfile_in(folder)
        .with_context(|| format!("cannot write in `{}`", folder.display()))?;
    let _watched = crate::interrupt::watch(file.path());
    file.write_all(bytes).with_context(|| format!("cannot write `{}`", path.display()))?;
    readable(&file);
    file.persist(path).with_context(|| format!("cannot write `{}`", path.display()))?;
    Ok(())
}

/// Temporary files are private to their owner; a result is as readable as any other file.
#[cfg(unix)]
fn readable(file: &tempfile::NamedTempFile) {
    use std::os::unix::fs::PermissionsExt as _;
    // A file system without modes leaves the file as it is, which is still a whole file.
    file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644)).ok();
}

#[cfg(not(unix))]
fn readable(_file: &tempfile::NamedTempFile) {}
