//! Results of a long command, kept a line at a time in a `.part` file beside its output: an interrupted run goes on
//! with them.

use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;

use registry::file;
use sha2::{Digest as _, Sha256};

use crate::error::{Context as _, Result};
use crate::observer::ConversionObserver;

/// File of lines. The first one names its form and the hash of everything that the results depend on.
#[derive(Debug)]
pub struct LineJournal {
    path: PathBuf,
    file: fs_err::File,
}

impl LineJournal {
    /// Opens a journal, and returns the parsed lines that it holds of the same work. Lines count up to the first
    /// one that is incomplete or cannot be parsed. A journal of other work is replaced.
    pub fn open<T>(
        observer: &dyn ConversionObserver,
        path: PathBuf,
        (schema, work): (&str, &str),
        identity: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<(Self, Vec<T>)> {
        let head = format!("{schema} {:x}\n", Sha256::digest(identity));
        let text = file::read_text(&path, file::REPORT).unwrap_or_default();
        let mut results = Vec::new();
        let mut valid_len = 0;
        if let Some(lines) = text.strip_prefix(&head) {
            valid_len = head.len();
            for line in lines.split_inclusive('\n') {
                // A line without its end was being written.
                let Some(result) = line.strip_suffix('\n').and_then(&parse) else { break };
                results.push(result);
                valid_len += line.len();
            }
        } else if !text.is_empty() {
            observer.note(&format!("`{}` is of another {work} and is replaced", path.display()));
        }
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs_err::create_dir_all(parent)?;
        }
        let mut file =
            fs_err::OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
        file.set_len(valid_len as u64)?;
        file.seek(SeekFrom::End(0))?;
        let mut journal = Self { path, file };
        if valid_len == 0 {
            journal.add(head.trim_end())?;
        }
        Ok((journal, results))
    }

    /// Adds a line.
    pub fn add(&mut self, line: &str) -> Result<()> {
        writeln!(self.file, "{line}")
            .with_context(|| format!("cannot write the journal `{}`", self.path.display()))
    }

    /// Removes the journal of work that is done.
    pub fn finish(self) {
        drop(self.file);
        fs_err::remove_file(&self.path).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &std::path::Path, identity: &str) -> (LineJournal, Vec<u32>) {
        LineJournal::open(&(), path.to_owned(), ("numbers/1", "count"), identity, |line: &str| {
            line.strip_prefix("n ")?.parse().ok()
        })
        .unwrap()
    }

    #[test]
    fn whole_lines_of_the_same_work_are_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("made/out.part");
        let (mut journal, found) = open(&path, "a");
        assert!(found.is_empty());
        (1..4).for_each(|n| journal.add(&format!("n {n}")).unwrap());
        drop(journal);
        let text = fs_err::read_to_string(&path).unwrap();
        // Cut anywhere in its last line, the file still has the others, and the next line stands alone.
        for end in text.len() - 4..text.len() {
            fs_err::write(&path, &text[..end]).unwrap();
            let (mut journal, found) = open(&path, "a");
            assert_eq!(found, [1, 2], "{end}");
            journal.add("n 7").unwrap();
            assert_eq!(open(&path, "a").1, [1, 2, 7], "{end}");
        }
        assert!(open(&path, "b").1.is_empty(), "other work begins anew");
        let (journal, found) = open(&path, "a");
        assert!(found.is_empty());
        journal.finish();
        assert!(!path.exists());
    }

    /// Damages bytes of a journal at random places. Lines before the damage are kept.
    #[test]
    fn a_damaged_journal_gives_the_lines_before_the_damage() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.part");
        let mut journal = open(&path, "a").0;
        (0..4).for_each(|n| journal.add(&format!("n {n}")).unwrap());
        let sound = fs_err::read(&path).unwrap();
        let mut state = 1_u32;
        let mut random = |below: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as usize % below
        };
        for _ in 0..2000 {
            let mut bytes = sound.clone();
            let at = random(bytes.len());
            bytes[at] = b"\0\n\"{}[]-9ex\xff"[random(12)];
            if random(4) == 0 {
                bytes.truncate(at);
            }
            fs_err::write(&path, &bytes).unwrap();
            let found = open(&path, "a").1;
            let lines = sound[..at].split(|byte| *byte == b'\n').count() - 1;
            let utf8 = std::str::from_utf8(&bytes).is_ok();
            assert!(found.len() <= 5 && (!utf8 || found.len() >= lines.saturating_sub(1)), "{at}");
        }
    }
}
