//! Checks that `parity eval` reproduces lm-eval's results, and that `parity eval-diff` reads lm-eval's
//! files.
//!
//! `fixtures/evals.py` made the expected results with lm-eval 0.4.13 and transformers.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::tool::{fixture, parity, run};

fn records(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn scores_are_those_of_lm_eval() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["llama", "lfm2"] {
        let output = folder.path().join(name);
        let tasks = fixture(&format!("evals/{name}.tasks.jsonl"));
        let ran = run(parity()
            .args(["eval", "--dtype", "f32", "-o"])
            .arg(&output)
            .arg(fixture(name))
            .arg(&tasks));
        ran.code(0).prints("20 items, native f32");
        let truth =
            fs_err::read_to_string(fixture(&format!("evals/{name}.lm_eval.jsonl"))).unwrap();
        let ours = fs_err::read_to_string(&output).unwrap();
        let truth = records(&truth);
        let ours = records(&ours);
        assert_eq!((truth.len(), ours.len()), (20, 21), "a first line with facts");
        for (truth, ours) in truth.iter().zip(&ours[1..]) {
            assert_eq!(truth["greedy"], ours["greedy"], "{name}: {ours}");
            for metric in ["acc", "acc_norm", "acc_bytes"] {
                assert_eq!(
                    number(&truth[metric]),
                    number(&ours["scores"][metric]),
                    "{metric} of {ours}"
                );
            }
            let both = truth["logprobs"]
                .as_array()
                .unwrap()
                .iter()
                .zip(ours["logprobs"].as_array().unwrap());
            for (truth, ours) in both {
                let off = (number(truth) - number(ours)).abs();
                assert!(off < 1e-4, "{name}: {truth} of lm-eval, {ours} here");
            }
        }
    }
}

/// Evaluates the tasks of `llama`.
fn eval(output: &Path) -> Command {
    let mut command = parity();
    command.args(["eval", "--dtype", "f32", "-o"]).arg(output);
    command.arg(fixture("llama")).arg(fixture("evals/llama.tasks.jsonl"));
    command
}

#[test]
fn an_interrupted_evaluation_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let uninterrupted = folder.path().join("whole");
    let parts = folder.path().join("parts");
    run(&mut eval(&uninterrupted)).code(0);
    // The process dies before it renames the results.
    let killed = run(eval(&parts).env("ONBOARD_ABORT_AT", "1"));
    assert_ne!(killed.code, 0);
    let journal = folder.path().join("parts.part");
    let text = fs_err::read_to_string(&journal).unwrap();
    assert_eq!(text.lines().count(), 21);
    // As if it had died in the eighth item.
    let begun: Vec<&str> = text.split_inclusive('\n').take(8).collect();
    fs_err::write(&journal, format!("{}{{\"rec", begun.concat())).unwrap();
    run(&mut eval(&parts)).code(0).says("7 of 20 items were scored by an earlier run");
    let expected = fs_err::read_to_string(&uninterrupted).unwrap();
    assert_eq!(fs_err::read_to_string(&parts).unwrap(), expected);
    assert!(!journal.exists());
}

#[test]
fn samples_of_lm_eval_can_be_scored_again() {
    let folder = tempfile::tempdir().unwrap();
    for (task, options) in [("mc", &[] as &[&str]), ("gen", &["--regex", "([a-z]+)"])] {
        let output = folder.path().join(task);
        let samples = fixture(&format!("evals/samples_tiny_{task}_2026-11-23.jsonl"));
        run(parity()
            .args(["eval", "--dtype", "f32", "-o"])
            .arg(&output)
            .arg(fixture("llama"))
            .arg(&samples)
            .args(options))
        .code(0);
        run(parity().args(["eval-diff", "--dtype", "f32"]).arg(&samples).arg(&output))
            .code(0)
            .prints("agree: all 19 items agree")
            .prints("19 with equal inputs");
    }
    // Extracted answers, against whole texts.
    let samples = fixture("evals/samples_tiny_gen_2026-11-23.jsonl");
    let text = fs_err::read_to_string(&samples).unwrap();
    let other = folder.path().join("other.jsonl");
    fs_err::write(&other, text.replace("\"exact_match\": 0.0", "\"exact_match\": 1.0")).unwrap();
    run(parity().arg("eval-diff").arg(&samples).arg(&other))
        .code(1)
        .prints("extraction or sampling: 19 items: equal texts have other answers");
}

#[test]
fn an_output_is_whole_or_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let tasks = folder.path().join("tasks.jsonl");
    let output = folder.path().join("out.jsonl");
    // The second item is not in the vocabulary.
    fs_err::write(
        &tasks,
        "{\"ids\": [1], \"choices\": [[2], [3]]}\n{\"ids\": [70000], \"choices\": [[2]]}\n",
    )
    .unwrap();
    run(parity().args(["eval", "-o"]).arg(&output).arg(fixture("llama")).arg(&tasks))
        .code(2)
        .says("item `1`: token 70000");
    assert!(!output.exists());
    let left = fs_err::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: BTreeSet<_> = left.collect();
    // The scored item, for a run that goes on.
    assert_eq!(left, ["out.jsonl.part", "tasks.jsonl"].map(Into::into).into());
}
