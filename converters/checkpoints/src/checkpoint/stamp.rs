//! Length and modification time of a file, for detecting writes by other programs.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// State of a file at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// Path of the file.
    pub path: PathBuf,
    len: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    /// Takes a stamp of the file.
    pub fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs_err::metadata(path)?;
        Ok(Self { path: path.into(), len: metadata.len(), modified: metadata.modified().ok() })
    }

    /// True if the file was written after the other one, as far as the system knows.
    pub fn is_younger(&self, other: &Self) -> bool {
        self.modified.zip(other.modified).is_some_and(|(this, other)| this > other)
    }

    /// True if the file has changed or is gone.
    pub fn has_changed(&self) -> bool {
        Self::of(&self.path).ok().as_ref() != Some(self)
    }
}

/// Shows length and time without the path, so that a moved checkpoint stays the same.
impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.len, self.modified)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_of_the_same_length_and_a_later_time_has_changed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs_err::write(file.path(), "same").unwrap();
        let stamp = Stamp::of(file.path()).unwrap();
        assert!(!stamp.has_changed());
        let time = file.as_file().metadata().unwrap().modified().unwrap();
        file.as_file().set_modified(time + Duration::from_secs(1)).unwrap();
        assert!(stamp.has_changed());
        assert_ne!(stamp.to_string(), Stamp::of(file.path()).unwrap().to_string());
        file.as_file().set_modified(time).unwrap();
        assert!(!stamp.has_changed());
        file.close().unwrap();
        assert!(stamp.has_changed());
    }
}
