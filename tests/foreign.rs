//! GGUF files without a config inside, as other programs write them.

use std::path::Path;

use crate::tool::{convert, fixture, onboard, parity, root, run};

/// A fixture's file, whose key `onboard.config` has another name.
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
        // A config would have said more here.
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
    // What the author says is done, and other formats need no word.
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
