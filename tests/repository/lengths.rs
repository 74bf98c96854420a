//! Checks that functions and files are short enough to be understood at one reading.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::tool::root;

/// Folders of code: those of crates, of scripts and of tests.
pub(super) const FOLDERS: [&str; 22] = [
    ".ci",
    "benches",
    "chat",
    "cli",
    "compile",
    "converters",
    "docs",
    "endpoints",
    "engine",
    "engines",
    "fixtures",
    "hub",
    "images",
    "jobs",
    "lanes",
    "models",
    "parity",
    "proofs",
    "python",
    "registry",
    "serve",
    "tests",
];

/// The most lines of a Rust function, of a Rust file, and of a Python function.
const FUNCTION_LINES: usize = 100;
const FILE_LINES: usize = 650;
const PYTHON_LINES: usize = 80;

/// A function of a file, and the number of its lines.
#[derive(Debug, PartialEq, Eq)]
struct FunctionLength<'a> {
    name: &'a str,
    lines: usize,
}

/// Adds the files of a folder whose names end like this.
fn add_files(folder: &Path, ending: &str, files: &mut Vec<PathBuf>) {
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            add_files(&path, ending, files);
        } else if path.extension().is_some_and(|extension| extension == ending) {
            files.push(path);
        }
    }
}

/// Returns all files of code whose names end like this, by their paths from the root, with their text.
fn code_files(ending: &str) -> Vec<(String, String)> {
    let mut paths = Vec::new();
    for folder in FOLDERS {
        add_files(&root().join(folder), ending, &mut paths);
    }
    let files = paths.into_iter().map(|path| {
        let short = path.strip_prefix(root()).unwrap().display().to_string();
        (short, fs_err::read_to_string(&path).unwrap())
    });
    files.collect()
}

/// Returns the name behind the word that declares a function, if only qualifiers are before it.
fn declared_name<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    let (before, after) = line.split_once(word)?;
    let qualified = before.split_whitespace().all(|qualifier: &str| {
        ["pub", "const", "async", "unsafe", "extern", "\"C\""].contains(&qualifier)
            || qualifier.starts_with("pub(")
            || qualifier.ends_with(')')
    });
    let end = after.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(after.len());
    (qualified && end > 0).then_some(&after[..end])
}

/// Returns the number of blanks before a line.
fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Returns the functions of a Rust file that have a body. They end at the bracket below their first letter, where
/// rustfmt puts it.
fn rust_functions(text: &str) -> Vec<FunctionLength<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut functions = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some(name) = declared_name(line, "fn ") else { continue };
        let signature_end = lines[first..].iter().position(|line| line.ends_with(['{', '}', ';']));
        let Some(opening) = signature_end.map(|end| first + end) else { continue };
        if !lines[opening].ends_with('{') {
            continue;
        }
        let body = lines[opening..]
            .iter()
            .position(|end: &&str| end.trim_start() == "}" && indent(end) == indent(line));
        if let Some(body) = body {
            functions.push(FunctionLength { name, lines: opening + body + 1 - first });
        }
    }
    functions
}

/// Returns the functions of a Python file. They end before the next line that is indented no further.
fn python_functions(text: &str) -> Vec<FunctionLength<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut functions = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some(name) = declared_name(line, "def ") else { continue };
        let inner = lines[first + 1..].iter().take_while(|inner| {
            inner.trim().is_empty()
                || indent(inner) > indent(line)
                || inner.trim_start().starts_with(')')
        });
        let body: Vec<&&str> = inner.collect();
        let last = body.iter().rposition(|inner| !inner.trim().is_empty());
        functions.push(FunctionLength { name, lines: last.map_or(1, |last| last + 2) });
    }
    functions
}

#[test]
fn functions_are_short() {
    let files = code_files("rs");
    assert!(files.len() > 1000, "the sources were found");
    let mut long = BTreeSet::new();
    for (path, text) in &files {
        let functions = rust_functions(text).into_iter();
        let longer = functions.filter(|function| function.lines > FUNCTION_LINES);
        long.extend(longer.map(|function| (path.as_str(), function.name)));
    }
    assert!(
        long.is_empty(),
        "divide these along their subject into functions of at most {FUNCTION_LINES} lines: {long:#?}"
    );
}

#[test]
fn files_are_short() {
    let files = code_files("rs");
    let lengths = files.iter().map(|(path, text)| (path, text.lines().count()));
    let long: Vec<_> = lengths.filter(|(_, lines)| *lines > FILE_LINES).collect();
    assert!(
        long.is_empty(),
        "divide these by subject into files of at most {FILE_LINES} lines: {long:#?}"
    );
}

#[test]
fn python_functions_are_short() {
    let files = code_files("py");
    assert!(files.len() > 40, "the scripts were found");
    let ours = files.iter().filter(|(path, _)| !path.starts_with("parity/reference/"));
    let long: Vec<_> = ours
        .flat_map(|(path, text)| {
            let functions = python_functions(text).into_iter();
            let longer = functions.filter(|function| function.lines > PYTHON_LINES);
            longer.map(move |function| (path, function))
        })
        .collect();
    assert!(
        long.is_empty(),
        "divide these along their subject into functions of at most {PYTHON_LINES} lines: {long:#?}"
    );
}

#[test]
fn functions_end_where_they_are_seen_to_end() {
    let text = "\
/// fn of a comment
pub(in crate::a) const fn a(
    x: u8,
) -> u8 {
    fn b() {}
    if x {
    }
    x
}
trait T {
    fn c(&self);
    fn d(
        &self,
    ) -> u8;
    unsafe extern \"C\" fn e() {
    }
}
";
    let lengths = rust_functions(text).into_iter().map(|function| (function.name, function.lines));
    assert_eq!(lengths.collect::<Vec<_>>(), [("a", 8), ("e", 2)]);
    let text = "\
@decorated
def a(
    x,
):
    def b():
        return 1

    return b


async def c(): pass
# def of a comment
class D:
    def e(self):
        pass
";
    let lengths =
        python_functions(text).into_iter().map(|function| (function.name, function.lines));
    assert_eq!(lengths.collect::<Vec<_>>(), [("a", 7), ("b", 2), ("c", 1), ("e", 2)]);
}
