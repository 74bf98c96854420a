//! Length and time of a file: what shows that another program has written to it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A file as it was at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// Its path.
    pub path: PathBuf,
    len: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    /// The file as it is now.
    pub fn of(path: &Path) -> io::Result<Self> {
        let found = fs_err::metadata(path)?;
        Ok(Self { path: path.into(), len: found.len(), modified: found.modified().ok() })
    }

    /// True if the file was written after the other one, as far as the system knows.
    pub fn is_younger(&self, other: &Self) -> bool {
        self.modified.zip(other.modified).is_some_and(|(own, other)| own > other)
    }

    /// True if the file is another now, or is gone.
    pub fn has_changed(&self) -> bool {
        Self::of(&self.path).ok().as_ref() != Some(self)
    }
}

/// Length and time, without the place: a checkpoint that was moved is the same.
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
