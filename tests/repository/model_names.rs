//! Checks that no Rust file names a model: models are described in `registry/specs`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::tool::{SOURCES, onboard, root, run};

/// Returns the names of the specs and the class names they match.
fn names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in fs_err::read_dir(root().join("registry/specs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "yaml") {
            continue;
        }
        names.insert(path.file_stem().unwrap().to_str().unwrap().to_lowercase());
        let text = fs_err::read_to_string(&path).unwrap();
        for line in text.lines() {
            if let Some(list) = line.strip_prefix("matches:") {
                let words = list.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                names.extend(words.filter(|word| !word.is_empty()).map(str::to_lowercase));
            }
        }
    }
    assert!(names.len() > 5, "the specs were found");
    names
}

pub(crate) fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
}

/// True for a file of tests, by its path from the repository's root.
pub(crate) fn is_test_file(path: &Path) -> bool {
    path.ends_with("tests.rs") || path.iter().any(|part| part == "tests")
}

fn is_word_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// True if `line` contains `name` as a word. `x.cpp` and `x-server` are programs, not models, and `x-c` is
/// a prefix of such names.
fn has_word(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let after = &line[at + name.len()..];
        !line[..at].ends_with(is_word_part)
            && !after.starts_with(is_word_part)
            && !after.starts_with(".cpp")
            && !after.starts_with("-server")
            && !after.starts_with("-c")
            && !after.starts_with("-bench")
            && !after.starts_with("-quantize")
            && !after.starts_with("-tokenize")
    })
}

/// True for a line of a doc test that opens a fixture.
fn opens_a_fixture(line: &str) -> bool {
    line.trim_start().starts_with("//") && line.contains("path::new(") && line.contains("fixtures/")
}

#[test]
fn no_rust_file_names_a_model() {
    let mut files = Vec::new();
    for folder in SOURCES {
        rust_files(&root().join(folder), &mut files);
    }
    assert!(files.len() > 20, "the sources were found");
    let names = names();
    let mut places = Vec::new();
    for path in files {
        let text = fs_err::read_to_string(&path).unwrap().to_lowercase();
        for (n, line) in text.lines().enumerate().filter(|(_, line)| !opens_a_fixture(line)) {
            for name in names.iter().filter(|name| has_word(line, name)) {
                let path = path.strip_prefix(root()).unwrap().display().to_string();
                places.push(format!("{path}:{}: `{name}`", n + 1));
            }
        }
    }
    assert!(places.is_empty(), "a spec should say what these lines say:\n{}", places.join("\n"));
}

#[test]
fn each_library_has_an_example() {
    for source in SOURCES.into_iter().filter(|folder| *folder != "cli") {
        let mut examples = Vec::new();
        rust_files(&root().join(source).with_file_name("examples"), &mut examples);
        assert!(!examples.is_empty(), "{source}");
        let page = fs_err::read_to_string(root().join(source).join("lib.rs")).unwrap();
        assert!(page.contains("//! ```"), "{source}/lib.rs shows no use of the library");
    }
}

#[test]
fn no_library_names_a_flag() {
    let script = run(onboard().args(["completions", "bash"])).code(0).out;
    let flags: BTreeSet<&str> = script
        .split(|c: char| !(c.is_ascii_lowercase() || c == '-'))
        .filter(|word| word.starts_with("--") && word.len() > 2)
        .collect();
    assert!(flags.contains("--force"), "the flags were found");
    let mut files = Vec::new();
    for folder in SOURCES.into_iter().filter(|folder| *folder != "cli") {
        rust_files(&root().join(folder), &mut files);
    }
    let mut places = Vec::new();
    for path in files.iter().filter(|path| !is_test_file(path.strip_prefix(root()).unwrap())) {
        let text = fs_err::read_to_string(path).unwrap();
        let program = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        for (n, line) in program.lines().enumerate() {
            let mut words = line.split(|c: char| !(c.is_ascii_lowercase() || c == '-'));
            // Flags of a letter are seen in commands of ours.
            let commands = line.split('`').skip(1).step_by(2).filter(|command: &&str| {
                ["onboard ", "parity ", "convert "].iter().any(|name| command.starts_with(name))
            });
            let mut short = commands.flat_map(str::split_whitespace).filter(|word| {
                word.strip_prefix('-').is_some_and(|letter| letter.len() == 1 && letter != "-")
            });
            let named = words.find(|word| flags.contains(word)).or_else(|| short.next());
            if let Some(flag) = named.filter(|_| !line.trim_start().starts_with("//")) {
                let path = path.strip_prefix(root()).unwrap().display().to_string();
                places.push(format!("{path}:{}: {flag}", n + 1));
            }
        }
    }
    assert!(
        places.is_empty(),
        "write \"the option `NAME`\", which the command line shows as its flag:\n{}",
        places.join("\n")
    );
}
