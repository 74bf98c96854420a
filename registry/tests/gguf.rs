//! The `gguf:` sections of the built-in specs against what llama.cpp's own converter writes.
//!
//! `gguf_truth.json` is made by `fixtures/gguf_keys.py`. An integer there is a u32 (in a list
//! an i32), any other number an f32; `"vocab"` is the size of the vocabulary. Behind a shape stands
//! a sum over the tensor, which `converters/checkpoints/tests/gguf_values.rs` looks at. `ours` is what is meant
//! to differ, with null for what we leave out; `doubts` are assumptions of llama.cpp that do not hold.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

#[path = "gguf/absent.rs"]
mod absent;
#[path = "gguf/back.rs"]
mod back;
#[path = "gguf/inherited.rs"]
mod inherited;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use onboard_spec::config::Config;
use onboard_spec::diag::{Finding, Severity};
use onboard_spec::gguf::{Gguf, is_known, knows_tensor};
use onboard_spec::gguf_head::with_head;
use onboard_spec::graph::Weight;
use onboard_spec::library::Library;
use onboard_spec::model::Model;
use onboard_spec::ops::OpSet;
use onboard_spec::resolve::resolve;
use onboard_spec::scalar::Scalar;
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn truth() -> serde_json::Map<String, Value> {
    let text = fs_err::read_to_string(root().join("tests/gguf_truth.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn open(name: &str, case: &Value) -> Result<Model, String> {
    let config = if let Some(config) = case.get("config") {
        Config::parse(name, &config.to_string())
    } else {
        let fixtures = root().join("../fixtures");
        let folder = fixtures.join(name).join("config.json");
        let file = if folder.exists() { folder } else { fixtures.join(format!("{name}.json")) };
        Config::read(&file)
    };
    let config = config.map_err(|finding| finding.message)?;
    let library = Library::builtin();
    let names = library.find(&config);
    let told = |findings: Vec<Finding>| {
        let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
        let told = |f: &Finding| format!("{} ({}) {:?}", f.message, f.label, f.help);
        errors.map(told).collect::<Vec<_>>().join("\n")
    };
    let spec = library.load(names.first().ok_or("no spec")?, &[]).map_err(told)?;
    resolve(&spec, &config, &OpSet::builtin()).map(|(model, _)| model).map_err(told)
}

/// The file of a case, with the head of the model where the name says so, and the weights in it.
fn file(name: &str, model: &Model) -> Option<(Gguf, Vec<Weight>)> {
    if name.ends_with("/head") {
        return with_head(model);
    }
    Some((model.gguf.clone()?, model.graph.weights.clone()))
}

fn number(value: &Value, vocab: usize) -> Value {
    if value == "vocab" { vocab.into() } else { value.clone() }
}

/// True if a key holds the expected value.
fn same(ours: &Scalar, wanted: &Value) -> bool {
    match (ours, wanted) {
        (Scalar::Bool(a), Value::Bool(b)) => a == b,
        (Scalar::Str(a), Value::String(b)) => a == b,
        (Scalar::Int(a), Value::Number(b)) => b.as_i64() == Some(*a),
        // Both are kept in an f32.
        (Scalar::Float(a), Value::Number(b)) => {
            b.is_f64() && b.as_f64().is_some_and(|b| *a as f32 == b as f32)
        }
        // JSON has no infinite numbers.
        (Scalar::Float(a), Value::String(b)) => b.parse() == Ok(*a) && a.is_infinite(),
        (Scalar::List(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        _ => false,
    }
}

fn keys(
    (gguf, weights): &(Gguf, Vec<Weight>),
    model: &Model,
    case: &Value,
    faults: &mut Vec<String>,
) {
    let mut wanted: BTreeMap<String, Value> =
        case["keys"].as_object().unwrap().clone().into_iter().collect();
    for (key, value) in case["ours"].as_object().into_iter().flatten() {
        let same = wanted.insert(key.clone(), value.clone()).as_ref() == Some(value);
        assert!(!same, "`ours` says of `{key}` what is the same");
    }
    wanted.retain(|_, value| !value.is_null());
    let mut found = BTreeSet::new();
    for (key, value) in &gguf.metadata {
        assert!(found.insert(key.clone()), "`{key}` twice");
        match wanted.get(key) {
            Some(wanted) if same(value, &number(wanted, model.vocab)) => {}
            Some(wanted) => faults.push(format!("`{key}` is {value}, not {wanted}")),
            None => faults.push(format!("`{key}` is {value} and should not be there")),
        }
    }
    for (key, places) in gguf.scalar_weights(weights) {
        found.insert(key.to_owned());
        let count: usize = places.iter().map(|&n| weights[n].shape.iter().product::<usize>()).sum();
        let wanted = wanted.get(key).and_then(Value::as_array).map(Vec::len);
        if wanted != Some(count) {
            faults.push(format!("`{key}` has {count} numbers, not {wanted:?}"));
        }
    }
    for (key, value) in wanted.iter().filter(|(key, _)| !found.contains(*key)) {
        faults.push(format!("`{key}` is missing, should be {value}"));
    }
}

fn tensors(
    (gguf, weights): &(Gguf, Vec<Weight>),
    model: &Model,
    case: &Value,
    faults: &mut Vec<String>,
) {
    let layers = model.dims["layers"].as_usize().unwrap();
    let mut wanted: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (name, shape) in case["tensors"].as_object().unwrap() {
        let sizes = shape.as_array().unwrap().split_last().expect("a sum at the end").1;
        let size = |size| number(size, model.vocab).as_u64().unwrap() as usize;
        let shape: Vec<usize> = sizes.iter().map(size).collect();
        match name.split_once(".*.") {
            Some((start, end)) => {
                for n in 0..layers {
                    wanted.insert(format!("{start}.{n}.{end}"), shape.clone());
                }
            }
            None => drop(wanted.insert(name.clone(), shape)),
        }
    }
    let groups = match gguf.groups(weights) {
        Ok(groups) => groups,
        Err(why) => return faults.extend(why.iter().map(ToString::to_string)),
    };
    let found: BTreeMap<String, Vec<usize>> =
        groups.iter().flat_map(|group| group.tensors.iter().cloned()).collect();
    for (name, shape) in &found {
        if wanted.get(name) != Some(shape) {
            faults.push(format!("`{name}` is {shape:?}, not {:?}", wanted.get(name)));
        }
    }
    for (name, shape) in wanted.iter().filter(|(name, _)| !found.contains_key(*name)) {
        faults.push(format!("`{name}` is missing, should be {shape:?}"));
    }
    assert!(is_known(&gguf.arch), "{}", gguf.arch);
    let computed = gguf.tensors.iter().map(|(name, _)| name);
    for name in found.keys().chain(computed).filter(|name| !knows_tensor(&gguf.arch, name)) {
        faults.push(format!("llama.cpp does not know `{name}`"));
    }
    let made: BTreeMap<&str, &Vec<f32>> =
        gguf.tensors.iter().map(|(name, numbers)| (name.as_str(), numbers)).collect();
    let wanted: BTreeMap<&str, Vec<f32>> = case["made"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, numbers)| {
            let numbers = numbers.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32);
            (name.as_str(), numbers.collect())
        })
        .collect();
    if made.keys().ne(wanted.keys()) {
        faults.push(format!("computed are {:?}, not {:?}", made.keys(), wanted.keys()));
    }
    for (name, numbers) in made {
        if let Some(wanted) = wanted.get(name).filter(|wanted| *wanted != numbers) {
            faults.push(format!("`{name}` is {numbers:?}, not {wanted:?}"));
        }
    }
}

#[test]
fn specs_make_the_files_of_the_original_converter() {
    let (mut wrong, mut seen) = (Vec::new(), BTreeSet::new());
    let truth = truth();
    for (name, case) in &truth {
        let mut faults = Vec::new();
        // What the original refuses tells nothing of what a file should be.
        if case.get("refused").is_some() {
            continue;
        }
        match open(name, case) {
            Ok(model) if model.gguf.is_none() => {}
            Err(why) => faults.push(why),
            Ok(model) => {
                // llama.cpp may know what nobody has described to us.
                let Some(file) = file(name, &model) else { continue };
                let gguf = &file.0;
                seen.insert(model.name.clone());
                if gguf.arch != case["arch"] {
                    faults.push(format!("the architecture is {}, not {}", gguf.arch, case["arch"]));
                }
                let doubts: Vec<&str> = gguf.doubts.iter().map(String::as_str).collect();
                let wanted = case.get("doubts").and_then(Value::as_array).cloned();
                if doubts != wanted.unwrap_or_default() {
                    faults.push(format!("the doubts are {doubts:?}"));
                }
                keys(&file, &model, case, &mut faults);
                tensors(&file, &model, case, &mut faults);
            }
        }
        if !faults.is_empty() {
            wrong.push(format!("{name}:\n  {}", faults.join("\n  ")));
        }
    }
    assert!(wrong.is_empty(), "{} of {}\n{}", wrong.len(), truth.len(), wrong.join("\n"));
    let library = Library::builtin();
    let described = |name: &&str| library.load(name, &[]).is_ok_and(|spec| spec.gguf.is_some());
    let unseen: Vec<&str> =
        library.names().filter(|name| !seen.contains(*name)).filter(described).collect();
    assert!(unseen.is_empty(), "specs without a case: {unseen:?}");
}
