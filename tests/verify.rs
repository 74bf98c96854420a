//! A written file held to its source: `convert --verify`, and `show --json`, which reads it whole.

use std::collections::BTreeMap;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::tool::{convert, fixture, json, onboard, run};

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
