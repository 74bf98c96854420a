//! Checks that each decision is linked from the code that it explains.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::tool::root;

/// Folders of code and of pages.
const FOLDERS: [&str; 21] = [
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
/// Pages beside these folders.
const PAGES: [&str; 5] =
    ["ARCHITECTURE.md", "BENCHMARKS.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md"];
const DECISIONS: &str = "docs/decisions";
/// Endings of files of code.
const SOURCE_ENDINGS: [&str; 4] = ["rs", "py", "cu", "h"];

/// Decisions that explain no module, with the reason.
const WITHOUT_CODE: [(&str, &str); 1] =
    [("0049-considered-crates.md", "dependencies of the whole repository")];

/// A link to a decision, as a file has it.
#[derive(Debug, PartialEq, Eq)]
struct DecisionLink<'a> {
    label: &'a str,
    target: &'a str,
}

impl<'a> DecisionLink<'a> {
    /// Returns the name of the decision's file.
    fn name(&self) -> &'a str {
        self.target.rsplit('/').next().unwrap_or_default()
    }

    /// True unless the label ends with the number of another decision.
    fn has_its_number(&self) -> bool {
        let word = self.label.rsplit(' ').next().unwrap_or_default();
        let number = word.parse::<u32>();
        number.is_err() || number == self.name()[..4].parse::<u32>()
    }
}

/// True for the name of a decision's file: four digits, words, and the ending of a page.
fn is_decision(name: &str) -> bool {
    let parts = name.strip_suffix(".md").and_then(|name| name.split_once('-'));
    parts.is_some_and(|(number, _)| {
        number.len() == 4 && number.bytes().all(|digit| digit.is_ascii_digit())
    })
}

/// Returns the links to decisions in a text, without the anchors of headings.
fn links(text: &str) -> Vec<DecisionLink<'_>> {
    let mut links = Vec::new();
    for (at, _) in text.match_indices("](") {
        let label = text[..at].rsplit('[').next().unwrap_or_default();
        let after = text[at + 2..].split(')').next().unwrap_or_default();
        let target = after.split('#').next().unwrap_or_default();
        let link = DecisionLink { label, target };
        if is_decision(link.name()) {
            links.push(link);
        }
    }
    links
}

/// True if a record names the decision that replaced it in a line of its own.
fn is_superseded(text: &str) -> bool {
    let mut lines = text.lines().filter(|line| line.starts_with("Superseded by ["));
    lines.any(|line| !links(line).is_empty())
}

/// Adds the sources and pages of a folder.
fn add_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            add_files(&path, files);
        } else if is_source(&path) || path.extension().is_some_and(|ending| ending == "md") {
            files.push(path);
        }
    }
}

/// True for a file of code.
fn is_source(path: &Path) -> bool {
    let ending = path.extension().and_then(OsStr::to_str);
    ending.is_some_and(|ending| SOURCE_ENDINGS.contains(&ending))
}

/// Returns all sources and pages with their text. This file is none of them: its cases are no links.
fn texts() -> Vec<(PathBuf, String)> {
    let mut files: Vec<PathBuf> = PAGES.map(|page| root().join(page)).into();
    for folder in FOLDERS {
        add_files(&root().join(folder), &mut files);
    }
    files.retain(|path| !path.ends_with("tests/repository/decisions.rs"));
    assert!(files.len() > 1000, "the sources were found");
    let texts = files.into_iter().map(|path| {
        let text = fs_err::read_to_string(&path).unwrap();
        (path, text)
    });
    texts.collect()
}

/// Returns the names of all decisions.
fn decisions() -> BTreeSet<String> {
    let entries = fs_err::read_dir(root().join(DECISIONS)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let decisions: BTreeSet<String> = names.filter(|name| is_decision(name)).collect();
    assert!(decisions.len() > 80, "the decisions were found");
    decisions
}

#[test]
fn links_to_decisions_lead_to_them() {
    let folder = root().join(DECISIONS).canonicalize().unwrap();
    let mut broken = Vec::new();
    for (path, text) in texts() {
        let place = path.strip_prefix(root()).unwrap().display();
        for link in links(&text) {
            let target = path.parent().unwrap().join(link.target).canonicalize();
            let leads = target.is_ok_and(|target| target.parent() == Some(folder.as_path()));
            if !leads || !link.has_its_number() {
                broken.push(format!("{place}: [{}]({})", link.label, link.target));
            }
        }
    }
    assert!(
        broken.is_empty(),
        "these links have no file, or the number of another one:\n{}",
        broken.join("\n")
    );
}

#[test]
fn decisions_are_linked_from_code() {
    let mut linked = BTreeSet::new();
    for (path, text) in texts() {
        if is_source(&path) {
            linked.extend(links(&text).into_iter().map(|link| link.name().to_owned()));
        }
    }
    let decisions = decisions();
    let stale: Vec<_> = WITHOUT_CODE
        .iter()
        .filter(|(name, _)| !decisions.contains(*name) || linked.contains(*name))
        .collect();
    assert!(
        stale.is_empty(),
        "`WITHOUT_CODE` names decisions that do not exist, or that code links: {stale:#?}"
    );
    let mut missing = Vec::new();
    for name in decisions.difference(&linked) {
        let text = fs_err::read_to_string(root().join(DECISIONS).join(name)).unwrap();
        let explains_none = WITHOUT_CODE.iter().any(|(listed, _)| listed == name);
        if !explains_none && !is_superseded(&text) {
            missing.push(name.as_str());
        }
    }
    assert!(
        missing.is_empty(),
        "link these from the modules that they explain, or list them in `WITHOUT_CODE` with a reason:\n{}",
        missing.join("\n")
    );
}

#[test]
fn links_are_found_with_their_numbers() {
    let text = "Of ([decision 7](../docs/decisions/0007-a.md#limits)), [9](0008-b.md), [c](c.md), [d](10-d.md).";
    let decision_links = links(text);
    let targets: Vec<&str> = decision_links.iter().map(|link| link.target).collect();
    assert_eq!(targets, ["../docs/decisions/0007-a.md", "0008-b.md"]);
    assert_eq!(decision_links[0].name(), "0007-a.md");
    let numbered: Vec<bool> = decision_links.iter().map(DecisionLink::has_its_number).collect();
    assert_eq!(numbered, [true, false]);
    assert!(is_superseded("# 0007. A\n\nSuperseded by [decision 8](0008-b.md).\n"));
    assert!(!is_superseded("# 0007. A\n\nSuperseded by [a page](page.md).\n"));
    assert!(!is_superseded("Replaced by [decision 8](0008-b.md).\n"));
}
