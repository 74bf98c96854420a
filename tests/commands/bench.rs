//! `onboard bench`: grids of tests, forms of results, and other programs in the same rounds.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::Value;

use crate::tool::{Ran, fixture, json, onboard, run};

fn bench(models: &[&Path], words: &str) -> Ran {
    run(onboard().arg("bench").args(models).args(words.split_whitespace()))
}

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(json).collect()
}

#[test]
fn a_grid_has_a_row_for_each_test_dtype_and_model() {
    let llama = fixture("llama");
    let lfm2 = fixture("lfm2");
    let words = "-p 4,6 -n 2 --pg 4,2 -d 0,8 --batch 1,3 --dtype f32,bf16 -t 1 -r 2 -o jsonl";
    let rows = rows(&bench(&[&llama, &lfm2], words).code(0).out);
    assert_eq!(rows.len(), 2 * 2 * 2 * 2 * 4);
    let names: Vec<&str> = rows[..6].iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp4", "pp6", "tg2", "pp4+tg2", "pp4 x3", "pp6 x3"]);
    assert!(rows.iter().any(|row| row["test"] == "tg2 x3 @ d8" && row["dtype"] == "bf16"));
    for row in &rows {
        let rates = row["samples_ts"].as_array().unwrap();
        assert!(rates.len() == 2 && rates.iter().all(|rate| rate.as_f64().unwrap() > 0.0), "{row}");
    }
}

#[test]
fn each_form_is_what_its_readers_expect() {
    let llama = fixture("llama");
    let md = bench(&[&llama], "-p 4 -n 2 -r 1").code(0);
    assert!(md.out.starts_with("| model"), "{}", md.out);
    let csv = bench(&[&llama], "-p 4 -n 2 -r 1 -o csv").code(0).out;
    let fields: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert!(fields.len() == 3 && fields.iter().all(|count| *count == fields[0]), "{csv}");
    let report = json(&bench(&[&llama], "-p 4 -n 0 -r 1 --json").code(0).out);
    assert_eq!(report["schema"], "onboard-bench/2");
    assert_eq!(report["tests"][0]["n_prompt"], 4);
}

#[test]
fn tests_that_the_model_does_not_handle_are_refused() {
    let llama = fixture("llama");
    bench(&[&llama], "-p 4 -n 2 -d 1000000").code(2).says("positions; `llama` handles");
    bench(&[&llama], "-p 0 -n 0").code(2).says("nothing to measure");
    bench(&[&llama], "--batch 0").code(2).says("not an integer from 1 to 1024");
    bench(&[&llama], "-d 18446744073709551610")
        .code(2)
        .says("`18446744073709551610` is not an integer");
    bench(&[&llama], "--pg 4").code(2).says("expected PROMPT,GENERATED");
    bench(&[&llama], "--against other").code(2).says("llama-bench, torch");
    // Drafts are measured in one way: nothing that is asked for is dropped.
    for words in ["-p 4", "-d 8", "--batch 2", "--pg 4,2", "-o csv", "--against torch"] {
        bench(&[&llama], &format!("--draft mtp {words}")).code(2).says("cannot be used with");
    }
    bench(&[&llama], "--draft mtp -n 4,8").code(2).says("one number for -n");
}

#[test]
fn other_programs_run_in_the_same_rounds() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("llama.gguf");
    run(onboard().arg("convert").arg(fixture("llama")).args(["--to", "gguf:f32", "-o"]).arg(&file))
        .code(0);
    // Answers like llama-bench, and keeps the arguments.
    let program = folder.path().join("peer");
    let log = folder.path().join("log");
    let script = format!(
        "#!/bin/sh\necho \"$@\" >>{}\necho '[{{\"n_prompt\": 4, \"n_gen\": 0, \"avg_ts\": 2.5}}]'\n",
        log.display()
    );
    fs_err::write(&program, script).unwrap();
    fs_err::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let words =
        format!("-p 4 -n 2 -r 2 -t 1 -o json --against llama-bench={},torch", program.display());
    // torch runs no test of a GGUF file.
    let ran = bench(&[&file], &words).code(2).says("`torch` ran no test: it reads the folders");
    let report = json(&ran.out);
    let [prompt, generated] = &report["tests"].as_array().unwrap()[..] else { panic!("{report}") };
    let peer = &prompt["against"][0];
    let torch = &prompt["against"][1];
    assert_eq!(peer["samples_ts"], serde_json::json!([2.5, 2.5]));
    assert!(peer["ratio"].as_f64().unwrap() > 0.0);
    assert!(torch["not_run"].as_str().unwrap().contains("not GGUF files"), "{torch}");
    // The answer to the second test is of another one.
    let reason = generated["against"][0]["not_run"].as_str().unwrap();
    assert!(reason.contains("gave no `avg_ts`"), "{reason}");
    let log = fs_err::read_to_string(log).unwrap();
    assert!(log.lines().next().unwrap().ends_with("-t 1 -p 4 -n 0"), "{log}");
}
