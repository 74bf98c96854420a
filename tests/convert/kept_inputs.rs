//! Tests that inputs are never overwritten, and that files without a model are identified.

use std::path::Path;

use serde_json::Value;

use crate::tool::{Ran, convert, copy, fixture, json, onboard, run};

/// Measures an importance matrix.
fn imatrix(model: &Path, output: &Path, more: &[&str]) -> Ran {
    let mut command = onboard();
    command.arg("imatrix").arg(model).args(["--tokens", "1,2,3,4", "--chunk", "4", "-o"]);
    run(command.arg(output).args(more))
}

/// Quantizes a model with an importance matrix.
fn quantize(model: &Path, imatrix: &Path, output: &Path, more: &[&str]) -> Ran {
    let mut command = convert();
    command.arg(model).args(["--to", "gguf:q4_k_m", "--imatrix"]).arg(imatrix);
    run(command.arg("-o").arg(output).args(more))
}

#[test]
fn nothing_that_is_read_is_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("llama_256");
    copy("llama_256", &model);
    let measured = dir.path().join("im.gguf");
    for name in ["model.safetensors", "config.json"] {
        let before = fs_err::read(model.join(name)).unwrap();
        imatrix(&model, &model.join(name), &["--force"]).code(2).says("and it is read");
        assert!(fs_err::read(model.join(name)).unwrap() == before, "{name}");
    }
    imatrix(&model, &measured, &[]).code(0);
    imatrix(&model, &measured, &[]).code(2).says("is there already");
    imatrix(&model, &measured, &["--force"]).code(0);
    for path in [model.join("tokenizer.model"), model.join("tokenizer.json"), measured.clone()] {
        if path.exists() {
            let before = fs_err::read(&path).unwrap();
            quantize(&model, &measured, &path, &["--force"]).code(2).says("overwrite");
            assert!(fs_err::read(&path).unwrap() == before, "{}", path.display());
        }
    }
    // Outputs may be beside their sources, and may be written again.
    let beside = model.join("made.gguf");
    quantize(&model, &measured, &beside, &[]).code(0);
    quantize(&model, &measured, &beside, &["--force"]).code(0);
}

#[test]
fn files_that_hold_no_model_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    run(convert().arg(fixture("llama")).args(["--to", "gguf:f16", "-o"]).arg(&file)).code(0);
    let bytes = fs_err::read(&file).unwrap();
    let key = b"general.type";
    let at = bytes.windows(key.len()).position(|part| part == key).unwrap();
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

/// Returns the answer of a model to a prompt.
fn generated(model: &Path) -> Value {
    let mut command = onboard();
    command.arg("run").arg(model).args(["--dtype", "f32", "-n", "12", "--json"]);
    json(&run(command.args(["--prompt", "a b, it is"])).code(0).out)
}

#[test]
fn a_file_speaks_by_its_own_tokenizer() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["llama_256", "qwen2", "llama3", "gemma3_text", "lfm2", "mistral_nemo"] {
        let file = dir.path().join(format!("{name}.gguf"));
        run(convert().arg(fixture(name)).args(["--to", "gguf:f32", "-o"]).arg(&file)).code(0);
        let of_file = generated(&file);
        let of_folder = generated(&fixture(name));
        assert_eq!(of_file["tokens"], of_folder["tokens"], "{name}");
        assert_eq!(of_file["tokens"].as_array().unwrap().len(), 12, "{name}");
        // Its tokens are bytes that are no text. The library of the folder's tokenizer then replaces all bytes
        // of the run by U+FFFD, llama.cpp only those at fault.
        if name != "llama_256" {
            assert_eq!(of_file["text"], of_folder["text"], "{name}");
        }
    }
}

fn prompt_tokens(model: &Path) -> Value {
    let mut command = onboard();
    command.arg("run").arg(model).args(["--prompt", "Hi there", "-n", "1", "--json"]);
    json(&run(&mut command).code(0).out)["prompt_tokens"].clone()
}

/// The post-processors of the first two add no tokens around a text, although their configs name a BOS
/// token.
#[test]
fn a_file_begins_and_ends_prompts_as_its_folder_does() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["phi3", "phimoe", "llama_256", "gpt2"] {
        let file = dir.path().join(format!("{name}.gguf"));
        run(convert().arg(fixture(name)).args(["--to", "gguf:f16", "-o"]).arg(&file)).code(0);
        assert_eq!(prompt_tokens(&file), prompt_tokens(&fixture(name)), "{name}");
    }
    let file = dir.path().join("identity.gguf");
    let mut command = convert();
    command.arg(fixture("phi3")).args(["--identity", "llama.cpp", "--to", "gguf:f16", "-o"]);
    run(command.arg(&file)).code(0).says("by the keys of the file it will be `<s>` before");
    assert_ne!(prompt_tokens(&file), prompt_tokens(&fixture("phi3")));
}
