//! Case of the attack: a small folder of files, and the words of a command line.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde_json::json;

/// Files by name, in one folder, and words for the commands of the kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    pub(crate) words: Vec<String>,
    /// File that is extended to be long without taking room on the disk.
    pub(crate) grown: Option<String>,
    /// True for a seed that is already damaged.
    pub(crate) hostile: bool,
}

/// File for the parts of a case that are not in its files.
const MORE: &str = "case.more";

/// Length of an extended file: longer than the worker's memory limit.
const LONG: u64 = 3 << 30;

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

    /// Reads every file of a folder, as [`Case::keep`] left them.
    pub(crate) fn read(dir: &Path) -> io::Result<Self> {
        let mut case = Self::default();
        for entry in fs_err::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == MORE {
                let text = fs_err::read_to_string(entry.path())?;
                (case.words, case.grown) = serde_json::from_str(&text)?;
            } else if entry.path().is_file() {
                case.files.insert(name, fs_err::read(entry.path())?);
            }
        }
        Ok(case)
    }

    /// Replaces a folder's contents by the files, with the extended one at its length.
    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        self.write_files(dir)?;
        match &self.grown {
            Some(name) if self.files.contains_key(name) => {
                fs_err::File::options().write(true).open(dir.join(name))?.set_len(LONG)
            }
            _ => Ok(()),
        }
    }

    fn write_files(&self, dir: &Path) -> io::Result<()> {
        if dir.exists() {
            fs_err::remove_dir_all(dir)?;
        }
        fs_err::create_dir_all(dir)?;
        self.files.iter().try_for_each(|(name, bytes)| fs_err::write(dir.join(name), bytes))
    }

    /// Writes everything, to be read again.
    pub(crate) fn keep(&self, dir: &Path) -> io::Result<()> {
        self.write_files(dir)?;
        fs_err::write(dir.join(MORE), json!([self.words, self.grown]).to_string())
    }

    /// Returns the bytes of all files and words, the base of the memory limit.
    pub(crate) fn bytes(&self) -> u64 {
        let files: usize = self.files.values().map(Vec::len).sum();
        let words: usize = self.words.iter().map(String::len).sum();
        (files + words) as u64
    }

    /// Returns the text of a file.
    pub(crate) fn text(&self, name: &str) -> String {
        self.files.get(name).map_or_else(String::new, |b| String::from_utf8_lossy(b).into_owned())
    }
}
