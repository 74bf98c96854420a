//! Tokenizers of every fixture, against what llama.cpp made of them, and folders that are wrong.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

use std::path::{Path, PathBuf};

use converters::gguf::Value as Gguf;
use converters::tokenizer::check::{Loaded, corpus};
use converters::tokenizer::{self, Options, Tokenizer};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

fn parsed(path: &Path) -> Value {
    serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap()
}

/// What llama.cpp's converter and tokenizer made of the fixtures, by `fixtures/peer.py`.
fn peer() -> Value {
    parsed(&fixtures().join("tokenizers.json"))
}

fn rows(name: &str) -> usize {
    let config = parsed(&fixtures().join(name).join("config.json"));
    config["vocab_size"].as_u64().unwrap() as usize
}

fn options(pre: &str) -> Options {
    Options { pre: Some(pre.to_owned()), ..Options::default() }
}

fn read(name: &str, options: &Options) -> Tokenizer {
    let read = tokenizer::read(&fixtures().join(name), rows(name), options);
    read.unwrap_or_else(|why| panic!("{name}: {why}"))
}

fn names() -> Vec<String> {
    let peer = peer();
    let names: Vec<String> = peer.as_object().unwrap().keys().cloned().collect();
    assert!(names.len() > 20);
    names
}

fn digest(texts: impl IntoIterator<Item = String>) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    format!("{:x}", hash.finalize())
}

/// A value as `peer.py` writes it.
fn short(value: &Gguf) -> Value {
    let plain = |value: &Gguf| match value {
        Gguf::Bool(x) => json!(x),
        Gguf::String(x) => json!(x),
        other => json!(i64::try_from(other.integer().unwrap()).unwrap()),
    };
    let text = |value: &Gguf| match value {
        Gguf::F32(x) => x.to_le_bytes().map(|byte| format!("{byte:02x}")).concat(),
        Gguf::String(x) => x.clone(),
        other => other.integer().unwrap().to_string(),
    };
    let Gguf::Array(array) = value else { return plain(value) };
    let all = (0..array.len()).map(|n| array.get(n).unwrap());
    if array.len() < 8 {
        return all.map(|value| plain(&value)).collect();
    }
    json!({"length": array.len(), "sha256": digest(all.map(|value| text(&value)))})
}

#[test]
fn every_fixture_is_tokenized_alike() {
    for name in names() {
        let made = read(&name, &Options::default());
        let checked = tokenizer::self_check(&made, &fixtures().join(&name))
            .unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!(checked.known, [""; 0], "{name}");
        assert_eq!(checked.strings + checked.skipped, corpus().len(), "{name}");
        assert!(checked.skipped < 25, "{name}: {}", checked.skipped);
    }
}

#[test]
fn every_fixture_is_split_as_the_program_does_it() {
    let peer = peer();
    for name in names() {
        let pre = peer[&name]["keys"]["tokenizer.ggml.pre"].as_str().unwrap();
        let loaded = Loaded::new(&read(&name, &options(pre)).keys).unwrap();
        let lists = corpus().map(|text| {
            let ids: Vec<String> =
                loaded.encode(text).unwrap().iter().map(u32::to_string).collect();
            format!("[{}]", ids.join(", "))
        });
        assert_eq!(digest(lists), peer[&name]["corpus"].as_str().unwrap(), "{name}");
    }
}

/// Keys that are not the converter's: pieces of a tokenizer.json score by their merges, and
/// special tokens that the converter knows by a model's name are not guessed.
const DIFFERENT: [(&str, &str); 4] = [
    ("glm4", "tokenizer.ggml.eot_token_id"),
    ("glm4", "tokenizer.ggml.unknown_token_id"),
    ("mistral", "tokenizer.ggml.scores"),
    ("mistral", "tokenizer.ggml.token_type"),
];

#[test]
fn keys_are_those_of_the_converter() {
    let peer = peer();
    let mut faults = Vec::new();
    for name in names() {
        let theirs = peer[&name]["keys"].as_object().unwrap();
        let pre = theirs["tokenizer.ggml.pre"].as_str().unwrap();
        let ours = read(&name, &options(pre)).keys;
        for (key, value) in theirs {
            if DIFFERENT.contains(&(name.as_str(), key.as_str())) {
                continue;
            }
            if ours.get(key).map(short).as_ref() != Some(value) {
                faults.push(format!("{name}: {key}: {:?}, not {value}", ours.get(key).map(short)));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
