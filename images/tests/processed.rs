//! Every kind of processor, on pictures that transformers' classes were run on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use onboard_images::decode::{DecodeLimits, read};
use onboard_images::{BackEnd, ImagePrompt, Picture, Processor, ProcessorOptions, Tensor, Values};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn truth() -> Value {
    serde_json::from_slice(&fs_err::read(data("processed.json")).unwrap()).unwrap()
}

fn bytes(values: &Values) -> Vec<u8> {
    match values {
        Values::Float(numbers) => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
        Values::Int(numbers) => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
    }
}

fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let start = digest[..16].try_into().expect("sixteen bytes");
    format!("{:032x}", u128::from_be_bytes(start))
}

/// Returns twelve numbers of a result, those that the truth lists.
fn sample(tensor: &Tensor) -> Vec<f64> {
    match &tensor.values {
        Values::Float(numbers) => {
            let last = numbers.len() - 1;
            (0..12).map(|n| f64::from(numbers[n * last / 11])).collect()
        }
        Values::Int(numbers) => numbers.iter().take(64).map(|number| *number as f64).collect(),
    }
}

/// Writes a prompt with repeated words between brackets once, as the truth does.
fn collapsed(prompt: &ImagePrompt) -> String {
    let text = prompt.to_string();
    let mut output = String::new();
    let mut at = 0;
    while at < text.len() {
        let tail = &text[at..];
        let close = match tail.as_bytes()[0] {
            b'<' => tail.find('>'),
            b'[' => tail.find(']'),
            _ => None,
        };
        if let Some(close) = close {
            let word = &tail[..=close];
            let mut times = 0;
            while text[at..].starts_with(word) {
                times += 1;
                at += word.len();
            }
            write!(output, "{word}*{times} ").unwrap();
        } else {
            let letter = tail.chars().next().unwrap();
            output.push(letter);
            at += letter.len_utf8();
        }
    }
    output
}

fn pictures(run: &Value) -> Vec<Picture> {
    let names = run["pictures"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
    let files = names.map(|name| data("pictures").join(format!("{name}.png")));
    files.map(|file| read(&file, &DecodeLimits::default()).unwrap()).collect()
}

/// Compares one run; returns what differs.
fn differences(name: &str, run: &Value) -> Vec<String> {
    let back_end = if run["back_end"] == "pil" { BackEnd::Pil } else { BackEnd::Torchvision };
    let options = ProcessorOptions { back_end, ..ProcessorOptions::default() };
    let place = format!("{name} {} {}", run["back_end"], run["pictures"]);
    let processor = match Processor::open_with(data("processors").join(name), options) {
        Ok(processor) => processor,
        Err(error) => return vec![format!("{place}: {error}")],
    };
    assert!(processor.unread().is_empty(), "{name}: {:?}", processor.unread());
    let prepared = match (processor.prepare(&pictures(run)), &run["error"]) {
        (Ok(prepared), Value::Null) => prepared,
        (Err(_), Value::String(_)) => return Vec::new(),
        (Ok(_), error) => return vec![format!("{place}: the class refuses: {error}")],
        (Err(error), _) => return vec![format!("{place}: {error}")],
    };
    let mut differences = Vec::new();
    let expected = run["outputs"].as_object().unwrap();
    let names: Vec<&String> = prepared.outputs.keys().collect();
    if expected.keys().any(|key| !prepared.outputs.contains_key(key))
        || names.len() != expected.len()
    {
        differences
            .push(format!("{place}: {names:?} for {:?}", expected.keys().collect::<Vec<_>>()));
    }
    for (key, entry) in expected {
        let Some(tensor) = prepared.outputs.get(key) else { continue };
        let shape: Vec<Value> = tensor.shape.iter().map(|side| (*side).into()).collect();
        if Value::Array(shape) != entry["shape"] {
            differences.push(format!("{place} {key}: {:?} for {}", tensor.shape, entry["shape"]));
        } else if digest(&bytes(&tensor.values)) != entry["hash"] {
            differences.push(format!(
                "{place} {key}: {:?} for {}",
                sample(tensor),
                entry["values"]
            ));
        }
    }
    let texts: Vec<Value> = prepared.prompts.iter().map(collapsed).map(Value::from).collect();
    if Value::Array(texts.clone()) != run["prompts"] {
        differences.push(format!("{place}: {texts:?} for {}", run["prompts"]));
    }
    differences
}

#[test]
fn results_are_those_of_transformers() {
    let mut lines = Vec::new();
    let mut count = 0;
    for (name, runs) in truth().as_object().unwrap() {
        for run in runs.as_array().unwrap() {
            count += 1;
            lines.extend(differences(name, run));
        }
    }
    assert!(count > 400, "{count} runs");
    assert!(lines.is_empty(), "{} of {count}\n{}", lines.len(), lines.join("\n"));
}
