//! A case: a small folder of files, and the words of a command line.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Files by name, as they lie in one folder, and words that commands of the kind take.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    pub(crate) words: Vec<String>,
}

/// The file that keeps the words of a case.
const WORDS: &str = "case.words";

impl Case {
    /// Reads some files of a folder.
    pub(crate) fn of(dir: &Path, names: &[&str]) -> io::Result<Self> {
        let mut case = Self::default();
        for name in names {
            let path = dir.join(name);
            if path.is_file() {
                case.files.insert((*name).to_owned(), fs_err::read(path)?);
            }
        }
        Ok(case)
    }

    /// Reads every file of a folder, as [`Case::write`] left them.
    pub(crate) fn read(dir: &Path) -> io::Result<Self> {
        let mut case = Self::default();
        for entry in fs_err::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == WORDS {
                let text = fs_err::read_to_string(entry.path())?;
                case.words = serde_json::from_str(&text)?;
            } else if entry.path().is_file() {
                case.files.insert(name, fs_err::read(entry.path())?);
            }
        }
        Ok(case)
    }

    /// Replaces a folder's contents by the files.
    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        if dir.exists() {
            fs_err::remove_dir_all(dir)?;
        }
        fs_err::create_dir_all(dir)?;
        for (name, bytes) in &self.files {
            fs_err::write(dir.join(name), bytes)?;
        }
        Ok(())
    }

    /// Writes the files and the words, to be read again.
    pub(crate) fn keep(&self, dir: &Path) -> io::Result<()> {
        self.write(dir)?;
        if self.words.is_empty() {
            return Ok(());
        }
        fs_err::write(dir.join(WORDS), serde_json::to_string(&self.words)?)
    }

    /// Bytes of all files and words: what the memory of a run is measured by.
    pub(crate) fn bytes(&self) -> u64 {
        let files: usize = self.files.values().map(Vec::len).sum();
        let words: usize = self.words.iter().map(String::len).sum();
        (files + words) as u64
    }

    /// The text of a file.
    pub(crate) fn text(&self, name: &str) -> String {
        self.files.get(name).map_or_else(String::new, |b| String::from_utf8_lossy(b).into_owned())
    }
}
