//! Verifies hashes of downloads: SHA-256 of large files, git's blob hash of small ones.

use std::io::{self, Read};
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::Error;

/// Kind of hash in an etag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlobHash {
    /// SHA-256 of the bytes: files in LFS or Xet storage.
    Sha256,
    /// SHA-1 of `blob LENGTH\0` and the bytes: files in git.
    GitBlob,
}

impl BlobHash {
    /// Detects the hash by its length; etags of other hubs may contain none.
    pub(crate) fn of(etag: &str) -> Option<Self> {
        let hex = etag.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match etag.len() {
            64 if hex => Some(Self::Sha256),
            40 if hex => Some(Self::GitBlob),
            _ => None,
        }
    }

    /// Returns the name of the hash.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "SHA-256",
            Self::GitBlob => "git blob hash",
        }
    }

    pub(crate) fn file(self, path: &Path) -> io::Result<String> {
        let file = fs_err::File::open(path)?;
        let length = file.metadata()?.len();
        match self {
            Self::Sha256 => digest(Sha256::new(), file),
            Self::GitBlob => digest(Sha1::new_with_prefix(format!("blob {length}\0")), file),
        }
    }
}

fn digest<D: Digest + io::Write>(mut digest: D, mut file: impl Read) -> io::Result<String> {
    io::copy(&mut file, &mut digest)?;
    Ok(digest
        .finalize()
        .iter()
        .flat_map(|byte: &u8| {
            [byte >> 4, byte & 15].map(|half| char::from(b"0123456789abcdef"[usize::from(half)]))
        })
        .collect())
}

/// Compares a file with the hash in its etag. Returns false if the etag is no hash.
pub(crate) fn verify(path: &Path, etag: &str, what: &str) -> Result<bool, Error> {
    let Some(kind) = BlobHash::of(etag) else { return Ok(false) };
    let digest = kind.file(path)?;
    if digest == etag {
        return Ok(true);
    }
    let what = what.to_owned();
    let stated = etag.to_owned();
    Err(Error::Damaged { what, kind: kind.name(), found: digest, stated })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_git_and_of_lfs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs_err::write(file.path(), "hello\n").unwrap();
        // `printf 'hello\n' | git hash-object --stdin` and `sha256sum`.
        let git = "ce013625030ba8dba906f756967f9e9ca394464a";
        let sha = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        assert!(verify(file.path(), git, "x").unwrap());
        assert!(verify(file.path(), sha, "x").unwrap());
        assert!(!verify(file.path(), "W-123", "x").unwrap());
        assert!(verify(file.path(), &git.replace('c', "d"), "x").is_err());
        assert!(verify(file.path(), &sha.replace('5', "6"), "x").is_err());
    }
}
