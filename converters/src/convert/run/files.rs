//! The files of a conversion while they are written.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::{Error, Settings, earlier, journal_path, part_path};
use crate::convert::journal::{Journal, Written};
use crate::convert::{OutFile, Work};

/// A file that has no name yet.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) path: PathBuf,
    finished: PathBuf,
    file: fs_err::File,
}

impl Part {
    /// Begins a file, or goes on with one.
    fn open(out: &OutFile, resume: bool) -> io::Result<Self> {
        let path = part_path(&out.path);
        let file = fs_err::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)?;
        own(file.file(), &path)?;
        if !resume {
            file.set_len(0)?;
        }
        file.set_len(out.len)?;
        let part = Self { path, finished: out.path.clone(), file };
        part.write(&out.header, 0)?;
        Ok(part)
    }

    /// Writes bytes at their place.
    pub(super) fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        use std::os::unix::fs::FileExt as _;
        let named = |error| io::Error::other(format!("`{}`: {error}", self.path.display()));
        self.file.file().write_all_at(bytes, at).map_err(named)
    }

    /// Reads bytes from their place.
    pub(super) fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        use std::os::unix::fs::FileExt as _;
        self.file.file().read_exact_at(bytes, at)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Gives it its name.
    pub(super) fn finish(&self) -> io::Result<()> {
        fs_err::rename(&self.path, &self.finished)
    }
}

/// Takes a file for this process alone, as long as it is open.
fn own(file: &std::fs::File, path: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let taken = || {
        let text = format!(
            "another conversion is writing `{}`; wait for it, or choose another name",
            path.display()
        );
        io::Error::new(io::ErrorKind::ResourceBusy, text)
    };
    match file.try_lock() {
        // Some file systems have no locks.
        Ok(()) | Err(std::fs::TryLockError::Error(_)) => {}
        Err(std::fs::TryLockError::WouldBlock) => return Err(taken()),
    }
    // It may have got its name between the opening and the lock.
    let (opened, named) = (file.metadata()?, std::fs::metadata(path).ok());
    let same =
        named.is_some_and(|named| (named.dev(), named.ino()) == (opened.dev(), opened.ino()));
    if same { Ok(()) } else { Err(taken()) }
}

/// Whether the files can be written: nothing that is read, nothing that is there, room enough.
pub(super) fn check(work: &Work<'_>, settings: &Settings) -> Result<(), Error> {
    let inputs: Vec<(PathBuf, Identity)> = settings
        .inputs
        .iter()
        .filter_map(|path| Some((path.clone(), Identity::of(path)?)))
        .collect();
    let mut needed: BTreeMap<PathBuf, u64> = BTreeMap::new();
    for file in &work.files {
        let part = part_path(&file.path);
        for path in [&file.path, &part, &journal_path(&file.path)] {
            let identity = Identity::of(path);
            if let Some((input, _)) =
                inputs.iter().find(|(_, read)| Some(read) == identity.as_ref())
            {
                return Err(Error::Overwrites { output: path.clone(), input: input.clone() });
            }
        }
        if file.path.exists() && !file.path.is_file() {
            return Err(Error::NoFile { output: file.path.clone() });
        }
        if file.path.exists() && !settings.force {
            return Err(Error::Exists { output: file.path.clone() });
        }
        let folder = match file.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        fs_err::create_dir_all(&folder)?;
        let there = if settings.resume { allocated(&part) } else { 0 };
        *needed.entry(folder).or_default() += file.len.saturating_sub(there);
    }
    for (folder, needed) in needed {
        if let Some(free) = free(&folder).filter(|&free| free < needed) {
            return Err(Error::Disk { folder, free, needed });
        }
    }
    Ok(())
}

/// What a file is, whatever it is called: device and number.
#[derive(PartialEq, Eq)]
struct Identity(u64, u64);

impl Identity {
    fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self(metadata.dev(), metadata.ino()))
    }
}

/// The bytes that a file takes on the disk already.
fn allocated(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).map_or(0, |metadata| metadata.blocks().saturating_mul(512))
}

/// The bytes that are free where a folder lies; none if the system does not say.
fn free(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

/// The files, the journal, and what an earlier run has done.
type Opened = (Vec<Part>, Journal, BTreeMap<usize, Vec<Written>>);

pub(super) fn open(work: &Work<'_>, settings: &Settings, head: &str) -> Result<Opened, Error> {
    let first = work.files.first().ok_or_else(|| io::Error::other("there is no file to write"))?;
    let path = journal_path(&first.path);
    // One that was stopped before it began begins: a queue starts both with one command.
    let resume = settings.resume && path.exists();
    let known = if resume { earlier(&path, head)? } else { BTreeMap::new() };
    // A journal of what is about to be written over must go first.
    let journal = if resume { None } else { Some(Journal::create(&path, head)?) };
    let parts =
        work.files.iter().map(|file| Part::open(file, resume)).collect::<io::Result<Vec<_>>>()?;
    let journal = match journal {
        Some(journal) => journal,
        None => Journal::append(&path)?,
    };
    Ok((parts, journal, known))
}
