//! Tests that compare a written file with its source: `convert --verify`, and `show --json`, which reads it
//! whole.

#[path = "../converters/conversion/tests/support/fuse.rs"]
mod fuse;

use std::collections::BTreeMap;

use formats::codec::BlockType;
use formats::gguf::{GgufFile, GgufTensorSpec};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::tool::{convert, fixture, json, onboard, run};
use fuse::{CASES, fuse, write};

#[test]
fn every_tensor_is_hashed_and_a_changed_one_shows() {
    let dir = tempfile::tempdir().unwrap();
    let (source, file) = (fixture("llama_256"), dir.path().join("m.gguf"));
    run(convert().arg(&source).args(["--to", "gguf:q8_0", "-o"]).arg(&file)).code(0);
    let verify = || run(convert().arg(&source).args(["--json", "--verify"]).arg(&file)).code(0);
    let shown = json(&run(onboard().arg("show").arg(&file).arg("--json")).code(0).out);
    assert_eq!(shown["keys"]["general.architecture"]["value"], "llama");
    let vocab = shown["keys"]["llama.vocab_size"]["value"].as_u64().unwrap();
    let tokens = &shown["keys"]["tokenizer.ggml.tokens"]["value"];
    assert_eq!(tokens.as_array().unwrap().len() as u64, vocab, "arrays are whole");

    let mut bytes = fs_err::read(&file).unwrap();
    let hashes = |report: &Value| -> BTreeMap<String, String> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let rows = report["tensors"].as_array().unwrap();
        rows.iter().map(|row| (text(&row["name"]), text(&row["sha256"]))).collect()
    };
    let before = hashes(&json(&verify().out));
    let tensors = shown["tensors"].as_array().unwrap();
    assert_eq!(before.len(), tensors.len());
    for tensor in tensors {
        let number = |key: &str| usize::try_from(tensor[key].as_u64().unwrap()).unwrap();
        let own = &bytes[number("offset")..number("offset") + number("bytes")];
        let name = tensor["name"].as_str().unwrap();
        assert_eq!(before[name], format!("{:x}", Sha256::digest(own)), "{name}");
    }

    // A level of one block; its scale comes first.
    let at = usize::try_from(tensors[0]["offset"].as_u64().unwrap()).unwrap() + 2;
    bytes[at] ^= 1;
    fs_err::write(&file, bytes).unwrap();
    let after = hashes(&json(&verify().out));
    let changed: Vec<_> = before.iter().filter(|(name, hash)| after[*name] != **hash).collect();
    assert_eq!(changed.len(), 1);
}

#[test]
fn a_tensor_that_is_none_of_the_models_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, more) = (dir.path().join("m.gguf"), dir.path().join("more.gguf"));
    let source = fixture("llama");
    run(convert().arg(&source).args(["--to", "gguf:f16", "-o"]).arg(&plain)).code(0);
    let file = GgufFile::open(&plain).unwrap();
    let mut tensors: Vec<(GgufTensorSpec, Vec<u8>)> = Vec::new();
    for info in file.tensors() {
        let (name, shape) = (info.name.clone(), info.shape.clone());
        let bytes = file.bytes(&name).unwrap().to_vec();
        tensors.push((GgufTensorSpec { name, shape, ty: info.ty }, bytes));
    }
    let verify = || run(convert().arg(&source).arg("--verify").arg(&more));
    write(file.metadata(), &tensors, &more);
    verify().code(0);
    let name = "blk.0.spare.weight".to_owned();
    tensors.push((GgufTensorSpec { name, shape: vec![8], ty: BlockType::F32 }, vec![0; 32]));
    write(file.metadata(), &tensors, &more);
    verify().code(1).says("tensor `blk.0.spare.weight` is none of the model's");
}

/// A file in which another program has fused matrices.
#[test]
fn several_tensors_in_one_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, fused) = (dir.path().join("m.gguf"), dir.path().join("fused.gguf"));
    for (name, stems, whole) in CASES {
        let source = fixture(name);
        let made =
            run(convert().arg(&source).args(["--to", "gguf:f16", "--force", "-o"]).arg(&plain));
        made.code(0);
        fuse(&GgufFile::open(&plain).unwrap(), stems, whole, &fused);
        let verify = || run(convert().arg(&source).args(["--json", "--verify"]).arg(&fused));
        let report = json(&verify().code(0).out);
        let named = format!("blk.0.{whole}.weight");
        let rows = report["tensors"].as_array().unwrap();
        assert!(rows.iter().any(|row| row["name"] == named.as_str()), "{report}");

        // Swap two rows of the parts.
        let mut bytes = fs_err::read(&fused).unwrap();
        let shown = json(&run(onboard().arg("show").arg(&fused).arg("--json")).code(0).out);
        let tensors = shown["tensors"].as_array().unwrap();
        let told = tensors.iter().find(|tensor| tensor["name"] == named.as_str()).unwrap();
        let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
        let at = number(&told["offset"]);
        let row = 2 * number(told["shape"].as_array().unwrap().last().unwrap());
        bytes[at..at + 2 * row].rotate_left(row);
        fs_err::write(&fused, bytes).unwrap();
        verify().code(1).says(&format!("tensor `{named}` is off"));
    }
}
