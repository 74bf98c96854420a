//! A tiny checkpoint that needs no files, for tests of engines.

use std::path::Path;

use checkpoints::random::write_random_checkpoint;
use formats::FileDtype;
use serde_json::{Map, Value, json};

use crate::Error;
use crate::config::ConfigFile;
use crate::specs::Specs;

const CONFIG: &str = include_str!("tiny.json");
const TOKENIZER: &str = r#"{"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0"}"#;

/// Writes random weights, a config, and a tokenizer with a word for each token: `t0`, `t1` and so on.
pub fn write(folder: &Path) -> Result<(), Error> {
    let config = ConfigFile::of_text("tiny.json", CONFIG)?;
    let specs = Specs::builtin();
    let spec = specs.matching(&config)?.ok_or(Error::NoBase)?;
    let (model, _) = specs.resolve(&spec, &config, &[])?;
    let weights: Vec<(String, Vec<usize>)> =
        model.graph.weights.iter().map(|w| (w.name.clone(), w.shape.clone())).collect();
    write_random_checkpoint(folder, &weights, FileDtype::F32, 0, 1 << 30)?;
    let words: Map<String, Value> =
        (0..model.vocab).map(|token| (format!("t{token}"), token.into())).collect();
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "model": { "type": "WordLevel", "vocab": words, "unk_token": "t0" },
    });
    fs_err::write(folder.join("config.json"), CONFIG)?;
    fs_err::write(folder.join("tokenizer.json"), tokenizer.to_string())?;
    fs_err::write(folder.join("tokenizer_config.json"), TOKENIZER)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::{OpenOptions, open};

    #[test]
    fn the_checkpoint_opens_and_has_a_word_for_each_token() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let opened = open(folder.path(), &mut Specs::builtin(), &OpenOptions::default()).unwrap();
        let text = fs_err::read_to_string(folder.path().join("tokenizer.json")).unwrap();
        let tokenizer: Value = serde_json::from_str(&text).unwrap();
        let words = tokenizer["model"]["vocab"].as_object().unwrap();
        assert_eq!(words.len(), opened.target.model.vocab);
    }
}
