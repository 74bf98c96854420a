//! Arguments of a command, as its parser reads them.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// Arguments that a command line has.
#[derive(Debug, Default)]
pub struct ParsedWords {
    /// Values of each given argument, by the long name of its flag or else its own name. Paths have no `.` parts.
    pub values: BTreeMap<String, Vec<String>>,
    /// Values of the output, as they are given.
    pub outputs: Vec<String>,
    /// Paths that the command reads.
    pub reads: Vec<PathArgument>,
}

/// Path among the arguments of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathArgument {
    /// Path without `.` parts.
    pub path: String,
    /// True for a program, which is no input of the results.
    pub is_program: bool,
}

/// Removes `.` parts and trailing slashes of a path.
pub fn without_dots(path: &str) -> String {
    let parts = Path::new(path).components().filter(|part| *part != Component::CurDir);
    parts.collect::<PathBuf>().display().to_string()
}
