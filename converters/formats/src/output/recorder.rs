//! Record of syncs, renames and removals.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::{DirectDisk, Disk};

/// Disk that performs operations and records them, for tests of durability.
#[derive(Debug, Default)]
pub struct DiskRecorder(Mutex<Vec<String>>);

impl DiskRecorder {
    /// Returns the record, and starts a new one.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, words: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(words);
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

impl Disk for DiskRecorder {
    fn sync(&self, file: &File) -> io::Result<()> {
        let kind = if file.metadata()?.is_dir() { "folder" } else { "file" };
        self.note(format!("sync {kind}"));
        DirectDisk.sync(file)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note(format!("rename {}", name(to)));
        DirectDisk.rename(from, to)
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        self.note("exchange".to_owned());
        DirectDisk.exchange(one, other)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        if path.exists() {
            self.note(format!("remove {}", name(path)));
        }
        DirectDisk.remove(path)
    }
}
