//! GGUF files without a config inside, as other programs write them.

use std::path::Path;

use crate::tool::{convert, fixture, parity, run};

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
