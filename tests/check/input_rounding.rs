//! Tests of checkpoints whose configs declare input rounding, against references that round.
//! `fixtures/rounded.py` makes them: the llamas with transformers' own forward pass, the mixtures with
//! compressed-tensors on split experts.

use std::path::{Path, PathBuf};

use crate::tool::{Ran, convert, fixture, parity, run};

const CODED: [&str; 3] = ["coded/llama_int8", "coded/llama_rounded", "coded/qwen3_moe_int8"];

fn check(folder: &Path, dump: &Path, flags: &[&str]) -> Ran {
    let mut check = parity();
    check.arg("check").arg(folder).arg("--reference").arg(dump).arg("--no-schedules");
    run(check.args(flags))
}

/// Copies a dump with another declaration of the rounding.
fn retold(dir: &Path, dump: &Path, word: Option<&str>) -> PathBuf {
    let out = dir.join(word.unwrap_or("nothing"));
    fs_err::create_dir(&out).unwrap();
    fs_err::copy(dump.join("reference.safetensors"), out.join("reference.safetensors")).unwrap();
    let text = fs_err::read(dump.join("manifest.json")).unwrap();
    let mut manifest: serde_json::Value = serde_json::from_slice(&text).unwrap();
    manifest.as_object_mut().unwrap().remove("sha256");
    match word {
        Some(word) => manifest["rounds"] = word.into(),
        None => drop(manifest.as_object_mut().unwrap().remove("rounds")),
    }
    fs_err::write(out.join("manifest.json"), manifest.to_string()).unwrap();
    out
}

#[test]
fn rows_are_rounded_where_the_reference_rounded_them() {
    for name in CODED {
        let folder = fixture(name);
        let dump = fixture(name).join("reference");
        check(&folder, &dump, &[]).code(0).prints("AGREE");
        check(&folder, &dump, &["--w8a8"]).code(0).prints("AGREE");
        check(&folder, &dump, &["--w8a8", "--plain-graph", "--dtype", "f32"]).code(0);
        // The weights without input rounding are a different model.
        check(&folder, &dump, &["--w8a16"]).code(1).prints("DIFFER");
    }
}

#[test]
fn rows_that_experts_multiply_are_rounded() {
    let dir = tempfile::tempdir().unwrap();
    let fp8 = dir.path().join("made");
    let told = fixture("w8a8/qwen3_moe");
    run(convert().arg(fixture("qwen3_moe")).args(["--to", "fp8", "-o"]).arg(&fp8)).code(0);
    check(&fp8, &told, &[]).code(0).prints("AGREE");
    check(&fp8, &told, &["--w8a16"]).code(1);
    let file = dir.path().join("model.gguf");
    run(convert().arg(&fp8).args(["--to", "gguf:f32", "-o"]).arg(&file)).code(0);
    check(&file, &told, &["--w8a8"]).code(2).says("a GGUF file declares nothing");
    // Without the experts' rounding, and with nothing else wrong.
    let dump = retold(dir.path(), &told, Some("linear"));
    check(&fp8, &dump, &[]).code(1).prints("mlp.experts");
    let coded = fixture(CODED[2]);
    let told = fixture(CODED[2]).join("reference");
    let dir = tempfile::tempdir().unwrap();
    check(&coded, &retold(dir.path(), &told, Some("linear")), &[]).code(1).prints("mlp.experts");
}

#[test]
fn a_dump_that_says_nothing_is_asked_about() {
    let dir = tempfile::tempdir().unwrap();
    let folder = fixture(CODED[0]);
    let dump = retold(dir.path(), &folder.join("reference"), None);
    check(&folder, &dump, &[]).code(1).says("give --w8a8 if it did");
    check(&folder, &dump, &["--w8a8"]).code(0).prints("AGREE");
    let dump = retold(dir.path(), &folder.join("reference"), Some("some"));
    check(&folder, &dump, &[])
        .code(2)
        .says("`rounds` is `some`; expected `none`, `linear` or `all`");
}

#[test]
fn rounding_that_is_not_done_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture(CODED[0]);
    let config = fs_err::read_to_string(source.join("config.json")).unwrap();
    for (from, to) in [("\"token\"", "\"tensor\""), ("\"dynamic\": true", "\"dynamic\": \"local\"")]
    {
        assert!(config.contains(from));
        fs_err::write(dir.path().join("config.json"), config.replace(from, to)).unwrap();
        fs_err::copy(source.join("model.safetensors"), dir.path().join("model.safetensors"))
            .unwrap();
        // The source is named, so that the changed config is not another model.
        let folder = source.to_str().unwrap();
        let dump = source.join("reference");
        check(dir.path(), &dump, &["--source", folder, "--plain-graph"])
            .code(2)
            .says("input_activations of `model.layers.0.self_attn.q_proj`")
            .says("per token, in groups or with a stored scale");
        // Weights can be read without.
        check(dir.path(), &dump, &["--source", folder, "--w8a16"]).code(1);
    }
}
