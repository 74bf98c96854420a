//! A file's bytes, mapped read-only.
#![expect(unsafe_code, reason = "mapping a file is unsafe: another process may change it")]

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

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
    /// Open file for copies; none if too many are open.
    file: Option<OpenFile>,
}

/// File that stays open beside its map, counted.
#[derive(Debug)]
struct OpenFile(File);

/// Number of files that stay open beside their maps.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Limit on them, well below the 1024 open files that systems allow a process by default.
const MOST_OPEN: usize = 256;

impl OpenFile {
    fn keep(file: File) -> Option<Self> {
        let opened = Self(file);
        // Dropping the value takes it from the count again.
        (OPEN.fetch_add(1, Ordering::Relaxed) < MOST_OPEN).then_some(opened)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Least number of bytes that are copied from the file instead of the map.
const LEAST_COPY: usize = 4096;

impl FileMap {
    /// Maps a regular file. Anything else (a folder, a pipe) is refused.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = registry::file::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Self { _listed: None, inner: None, file: None });
        }
        // SAFETY: the map is read-only and lives as long as `Mmap`. Rust cannot rule out that
        // another process truncates or rewrites the file meanwhile: a write shows other numbers
        // (any bit pattern is a valid `u8`), a truncation raises SIGBUS, which `on_shrink`
        // turns into a message. Our own writers do neither: they write a `.part` file and rename it.
        let map = unsafe { Mmap::map(file.file())? };
        let listed = shrunk::MapGuard::new(&map, path);
        Ok(Self { _listed: listed, inner: Some(map), file: OpenFile::keep(file.into_file()) })
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.deref().len()
    }

    /// Returns a range of the file, if it lies in the file.
    pub fn range(&self, range: Range<usize>) -> Option<MappedRange<'_>> {
        let bytes = self.get(range.clone())?;
        Some(MappedRange { file: self.file.as_ref(), begin: range.start as u64, bytes })
    }

    /// True if the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.deref().is_empty()
    }
}

/// Range of a mapped file.
#[derive(Debug, Clone, Copy, Default)]
pub struct MappedRange<'a> {
    file: Option<&'a OpenFile>,
    /// Offset of the range in the file.
    begin: u64,
    bytes: &'a [u8],
}

impl<'a> MappedRange<'a> {
    /// Returns the bytes of the map.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Copies the bytes of the range from `at` on.
    ///
    /// The system makes the copy, so no page is mapped. For bytes that are read once, mapping and unmapping
    /// their pages takes longer than copying them.
    ///
    /// # Panics
    ///
    /// If the bytes do not lie in the range.
    pub fn copy(&self, at: usize, out: &mut [u8]) {
        let bytes = &self.bytes[at..at + out.len()];
        let file = self.file.filter(|_| out.len() >= LEAST_COPY);
        // A file that became shorter meanwhile ends the process through the map, with a message.
        if !file.is_some_and(|file: &OpenFile| {
            file.0.read_exact_at(out, self.begin + at as u64).is_ok()
        }) {
            out.copy_from_slice(bytes);
        }
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

    #[test]
    fn copies_have_the_bytes_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let bytes: Vec<u8> = (0..30_000_u32).map(|n| (n % 251) as u8).collect();
        fs_err::write(&path, &bytes).unwrap();
        // More maps than files that stay open: the others copy from the map.
        let maps: Vec<_> = (0..MOST_OPEN + 3).map(|_| FileMap::open(&path).unwrap()).collect();
        assert!(maps.iter().filter(|map| map.file.is_some()).count() <= MOST_OPEN);
        for map in &maps {
            assert!(map.range(2..30_001).is_none());
            let range = map.range(2..30_000).unwrap();
            assert!(range.bytes() == &bytes[2..]);
            for (at, len) in [(0, 29_998), (1, LEAST_COPY), (29_997, 1), (29_998, 0), (77, 20_001)]
            {
                let mut out = vec![0; len];
                range.copy(at, &mut out);
                assert!(out == bytes[2 + at..2 + at + len], "{len} bytes from {at}");
            }
        }
    }
}
