//! Tests of weights that no layer uses, in GGUF files that contain them anyway.

use std::path::Path;

use serde_json::Value;

use crate::tensors::rewrite;
use crate::tool::{convert, copy, fixture, json, onboard, parity, run};

fn shown(file: &Path) -> Value {
    json(&run(onboard().arg("show").arg(file).arg("--json")).code(0).out)
}

/// Returns the bytes of an f32 tensor.
fn bytes(file: &Path, name: &str) -> Vec<u8> {
    let shown = shown(file);
    let tensors = shown["tensors"].as_array().unwrap();
    let tensor = tensors.iter().find(|tensor| tensor["name"] == name).unwrap();
    let [offset, len] = ["offset", "bytes"]
        .map(|key: &str| usize::try_from(tensor[key].as_u64().unwrap()).unwrap());
    fs_err::read(file).unwrap()[offset..][..len].to_vec()
}

/// The last layer of the fixture reads the keys of an earlier one; llama.cpp loads keys for it anyway.
#[test]
fn what_layers_compute_without_is_taken_over_or_filled() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("gemma3n_text");
    let stored = dir.path().join("stored");
    copy("gemma3n_text", &stored);
    let weights = stored.join("model.safetensors");
    rewrite(&source.join("model.safetensors"), &weights, |tensors| {
        for end in ["k_proj.weight", "v_proj.weight", "k_norm.weight"] {
            let tensor = tensors[&format!("model.layers.1.self_attn.{end}")].clone();
            tensors.insert(format!("model.layers.3.self_attn.{end}"), tensor);
        }
    });
    let reference = source.join("reference");
    for (folder, name) in [(&source, "filled.gguf"), (&stored, "stored.gguf")] {
        let file = dir.path().join(name);
        run(convert().arg(folder).args(["--to", "gguf:f32", "-o"]).arg(&file)).code(0);
        let used = bytes(&file, "blk.1.attn_k.weight");
        let idle = bytes(&file, "blk.3.attn_k.weight");
        if name == "filled.gguf" {
            assert_eq!(idle, vec![0; used.len()]);
        } else {
            assert_eq!(idle, used);
        }
        // Neither affects opening the file by its keys.
        run(parity().arg("check").arg(&file).arg("--reference").arg(&reference)).code(0);
        run(convert().arg(folder).arg("--verify").arg(&file)).code(0);
    }
}
