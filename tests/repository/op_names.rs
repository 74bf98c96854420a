//! Ops are named where they are declared and where their kernels are: all other rooms ask for traits.

use std::path::Path;

use registry::ops::OpSet;
use registry::ops::fused::{GLU, LINEARS};

use super::model_names::rust_files;
use crate::tool::{SOURCES, root};

/// Folders and files that may name ops.
const HOMES: [&str; 4] =
    ["registry/src/ops", "registry/src/ops.rs", "engine/src/ops", "engine/src/ops.rs"];

/// Ops whose names are words of other things too: keys of specs and of JSON, headings of tables.
const WORDS: [&str; 24] = [
    "add",
    "cast",
    "choose",
    "clamp",
    "concat",
    "differ",
    "div",
    "embed",
    "exp",
    "experts",
    "heads",
    "linear",
    "mean",
    "merge",
    "mul",
    "offset",
    "parameter",
    "rope",
    "scale",
    "slice",
    "softcap",
    "split",
    "temperature",
    "weight_scale",
];

/// True if a line that quotes a name is about an op: it compares, makes or looks up one.
fn is_about_ops(line: &str) -> bool {
    [".op", "op:", "op(", "ops", "with_number"].iter().any(|word| line.contains(word))
}

#[test]
fn no_room_but_the_declarations_and_the_kernels_names_an_op() {
    let ops = OpSet::builtin();
    let names: Vec<(&str, String)> =
        ops.names().chain([GLU, LINEARS]).map(|name| (name, format!("\"{name}\""))).collect();
    let mut files = Vec::new();
    for folder in SOURCES {
        rust_files(&root().join(folder), &mut files);
    }
    let mut places = Vec::new();
    for path in files {
        let short = path.strip_prefix(root()).unwrap();
        let test =
            path.ends_with("tests.rs") || short.components().any(|c| c.as_os_str() == "tests");
        if test || HOMES.iter().any(|home| short.starts_with(Path::new(home))) {
            continue;
        }
        let text = fs_err::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (n, line) in code.lines().enumerate() {
            let quoted = names.iter().filter(|(name, quoted): &&(&str, String)| {
                line.contains(quoted.as_str()) && (!WORDS.contains(name) || is_about_ops(line))
            });
            places
                .extend(quoted.map(|(name, _)| format!("{}:{}: `{name}`", short.display(), n + 1)));
        }
    }
    assert!(places.is_empty(), "ask for a trait (registry::ops::Trait):\n{}", places.join("\n"));
}

#[test]
fn words_that_may_mean_something_else_are_names_of_ops() {
    let ops = OpSet::builtin();
    assert!(WORDS.iter().all(|word| ops.get(word).is_some()) && WORDS.is_sorted());
}
