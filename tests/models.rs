//! Checks that the table of docs/models.md matches the current results.

use std::fmt::Write as _;

use serde_json::Value;

use crate::tool::{parity, root, run};

const BEGIN: &str = "<!-- families: written by UPDATE=1 cargo test --test main models -->\n";
const END: &str = "<!-- /families -->";

/// Returns one line per fixture that has a reference.
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
            let rows = list(&run["phases"]);
            let all = |key: &str| rows.iter().map(|row| row[key].as_f64().unwrap()).collect();
            let (largest, kl, top): (Vec<f64>, Vec<f64>, Vec<f64>) =
                (all("max"), all("kl"), all("top1"));
            let most = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
            let least = top.iter().copied().fold(1.0, f64::min);
            format!("{:.1e}, {}, {:.1} %", most(&largest), divergence(most(&kl)), least * 100.0)
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

/// Returns the kinds of state in the reference: `attention, conv`.
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
    let path = root().join("docs/models.md");
    let page = fs_err::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page marks its table");
    let (found, after) = rest.split_once(END).expect("the page marks its table's end");
    let table = table();
    if std::env::var_os("UPDATE").is_some() {
        fs_err::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    let renew = "UPDATE=1 cargo test --test main models renews the table";
    similar_asserts::assert_eq!(without_numbers(found), without_numbers(&table), "{}", renew);
    // Processors may round a transcendental differently; an error of another magnitude is a failure.
    for (old, new) in numbers(found).into_iter().zip(numbers(&table)) {
        assert!(old <= 4.0 * new && new <= 4.0 * old, "{old:e} is now {new:e}; {renew}");
    }
    for (old, new) in shares(found).into_iter().zip(shares(&table)) {
        assert!((old - new).abs() <= 8.0, "{old} % is now {new} %; {renew}");
    }
}

/// Formats a mean divergence; below this limit it is the last place of f32 log-probabilities.
fn divergence(kl: f64) -> String {
    if kl < 1e-6 { "<1e-6".to_owned() } else { format!("{kl:.1e}") }
}

/// Parses a measured value: `1.2e-5`.
fn number(word: &str) -> Option<f64> {
    let word = word.trim_end_matches(',');
    word.contains('e').then(|| word.parse().ok()).flatten()
}

/// Returns the measured differences and divergences of a table.
fn numbers(table: &str) -> Vec<f64> {
    table.split([' ', '\n']).filter_map(number).collect()
}

/// Returns the measured shares of a table: `97.6 %`.
fn shares(table: &str) -> Vec<f64> {
    table.split(" %").filter_map(|text| text.rsplit(' ').next()?.parse().ok()).collect()
}

fn without_numbers(table: &str) -> String {
    let mut text = String::new();
    for line in table.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let measured = |n: usize| number(words[n]).is_some() || words.get(n + 1) == Some(&"%");
        let words = (0..words.len()).map(|n| if measured(n) { "#" } else { words[n] });
        text.push_str(&words.collect::<Vec<_>>().join(" "));
        text.push('\n');
    }
    text
}
