//! Files that are either whole or not there.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

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
