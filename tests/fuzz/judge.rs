//! Judges: conditions that a case must satisfy, whether it is accepted or rejected.
//!
//! A judge returns true if the program accepted the case, false if it rejected the case with a message, and
//! an error if the program did neither.

use crate::case::Case;
use crate::program::{Program, message};

pub(crate) mod answers;
pub(crate) mod conversions;
pub(crate) mod dumps;
pub(crate) mod files;
#[cfg(feature = "hub")]
pub(crate) mod hubs;
pub(crate) mod models;
pub(crate) mod texts;

/// Inputs of a judge.
pub(crate) struct Trial<'a> {
    pub(crate) case: &'a Case,
    /// Folder that the case was written to.
    pub(crate) dir: &'a std::path::Path,
    pub(crate) program: &'a Program,
    /// Number that is the same for the same case, for checks that run only sometimes.
    pub(crate) number: u64,
}

pub(crate) type Judged = Result<bool, String>;

impl Trial<'_> {
    /// Returns the path of a file of the case, as a word of a command line.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Returns a folder beside the case, for outputs.
    pub(crate) fn beside(&self, name: &str) -> std::path::PathBuf {
        let mut path = self.dir.as_os_str().to_owned();
        path.push(format!(".{name}"));
        path.into()
    }

    /// True for one case in `n`, or if commands are processes.
    pub(crate) fn sometimes(&self, n: u64) -> bool {
        self.program.apart || self.number.is_multiple_of(n)
    }
}

/// Checks that the message of a rejection can be shown.
pub(crate) fn refused(text: &str) -> Judged {
    message(text).map(|()| false)
}
