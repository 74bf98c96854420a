//! Tests that inputs are never overwritten, and that files without a model are identified.

use std::path::Path;

use serde_json::Value;

use crate::tool::{convert, copy, fixture, json, onboard, run};

#[test]
fn nothing_that_is_read_is_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("llama_256");
    copy("llama_256", &model);
    let measured = dir.path().join("im.gguf");
    let imatrix = |output: &Path, more: &[&str]| {
        let mut command = onboard();
        command.arg("imatrix").arg(&model).args(["--tokens", "1,2,3,4", "--chunk", "4", "-o"]);
        run(command.arg(output).args(more))
    };
    for name in ["model.safetensors", "config.json"] {
        let before = fs_err::read(model.join(name)).unwrap();
        imatrix(&model.join(name), &["--force"]).code(2).says("and it is read");
        assert!(fs_err::read(model.join(name)).unwrap() == before, "{name}");
    }
    imatrix(&measured, &[]).code(0);
    imatrix(&measured, &[]).code(2).says("is there already");
    imatrix(&measured, &["--force"]).code(0);
    let to = |output: &Path, more: &[&str]| {
        let mut command = convert();
        command.arg(&model).args(["--to", "gguf:q4_k_m", "--imatrix"]).arg(&measured);
        run(command.arg("-o").arg(output).args(more))
    };
    for path in [model.join("tokenizer.model"), model.join("tokenizer.json"), measured.clone()] {
        if path.exists() {
            let before = fs_err::read(&path).unwrap();
            to(&path, &["--force"]).code(2).says("overwrite");
            assert!(fs_err::read(&path).unwrap() == before, "{}", path.display());
        }
    }
    // Outputs may be beside their sources, and may be written again.
    to(&model.join("made.gguf"), &[]).code(0);
    to(&model.join("made.gguf"), &["--force"]).code(0);
}

#[test]
fn files_that_hold_no_model_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    run(convert().arg(fixture("llama")).args(["--to", "gguf:f16", "-o"]).arg(&file)).code(0);
    let bytes = fs_err::read(&file).unwrap();
    let key = b"general.type";
    let at = bytes.windows(key.len()).position(|found| found == key).unwrap();
    // The key is followed by its kind in four bytes and its length in eight.
    let word = at + key.len() + 12;
    assert_eq!(&bytes[word..word + 5], b"model");
    let mut changed = bytes.clone();
    changed[word..word + 5].copy_from_slice(b"voice");
    fs_err::write(&file, changed).unwrap();
    run(onboard().arg("run").arg(&file).args(["--tokens", "1"]))
        .code(2)
        .says("holds no model: it is of type `voice`");
    let nowhere = dir.path().join("nowhere.gguf");
    run(onboard().arg("run").arg(nowhere).args(["--tokens", "1"])).code(2).says("there is no file");
}

#[test]
fn a_file_speaks_by_its_own_tokenizer() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["llama_256", "qwen2", "llama3", "gemma3_text", "lfm2", "mistral_nemo"] {
        let file = dir.path().join(format!("{name}.gguf"));
        run(convert().arg(fixture(name)).args(["--to", "gguf:f32", "-o"]).arg(&file)).code(0);
        let say = |model: &Path| {
            let mut command = onboard();
            command.arg("run").arg(model).args(["--dtype", "f32", "-n", "12", "--json"]);
            json(&run(command.args(["--prompt", "a b, it is"])).code(0).out)
        };
        let said = say(&file);
        let other = say(&fixture(name));
        assert_eq!(said["tokens"], other["tokens"], "{name}");
        assert_eq!(said["tokens"].as_array().unwrap().len(), 12, "{name}");
        // Its tokens are bytes that are no text. The library of the folder's tokenizer then replaces all bytes
        // of the run by U+FFFD, llama.cpp only those at fault.
        if name != "llama_256" {
            assert_eq!(said["text"], other["text"], "{name}");
        }
    }
}

/// The post-processors of the first two add no tokens around a text, although their configs name a BOS
/// token.
#[test]
fn a_file_begins_and_ends_prompts_as_its_folder_does() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = |model: &Path| {
        let mut command = onboard();
        command.arg("run").arg(model).args(["--prompt", "Hi there", "-n", "1", "--json"]);
        let said: Value = serde_json::from_str(&run(&mut command).code(0).out).unwrap();
        said["prompt_tokens"].clone()
    };
    for name in ["phi3", "phimoe", "llama_256", "gpt2"] {
        let file = dir.path().join(format!("{name}.gguf"));
        run(convert().arg(fixture(name)).args(["--to", "gguf:f16", "-o"]).arg(&file)).code(0);
        assert_eq!(prompt(&file), prompt(&fixture(name)), "{name}");
    }
    let file = dir.path().join("identity.gguf");
    let mut command = convert();
    command.arg(fixture("phi3")).args(["--identity", "llama.cpp", "--to", "gguf:f16", "-o"]);
    run(command.arg(&file)).code(0).says("by the keys of the file it will be `<s>` before");
    assert_ne!(prompt(&file), prompt(&fixture("phi3")));
}
