//! Collects the files that a command of this process has made.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

static MADE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Notes a file of the running command that is complete, also if an earlier run has written it.
pub(crate) fn note(path: &Path) {
    MADE.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
}

/// Runs a command, and returns its result with the files that it noted, in the order of their names.
pub(crate) fn during<T>(run: impl FnOnce() -> T) -> (T, Vec<PathBuf>) {
    drop(take());
    let result = run();
    let mut paths = take();
    paths.sort();
    paths.dedup();
    (result, paths)
}

fn take() -> Vec<PathBuf> {
    std::mem::take(&mut *MADE.lock().unwrap_or_else(PoisonError::into_inner))
}
