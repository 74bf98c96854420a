//! Judges: what must be true of a case, whether it is accepted or refused.
//!
//! A judge gives true if the program accepted the case, false if it was refused with a message, and an
//! error if the program did neither.

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

/// What a judge has to work with.
pub(crate) struct Trial<'a> {
    pub(crate) case: &'a Case,
    /// The folder that the case was written to.
    pub(crate) dir: &'a std::path::Path,
    pub(crate) program: &'a Program,
    /// A number that is the same for the same case: for what is tried now and then only.
    pub(crate) number: u64,
}

pub(crate) type Judged = Result<bool, String>;

impl Trial<'_> {
    /// The path of a file of the case, as a word of a command line.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// A folder beside the case, for what is written.
    pub(crate) fn beside(&self, name: &str) -> std::path::PathBuf {
        let mut path = self.dir.as_os_str().to_owned();
        path.push(format!(".{name}"));
        path.into()
    }

    /// True for one case in `n`, or where commands are processes.
    pub(crate) fn sometimes(&self, n: u64) -> bool {
        self.program.apart || self.number.is_multiple_of(n)
    }
}

/// A refusal with a message that can be shown.
pub(crate) fn refused(text: &str) -> Judged {
    message(text).map(|()| false)
}
