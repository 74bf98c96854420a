//! Pages of the book about ops, one for each: written from the declarations, the specs and the places of the kernels.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use registry::ops::table::call;
use registry::ops::{Declaration, OpSet, activation_op, single_family_reason};
use registry::scalar::Scalar;

use crate::tool::root;

/// Folders with a file for each group of ops: the rules of shapes, and the kernels.
const HOMES: [(&str, &str); 3] = [
    ("rule of shapes", "registry/src/ops"),
    ("kernel", "engine/src/ops"),
    ("kernel of devices", "engine/src/ops/device"),
];
const FOLDER: &str = "docs/reference/ops";
const BEGIN: &str = "    <!-- ops -->\n";
const END: &str = "    <!-- /ops -->\n";

/// Texts of the files of a folder with this extension, by path from the root.
fn texts(folder: &str, extension: &str) -> BTreeMap<String, String> {
    let entries = fs_err::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.extension().is_some_and(|end| end == extension));
    files.map(|path| (short(&path), fs_err::read_to_string(&path).unwrap())).collect()
}

fn short(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().to_string_lossy().into_owned()
}

/// True if a file of Rust declares an op or registers its kernel. Names in lists stand alone on their lines.
fn registers(text: &str, name: &str) -> bool {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let plain: String = code.split_whitespace().collect();
    let forms =
        [format!("new(\"{name}\""), format!("add(\"{name}\""), format!("prepared(\"{name}\"")];
    forms.iter().any(|form| plain.contains(form))
}

/// True if a file lists an op among others of its kind.
fn lists(text: &str, name: &str) -> bool {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    code.contains(&format!("\"{name}\""))
}

/// Returns the files of a folder that are about an op.
fn places(files: &BTreeMap<String, String>, name: &str) -> Vec<String> {
    let all = |test: fn(&str, &str) -> bool| -> Vec<String> {
        files.iter().filter(|(_, text)| test(text, name)).map(|(path, _)| path.clone()).collect()
    };
    let registering = all(registers);
    if registering.is_empty() { all(lists) } else { registering }
}

/// Returns the names of the files that call an op.
fn callers(files: &BTreeMap<String, String>, name: &str) -> BTreeSet<String> {
    let form = format!("{name}(");
    let calls = |text: &str| {
        text.match_indices(&form).any(|(at, _)| {
            !text[..at].ends_with(|before: char| before.is_alphanumeric() || "_.".contains(before))
        })
    };
    let files = files.iter().filter(|(_, text)| calls(text));
    files
        .map(|(path, _)| Path::new(path).file_stem().unwrap().to_string_lossy().into_owned())
        .collect()
}

/// Returns a fragment of text as a sentence.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let end = if text.ends_with(['.', ':']) { "" } else { "." };
    format!("{first}{}{end}", letters.as_str())
}

/// Returns the row of each parameter.
fn parameters(op: &Declaration) -> String {
    let mut text = "| parameter | takes | default |\n|---|---|---|\n".to_owned();
    for param in &op.signature().params {
        let default = match &param.default {
            None => "none: a call has to give it".to_owned(),
            Some(Scalar::Null) => "`null`".to_owned(),
            Some(value) => format!("`{value}`"),
        };
        let kind = param.kind.describe();
        let rounding =
            if param.neutral { "; says only where and how results are rounded" } else { "" };
        let _ = writeln!(text, "| `{}` | {kind}{rounding} | {default} |", param.name);
    }
    text
}

/// Returns a list of names as Markdown.
fn quoted<'n>(names: impl IntoIterator<Item = &'n String>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

#[test]
fn every_op_has_a_page() {
    let homes = HOMES.map(|(what, folder)| (what, texts(folder, "rs")));
    let specs = texts("registry/specs", "yaml");
    let library = texts("registry/lib", "yaml");
    let updates = std::env::var_os("UPDATE").is_some();
    let folder = root().join(FOLDER);
    let mut chapters = String::new();
    let mut written = BTreeSet::new();
    let ops = OpSet::builtin();
    for op in ops.declared() {
        let name = op.name();
        let mut page = format!(
            "# `{name}`\n\n`{name}` is an op of the [spec language](../../spec.md#ops).\n\n```text\n{}\n```\n\n",
            call(op)
        );
        let _ = writeln!(page, "{}\n", sentence(op.notes_doc()));
        let _ = writeln!(page, "A row of the output: {}.\n", op.output_doc());
        if !op.signature().params.is_empty() {
            let _ = writeln!(page, "{}", parameters(op));
        }
        let _ = writeln!(page, "| where | files |\n|---|---|");
        for (what, files) in &homes {
            let places = places(files, name);
            let places = if places.is_empty() { "none".to_owned() } else { quoted(&places) };
            let _ = writeln!(page, "| {what} | {places} |");
        }
        let library_callers = callers(&library, name);
        let spec_callers = callers(&specs, name);
        // Configs name activations, whose ops are not called by name.
        let is_named = activation_op(name).is_some();
        let is_single = !is_named && library_callers.is_empty() && spec_callers.len() == 1;
        let reason = single_family_reason(name);
        assert_eq!(
            is_single,
            reason.is_some(),
            "`registry/src/ops/single.rs` says why one family alone has an op: `{name}`"
        );
        for (what, callers) in
            [("functions of the library", library_callers), ("specs", spec_callers)]
        {
            if !callers.is_empty() {
                let _ = writeln!(page, "| {what} | {} |", quoted(&callers));
            }
        }
        if let Some(reason) = reason {
            let _ = writeln!(page, "\nOne family alone uses it. No other ops make it: {reason}.");
        }
        let file = folder.join(format!("{name}.md"));
        if updates {
            fs_err::create_dir_all(&folder).unwrap();
            fs_err::write(&file, &page).unwrap();
        }
        let stored_page = fs_err::read_to_string(&file).unwrap_or_default();
        assert!(stored_page == page, "{} is stale: {}", short(&file), COMMAND);
        let _ = writeln!(chapters, "    - [{name}](reference/ops/{name}.md)");
        written.insert(short(&file));
    }
    let pages: BTreeSet<String> = texts(FOLDER, "md").into_keys().collect();
    assert_eq!(pages, written, "pages of ops that do not exist");
    let path = root().join("docs/SUMMARY.md");
    let summary = fs_err::read_to_string(&path).unwrap();
    let (before, tail) = summary.split_once(BEGIN).expect("the summary marks its list of ops");
    let (_, after) = tail.split_once(END).expect("the summary marks the end of its list of ops");
    let fresh = format!("{before}{BEGIN}{chapters}{END}{after}");
    if updates {
        fs_err::write(&path, &fresh).unwrap();
    }
    assert!(fs_err::read_to_string(&path).unwrap() == fresh, "docs/SUMMARY.md is stale: {COMMAND}");
}

const COMMAND: &str = "run `UPDATE=1 cargo test --test main op_pages`";

#[test]
fn calls_and_kernels_are_found() {
    let files = BTreeMap::from([
        ("a/one.yaml".to_owned(), "y = norm(x)".to_owned()),
        ("a/two.yaml".to_owned(), "y = rms_norm(x), self.norm(x)".to_owned()),
    ]);
    assert_eq!(callers(&files, "norm"), BTreeSet::from(["one".to_owned()]));
    assert!(registers("kernels.add(\n    \"norm\", run)", "norm"));
    assert!(!registers("kernels.add(\"rms_norm\", run)", "norm"));
}
