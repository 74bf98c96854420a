//! Compares the steps of the built-in `gguf:` sections with llama.cpp's own converter.
//!
//! `gguf_truth.json` is made by `fixtures/gguf_keys.py`. The converter was given weights that are counters,
//! each beginning with a number derived from the weight's name. The file lists each tensor's shape, and the
//! sum of its output values, each multiplied by its index.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

use std::path::Path;
use std::sync::Arc;

use onboard_checkpoints::checkpoint::Checkpoint;
use onboard_checkpoints::flow::{Flow, ValueReader};
use onboard_checkpoints::weights::flows;
use registry::config::Config;
use registry::gguf_head::with_head;
use registry::library::Library;
use registry::model::Model;
use registry::ops::OpSet;
use registry::resolve::resolve;
use registry::weight_map::{WeightRule, WeightStep, inverse};
use serde_json::Value;

/// Weight whose values count up.
struct Counter(usize);

impl Counter {
    /// Returns the counter of a name. Layers count alike: the first number in a name does not matter.
    fn new(name: &str) -> Self {
        let mut parts: Vec<&str> = name.split('.').collect();
        let inner = 1..parts.len() - 1;
        let layer = parts[inner].iter().position(|part| part.bytes().all(|b| b.is_ascii_digit()));
        if let Some(layer) = layer {
            parts[layer + 1] = "N";
        }
        Self(parts.join(".").bytes().enumerate().map(|(n, b)| (n + 1) * usize::from(b)).sum())
    }
}

impl ValueReader for Counter {
    fn read(&self, at: usize, out: &mut [f32]) {
        for (n, x) in out.iter_mut().enumerate() {
            *x = ((self.0 + at + n) % 8191) as f32;
        }
    }
}

fn open(name: &str, case: &Value) -> Model {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let config = match case.get("config") {
        Some(config) => Config::parse(name, &config.to_string()).unwrap(),
        None => [root.join(name).join("config.json"), root.join(format!("{name}.json"))]
            .iter()
            .find_map(|path| Config::read(path).ok())
            .unwrap(),
    };
    let library = Library::builtin();
    let specs = library.find(&config);
    let spec = library.load(specs[0], &[]).unwrap();
    resolve(&spec, &config, &OpSet::builtin()).unwrap().0
}

/// Returns a checkpoint with the names and shapes of a case's fixture, and counters as values. Returns none
/// if there is no such fixture, or if it holds blocks, which cannot count.
fn counters(case: &str, dir: &Path) -> Option<Checkpoint> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let fixture = root.join(case.split('/').next()?);
    let real = Checkpoint::open(&fixture).ok()?;
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, info) in real.tensors() {
        if !info.dtype.is_float() {
            return None;
        }
        let mut numbers = vec![0.0; info.shape.iter().product()];
        Counter::new(name).read(0, &mut numbers);
        let from = data.len();
        data.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
        let entry = serde_json::json!({
            "dtype": "F32", "shape": info.shape, "data_offsets": [from, data.len()]
        });
        header.insert(name.clone(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], &header[..], &data[..]].concat();
    fs_err::write(dir.join("model.safetensors"), bytes).unwrap();
    Some(Checkpoint::open(dir).unwrap())
}

fn numbers(flow: &Flow<'_>) -> Vec<f32> {
    let mut numbers = vec![0.0; flow.len()];
    flow.read(0, &mut numbers);
    numbers
}

fn sum(numbers: &[f32]) -> u64 {
    numbers.iter().enumerate().map(|(n, x)| (n as u64 % 997 + 1) * *x as u64).sum::<u64>()
        % 1_000_003
}

/// Returns the sum of a tensor, and true if only its first 32 values were summed.
fn wanted(case: &Value, name: &str) -> (u64, bool) {
    let tensors = case["tensors"].as_object().unwrap();
    let folded = || {
        let mut parts: Vec<&str> = name.split('.').collect();
        parts[1] = "*";
        tensors.get(&parts.join("."))
    };
    let entry = tensors.get(name).or_else(folded).expect("the other test found it");
    let entry = entry.as_array().unwrap();
    (entry.last().unwrap().as_str().unwrap().parse().unwrap(), entry[0] == "vocab")
}

#[test]
fn numbers_are_where_the_original_converter_puts_them() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../registry/tests/gguf_truth.json");
    let truth: serde_json::Map<String, Value> =
        serde_json::from_str(&fs_err::read_to_string(path).unwrap()).unwrap();
    let (mut wrong, mut uncounted) = (Vec::new(), 0);
    for (case, told) in &truth {
        // A case that the original rejects does not define a file.
        if told.get("refused").is_some() {
            continue;
        }
        let model = open(case, told);
        let plain = || Some((model.gguf.clone()?, model.graph.weights.clone()));
        let file = if case.ends_with("/head") { with_head(&model) } else { plain() };
        let Some((gguf, weights)) = file else { continue };
        let weights = &weights;
        let dir = tempfile::tempdir().unwrap();
        let counted = counters(case, dir.path());
        let found = counted.as_ref().and_then(|all| flows(all, weights, &model.rules).ok());
        // The settings of some cases fit no existing checkpoint. Their weights count by their own names,
        // which are those of the disk unless a rule joins or cuts them. None of them was saved without an
        // output matrix; the other cases cover that.
        let changes = |rule: &WeightRule| {
            !rule.steps.is_empty() || rule.weight.text != format!("model.{}", rule.disk.text)
        };
        if found.is_none() && model.rules.iter().any(changes) {
            uncounted += 1;
            continue;
        }
        for group in gguf.groups(weights).unwrap() {
            // With counters, e^n is too large to sum on either side.
            if group.steps.contains(&WeightStep::NegExp) {
                continue;
            }
            let flow = |&n: &usize| match &found {
                Some(found) => found.0[n].flow.clone(),
                None => Flow::new(&weights[n].shape, Arc::new(Counter::new(&weights[n].name))),
            };
            let sources: Vec<Flow<'_>> = group.weights.iter().map(flow).collect();
            let made = Flow::run(&group.steps, sources.clone()).unwrap();
            for ((name, _), flow) in group.tensors.iter().zip(&made) {
                let (wanted, first) = wanted(told, name);
                let mut numbers = numbers(flow);
                numbers.truncate(if first { 32 } else { usize::MAX });
                if sum(&numbers) != wanted {
                    wrong.push(format!("{case}: `{name}` sums to {}, not {wanted}", sum(&numbers)));
                }
            }
            let shapes = sources.iter().map(|flow| flow.shape().to_vec()).collect();
            let back = Flow::run(&inverse(&group.steps, shapes).unwrap(), made).unwrap();
            for (flow, source) in back.iter().zip(&sources) {
                assert_eq!(flow.shape(), source.shape(), "{case}");
                // Multiplying and dividing by a value may give a neighbouring f32.
                let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 2.0 * f32::EPSILON * b.abs();
                assert!(
                    numbers(flow).iter().zip(&numbers(source)).all(close),
                    "{case}: {:?} back",
                    group.tensors
                );
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(uncounted * 5 < truth.len(), "{uncounted} of {} cases are not looked at", truth.len());
}
