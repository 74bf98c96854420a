//! Tests of GGUF files without a config inside, as other programs write them.

use std::path::Path;

use crate::tool::{convert, fixture, onboard, parity, root, run};

/// Writes a fixture's file with the key `onboard.config` renamed.
fn foreign(name: &str, folder: &Path) -> std::path::PathBuf {
    let file = folder.join(format!("{name}.gguf"));
    run(convert().arg(fixture(name)).args(["--to", "gguf:f32", "-o"]).arg(&file)).code(0);
    let mut bytes = fs_err::read(&file).unwrap();
    let key = b"onboard.config";
    let at = bytes.windows(key.len()).position(|found| found == key).unwrap();
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

/// A spec that extends another and changes its program.
#[test]
fn a_file_is_not_written_under_a_false_architecture() {
    let dir = tempfile::tempdir().unwrap();
    let spec = |name: &str, gguf: &str| {
        let path = dir.path().join(format!("{name}.yaml"));
        let layers = "layers:\n  \"*\": |\n    x = x + attention(rms_norm(x, input_layernorm, eps)) * 0.5\n    \
            return x + mlp(rms_norm(x, post_attention_layernorm, eps))\n";
        let text = format!("spec: 1\nname: {name}\nextends: llama\n{layers}{gguf}");
        fs_err::write(&path, text).unwrap();
        path
    };
    let file = dir.path().join("out.gguf");
    let to_gguf = |spec: &Path, more: &[&str]| {
        let mut command = convert();
        command.arg(fixture("llama")).arg("--spec").arg(spec).args(["--to", "gguf:f32", "-o"]);
        run(command.arg(&file).arg("--force").args(more))
    };
    let silent = spec("silent", "");
    let difference = "layer 0: `llama` has no `scale(s=0.5)` here";
    let refused = to_gguf(&silent, &[]).code(2).says(difference);
    refused.says("`silent` inherits `arch: llama` from `llama`").says("`gguf: ~`");
    assert!(!file.exists());
    let mut check = onboard();
    check.arg("check").arg(&silent).arg("--model").arg(fixture("llama"));
    run(&mut check).code(0).says("warning").says(difference);
    // An explicit choice of the author is followed, and other formats need none.
    to_gguf(&spec("said", "gguf: { arch: llama }\n"), &[]).code(0);
    to_gguf(&spec("own", "gguf: ~\n"), &[]).code(0).says("does not know the architecture");
    let mut folder = convert();
    folder.arg(fixture("llama")).arg("--spec").arg(&silent).args(["--to", "bf16", "-o"]);
    run(folder.arg(dir.path().join("bf16"))).code(0);
    // Overrides are changes too.
    let changed = ["--set", "dims.scale=0.1"];
    let plain = root().join("registry/specs/llama.yaml");
    to_gguf(&plain, &changed).code(2).says("overrides make `llama` another model");
    to_gguf(&plain, &["--set", "states.kv.dtype=f32"]).code(0);
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

/// A file made with the user's own spec or overrides opens as its source model.
#[test]
fn a_file_says_which_spec_it_was_made_with() {
    let dir = tempfile::tempdir().unwrap();
    let spec = dir.path().join("scaled.yaml");
    let file = dir.path().join("m.gguf");
    let text = "spec: 1\nname: scaled\nextends: llama\nrope: { main: { parameters: \"= map('rope_type', 'linear', 'factor', 4.0)\" } }\n";
    fs_err::write(&spec, text).unwrap();
    let tokens = ["--tokens", "1,5,9", "-n", "6", "--dtype", "f32"];
    let mut command = convert();
    command.arg(fixture("llama")).arg("--spec").arg(&spec).args(["--to", "gguf:f32", "-o"]);
    run(command.arg(&file)).code(0);
    let of_file =
        |more: &[&std::ffi::OsStr]| run(onboard().arg("run").arg(&file).args(tokens).args(more));
    of_file(&[]).code(2).says("was made with the spec `scaled`").says("--spec FILE");
    let given = ["--spec".as_ref(), spec.as_os_str()];
    let made = of_file(&given).code(0).out;
    let mut command = onboard();
    command.arg("run").arg(fixture("llama")).arg("--spec").arg(&spec).args(tokens);
    assert_eq!(made, run(&mut command).code(0).out);
    let folder = ["--specs".as_ref(), dir.path().as_os_str()];
    assert_eq!(of_file(&folder).code(0).out, made);
    // A spec named by the user takes precedence over the file's, and differences are reported.
    let plain = run(onboard().arg("run").arg(fixture("llama")).args(tokens)).code(0).out;
    let as_llama = of_file(&["--spec".as_ref(), "llama".as_ref()]).code(0).says("warning: ");
    assert_eq!(as_llama.out, plain);
    assert_ne!(plain, made);
    // A modified spec of the same name is a different spec, however it was found.
    fs_err::write(&spec, text.replace("4.0", "2.0")).unwrap();
    of_file(&folder).code(2).says("another spec `scaled`");
    // Overrides are read from the file itself.
    let set = ["--set", "dims.eps=0.1"];
    let mut command = convert();
    command.arg(fixture("llama")).args(set).args(["--to", "gguf:f32", "--force", "-o"]);
    run(command.arg(&file)).code(0);
    let mut command = onboard();
    command.arg("run").arg(fixture("llama")).args(set).args(tokens);
    let wanted = run(&mut command).code(0).out;
    assert_eq!(of_file(&[]).code(0).out, wanted);
    // Requested overrides are added.
    let more = ["--set".as_ref(), "states.kv.dtype=f32".as_ref()];
    assert_eq!(of_file(&more).code(0).out, wanted);
    assert_ne!(plain, wanted);
}
