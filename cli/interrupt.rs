//! Ctrl-C: unfinished files go, then the process does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// What a shell reports for a command that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// Removes what is being written when the person stops the command.
pub(crate) fn install() {
    let handler = || {
        let paths = UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
        for path in paths.iter() {
            // It may not exist yet, or be finished and renamed already.
            fs_err::remove_file(path).ok();
        }
        std::process::exit(INTERRUPTED);
    };
    // Without a handler Ctrl-C still ends the process; only a `.part` file may stay.
    ctrlc::set_handler(handler).ok();
}

/// Takes its path off the list when dropped.
#[derive(Debug)]
pub(crate) struct Watched(PathBuf);

/// Has `path` removed if the person stops the command before the guard is dropped.
pub(crate) fn watch(path: &Path) -> Watched {
    let mut paths = UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
    paths.insert(path.to_owned());
    Watched(path.to_owned())
}

impl Drop for Watched {
    fn drop(&mut self) {
        UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}
