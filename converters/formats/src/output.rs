//! Output files: written under a temporary name, made durable, then renamed.
//!
//! Every writer of the workspace uses this module, so that four rules hold everywhere. A temporary file is
//! created and never opened through an existing link. Its bytes are on the disk before it is renamed. The
//! rename is on the disk before the writer reports success. A writer that fails removes its temporary file.
//!
//! The reasons are in [decision 27](../../../docs/decisions/0027-outputs-complete-at-last-rename.md).

use std::ffi::OsString;
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

mod recorder;
mod writeback;

pub use recorder::DiskRecorder;
pub use writeback::{reserve, start_writeback};

/// System calls that determine the state after a crash. Tests record them or stop before one.
pub trait Disk: Debug + Send + Sync {
    /// Waits until the bytes of a file, or the names of a folder, are on the disk.
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    /// Renames a file to its final name, replacing an existing file.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs_err::rename(from, to)
    }

    /// Exchanges the names of two folders in one step. Not all file systems can.
    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        #[cfg(any(target_os = "linux", target_vendor = "apple"))]
        {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
        }
        #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
        {
            let _ = (one, other);
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// Removes a file. An absent file is no error.
    fn remove(&self, path: &Path) -> io::Result<()> {
        match fs_err::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Disk operations without interception.
#[derive(Debug, Clone, Copy, Default)]
pub struct DirectDisk;

impl Disk for DirectDisk {}

/// Returns the path with `.part` at its end: the name of the file while it is written.
pub fn part_path(path: &Path) -> PathBuf {
    with_end(path, ".part")
}

/// Returns the path with more characters at its end.
pub fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(end);
    name.into()
}

/// Returns the folder of a file.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Creates an empty file for reading and writing, in place of a left-over file or link.
pub fn create(path: &Path) -> io::Result<fs_err::File> {
    DirectDisk.remove(path)?;
    fs_err::OpenOptions::new().read(true).append(false).write(true).create_new(true).open(path)
}

/// Opens a file of an earlier run for reading and writing, or creates it. Returns true beside a file that
/// was created.
///
/// A link, a file with a second hard link and anything that is no regular file do not come from an earlier
/// run. They are removed, because writing through them would change a file elsewhere.
pub fn continue_or_create(path: &Path) -> io::Result<(fs_err::File, bool)> {
    let metadata = std::fs::symlink_metadata(path);
    if metadata.is_ok_and(|metadata| metadata.is_file() && metadata.nlink() == 1) {
        let mut options = fs_err::OpenOptions::new();
        options.read(true).write(true);
        options.options_mut().custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
        match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return Ok((opened?, false)),
        }
    }
    Ok((create(path)?, true))
}

/// Opens a folder, to lock it or to make the names in it durable.
pub fn open_folder(path: &Path) -> io::Result<fs_err::File> {
    let mut options = fs_err::OpenOptions::new();
    options.read(true);
    options.options_mut().custom_flags(rustix::fs::OFlags::DIRECTORY.bits().cast_signed());
    options.open(path)
}

/// Makes the names in the folder of `path` durable. A rename survives a power failure only then.
pub fn sync_folder(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    let folder = open_folder(folder_of(path))?;
    match disk.sync(folder.file()) {
        // Some network file systems cannot sync a folder.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        done => done,
    }
}

/// File under its temporary name. It is removed when it is dropped before [`DraftFile::publish`].
#[derive(Debug)]
pub struct DraftFile {
    path: PathBuf,
    part: PathBuf,
    /// None once the file is renamed.
    file: Option<fs_err::File>,
}

impl DraftFile {
    /// Creates `PATH.part`, in place of one that a killed run left.
    pub fn create(path: &Path) -> io::Result<Self> {
        let part = part_path(path);
        Ok(Self { path: path.into(), file: Some(create(&part)?), part })
    }

    /// Creates a temporary file that no other process writes, beside `path`.
    pub fn unique(path: &Path) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let pid = std::process::id();
        loop {
            let n = COUNT.fetch_add(1, Ordering::Relaxed);
            let part = folder_of(path).join(format!(".onboard-{pid}-{n}.part"));
            match fs_err::OpenOptions::new().write(true).create_new(true).open(&part) {
                // A killed process with the same id left the file.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                opened => return Ok(Self { path: path.into(), part, file: Some(opened?) }),
            }
        }
    }

    /// Returns the path of the temporary file.
    pub fn part(&self) -> &Path {
        &self.part
    }

    /// Makes the bytes durable, then renames the file.
    pub fn publish(mut self, disk: &dyn Disk) -> io::Result<()> {
        if let Some(file) = &self.file {
            disk.sync(file.file())?;
        }
        disk.rename(&self.part, &self.path)?;
        self.file = None;
        sync_folder(disk, &self.path)
    }
}

impl Write for DraftFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_mut().expect("open until `publish` takes it").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().expect("open until `publish` takes it").flush()
    }
}

impl Drop for DraftFile {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            // The error cannot be reported; a remaining `.part` file cannot be mistaken for a result.
            drop(fs_err::remove_file(&self.part));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_asks_the_operating_system() {
        // A pipe cannot be synced, so only a call that was made fails.
        let (reader, _writer) = std::io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(reader));
        assert!(DirectDisk.sync(&file).is_err());
    }

    #[test]
    fn bytes_are_durable_before_the_name_and_the_name_before_success() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let disk = DiskRecorder::default();
        let mut draft = DraftFile::unique(&path).unwrap();
        draft.write_all(b"new").unwrap();
        assert!(!path.exists());
        draft.publish(&disk).unwrap();
        assert_eq!(disk.take(), ["sync file", "rename a", "sync folder"]);
        assert_eq!(fs_err::read(&path).unwrap(), b"new");
        drop(DraftFile::create(&path).unwrap());
        assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 1, "a dropped draft is removed");
    }

    #[test]
    fn links_that_lay_there_are_not_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let precious = dir.path().join("precious");
        let part = dir.path().join("a.part");
        let links: [fn(&Path, &Path) -> io::Result<()>; 2] = [
            |from, to| std::os::unix::fs::symlink(from, to),
            |from, to| fs_err::hard_link(from, to),
        ];
        for link in links {
            fs_err::write(&precious, b"precious").unwrap();
            link(&precious, &part).unwrap();
            let (mut file, created) = continue_or_create(&part).unwrap();
            file.write_all(b"x").unwrap();
            assert!(created);
            assert_eq!(fs_err::read(&precious).unwrap(), b"precious");
            fs_err::remove_file(&part).unwrap();
            link(&precious, &part).unwrap();
            DraftFile::create(&dir.path().join("a")).unwrap().write_all(b"x").unwrap();
            assert_eq!(fs_err::read(&precious).unwrap(), b"precious");
        }
        fs_err::write(&part, b"left").unwrap();
        assert!(!continue_or_create(&part).unwrap().1, "a plain file is gone on with");
    }
}
