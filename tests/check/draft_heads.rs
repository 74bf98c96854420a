//! Tests of drafting: counts, unchanged tokens, detection of a wrong head, and unsupported engines.

use std::path::Path;

use crate::tool::{convert, onboard, root, run};

fn trained() -> std::path::PathBuf {
    root().join("fixtures/trained/counting")
}

/// Runs `onboard bench --draft mtp` on the trained model, counting in steps of 7.
fn bench(model: &Path, more: &[&str]) -> (Option<i32>, String) {
    let prompt: Vec<String> =
        (0..8).map(|n| 100 + 7 * n).map(|n| format!("{},{}", n / 32, 32 + n % 32)).collect();
    let mut command = onboard();
    command.arg("bench").arg(model).args(["--draft", "mtp", "--dtype", "f32"]);
    if !more.contains(&"-n") {
        command.args(["-n", "200"]);
    }
    let out = command.args(["--tokens", &prompt.join(",")]).args(more).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    (out.status.code(), text.into_owned())
}

/// Returns the spec with embedding and hidden rows concatenated in the other order.
fn swapped(folder: &Path) -> String {
    let spec = fs_err::read_to_string(root().join("registry/specs/qwen3_next.yaml")).unwrap();
    let spec = spec.replace("nextn:\n", "nextn:\n  concat: [h, e]\n");
    let path = folder.join("swapped.yaml");
    fs_err::write(&path, spec).unwrap();
    path.display().to_string()
}

/// Returns the number after a word at the start of a line.
fn number(text: &str, word: &str) -> f64 {
    let line =
        text.lines().find_map(|line| line.strip_prefix(word)).unwrap_or_else(|| panic!("{text}"));
    line.split_whitespace().next().unwrap().trim_end_matches(',').parse().unwrap()
}

#[test]
fn a_trained_head_is_counted_and_changes_no_token() {
    for k in ["1", "3"] {
        let (code, text) = bench(&trained(), &["-k", k]);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("200, those of plain greedy decoding"), "{text}");
        // The head was trained to predict one token ahead: later predictions are poor.
        if k == "1" {
            assert!(number(&text, "acceptance rate") > 0.5, "{text}");
        }
        assert!(number(&text, "accepted") <= number(&text, "drafts"), "{text}");
        assert!(number(&text, "mean accepted") > 0.5, "{text}");
    }
}

fn acceptance_rate(model: &Path) -> f64 {
    let (code, text) = bench(model, &["-k", "1"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("200, those of plain greedy decoding"), "{text}");
    number(&text, "acceptance rate")
}

#[test]
fn a_head_in_a_gguf_file_drafts_as_that_of_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counting.gguf");
    run(convert().arg(trained()).args(["--to", "gguf:f32", "-o"]).arg(&file)).code(0);
    assert!((acceptance_rate(&file) - acceptance_rate(&trained())).abs() < 0.05);
    // With its keys alone, too.
    let bytes = fs_err::read(&file).unwrap();
    let key = b"onboard.config";
    let at = bytes.windows(key.len()).position(|part| part == key).unwrap();
    let mut bytes = bytes;
    bytes[at] = b'0';
    fs_err::write(&file, bytes).unwrap();
    assert!(acceptance_rate(&file) > 0.5);
}

#[test]
fn a_head_that_nothing_proves_and_nobody_believes_is_flagged() {
    let folder = tempfile::tempdir().unwrap();
    let spec = swapped(folder.path());
    let (code, text) = bench(&trained(), &["--spec", &spec]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("LIKELY MISMATCH"), "{text}");
    assert!(text.contains("does not agree with its reference"), "{text}");
    assert!(text.contains("200, those of plain greedy decoding"), "{text}");
    // Without a reference nothing can be proven.
    let bare = folder.path().join("bare");
    fs_err::create_dir(&bare).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs_err::copy(trained().join(name), bare.join(name)).unwrap();
    }
    let (code, text) = bench(&bare, &["--spec", &spec]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("no reference proves the head"), "{text}");
    // A few drafts are not significant.
    let (code, text) = bench(&bare, &["--spec", &spec, "-n", "20"]);
    assert_eq!((code, text.contains("MISMATCH")), (Some(0), false), "{text}");
}

#[test]
fn a_head_is_shown_with_its_model() {
    let out = onboard().arg("show").arg(trained()).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let (_, head) = text.split_once("# head 1, fed tokens and rows of `model.norm`").unwrap();
    assert!(head.contains("mtp.fc.weight"), "{head}");
    assert!(head.contains("concat(rms_norm, rms_norm.2)"), "{head}");
    assert!(head.contains("128 bytes per token"), "{head}");
}

#[test]
fn what_no_engine_does_is_refused_with_the_reason() {
    let (code, text) = bench(&trained(), &["--tensor-parallel", "2"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("has no `tensor_parallel`, alone or with `nextn`"), "{text}");
    let model = root().join("fixtures/llama");
    let out = onboard().args(["bench", "--draft", "mtp"]).arg(model).output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(text.contains("has no head"), "{text}");
}
