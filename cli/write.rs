//! Writes files atomically.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::{Context as _, Result, ensure};
use formats::output::{DirectDisk, Disk, DraftFile};

use crate::term::with_flags;

/// True for `-`, which selects standard output.
pub(crate) fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Returns an error for `-` if bytes are written out of order or read back.
pub(crate) fn refuse_stdout(path: &Path) -> Result<()> {
    ensure!(
        !is_stdout(path),
        "`-` asks for standard output, and this output is written at several places and read back; \
         name a file or folder (`./-` if it is to be called `-`)"
    );
    Ok(())
}

/// Checks that a file may be written: it is no input, and does not exist unless `force`.
pub(crate) fn allowed(output: &Path, inputs: &[PathBuf], force: bool) -> Result<()> {
    refuse_stdout(output)?;
    Ok(converter::refuse_existing(output, inputs, force)?)
}

/// Writes a file beside its final path, then renames it. `-` is standard output.
pub(crate) fn atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    if is_stdout(path) {
        return Ok(crate::term::print_data(&String::from_utf8_lossy(bytes))?);
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs_err::create_dir_all(parent)?;
    }
    let mut draft = DraftFile::unique(path).with_context(|| cannot_write(path))?;
    let _watched = crate::interrupt::watch(draft.part());
    draft.write_all(bytes).with_context(|| cannot_write(path))?;
    draft.publish(&*disk()).with_context(|| cannot_write(path))
}

/// Writes a report for people, with the flags of the command line.
pub(crate) fn report(path: &Path, text: &str) -> Result<()> {
    atomic(path, with_flags(text).as_bytes())
}

/// Says that a file cannot be written.
fn cannot_write(path: &Path) -> String {
    format!("cannot write `{}`", path.display())
}

/// Returns the disk that renames files.
///
/// For tests of a killed process, `ONBOARD_ABORT_AT=N` aborts it before the rename, exchange or removal with that
/// number, counted from one.
pub(crate) fn disk() -> Arc<dyn Disk> {
    static DISK: LazyLock<Arc<dyn Disk>> = LazyLock::new(|| {
        let at = std::env::var("ONBOARD_ABORT_AT").ok().and_then(|at| at.parse().ok());
        match at {
            Some(at) => Arc::new(AbortingDisk { at, count: AtomicUsize::new(0) }),
            None => Arc::new(DirectDisk),
        }
    });
    Arc::clone(&DISK)
}

/// Disk that aborts the process before one rename, exchange or removal, like a kill: nothing is cleaned up.
#[derive(Debug)]
struct AbortingDisk {
    at: usize,
    count: AtomicUsize,
}

impl AbortingDisk {
    fn step(&self) {
        if self.count.fetch_add(1, Ordering::Relaxed) + 1 == self.at {
            std::process::abort();
        }
    }
}

impl Disk for AbortingDisk {
    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        self.step();
        DirectDisk.rename(from, to)
    }

    fn exchange(&self, one: &Path, other: &Path) -> std::io::Result<()> {
        self.step();
        DirectDisk.exchange(one, other)
    }

    fn remove(&self, path: &Path) -> std::io::Result<()> {
        if path.symlink_metadata().is_ok() {
            self.step();
        }
        DirectDisk.remove(path)
    }
}
