//! Runs `parity check` on `fixtures/wrappers`: classes that put encoders beside a text model, run on text.
//! Each such class that a spec names has a fixture, here or among the families, or a reason in `UNPROVEN`.
//!
//! `UPDATE=1 cargo test --test suite wrappers` writes the table of docs/models.md.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use libtest_mimic::Trial;
use registry::library::Library;

use crate::images;
use crate::models::{kinds_of_limits, updates};
use crate::tool::{fixture, json, parity, root, run};
use crate::trials;

const BEGIN: &str = "<!-- wrappers: written by UPDATE=1 cargo test --test suite wrappers -->\n";
const END: &str = "<!-- /wrappers -->";
const HEAD: &str = "| class | text models | proof | with images |\n|---|---|---|---|\n";

/// Classes without a fixture, and why.
const UNPROVEN: &[(&str, &str)] = &[
    (
        "Ernie4_5_VL_MoeForConditionalGeneration",
        "the older name of Ernie4_5_VLMoeForConditionalGeneration",
    ),
    (
        "KimiK25ForConditionalGeneration",
        "code of released checkpoints, which transformers reads as Kimi_K25ForConditionalGeneration",
    ),
    ("KimiVLForConditionalGeneration", "code of released checkpoints, which transformers lacks"),
];

/// Fixtures that a check does not prove as a whole, and the kinds of what is left out (`docs/report.md`).
/// The families have the same limit.
const LIMITED: &[(&str, &[&str])] = &[("gemma3n", &["ops"]), ("inkling2_loop", &["ops"])];

/// The lines of the table, of this run.
static LINES: Mutex<String> = Mutex::new(String::new());

pub(crate) fn trials() -> Vec<Trial> {
    let mut all = trials::each("wrappers", names(), agrees_with_its_reference);
    all.push(trials::one("wrappers", every_class_is_proven_or_has_a_reason));
    all
}

/// Returns the folders of `fixtures/wrappers`.
fn names() -> Vec<String> {
    let entries = fs_err::read_dir(root().join("fixtures/wrappers")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn agrees_with_its_reference(name: &str) {
    let ran = run(parity().args(["check", &format!("fixtures/wrappers/{name}"), "--json"])).code(0);
    let report = json(&ran.out);
    assert_eq!(report["verdict"], "pass");
    let runs = report["runs"].as_array().unwrap().iter();
    let dtypes: Vec<&str> = runs.map(|run| run["dtype"].as_str().unwrap()).collect();
    assert_eq!(dtypes, ["f32", "bf16"]);
    let limited = LIMITED.iter().find(|(limited, _)| *limited == name);
    assert_eq!(kinds_of_limits(&report), limited.map_or(&[][..], |(_, kinds)| kinds), "{name}");
}

/// Returns the classes of wrappers that specs name, each with the specs.
fn claimed() -> BTreeMap<String, BTreeSet<String>> {
    let library = Library::builtin();
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for name in library.names() {
        let spec = library.load(name, &[]).unwrap();
        let whole =
            spec.matches.iter().filter(|class| class.name.ends_with("ForConditionalGeneration"));
        for class in spec.inside.iter().chain(whole) {
            all.entry(class.name.clone()).or_default().insert(name.to_owned());
        }
    }
    all
}

/// Returns the class of each fixture's config, with the fixture's path below `fixtures`.
fn proven() -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for folder in ["", "wrappers"] {
        for entry in fs_err::read_dir(fixture(folder)).unwrap() {
            let path = entry.unwrap().path();
            if !path.join("reference/manifest.json").is_file() {
                continue;
            }
            let config = json(&fs_err::read_to_string(path.join("config.json")).unwrap());
            let class = config["architectures"][0].as_str().unwrap().to_owned();
            let name = path.strip_prefix(fixture("")).unwrap().display().to_string();
            all.entry(class).or_default().push(name);
        }
    }
    for names in all.values_mut() {
        names.sort();
    }
    all
}

fn every_class_is_proven_or_has_a_reason() {
    let (claimed, proven) = (claimed(), proven());
    let with_images = images::names();
    let mut lines = Vec::new();
    let mut missing = Vec::new();
    for (class, specs) in &claimed {
        let reason = UNPROVEN.iter().find(|(unproven, _)| unproven == class);
        let proof = match (proven.get(class), reason) {
            (Some(names), None) => names.join(", "),
            (None, Some((_, reason))) => format!("none: {reason}"),
            (Some(_), Some(_)) => panic!("{class} has a fixture, and is in UNPROVEN"),
            (None, None) => {
                missing.push(class);
                continue;
            }
        };
        let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
        let folders = proven.get(class).into_iter().flatten();
        let seen: Vec<String> = folders
            .filter(|name| with_images.contains(*name))
            .map(|name| format!("{name}/images"))
            .collect();
        let seen = seen.join(", ");
        lines.push(format!("| `{class}` | {} | {proof} | {seen} |\n", specs.join(", ")));
    }
    assert!(missing.is_empty(), "neither a fixture nor a reason: {missing:?}");
    let unknown = UNPROVEN.iter().filter(|(class, _)| !claimed.contains_key(*class));
    assert_eq!(unknown.count(), 0, "no spec names a class of UNPROVEN");
    let lines = lines.concat();
    if updates() {
        *LINES.lock().unwrap() = lines;
        return;
    }
    let (_, written, _) = page();
    similar_asserts::assert_eq!(written, format!("{HEAD}{lines}"));
}

/// Returns docs/models.md: the text before the table, the table, and the text behind it.
fn page() -> (String, String, String) {
    let page = fs_err::read_to_string(root().join("docs/models.md")).unwrap();
    let (before, tail) = page.split_once(BEGIN).expect("the page marks the table");
    let (table, after) = tail.split_once(END).expect("the page marks the table's end");
    (before.to_owned(), table.to_owned(), after.to_owned())
}

/// Writes the table, where UPDATE is set.
pub(crate) fn update() {
    let lines = LINES.lock().unwrap();
    if lines.is_empty() {
        return;
    }
    let (before, _, after) = page();
    let text = format!("{before}{BEGIN}{HEAD}{lines}{END}{after}");
    fs_err::write(root().join("docs/models.md"), text).unwrap();
}
