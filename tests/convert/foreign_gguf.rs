//! Tests of GGUF files without a config inside, as other programs write them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::tool::{Ran, convert, fixture, onboard, parity, root, run};

/// Writes a fixture's file with the key `onboard.config` renamed.
fn foreign(name: &str, folder: &Path) -> PathBuf {
    let file = folder.join(format!("{name}.gguf"));
    run(convert().arg(fixture(name)).args(["--to", "gguf:f32", "-o"]).arg(&file)).code(0);
    let mut bytes = fs_err::read(&file).unwrap();
    let key = b"onboard.config";
    let at = bytes.windows(key.len()).position(|part| part == key).unwrap();
    bytes[at..at + key.len()].copy_from_slice(b"another.config");
    fs_err::write(&file, bytes).unwrap();
    file
}

#[test]
fn a_file_is_opened_by_its_keys() {
    let folder = tempfile::tempdir().unwrap();
    for name in
        ["llama3", "lfm2", "qwen3", "mamba2", "glm4_moe_lite", "gemma4_text_moe", "cohere2_moe"]
    {
        let file = foreign(name, folder.path());
        let mut check = parity();
        check.arg("check").arg(&file).arg("--reference").arg(fixture(name).join("reference"));
        // A config would contain more here.
        if name == "cohere2_moe" {
            run(&mut check)
                .code(2)
                .says("no spec explains a file of `cohere2moe`")
                .says("--model-config DIR");
        } else {
            run(&mut check).code(0).prints("AGREE");
        }
    }
}

/// Writes a spec that extends another and changes its program.
fn write_spec(folder: &Path, name: &str, gguf: &str) -> PathBuf {
    let path = folder.join(format!("{name}.yaml"));
    let layers = "layers:\n  \"*\": |\n    x = x + attention(rms_norm(x, input_layernorm, eps)) * 0.5\n    \
        return x + mlp(rms_norm(x, post_attention_layernorm, eps))\n";
    let text = format!("spec: 1\nname: {name}\nextends: llama\n{layers}{gguf}");
    fs_err::write(&path, text).unwrap();
    path
}

/// Converts the fixture of `llama` with a spec.
fn to_gguf(spec: &Path, file: &Path, more: &[&str]) -> Ran {
    let mut command = convert();
    command.arg(fixture("llama")).arg("--spec").arg(spec).args(["--to", "gguf:f32", "-o"]);
    run(command.arg(file).arg("--force").args(more))
}

/// A spec that extends another and changes its program.
#[test]
fn a_file_is_not_written_under_a_false_architecture() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.gguf");
    let silent = write_spec(dir.path(), "silent", "");
    let difference = "layer 0: `llama` has no `scale(s=0.5)` here";
    let refused = to_gguf(&silent, &file, &[]).code(2).says(difference);
    refused.says("`silent` inherits `arch: llama` from `llama`").says("`gguf: ~`");
    assert!(!file.exists());
    let mut check = onboard();
    check.arg("check").arg(&silent).arg("--model").arg(fixture("llama"));
    run(&mut check).code(0).says("warning").says(difference);
    // An explicit choice of the author is followed, and other formats need none.
    let explicit = write_spec(dir.path(), "said", "gguf: { arch: llama }\n");
    to_gguf(&explicit, &file, &[]).code(0);
    let unwritten = write_spec(dir.path(), "own", "gguf: ~\n");
    to_gguf(&unwritten, &file, &[]).code(0).says("does not know the architecture");
    let mut folder = convert();
    folder.arg(fixture("llama")).arg("--spec").arg(&silent).args(["--to", "bf16", "-o"]);
    run(folder.arg(dir.path().join("bf16"))).code(0);
    // Overrides are changes too.
    let changed = ["--set", "dims.scale=0.1"];
    let plain = root().join("registry/specs/llama.yaml");
    to_gguf(&plain, &file, &changed).code(2).says("overrides make `llama` another model");
    to_gguf(&plain, &file, &["--set", "states.kv.dtype=f32"]).code(0);
}

/// A named spec is checked against the file like a matching one.
#[test]
fn a_foreign_file_does_not_open_as_another_model() {
    let dir = tempfile::tempdir().unwrap();
    let file = foreign("llama", dir.path());
    let spec = dir.path().join("child.yaml");
    fs_err::write(&spec, "spec: 1\nname: child\nextends: llama\ndims: { scale: = 0.1 }\n").unwrap();
    let mut command = onboard();
    command.arg("run").arg(&file).arg("--spec").arg(&spec);
    run(command.args(["--tokens", "1,2,3", "-n", "1"])).code(2).says("computes another model");
}

/// Arguments that generate some tokens.
const TOKENS: [&str; 6] = ["--tokens", "1,5,9", "-n", "6", "--dtype", "f32"];

fn generate(model: &Path, more: &[&OsStr]) -> Ran {
    run(onboard().arg("run").arg(model).args(TOKENS).args(more))
}

/// A file made with the user's own spec or overrides opens as its source model.
#[test]
fn a_file_says_which_spec_it_was_made_with() {
    let dir = tempfile::tempdir().unwrap();
    let spec = dir.path().join("scaled.yaml");
    let file = dir.path().join("m.gguf");
    let text = "spec: 1\nname: scaled\nextends: llama\nrope: { main: { parameters: \"= map('rope_type', 'linear', 'factor', 4.0)\" } }\n";
    fs_err::write(&spec, text).unwrap();
    let mut command = convert();
    command.arg(fixture("llama")).arg("--spec").arg(&spec).args(["--to", "gguf:f32", "-o"]);
    run(command.arg(&file)).code(0);
    generate(&file, &[]).code(2).says("was made with the spec `scaled`").says("--spec FILE");
    let given = ["--spec".as_ref(), spec.as_os_str()];
    let scaled = generate(&file, &given).code(0).out;
    assert_eq!(scaled, generate(&fixture("llama"), &given).code(0).out);
    let folder = ["--specs".as_ref(), dir.path().as_os_str()];
    assert_eq!(generate(&file, &folder).code(0).out, scaled);
    // A spec named by the user takes precedence over the file's, and differences are reported.
    let plain = generate(&fixture("llama"), &[]).code(0).out;
    let flags = ["--spec".as_ref(), "llama".as_ref()];
    let as_llama = generate(&file, &flags).code(0).says("warning: ");
    assert_eq!(as_llama.out, plain);
    assert_ne!(plain, scaled);
    // A modified spec of the same name is a different spec, however it was found.
    fs_err::write(&spec, text.replace("4.0", "2.0")).unwrap();
    generate(&file, &folder).code(2).says("another spec `scaled`");
    // Overrides are read from the file itself.
    let set = ["--set", "dims.eps=0.1"];
    let mut command = convert();
    command.arg(fixture("llama")).args(set).args(["--to", "gguf:f32", "--force", "-o"]);
    run(command.arg(&file)).code(0);
    let overridden = generate(&fixture("llama"), &set.map(OsStr::new)).code(0).out;
    assert_eq!(generate(&file, &[]).code(0).out, overridden);
    // Requested overrides are added.
    let more = ["--set".as_ref(), "states.kv.dtype=f32".as_ref()];
    assert_eq!(generate(&file, &more).code(0).out, overridden);
    assert_ne!(plain, overridden);
}
