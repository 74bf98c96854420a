//! A file's bytes, mapped read-only.
#![expect(unsafe_code, reason = "mapping a file is unsafe: another process may change it")]

use std::io;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

mod shrunk;

pub use shrunk::{ExitMessage, on_shrink};

/// A whole file as bytes; the operating system reads pages when they are touched.
#[derive(Debug)]
pub struct FileMap {
    // Dropped first: the range no longer maps a file once it is unmapped.
    _listed: Option<shrunk::MapGuard>,
    // An empty file cannot be mapped on every system.
    inner: Option<Mmap>,
}

impl FileMap {
    /// Maps a regular file. Anything else (a folder, a pipe) is refused.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = registry::file::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Self { _listed: None, inner: None });
        }
        // SAFETY: the map is read-only and lives as long as `Mmap`. Rust cannot rule out that
        // another process truncates or rewrites the file meanwhile: a write shows other numbers
        // (any bit pattern is a valid `u8`), a truncation raises SIGBUS, which `on_shrink`
        // turns into a message. Our own writers do neither: they write a `.part` file and rename it.
        let map = unsafe { Mmap::map(file.file())? };
        let listed = shrunk::MapGuard::new(&map, path);
        Ok(Self { _listed: listed, inner: Some(map) })
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.deref().len()
    }

    /// True if the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.deref().is_empty()
    }
}

impl Deref for FileMap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.inner.as_deref().unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_files_and_empty_files_and_refuses_folders() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs_err::write(&path, b"abc").unwrap();
        let map = FileMap::open(&path).unwrap();
        assert_eq!((&*map, map.len(), map.is_empty()), (&b"abc"[..], 3, false));
        fs_err::write(&path, b"").unwrap();
        let map = FileMap::open(&path).unwrap();
        assert_eq!((&*map, map.len(), map.is_empty()), (&b""[..], 0, true));
        assert_eq!(FileMap::open(dir.path()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(FileMap::open(&dir.path().join("none")).is_err());
    }
}
