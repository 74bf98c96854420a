//! The way back: from the keys and shapes of llama.cpp's files to the models that they were made of.
//!
//! `lost.txt` names what such a file does not tell, by the dims that come out otherwise.

use std::collections::{BTreeMap, BTreeSet};

use onboard_spec::gguf::{FileMetadata, KeyTree};
use onboard_spec::gguf_match::FileSpecs;
use onboard_spec::library::Library;
use onboard_spec::model::Model;
use onboard_spec::ops::OpSet;
use onboard_spec::scalar::Scalar;
use serde_json::Value;

use super::{number, open, truth};

/// Builds the evidence of a file that llama.cpp's converter wrote.
fn evidence(name: &str, case: &Value, model: &Model) -> FileMetadata {
    let mut keys = KeyTree::default();
    let vocab = |value: &Value| number(value, model.vocab).as_u64().unwrap() as usize;
    let ours = case["ours"].as_object().into_iter().flatten();
    let theirs = case["keys"].as_object().unwrap().iter();
    // The first of two is kept.
    for (key, value) in ours.chain(theirs) {
        if let Some(key) = key.strip_prefix(&format!("{}.", case["arch"].as_str().unwrap())) {
            keys.add(key, scalar(&number(value, model.vocab)));
        }
    }
    let mut tensors = BTreeMap::new();
    for (name, shape) in case["tensors"].as_object().unwrap() {
        let shape = shape.as_array().unwrap().split_last().unwrap().1;
        let shape: Vec<usize> = shape.iter().map(vocab).collect();
        match name.split_once(".*.") {
            Some((start, end)) => {
                for n in 0..model.dims["layers"].as_usize().unwrap() {
                    tensors.insert(format!("{start}.{n}.{end}"), shape.clone());
                }
            }
            None => drop(tensors.insert(name.clone(), shape)),
        }
    }
    for (name, shape) in &tensors {
        let shape = shape.iter().map(|&dim| Scalar::Int(dim as i64)).collect();
        keys.add(&format!("shapes.{name}"), Scalar::List(shape));
    }
    for (name, numbers) in case["made"].as_object().unwrap() {
        keys.add(&format!("numbers.{name}"), scalar(numbers));
        tensors.insert(name.clone(), vec![numbers.as_array().unwrap().len()]);
    }
    FileMetadata {
        keys: keys.into_config(name),
        tensors,
        companions: std::collections::BTreeSet::new(),
    }
}

fn scalar(value: &Value) -> Scalar {
    match value {
        Value::Bool(b) => Scalar::Bool(*b),
        Value::Number(n) => {
            n.as_i64().map_or_else(|| Scalar::Float(n.as_f64().unwrap()), Scalar::Int)
        }
        Value::String(text) => Scalar::Str(text.clone()),
        Value::Array(items) => Scalar::List(items.iter().map(scalar).collect()),
        Value::Null | Value::Object(_) => Scalar::Null,
    }
}

#[test]
fn files_of_the_original_converter_tell_their_models() {
    let families = FileSpecs::new(&Library::builtin());
    let mut lost = Vec::new();
    for (name, case) in &truth() {
        if case.get("refused").is_some() {
            continue;
        }
        let Ok(model) = open(name, case) else { continue };
        if model.gguf.is_none() {
            continue;
        }
        let evidence = evidence(name, case, &model);
        let arch = case["arch"].as_str().unwrap();
        match families.choose(&OpSet::builtin(), arch, None, &evidence) {
            Ok(chosen) if same(name, &chosen.model, &model) => {}
            Ok(chosen) => lost.push(format!("{name}: {}", told_apart(&model, &chosen.model))),
            Err(_) => lost.push(format!("{name}: refused")),
        }
    }
    let known = include_str!("lost.txt").lines().filter(|line| !line.starts_with('#'));
    let known: Vec<&str> = known.collect();
    similar_asserts::assert_eq!(lost.join("\n"), known.join("\n"));
}

/// True if two models are equal, with their heads where the case has one.
fn same(name: &str, a: &Model, b: &Model) -> bool {
    a.graph == b.graph && (!name.ends_with("/head") || a.nextn == b.nextn)
}

/// Names of dims that differ between two models, and `rope` for rotary tables.
fn told_apart(a: &Model, b: &Model) -> String {
    let of = |model: &Model, name: &str| model.dims.get(name).cloned().unwrap_or(Scalar::Null);
    let names: BTreeSet<&String> = a.dims.keys().chain(b.dims.keys()).collect();
    let differ = names.into_iter().filter(|name| of(a, name) != of(b, name));
    let mut said: Vec<&str> = differ.map(String::as_str).collect();
    if a.ropes != b.ropes {
        said.push("rope");
    }
    if said.is_empty() {
        // Dims are the same: what is not of the graph's own layers, as a head for drafts.
        said.push("graph");
    }
    said.join(" ")
}
