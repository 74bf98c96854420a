//! The book: its chapters, its links, and the pages that are made from declarations.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use registry::reference;
use registry::table::markdown_cell;

use crate::tool::{convert, json, onboard, parity, root, run};

/// Lists the Markdown files below a folder.
fn pages(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages(&path, files);
        } else if path.extension().is_some_and(|ending| ending == "md") {
            files.push(path);
        }
    }
}

/// Returns the text of a page without its code, fenced or in backticks.
fn prose(text: &str) -> String {
    let fenced = text.split("```").step_by(2).collect::<String>();
    fenced.lines().map(|line| line.split('`').step_by(2).collect::<String>() + "\n").collect()
}

/// Lists the targets of the links of a page.
fn links(text: &str) -> Vec<String> {
    let text = prose(text);
    let ends = text.split("](").skip(1).filter_map(|after| after.split(')').next());
    ends.map(str::to_owned).collect()
}

/// Lists the anchors of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let outside = text.split("```").step_by(2).collect::<String>();
    outside.lines().filter_map(|line| line.strip_prefix('#')).map(anchor_of).collect()
}

/// Returns the anchor that GitHub and mdBook make of a heading.
fn anchor_of(heading: &str) -> String {
    let text = heading.trim_start_matches(['#', ' ']).to_lowercase();
    let chars = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    chars.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut all: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "BENCHMARKS.md"]
            .map(|name| root().join(name))
            .into();
    pages(&root().join("docs"), &mut all);
    let mut broken = String::new();
    let mut count = 0;
    for page in &all {
        let text = fs_err::read_to_string(page).unwrap();
        for link in links(&text).iter().filter(|link| !link.starts_with("http")) {
            count += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let there = target.exists()
                && (anchor.is_empty()
                    || anchors(&fs_err::read_to_string(&target).unwrap()).contains(anchor));
            if !there {
                let _ = writeln!(broken, "{}: `{link}`", page.display());
            }
            // Pages of the book are copied without the files around them.
            let book = root().join("docs");
            let leaves = page.starts_with(&book)
                && !target.canonicalize().is_ok_and(|target| target.starts_with(&book));
            if there && leaves {
                let _ = writeln!(broken, "{}: `{link}` leaves the book", page.display());
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{broken}");
    assert!(count > 100, "only {count} links were followed");
}

#[test]
fn every_page_is_a_chapter() {
    let docs = root().join("docs");
    let summary = fs_err::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let chapters: BTreeSet<PathBuf> = links(&summary).iter().map(|link| docs.join(link)).collect();
    let mut all = Vec::new();
    pages(&docs, &mut all);
    all.retain(|page| *page != docs.join("SUMMARY.md"));
    let all: BTreeSet<PathBuf> = all.into_iter().collect();
    assert_eq!(all, chapters, "docs/SUMMARY.md and the pages of docs/ differ");
}

/// Compares a page with its source, or writes it where UPDATE is set.
fn fresh(page: &str, text: &str) {
    let path = root().join(page);
    if std::env::var_os("UPDATE").is_some() {
        fs_err::write(&path, text).unwrap();
    }
    let written = fs_err::read_to_string(&path).unwrap_or_default();
    assert!(written == text, "{page} is stale: run `UPDATE=1 cargo test --test main book`");
}

#[test]
fn the_keys_of_the_book_are_those_of_the_decoder() {
    let mut text = String::from(
        "# Keys of a spec\n\n\
         This page lists every key that a spec may have, as the decoder declares them.\n\
         `onboard help KEY` prints the section of the manual on a key. `*` marks keys that a spec needs if it extends no other.\n\n\
         | key | takes | meaning |\n|---|---|---|\n",
    );
    for key in reference::keys() {
        let star = if key.required { " *" } else { "" };
        let _ = writeln!(
            text,
            "| `{}`{star} | {} | {} |",
            key.path,
            markdown_cell(key.takes),
            markdown_cell(key.doc)
        );
    }
    fresh("docs/reference/keys.md", &text);
}

/// Lists the commands that a help text introduces.
fn commands(help: &str) -> Vec<String> {
    let (introduction, _) = help.split_once("\nOptions:\n").unwrap_or((help, ""));
    let (_, list) = introduction.split_once(":\n").unwrap_or_default();
    let list = list.lines().filter(|line| line.starts_with("  "));
    let names = list.filter(|line| !line.starts_with("    "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    let commands = names.filter(|name| name.starts_with(|first: char| first.is_ascii_lowercase()));
    commands.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// Returns the help text of a command, without blanks at the ends of lines.
fn help(words: &[&str]) -> String {
    let mut command = match words[0] {
        "onboard" => onboard(),
        "parity" => parity(),
        _ => convert(),
    };
    let out = run(command.args(&words[1..]).arg("--help")).code(0).out;
    out.lines().map(|line| line.trim_end().to_owned() + "\n").collect::<String>().trim().to_owned()
}

fn chapter(words: &[&str], text: &mut String) {
    let help = help(words);
    let _ = write!(text, "\n## {}\n\n```text\n{help}\n```\n", words.join(" "));
    for name in commands(&help) {
        // `onboard parity check` is `parity check`, which has its own place.
        if !(words == ["onboard"] && matches!(name.as_str(), "parity" | "convert")) {
            chapter(&[words, &[name.as_str()]].concat(), text);
        }
    }
}

#[test]
fn the_commands_of_the_book_are_those_of_the_program() {
    let mut text = String::from(
        "# Command line\n\n\
         This page holds the help text of every command, as the program prints it.\n\
         `onboard parity ...` and `onboard convert ...` are the same commands as `parity ...` and `convert ...`.\n\
         `onboard man DIR` writes manual pages, `onboard completions SHELL` a script for a shell.\n",
    );
    for name in ["onboard", "parity", "convert"] {
        chapter(&[name], &mut text);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    assert!(!text.contains(&format!("[default: {cores} cores]")), "it depends on the machine");
    fresh("docs/reference/cli.md", &text);
}

#[test]
fn manual_pages_are_written_for_every_command() {
    let folder = tempfile::tempdir().unwrap();
    run(onboard().arg("man").arg(folder.path())).code(0).prints("pages");
    for name in ["onboard", "onboard-add-model", "parity", "parity-check", "convert"] {
        let page = fs_err::read_to_string(folder.path().join(format!("{name}.1"))).unwrap();
        assert!(page.contains(".TH"), "{name}");
    }
}

#[test]
fn specs_name_their_schema() {
    let mut specs = 0;
    for entry in fs_err::read_dir(root().join("registry/specs")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs_err::read_to_string(&path).unwrap();
        let line = "# yaml-language-server: $schema=../schema.json\n";
        assert!(text.starts_with(line), "{}: the first line is not `{line}`", path.display());
        specs += 1;
    }
    assert!(specs > 100, "{specs}");
    let folder = tempfile::tempdir().unwrap();
    run(onboard().args(["new", "mine"]).current_dir(folder.path())).code(0);
    let spec = fs_err::read_to_string(folder.path().join("mine.yaml")).unwrap();
    assert!(spec.starts_with("# yaml-language-server: $schema=onboard.schema.json\n"), "{spec}");
    let schema = fs_err::read_to_string(folder.path().join("onboard.schema.json")).unwrap();
    let printed = run(onboard().args(["help", "schema"])).code(0).out;
    assert_eq!(json(&schema), json(&printed));
    let written = fs_err::read_to_string(root().join("registry/schema.json")).unwrap();
    assert_eq!(json(&schema), json(&written));
}
