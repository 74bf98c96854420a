//! Reads plain samples, with the keys of `docs/evals.md`, and the predictions of sgl-eval 0.1.3, which
//! renames some of them.

use std::collections::BTreeMap;

use formats::shown;

use super::super::sample::Sample;
use super::super::tree::JsonTree;
use super::ResultRecord;

/// First line of a file that `parity eval` wrote.
pub(in super::super) const SCHEMA: &str = "onboard-eval/1";

const ID: &[&str] = &["id", "doc_id"];
const RESULTS: &[&str] = &["logprobs", "text", "generation", "answer", "correct", "scores"];
/// Scores that may appear among the other keys, as in samples of lm-eval.
const SCORES: &[&str] = &["acc", "acc_norm", "exact_match", "score"];
/// Facts that a record or the first line may state.
const FACTS: &[&str] = &[
    "model",
    "task",
    "engine",
    "dtype",
    "temperature",
    "max_tokens",
    "until",
    "regex",
    "do_sample",
];

/// True for a plain sample, or the first line of a file of them.
pub(super) fn is(tree: &JsonTree) -> bool {
    let result = RESULTS.iter().chain(SCORES).any(|key| tree.has(key));
    is_head(tree) || (tree.first(ID).is_some() && result)
}

fn is_head(tree: &JsonTree) -> bool {
    tree.get("schema").and_then(JsonTree::str) == Some(SCHEMA)
}

pub(super) fn facts(tree: &JsonTree, facts: &mut BTreeMap<String, String>) {
    for key in FACTS {
        if let Some(value) = tree.get(key).and_then(JsonTree::words)
            && !facts.contains_key(*key)
        {
            facts.insert((*key).to_owned(), value);
        }
    }
}

pub(super) fn record(tree: &JsonTree) -> Result<ResultRecord, String> {
    if is_head(tree) {
        let mut head_facts = BTreeMap::new();
        facts(tree, &mut head_facts);
        return Ok(ResultRecord::Head(head_facts));
    }
    let id = tree.first(ID).and_then(JsonTree::word).ok_or("`id` is neither text nor number")?;
    let mut sample = Sample {
        id,
        hash: word_of(tree, &["doc_hash"]),
        prompts: word_of(tree, &["prompt", "problem"]).into_iter().collect(),
        text: word_of(tree, &["text", "generation"]),
        answer: word_of(tree, &["answer", "predicted_answer"]),
        target: word_of(tree, &["target", "expected_answer"]),
        ..Sample::default()
    };
    if let Some(ids) = tree.first(&["ids"]) {
        sample.ids = Some(ids.ids().ok_or_else(|| not_a_list(&sample.id, "ids", "token ids"))?);
    }
    if let Some(prompts) = tree.first(&["prompts"]) {
        sample.prompts =
            prompts.texts().ok_or_else(|| not_a_list(&sample.id, "prompts", "texts"))?;
    }
    if let Some(choices) = tree.first(&["choices"]) {
        let between = tree.get("delimiter").and_then(JsonTree::str).unwrap_or_default();
        let choices = choices.texts().ok_or_else(|| not_a_list(&sample.id, "choices", "texts"))?;
        sample.choices = choices.into_iter().map(|choice| format!("{between}{choice}")).collect();
    }
    if let Some(tokens) = tree.first(&["tokens"]) {
        let tokens = tokens.ids().ok_or_else(|| not_a_list(&sample.id, "tokens", "counts"))?;
        sample.tokens = tokens.into_iter().map(|count| count as usize).collect();
    }
    if let Some(logprobs) = tree.first(&["logprobs"]) {
        let values =
            logprobs.list().ok_or_else(|| not_a_list(&sample.id, "logprobs", "numbers"))?;
        // A missing value is compared as one that is not finite.
        sample.logprobs = values.iter().map(|value| value.number().unwrap_or(f64::NAN)).collect();
        if sample.answer.is_none() && sample.logprobs.len() > 1 {
            sample.answer = sample.best().map(|best| best.to_string());
        }
    }
    let named = tree.get("scores").map(JsonTree::entries).unwrap_or_default();
    let named = named.iter().map(|(key, value)| (key.as_str(), value));
    let beside = SCORES.iter().filter_map(|key| Some((*key, tree.first(&[key])?)));
    let correct = tree.first(&["correct", "symbolic_correct"]).map(|value| ("correct", value));
    for (key, value) in named.chain(beside).chain(correct) {
        if *value == JsonTree::Null {
            continue;
        }
        let score = value.number().ok_or_else(|| {
            format!(
                "`{}` of `{}` is neither true, false nor a number",
                shown(key),
                shown(&sample.id)
            )
        })?;
        sample.scores.insert(key.to_owned(), score);
    }
    if sample.scores.is_empty()
        && let (Some(answer), Some(target)) = (&sample.answer, &sample.target)
    {
        let right = f64::from(u8::from(answer.trim() == target.trim()));
        sample.scores.insert("correct".to_owned(), right);
    }
    Ok(ResultRecord::Sample(Box::new(sample), None))
}

/// Returns the text of the first of some keys.
fn word_of(tree: &JsonTree, keys: &[&str]) -> Option<String> {
    tree.first(keys).and_then(JsonTree::word)
}

/// Describes a value of a sample that is no list.
fn not_a_list(id: &str, key: &str, what: &str) -> String {
    format!("`{key}` of `{}` is no list of {what}", shown(id))
}
