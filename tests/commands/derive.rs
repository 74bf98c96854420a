//! Tests of `onboard add-model --derive` with a record that is stored, and of the guide for agents.

use std::path::{Path, PathBuf};

use crate::tool::{Ran, copy, fixture, json, onboard, root, run};

/// Returns the record of a fixture, which `dump.py fixtures/llama --trace` made.
fn record() -> PathBuf {
    root().join("fixtures/records/llama.json")
}

/// Runs `onboard add-model` on a fixture with a record.
fn derive(record: &Path, out: &Path, more: &[&str]) -> Ran {
    let mut command = onboard();
    command.arg("add-model").arg(fixture("llama")).arg("--record").arg(record);
    run(command.arg("--out").arg(out).args(more))
}

#[test]
fn a_spec_is_derived_from_a_record_and_proven() {
    let dir = tempfile::tempdir().unwrap();
    derive(&record(), dir.path(), &["--explain"])
        .code(0)
        .prints("recorded `LlamaForCausalLM` (modeling_llama.py, transformers 5.")
        .prints("model.layers.{0,1,2}.self_attn (LlamaAttention)")
        .prints("dims     hidden ")
        .prints("states   kv (attention)")
        .prints("verdict  proven");
    let spec = fs_err::read_to_string(dir.path().join("llama_derived.yaml")).unwrap();
    assert!(
        spec.starts_with("# Derived from `LlamaForCausalLM` (modeling_llama.py, transformers ")
    );
    assert!(spec.contains("\n# yaml-language-server: $schema=") && !spec.contains("extends:"));
    // A second run writes the same text, and no text over another.
    derive(&record(), dir.path(), &[]).code(0);
    fs_err::write(dir.path().join("llama_derived.yaml"), "spec: 1\n").unwrap();
    derive(&record(), dir.path(), &[]).code(2).says("is there already and differs");
}

#[test]
fn holes_are_told_by_line_and_the_draft_is_no_result() {
    let dir = tempfile::tempdir().unwrap();
    let strange = dir.path().join("strange.json");
    let text = fs_err::read_to_string(record()).unwrap();
    fs_err::write(&strange, text.replace("\"call\": \"rsqrt\"", "\"call\": \"erfinv\"")).unwrap();
    derive(&strange, dir.path(), &[])
        .code(2)
        .says("is not proven and cannot run")
        .says("modeling_llama.py:")
        .says("`LlamaRMSNorm`, in `model.layers.*.input_layernorm`: modeling_llama.py:")
        .says("`erfinv`")
        .says("--spec");
    let spec = fs_err::read_to_string(dir.path().join("llama_derived.yaml")).unwrap();
    assert!(spec.starts_with("# DRAFT, NOT PROVEN: derived from `LlamaForCausalLM`"), "{spec}");
    assert!(spec.contains("#   - `LlamaRMSNorm`, in") && spec.contains("hole_"));
}

#[test]
fn damaged_records_are_refused_in_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.json");
    fs_err::write(&bad, "{\"class\": 3}").unwrap();
    derive(&bad, dir.path(), &[]).code(2).says("is no record of a class");
    let mut empty = json(&fs_err::read_to_string(record()).unwrap());
    empty["runs"][0]["events"] = serde_json::json!([]);
    fs_err::write(&bad, empty.to_string()).unwrap();
    derive(&bad, dir.path(), &[]).code(2).says("--like SPEC drafts one from a known spec");
    derive(&record(), dir.path(), &["--like", "llama"]).code(2).says("cannot be used with");
}

/// A model that no spec matches is derived without a flag, if a Python is there.
#[cfg(unix)]
#[test]
fn classes_that_no_spec_matches_are_recorded() {
    use std::os::unix::fs::PermissionsExt as _;

    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    copy("llama", &model);
    let path = model.join("config.json");
    let mut config = json(&fs_err::read_to_string(&path).unwrap());
    config["architectures"] = serde_json::json!(["StrangeForCausalLM"]);
    config["model_type"] = "strange".into();
    fs_err::write(&path, config.to_string()).unwrap();
    // Called as `-c ...` to look for packages, and as `dump.py MODEL --trace FILE`.
    let python = dir.path().join("python");
    let script = |body: &str| format!("#!/bin/sh\ncase \"$1\" in -c) exit 0;; esac\n{body}\n");
    fs_err::write(&python, script(&format!("cp '{}' \"$4\"", record().display()))).unwrap();
    fs_err::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let add = |out: &str| {
        let mut command = onboard();
        command.arg("add-model").arg(&model).arg("--out").arg(dir.path().join(out));
        run(command
            .arg("--reference")
            .arg(fixture("llama").join("reference"))
            .env("ONBOARD_PYTHON", &python))
    };
    add("whole").says("no spec matches; recording the class").prints("derived  ");
    assert!(dir.path().join("whole/strange.yaml").is_file());
    // A record that gives no spec leaves the draft from the headers, and so does a class that cannot be recorded.
    let mut empty = json(&fs_err::read_to_string(record()).unwrap());
    empty["runs"][0]["events"] = serde_json::json!([]);
    let lost = dir.path().join("empty.json");
    fs_err::write(&lost, empty.to_string()).unwrap();
    fs_err::write(&python, script(&format!("cp '{}' \"$4\"", lost.display()))).unwrap();
    add("unlifted").says("note: no spec can be derived").says("is drafted from the config");
    fs_err::write(&python, script("echo 'dump: error: no such class' >&2; exit 2")).unwrap();
    add("draft").says("note: no such class; what follows is drafted from the config");
    let draft = fs_err::read_to_string(dir.path().join("draft/strange.yaml")).unwrap();
    assert!(draft.contains("extends: llama"));
}

#[test]
fn the_guide_for_agents_is_written_once() {
    let dir = tempfile::tempdir().unwrap();
    let write = || run(onboard().arg("skill").arg(dir.path().join("skill")));
    write().code(0).says("wrote ");
    let path = dir.path().join("skill/SKILL.md");
    let text = fs_err::read_to_string(&path).unwrap();
    assert!(text.starts_with("---\nname: onboard-model\ndescription: "));
    write().code(0);
    fs_err::write(&path, "mine").unwrap();
    write().code(2).says("is there already and differs");
}

/// Commands of the guide exist, with their flags.
#[test]
fn the_guide_names_commands_that_exist() {
    let text = fs_err::read_to_string(root().join("docs/skill/SKILL.md")).unwrap();
    let lines = text.lines().map(str::trim).filter(|line| line.starts_with("onboard "));
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let help = run(onboard().args([words[1], "--help"])).code(0).out;
        for flag in words.iter().filter(|word| word.starts_with("--")) {
            assert!(help.contains(flag), "`{line}`: no {flag}");
        }
    }
}
