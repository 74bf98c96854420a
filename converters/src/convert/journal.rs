//! Which slabs of an unfinished conversion are done.
//!
//! A line per slab: its number, and for each target the hash of its bytes and how far they are
//! from the numbers. A line that was cut short, or whose bytes are not in the file, does not
//! count: the slab is done again.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use registry::file::Limit;

use super::Measure;

/// The bytes of one slab for one target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Written {
    /// XXH3 of the bytes.
    pub hash: u64,
    /// How far they are from the numbers.
    pub measure: Measure,
}

/// A journal that is being written.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: Mutex<fs_err::File>,
}

/// Longer than the journal of any conversion: a slab takes a line of about a hundred bytes.
const JOURNAL: Limit = Limit { kind: "a journal", bytes: 1 << 29 };

impl Journal {
    /// Begins a journal, in place of any that is there.
    pub fn create(path: &Path, head: &str) -> io::Result<Self> {
        let mut file = fs_err::File::create(path)?;
        writeln!(file, "{head}")?;
        Ok(Self { path: path.into(), file: Mutex::new(file) })
    }

    /// Goes on with a journal that [`read`] has read.
    pub fn append(path: &Path) -> io::Result<Self> {
        let mut file = fs_err::OpenOptions::new().append(true).open(path)?;
        // The last line may have been cut short; what follows must not join it.
        file.write_all(b"\n")?;
        Ok(Self { path: path.into(), file: Mutex::new(file) })
    }

    /// Notes a finished slab.
    pub fn note(&self, slab: usize, written: &[Written]) -> io::Result<()> {
        let mut line = slab.to_string();
        for one in written {
            line.extend([format!(" {:016x}:", one.hash), one.measure.to_text()]);
        }
        line.push_str(" .\n");
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // One write: a line is whole or cut short, never mixed with another.
        file.write_all(line.as_bytes())
    }

    /// Removes it.
    pub fn remove(self) -> io::Result<()> {
        fs_err::remove_file(&self.path)
    }
}

/// The head of a journal and the slabs that it says are done.
pub fn read(path: &Path) -> io::Result<(String, BTreeMap<usize, Vec<Written>>)> {
    let bytes = registry::file::read(path, JOURNAL)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default().to_owned();
    Ok((head, lines.filter_map(line).collect()))
}

fn line(text: &str) -> Option<(usize, Vec<Written>)> {
    let mut words = text.strip_suffix(" .")?.split(' ');
    let slab = words.next()?.parse().ok()?;
    let written = words.map(|word| {
        let (hash, measure) = word.split_once(':')?;
        let hash = u64::from_str_radix(hash, 16).ok()?;
        Some(Written { hash, measure: Measure::parse(measure)? })
    });
    Some((slab, written.collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_read_and_what_was_cut_short_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        let journal = Journal::create(&path, "head").unwrap();
        let written = Written { hash: 7, measure: Measure::of(&[1.0], &[1.5]) };
        journal.note(3, &[written, written]).unwrap();
        journal.note(4, &[]).unwrap();
        let whole = fs_err::read(&path).unwrap();
        let cut = whole.len() - 3;
        fs_err::write(&path, &whole[..cut]).unwrap();
        let (head, slabs) = read(&path).unwrap();
        assert_eq!((head.as_str(), slabs.len()), ("head", 1));
        assert_eq!(slabs[&3], [written, written]);
        let journal = Journal::append(&path).unwrap();
        journal.note(5, &[written]).unwrap();
        assert_eq!(read(&path).unwrap().1.len(), 2);
        fs_err::write(&path, [0xff; 100]).unwrap();
        assert!(read(&path).unwrap().1.is_empty());
    }
}
