//! The README's table of families is what the checks say today.

use std::fmt::Write as _;

use serde_json::Value;

use crate::tool::{parity, root, run};

const BEGIN: &str = "<!-- families: written by UPDATE=1 cargo test --test main readme -->\n";
const END: &str = "<!-- /families -->";

/// One line per fixture that has a reference.
fn table() -> String {
    let mut names: Vec<String> = fs_err::read_dir(root().join("fixtures"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("reference/manifest.json").is_file())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(!names.is_empty());
    let mut text = String::from(
        "| fixture | class | spec | states | f32 | bf16 | f16 |\n|---|---|---|---|---|---|---|\n",
    );
    for name in names {
        let ran = run(parity().args(["check", &format!("fixtures/{name}"), "--json"]));
        let report: Value = serde_json::from_str(&ran.out)
            .unwrap_or_else(|_| panic!("fixtures/{name} gave no report:\n{}", ran.err));
        let word = |key: &str| report["subject"][key].as_str().unwrap().to_owned();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let (runs, schedules) = (list(&report["runs"]), list(&report["schedules"]));
        let cell = |dtype: &str| {
            let Some(run) = runs.iter().find(|run| run["dtype"] == dtype) else {
                return "not run".to_owned();
            };
            let mut judged = list(&run["gates"]);
            judged.extend(list(&run["phases"]));
            judged.extend(list(&run["greedy"]));
            judged.extend(schedules.iter().filter(|row| row["dtype"] == dtype).cloned());
            if judged.iter().any(|one| one["verdict"] == "fail") {
                return "**differs**".to_owned();
            }
            let worst = |phase: &str| {
                let rows = list(&run["phases"]);
                let row = rows.iter().find(|row| row["phase"] == phase).unwrap().clone();
                row["max"].as_f64().unwrap()
            };
            format!("{:.1e}, {:.1e}", worst("prefill"), worst("decode"))
        };
        writeln!(
            text,
            "| {name} | `{}` | {} | {} | {} | {} | {} |",
            word("architecture"),
            word("spec"),
            states(&name),
            cell("f32"),
            cell("bf16"),
            cell("f16")
        )
        .unwrap();
    }
    text
}

/// The kinds of state that the reference has: `attention, conv`.
fn states(name: &str) -> String {
    let manifest =
        fs_err::read(root().join("fixtures").join(name).join("reference/manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
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

#[test]
fn the_family_table_is_fresh() {
    let path = root().join("README.md");
    let readme = fs_err::read_to_string(&path).unwrap();
    let (before, rest) = readme.split_once(BEGIN).expect("the README marks its table");
    let (found, after) = rest.split_once(END).expect("the README marks its table's end");
    let table = table();
    if std::env::var_os("UPDATE").is_some() {
        fs_err::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    let renew = "UPDATE=1 cargo test --test main readme renews the table";
    similar_asserts::assert_eq!(without_numbers(found), without_numbers(&table), "{}", renew);
    // Processors may round a transcendental differently; an error of another size is news.
    for (old, new) in numbers(found).into_iter().zip(numbers(&table)) {
        assert!(old <= 4.0 * new && new <= 4.0 * old, "{old:e} is now {new:e}; {renew}");
    }
}

/// The measured cells of a table.
fn numbers(table: &str) -> Vec<f64> {
    let words = table.split([' ', ',', '|', '\n']);
    words.filter(|word| word.contains("e-")).filter_map(|word| word.parse().ok()).collect()
}

fn without_numbers(table: &str) -> String {
    let number =
        |word: &str| word.contains("e-") && word.trim_end_matches(',').parse::<f64>().is_ok();
    let mut text = String::new();
    for line in table.lines() {
        let words = line.split(' ').map(|word| if number(word) { "#" } else { word });
        text.push_str(&words.collect::<Vec<_>>().join(" "));
        text.push('\n');
    }
    text
}
