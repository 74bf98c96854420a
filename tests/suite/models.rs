//! Runs `parity check` on every fixture, and compares its line in the table of docs/models.md.
//!
//! `UPDATE=1 cargo test --test suite models` writes the lines of the fixtures that ran.

use std::collections::BTreeMap;
use std::sync::Mutex;

use libtest_mimic::Trial;
use serde_json::Value;

use crate::tool::{fixture, json, parity, root, run};
use crate::trials;

const BEGIN: &str = "<!-- families: written by UPDATE=1 cargo test --test suite models -->\n";
const END: &str = "<!-- /families -->";
const HEAD: &str =
    "| fixture | class | spec | states | f32 | bf16 | f16 |\n|---|---|---|---|---|---|---|\n";

/// Lines of this run, by fixture.
static LINES: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

pub(crate) fn trials() -> Vec<Trial> {
    let mut all = trials::each("models", names(), agrees_with_its_reference);
    all.push(trials::one("models", the_table_has_a_line_for_each_fixture));
    all.push(trials::one("models", cells_have_labels_in_a_narrow_window));
    all
}

/// Returns the fixtures that have a reference.
fn names() -> Vec<String> {
    let mut names: Vec<String> = fs_err::read_dir(root().join("fixtures"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("reference/manifest.json").is_file())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Returns the page: the text before the table, its lines by fixture, and the text behind it.
fn page() -> (String, BTreeMap<String, String>, String) {
    let page = fs_err::read_to_string(root().join("docs/models.md")).unwrap();
    let (before, tail) = page.split_once(BEGIN).expect("the page marks its table");
    let (table, after) = tail.split_once(END).expect("the page marks its table's end");
    let lines = table.strip_prefix(HEAD).expect("the table has its head").lines();
    let named = lines.map(|line| {
        let name = line.split(' ').nth(1).expect("a line begins with a fixture");
        (name.to_owned(), line.to_owned())
    });
    (before.to_owned(), named.collect(), after.to_owned())
}

pub(crate) fn updates() -> bool {
    std::env::var_os("UPDATE").is_some()
}

/// Writes the table with the lines of this run, where UPDATE is set.
pub(crate) fn update() {
    let lines = LINES.lock().unwrap();
    if !updates() || lines.is_empty() {
        return;
    }
    let (before, old, after) = page();
    let table: String = names()
        .iter()
        .filter_map(|name| lines.get(name).or_else(|| old.get(name)))
        .flat_map(|line| [line, "\n"])
        .collect();
    let text = format!("{before}{BEGIN}{HEAD}{table}{END}{after}");
    fs_err::write(root().join("docs/models.md"), text).unwrap();
}

fn the_table_has_a_line_for_each_fixture() {
    let (_, lines, _) = page();
    if !updates() {
        similar_asserts::assert_eq!(lines.into_keys().collect::<Vec<_>>(), names());
    }
}

/// Fixtures that a check does not prove as a whole, and the kinds of what is left out (`docs/report.md`).
const LIMITED: &[(&str, &[&str])] = &[
    // Too many ops lie between recorded values.
    ("deepseek_v4", &["ops"]),
    ("dory", &["ops"]),
    ("gemma3n_text", &["ops"]),
    ("glm5_next", &["ops"]),
    ("hrm_text", &["ops"]),
    ("hrm_text_prefix", &["ops"]),
    ("inkling2_loop_text", &["ops"]),
    ("zaya", &["ops"]),
    // The reference's steps do not agree with its prefill.
    ("nemotron_h", &["decode"]),
    ("nemotron_h_moe", &["decode"]),
    ("zamba2", &["decode"]),
    // The class has no cache.
    ("openai_gpt", &["decode", "states"]),
    ("rwkv", &["decode", "states"]),
    // Runs of the reference in 16 bits are as far apart as those of unrelated models.
    ("deepseek_v32", &["runs"]),
    ("glm4_moe_lite", &["runs"]),
    ("glm_moe_dsa", &["runs"]),
    ("lfm2_moe", &["runs"]),
    ("mellum", &["head"]),
    ("mistral_large4", &["runs"]),
    ("phi3", &["runs"]),
    ("phimoe", &["runs"]),
    ("solar_open", &["runs"]),
];

/// The head of the table is not shown there.
fn cells_have_labels_in_a_narrow_window() {
    let settings = fs_err::read_to_string(root().join("book.toml")).unwrap();
    assert!(settings.contains("additional-css = [\"docs/book.css\"]"));
    assert!(page().0.trim_end().ends_with("<div class=\"families\">"));
    let style = fs_err::read_to_string(root().join("docs/book.css")).unwrap();
    let columns = HEAD.lines().next().unwrap().split('|').map(str::trim);
    for (n, name) in columns.filter(|name| !name.is_empty()).enumerate() {
        let label = format!(".families td:nth-child({})::before {{ content: \"{name}\"; }}", n + 1);
        assert!(style.contains(&label), "no `{label}` in {style}");
    }
}

/// Returns the kinds of what a check does not prove.
pub(crate) fn kinds_of_limits(report: &Value) -> Vec<&str> {
    let limits = report["limits"].as_array().unwrap();
    let mut kinds: Vec<&str> = limits.iter().map(|limit| limit["kind"].as_str().unwrap()).collect();
    kinds.dedup();
    kinds
}

fn agrees_with_its_reference(name: &str) {
    let ran = run(parity().args(["check", &format!("fixtures/{name}"), "--json"])).code(0);
    let report = json(&ran.out);
    assert_eq!(report["verdict"], "pass");
    let limited = LIMITED.iter().find(|(limited, _)| *limited == name);
    let kinds = limited.map_or(&[][..], |(_, kinds)| kinds);
    assert_eq!(kinds_of_limits(&report), kinds, "{}", report["limits"]);
    // The engine's bits do not depend on the schedule, in any dtype.
    let schedules = report["schedules"].as_array().unwrap();
    let moved = schedules.iter().filter(|row| row["limit"] != 0.0 || row["max"] != 0.0);
    assert_eq!(moved.collect::<Vec<_>>(), [&Value::Null; 0]);
    assert!(!schedules.is_empty());
    if fixture(name).join("reference/nextn").is_dir() {
        its_head_was_checked(&report);
    }
    let line = line(name, &report);
    if updates() {
        LINES.lock().unwrap().insert(name.to_owned(), line);
        return;
    }
    let (_, lines, _) = page();
    let written = lines.get(name).map_or("", String::as_str);
    assert_eq!(written, line, "UPDATE=1 cargo test --test suite models writes the table");
}

fn its_head_was_checked(report: &Value) {
    let runs = report["runs"].as_array().unwrap().iter();
    let of_head: Vec<&Value> = runs.filter(|run| run["part"] == "nextn").collect();
    assert_eq!(of_head.len(), 3, "three dtypes");
    for run in of_head {
        assert!(run["gates"].as_array().unwrap().len() > 50);
        assert_eq!(run["phases"].as_array().unwrap().len(), 2);
    }
    let schedules = report["schedules"].as_array().unwrap();
    let names = schedules.iter().map(|row| row["name"].as_str().unwrap());
    assert!(names.into_iter().any(|name| name.starts_with("nextn: ")));
}

/// Returns the line of the table for a fixture.
fn line(name: &str, report: &Value) -> String {
    let subject = &report["subject"];
    let [f32, bf16, f16] = ["f32", "bf16", "f16"].map(|dtype| cell(name, report, dtype));
    format!(
        "| {name} | `{}` | {} | {} | {f32} | {bf16} | {f16} |",
        subject["architecture"].as_str().unwrap(),
        subject["spec"].as_str().unwrap(),
        states(name)
    )
}

/// Returns a number of each row.
fn numbers(rows: &[Value], key: &str) -> impl Iterator<Item = f64> {
    rows.iter().map(move |row: &Value| row[key].as_f64().unwrap())
}

fn cell(name: &str, report: &Value, dtype: &str) -> String {
    let dumped = manifest(name)["runs"].as_array().unwrap().iter().any(|run| run == dtype);
    let run = report["runs"].as_array().unwrap().iter().find(|run| run["dtype"] == dtype);
    assert_eq!(run.is_some(), dumped, "true if {dtype} was compared, and if the dump has it");
    let Some(run) = run else { return "not run".to_owned() };
    let rows = run["phases"].as_array().unwrap();
    let max = numbers(rows, "max").fold(0.0, f64::max);
    let kl = numbers(rows, "kl").fold(0.0, f64::max);
    let least = numbers(rows, "top1").fold(1.0, f64::min);
    format!("{max:.1e}, {}, {:.1} %", divergence(kl), least * 100.0)
}

fn manifest(name: &str) -> Value {
    let file = fixture(name).join("reference/manifest.json");
    json(&fs_err::read_to_string(file).unwrap())
}

/// Returns the kinds of state in the reference: `attention, conv`.
fn states(name: &str) -> String {
    let manifest = manifest(name);
    let mut kinds: Vec<&str> = manifest["states"]
        .as_array()
        .unwrap()
        .iter()
        .map(|state| state["kind"].as_str().unwrap())
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.join(", ")
}

/// Formats a mean divergence; below this limit it is the last place of f32 log-probabilities.
fn divergence(kl: f64) -> String {
    if kl < 1e-6 { "<1e-6".to_owned() } else { format!("{kl:.1e}") }
}
