//! Locks of a conversion, and the state that an earlier run left under them.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::files::{FileIdentity, PartFile};
use super::{Error, SlabJob, exchange, journal_path, other_work, slab};
use crate::Work;
use crate::journal::{self, Journal, JournalContents, SlabRecord};
use formats::output::{Disk, continue_or_create, open_folder, part_path};

/// Files that only this process may write while they are open.
///
/// The journal is locked from before it is read until it is removed. Each part is locked too, because two
/// conversions can share a file and have journals of different names. Nothing is changed before all locks
/// are taken.
#[derive(Debug)]
pub(super) struct ConversionLock {
    journal: Option<fs_err::File>,
    parts: Vec<fs_err::File>,
    /// True if the journal existed before this run.
    journal_was_there: bool,
    /// Files created only for their lock: they are removed if the run is refused.
    created: Vec<PathBuf>,
    _folder: Option<File>,
}

/// Journal, files, and finished slabs of an earlier run.
type ResumedWork = (Journal, Vec<PartFile>, BTreeMap<usize, Vec<SlabRecord>>);

impl ConversionLock {
    /// Takes all locks of a work.
    pub(super) fn take(work: &Work<'_>, disk: &dyn Disk) -> Result<Self, Error> {
        let first =
            work.files.first().ok_or_else(|| io::Error::other("there is no file to write"))?;
        let folder = match &work.folder {
            Some(folder) => {
                let file = open_folder(&folder.path)?.into_file();
                let lock = if folder.shared { File::try_lock_shared } else { File::try_lock };
                lock_file(&file, &folder.path, lock, &folder.path)?;
                if !folder.shared {
                    exchange::clean(&folder.path, disk)?;
                }
                Some(file)
            }
            None => None,
        };
        let mut held = Self {
            journal: None,
            parts: Vec::new(),
            journal_was_there: false,
            created: Vec::new(),
            _folder: folder,
        };
        let (file, created) = held.lock(&journal_path(&first.path), &first.path)?;
        (held.journal, held.journal_was_there) = (Some(file), !created);
        for out in &work.files {
            let (file, _) = held.lock(&part_path(&out.path), &out.path)?;
            held.parts.push(file);
        }
        Ok(held)
    }

    fn lock(&mut self, path: &Path, output: &Path) -> Result<(fs_err::File, bool), Error> {
        let (file, created) = continue_or_create(path)?;
        lock_file(file.file(), path, File::try_lock, output)?;
        // Only once it is locked: another process may have locked it first.
        if created {
            self.created.push(path.to_owned());
        }
        Ok((file, created))
    }

    /// Reads the journal of an earlier run of the same work; none if there is no journal.
    pub(super) fn notes(&mut self, head: &str) -> Result<Option<JournalContents>, Error> {
        // A run that was stopped before its head was written starts anew, so one command starts and
        // resumes.
        let Some(file) = self.journal.as_mut().filter(|_| self.journal_was_there) else {
            return Ok(None);
        };
        let Some(notes) = journal::read(file)? else { return Ok(None) };
        match other_work(&notes.head, head) {
            None => Ok(Some(notes)),
            Some(why) => Err(Error::Resume { journal: file.path().into(), why }),
        }
    }

    /// Opens the files, with the contents of an earlier run or empty.
    pub(super) fn begin(
        &mut self,
        work: &Work<'_>,
        notes: Option<JournalContents>,
        jobs: &[SlabJob],
        head: &str,
    ) -> Result<ResumedWork, Error> {
        self.created.clear();
        let Some(journal) = self.journal.take() else {
            return Err(io::Error::other("a conversion begins once").into());
        };
        let resume = notes.is_some();
        // The journal of a file that is about to be overwritten must go first.
        let journal =
            if resume { Journal::append(journal)? } else { Journal::begin(journal, head)? };
        let notes = notes.unwrap_or_default();
        let mut parts = Vec::with_capacity(work.files.len());
        for (out, file) in work.files.iter().zip(&self.parts) {
            // A whole part has not been renamed, whatever has its name.
            let renamed = notes.naming && file.metadata()?.len() != out.len;
            parts.push(match renamed.then(|| PartFile::named(out)).flatten() {
                Some(named) => named,
                // The lock belongs to the file that was locked.
                None => PartFile::begin(out, duplicate(file)?, resume)?,
            });
        }
        let mut known = notes.slabs;
        known.retain(|&n, written| {
            jobs.get(n).is_some_and(|job| slab::is_there(work, job, &parts, written))
        });
        let padding = slab::padding(work);
        for (n, out) in work.files.iter().enumerate() {
            if parts[n].is_named()
                && !jobs.iter().enumerate().all(|(slab, job): (usize, &SlabJob)| {
                    let targets = &work.tasks[job.task].targets;
                    targets.iter().all(|target| target.file != n) || known.contains_key(&slab)
                })
            {
                // A renamed file is never written to.
                parts[n] = PartFile::begin(out, duplicate(&self.parts[n])?, false)?;
            }
            if resume && !parts[n].is_named() {
                padding[n].iter().try_for_each(|&gap| zero(&parts[n], gap))?;
            }
        }
        known.retain(|&n, written| {
            jobs.get(n).is_some_and(|job| slab::is_there(work, job, &parts, written))
        });
        Ok((journal, parts, known))
    }
}

impl Drop for ConversionLock {
    fn drop(&mut self) {
        for path in &self.created {
            // Empty files of a refused run; the error of the run is the one reported.
            drop(fs_err::remove_file(path));
        }
    }
}

fn duplicate(file: &fs_err::File) -> io::Result<fs_err::File> {
    Ok(fs_err::File::from_parts(file.file().try_clone()?, file.path()))
}

/// Writes zeros to a range that an earlier run must have left zero.
fn zero(part: &PartFile, (mut from, mut len): (u64, u64)) -> io::Result<()> {
    const PIECE: usize = 1 << 16;
    let zeros = vec![0; len.min(PIECE as u64) as usize];
    while len > 0 {
        let piece = &zeros[..len.min(PIECE as u64) as usize];
        part.write(piece, from)?;
        (from, len) = (from + piece.len() as u64, len - piece.len() as u64);
    }
    Ok(())
}

/// Locks a file for this process, for as long as it is open.
fn lock_file(
    file: &File,
    path: &Path,
    lock: fn(&File) -> Result<(), TryLockError>,
    output: &Path,
) -> Result<(), Error> {
    match lock(file) {
        // Some file systems have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => {}
        Err(TryLockError::WouldBlock) => return Err(Error::Busy { output: output.into() }),
    }
    // The file may have been renamed or removed between the opening and the lock.
    let opened = FileIdentity::from(&file.metadata()?);
    if FileIdentity::of(path) == Some(opened) {
        Ok(())
    } else {
        Err(Error::Busy { output: output.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_lost_its_name_before_the_lock_is_not_owned() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.part");
        let (file, _) = continue_or_create(&path).unwrap();
        lock_file(file.file(), &path, File::try_lock, &path).unwrap();
        fs_err::rename(&path, dir.path().join("a")).unwrap();
        let owned = lock_file(file.file(), &path, File::try_lock, &path);
        assert!(matches!(owned, Err(Error::Busy { .. })));
        fs_err::write(&path, "another").unwrap();
        let owned = lock_file(file.file(), &path, File::try_lock, &path);
        assert!(matches!(owned, Err(Error::Busy { .. })));
    }
}
