//! Files of a conversion: checks of their paths, and the files before their final rename.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use registry::file;

use super::{Error, RunOptions, journal_path};
use crate::{OutFile, SideFile, Work, hashes};
use formats::output::{Disk, folder_of, part_path, reserve, start_writeback, with_end};

/// File that is being written, or that an earlier run has already renamed.
#[derive(Debug)]
pub(super) struct PartFile {
    /// Current path of the bytes.
    pub(super) path: PathBuf,
    /// Final path.
    finished: PathBuf,
    file: fs_err::File,
}

impl PartFile {
    /// Starts a file, or resumes one.
    pub(super) fn begin(out: &OutFile, file: fs_err::File, resume: bool) -> io::Result<Self> {
        if !resume {
            file.set_len(0)?;
        }
        file.set_len(out.len)?;
        if let Err(error) = reserve(file.file(), out.len) {
            // What was reserved of a new file is given back.
            if !resume {
                file.set_len(0)?;
            }
            let path = file.path().display();
            let message = format!(
                "`{path}`: no space for {} bytes ({error}): free some, or write to another disk",
                out.len
            );
            return Err(io::Error::new(error.kind(), message));
        }
        let part = Self { path: part_path(&out.path), finished: out.path.clone(), file };
        part.write(&out.header, 0)?;
        Ok(part)
    }

    /// Opens a file that is already renamed, if it has the length and the header of the work.
    pub(super) fn named(out: &OutFile) -> Option<Self> {
        let mut file = registry::file::open(&out.path).ok()?;
        if !is_regular(&out.path) || file.metadata().ok()?.len() != out.len {
            return None;
        }
        let mut header = vec![0; out.header.len()];
        file.read_exact(&mut header).ok()?;
        let path = out.path.clone();
        (header == out.header).then_some(Self { finished: path.clone(), path, file })
    }

    /// True if the file is already renamed.
    pub(super) fn is_named(&self) -> bool {
        self.path == self.finished
    }

    /// Writes bytes at an offset.
    pub(super) fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        use std::os::unix::fs::FileExt as _;
        self.file
            .file()
            .write_all_at(bytes, at)
            .map_err(|error| io::Error::other(format!("`{}`: {error}", self.path.display())))?;
        start_writeback(self.file.file(), at, bytes.len() as u64);
        Ok(())
    }

    /// Reads bytes at an offset.
    pub(super) fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        use std::os::unix::fs::FileExt as _;
        self.file.file().read_exact_at(bytes, at)
    }

    pub(super) fn sync(&self, disk: &dyn Disk) -> io::Result<()> {
        disk.sync(self.file.file())
    }

    /// Renames the file to its final name.
    pub(super) fn finish(&self, disk: &dyn Disk) -> io::Result<()> {
        if self.is_named() { Ok(()) } else { disk.rename(&self.path, &self.finished) }
    }
}

/// Returns every path that the work writes.
pub(super) fn outputs(work: &Work<'_>) -> impl Iterator<Item = PathBuf> {
    let beside = work.beside.iter().map(|side| side.path.clone());
    work.files.iter().map(|file| file.path.clone()).chain(beside).chain(work.hash_paths())
}

/// Returns the temporary path of a small file. Processes that write one set write the same small files, so
/// each process uses a path of its own.
pub(super) fn staged(work: &Work<'_>, side: &SideFile) -> PathBuf {
    let shared = work.folder.as_ref().is_some_and(|folder| folder.shared);
    let owner = work.files.first().and_then(|file| file.path.file_name()).filter(|_| shared);
    match owner {
        Some(owner) => part_path(&with_end(&side.path, &format!(".{}", owner.display()))),
        None => part_path(&side.path),
    }
}

/// Checks that the files can be written: no inputs, regular files only, enough space.
pub(super) fn check(work: &Work<'_>, settings: &RunOptions) -> Result<(), Error> {
    let inputs: Vec<(PathBuf, FileIdentity)> = settings
        .inputs
        .iter()
        .filter_map(|path| Some((path.clone(), FileIdentity::of(path)?)))
        .collect();
    for output in outputs(work).chain(work.stale.clone()).chain(work.gates.clone()) {
        for path in [output.clone(), part_path(&output), journal_path(&output)] {
            if let Some(input) = input_at(&inputs, &path) {
                return Err(Error::Overwrites { output: path, input });
            }
        }
        if output.exists() && !output.is_file() {
            return Err(Error::NoFile { output });
        }
    }
    let mut needed: BTreeMap<PathBuf, u64> = BTreeMap::new();
    for file in &work.files {
        let folder = folder_of(&file.path).to_owned();
        fs_err::create_dir_all(&folder)?;
        // A new run frees the blocks of an earlier one before it takes its own.
        let there = allocated(&part_path(&file.path));
        *needed.entry(folder).or_default() += file.len.saturating_sub(there);
    }
    for (folder, needed) in needed {
        if let Some(free) = free(&folder).filter(|&free| free < needed) {
            return Err(Error::Disk { folder, free, needed });
        }
    }
    Ok(())
}

/// Returns the input that is the same file as a path.
fn input_at(inputs: &[(PathBuf, FileIdentity)], path: &Path) -> Option<PathBuf> {
    let identity = FileIdentity::of(path)?;
    inputs.iter().find(|(_, read)| *read == identity).map(|(input, _)| input.clone())
}

/// Returns an error if a file to be written exists. Small files may exist if they have the same bytes, as
/// in a set that several processes write.
pub(super) fn refuse_taken(work: &Work<'_>) -> Result<(), Error> {
    let beside = work.beside.iter().filter(|side| !side.is_there()).map(|side| &side.path);
    let mut outputs = work.files.iter().map(|file| &file.path).chain(beside);
    if let Some(output) = outputs.find(|output| output.exists()) {
        return Err(Error::Exists { output: output.clone() });
    }
    // Hashes of files that are gone say nothing.
    match work
        .hash_paths()
        .into_iter()
        .find(|path: &PathBuf| path.exists() && hashes::read(path).is_err())
    {
        Some(output) => Err(Error::Exists { output }),
        None => Ok(()),
    }
}

impl SideFile {
    /// True if the file exists with these bytes.
    pub(super) fn is_there(&self) -> bool {
        // The length is compared first: the existing file may be of any size.
        is_regular(&self.path)
            && std::fs::symlink_metadata(&self.path)
                .is_ok_and(|metadata| metadata.len() == self.bytes.len() as u64)
            && file::read(&self.path, file::COPIED).is_ok_and(|bytes| bytes == self.bytes)
    }
}

fn is_regular(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// Device and inode of a file, whatever its path.
#[derive(PartialEq, Eq)]
pub(super) struct FileIdentity(u64, u64);

impl FileIdentity {
    pub(super) fn of(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().as_ref().map(Self::from)
    }
}

impl From<&std::fs::Metadata> for FileIdentity {
    fn from(metadata: &std::fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        Self(metadata.dev(), metadata.ino())
    }
}

/// Returns the bytes that a file already takes on the disk.
fn allocated(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).map_or(0, |metadata| metadata.blocks().saturating_mul(512))
}

/// Returns the free bytes on the file system of a folder; none if the system does not say.
fn free(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}
