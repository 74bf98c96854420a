//! Reads bench files with texts: SGLang 0.5.23 (`benchmark/serving.py`, `--output-details`) and vLLM 0.33.0
//! (`benchmarks/serve.py`, `--save-detailed`). One record is a run; it contains the lengths of prompts, but
//! not the prompts.

use std::collections::BTreeMap;

use super::super::sample::Sample;
use super::super::tree::JsonTree;
use super::ResultRecord;

/// Returns the flag that writes texts, if the record is of a bench without them.
pub(super) fn throughput(tree: &JsonTree) -> Option<&'static str> {
    if !tree.has("request_throughput") && !tree.has("requests_per_second") {
        return None;
    }
    let vllm = tree.has("endpoint_type") || tree.has("tokenizer_id") || tree.has("model_id");
    Some(if vllm {
        "`vllm bench serve --save-result --save-detailed`"
    } else {
        "`--output-details` of SGLang's bench_serving"
    })
}

pub(super) fn record(tree: &JsonTree) -> Result<ResultRecord, String> {
    let texts = tree
        .get("generated_texts")
        .and_then(JsonTree::list)
        .ok_or("`generated_texts` is no list")?;
    let lengths = tree.get("input_lens").and_then(JsonTree::numbers).unwrap_or_default();
    let errors = tree.get("errors").and_then(JsonTree::list).unwrap_or_default();
    let mut samples = Vec::new();
    for (at, text) in texts.iter().enumerate() {
        let failed = errors.get(at).and_then(JsonTree::str).is_some_and(|error| !error.is_empty());
        samples.push(Sample {
            id: at.to_string(),
            line: 1,
            prompt_tokens: lengths.get(at).filter(|n| **n >= 0.0).map(|n| *n as usize),
            // A failed request has no text.
            text: text.str().filter(|_| !failed).map(str::to_owned),
            ..Sample::default()
        });
    }
    let mut facts = BTreeMap::new();
    for (name, keys) in [
        ("model", &["model_id"] as &[&str]),
        ("backend", &["backend"]),
        ("dataset", &["dataset_name"]),
        ("temperature", &["temperature"]),
    ] {
        if let Some(value) = tree.first(keys).and_then(JsonTree::word) {
            facts.insert(name.to_owned(), value);
        }
    }
    let server = tree.get("server_info");
    for (name, key) in [("model", "model_path"), ("dtype", "dtype")] {
        if let Some(value) = server.and_then(|server| server.get(key)).and_then(JsonTree::word) {
            facts.insert(name.to_owned(), value);
        }
    }
    Ok(ResultRecord::Run(samples, facts))
}
