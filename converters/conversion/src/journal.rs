//! Journal of the finished slabs of a conversion, for resuming it.
//!
//! Each line holds the index of a slab and, for each target, the hash of its bytes, the hash of the source values, and its error sums. A
//! line that was cut short, or whose bytes are not in the file, does not count: the slab is written again.
//!
//! Slabs are written at final places, so each counts alone ([decision 26](../../../docs/decisions/0026-slabs-with-a-journal.md)).

use std::collections::BTreeMap;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;
use std::sync::Mutex;

use registry::file::FileLimit;

use super::Measure;
use formats::output::Disk;

/// Record of the bytes of one slab for one target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlabRecord {
    /// Hash of the bytes, which adds up over the slabs of a tensor: [`crate::hashes::hash`].
    pub hash: u64,
    /// Hash of the source values, the same for every target of a slab.
    pub source: u64,
    /// Error of the bytes against the source values.
    pub measure: Measure,
}

/// Contents of a journal.
#[derive(Debug, Default)]
pub struct JournalContents {
    /// First line, which identifies the work.
    pub head: String,
    /// Finished slabs.
    pub slabs: BTreeMap<usize, Vec<SlabRecord>>,
    /// True once files may have been renamed to their final names.
    pub naming: bool,
}

/// Line that marks the start of the final renames.
const NAMING: &str = "naming";

/// Journal that is being written.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: Mutex<fs_err::File>,
}

/// Upper limit on the size of a journal: a slab takes a line of about a hundred bytes.
const JOURNAL: FileLimit = FileLimit { kind: "a journal", bytes: 1 << 29 };

impl Journal {
    /// Starts a journal in a file, replacing the file's contents.
    pub fn begin(mut file: fs_err::File, head: &str) -> io::Result<Self> {
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(format!("{head}\n").as_bytes())?;
        Ok(Self { path: file.path().into(), file: Mutex::new(file) })
    }

    /// Continues a journal that [`read`] has read.
    pub fn append(mut file: fs_err::File) -> io::Result<Self> {
        file.seek(SeekFrom::End(0))?;
        // The last line may have been cut short; what follows must not join it.
        file.write_all(b"\n")?;
        Ok(Self { path: file.path().into(), file: Mutex::new(file) })
    }

    /// Records a finished slab.
    pub fn note(&self, slab: usize, written: &[SlabRecord]) -> io::Result<()> {
        let mut line = slab.to_string();
        for one in written {
            line.extend([
                format!(" {:016x}:{:016x}:", one.hash, one.source),
                one.measure.to_text(),
            ]);
        }
        line.push_str(" .\n");
        // One write: a line is whole or cut short, never mixed with another.
        self.file().write_all(line.as_bytes())
    }

    /// Records that the final renames are about to start, and syncs the journal to the disk.
    pub fn note_naming(&self, disk: &dyn Disk) -> io::Result<()> {
        let mut file = self.file();
        writeln!(file, "{NAMING}")?;
        disk.sync(file.file())
    }

    /// Removes the journal.
    pub fn remove(self, disk: &dyn Disk) -> io::Result<()> {
        disk.remove(&self.path)
    }

    fn file(&self) -> std::sync::MutexGuard<'_, fs_err::File> {
        self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Reads a journal; none if its run ended before the head was written.
pub fn read(file: &mut fs_err::File) -> io::Result<Option<JournalContents>> {
    file.rewind()?;
    let bytes = registry::file::rest(file, JOURNAL)?;
    let text = String::from_utf8_lossy(&bytes);
    let Some((head, body)) = text.split_once('\n') else { return Ok(None) };
    let naming = body.lines().any(|line| line == NAMING);
    Ok(Some(JournalContents {
        head: head.to_owned(),
        slabs: body.lines().filter_map(line).collect(),
        naming,
    }))
}

fn line(text: &str) -> Option<(usize, Vec<SlabRecord>)> {
    let mut words = text.strip_suffix(" .")?.split(' ');
    let slab = words.next()?.parse().ok()?;
    let written = words.map(|word| {
        let (hash, values) = word.split_once(':')?;
        let (source, measure) = values.split_once(':')?;
        let hash = u64::from_str_radix(hash, 16).ok()?;
        let source = u64::from_str_radix(source, 16).ok()?;
        Some(SlabRecord { hash, source, measure: Measure::parse(measure)? })
    });
    Some((slab, written.collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use formats::output::DirectDisk;

    #[test]
    fn what_was_noted_is_read_and_what_was_cut_short_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        let journal = Journal::begin(open(&path), "head").unwrap();
        let written = SlabRecord { hash: 7, source: 8, measure: Measure::of(&[1.0], &[1.5]) };
        journal.note(3, &[written, written]).unwrap();
        journal.note(4, &[]).unwrap();
        let file_bytes = fs_err::read(&path).unwrap();
        let cut = file_bytes.len() - 3;
        fs_err::write(&path, &file_bytes[..cut]).unwrap();
        let notes = read_back(&path).unwrap();
        assert_eq!((notes.head.as_str(), notes.slabs.len(), notes.naming), ("head", 1, false));
        assert_eq!(notes.slabs[&3], [written, written]);
        let journal = Journal::append(open(&path)).unwrap();
        journal.note(5, &[written]).unwrap();
        assert_eq!(read_back(&path).unwrap().slabs.len(), 2);
        journal.note_naming(&DirectDisk).unwrap();
        assert!(read_back(&path).unwrap().naming);
        for text in ["", "onboard conv"] {
            fs_err::write(&path, text).unwrap();
            assert!(read_back(&path).is_none(), "a head that was cut short is none");
        }
        fs_err::write(&path, b"\xff\n\xff\n").unwrap();
        assert!(read_back(&path).unwrap().slabs.is_empty());
    }

    fn open(path: &Path) -> fs_err::File {
        formats::output::continue_or_create(path).unwrap().0
    }

    fn read_back(path: &Path) -> Option<JournalContents> {
        super::read(&mut open(path)).unwrap()
    }
}
