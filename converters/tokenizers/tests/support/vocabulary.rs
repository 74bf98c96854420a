//! Writes a tokenizer in the files that preceded tokenizer.json.

use std::path::Path;

use serde_json::Value;

/// Writes the tokenizer of `qwen2` in the older form: vocab.json and merges.txt.
pub(crate) fn write_vocab_and_merges(dir: &Path) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/qwen2/tokenizer.json");
    let json: Value = serde_json::from_slice(&fs_err::read(file).unwrap()).unwrap();
    fs_err::write(dir.join("vocab.json"), json["model"]["vocab"].to_string()).unwrap();
    let merges = json["model"]["merges"].as_array().unwrap().iter().map(|merge| match merge {
        Value::String(text) => format!("{text}\n"),
        pair => format!("{} {}\n", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    });
    let text = format!("#version: 0.2\n{}", merges.collect::<String>());
    fs_err::write(dir.join("merges.txt"), text).unwrap();
}
