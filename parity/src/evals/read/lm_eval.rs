//! Reads samples of lm-eval 0.4.13 (`--log_samples`; `result_schema.py`, `evaluation_tracker.py`).
//!
//! `arguments` is `{"gen_args_0": {"arg_0": CONTEXT, "arg_1": CONTINUATION or SETTINGS}, ...}` (lists of lists
//! before 0.4.4), and numbers of `resps` are text.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::sample::Sample;
use super::super::tree::JsonTree;
use super::{ResultRecord, folder};

pub(in super::super) fn record(tree: &JsonTree) -> Result<ResultRecord, String> {
    let id =
        tree.get("doc_id").and_then(JsonTree::word).ok_or("`doc_id` is neither text nor number")?;
    let mut sample = Sample {
        id,
        hash: tree.get("doc_hash").and_then(JsonTree::word),
        prompt_hash: tree.get("prompt_hash").and_then(JsonTree::word),
        target: tree.get("target").and_then(JsonTree::word),
        ..Sample::default()
    };
    let requests = requests(tree.get("arguments"));
    let mut scored = !requests.is_empty();
    for request in &requests {
        sample.prompts.extend(request.first().and_then(|context| context.str()).map(str::to_owned));
        match request.get(1) {
            Some(JsonTree::Text(continuation)) => sample.choices.push(continuation.clone()),
            Some(_) => scored = false,
            None => {}
        }
    }
    if sample.prompts.windows(2).all(|pair| pair[0] == pair[1]) {
        sample.prompts.truncate(1);
    }
    let answers = tree.get("filtered_resps").and_then(JsonTree::list).unwrap_or_default();
    let raw = tree.get("resps").and_then(JsonTree::list).unwrap_or_default();
    if requests.is_empty() {
        scored = raw.iter().chain(answers).next().is_some_and(|first| pair(first).is_some());
    }
    if scored {
        let from = if answers.is_empty() { raw } else { answers };
        sample.logprobs = from.iter().map(|answer| logprob(answer).unwrap_or(f64::NAN)).collect();
        if sample.logprobs.len() > 1 {
            sample.answer = sample.best().map(|best| best.to_string());
        }
    } else {
        sample.text = raw.first().and_then(innermost).and_then(JsonTree::word);
        sample.answer = answers.first().and_then(innermost).and_then(JsonTree::word);
    }
    for metric in tree.get("metrics").and_then(JsonTree::texts).unwrap_or_default() {
        if let Some(value) = tree.get(&metric).and_then(JsonTree::number) {
            sample.scores.insert(metric, value);
        }
    }
    let filter = tree.get("filter").and_then(JsonTree::word);
    Ok(ResultRecord::Sample(Box::new(sample), filter))
}

fn requests(arguments: Option<&JsonTree>) -> Vec<Vec<&JsonTree>> {
    fn parts(request: &JsonTree) -> Vec<&JsonTree> {
        match request {
            JsonTree::Map(entries) => entries.iter().map(|(_, value)| value).collect(),
            JsonTree::List(values) => values.iter().collect(),
            _ => Vec::new(),
        }
    }
    match arguments {
        Some(JsonTree::Map(entries)) => entries.iter().map(|(_, request)| parts(request)).collect(),
        Some(JsonTree::List(requests)) => requests.iter().map(parts).collect(),
        _ => Vec::new(),
    }
}

/// Returns the log-probability of `[logprob, is_greedy]`, which is nested in one list per repeat.
fn pair(answer: &JsonTree) -> Option<f64> {
    let values = answer.list()?;
    if let [logprob, greedy] = values
        && greedy.flag().is_some()
        && logprob.list().is_none()
    {
        return logprob.number();
    }
    values.first().and_then(pair)
}

fn logprob(answer: &JsonTree) -> Option<f64> {
    pair(answer).or_else(|| innermost(answer).and_then(JsonTree::number))
}

fn innermost(answer: &JsonTree) -> Option<&JsonTree> {
    match answer {
        JsonTree::List(values) => values.first().and_then(innermost),
        other => Some(other),
    }
}

/// Reads the settings of generation from the first record that has them.
pub(in super::super) fn facts(tree: &JsonTree, facts: &mut BTreeMap<String, String>) {
    if facts.contains_key("until") || facts.contains_key("temperature") {
        return;
    }
    let first = requests(tree.get("arguments")).into_iter().next().unwrap_or_default();
    for (key, value) in first.get(1).map(|settings| settings.entries()).unwrap_or_default() {
        if let Some(value) = value.words() {
            facts.insert(key.clone(), value);
        }
    }
}

/// Adds facts of the results file beside the samples: `samples_TASK_DATE.jsonl` has `results_DATE.json`.
pub(super) fn add_results_facts(path: &Path, facts: &mut BTreeMap<String, String>) {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let Some((task, date)) = name
        .strip_prefix("samples_")
        .and_then(|name| name.strip_suffix(".jsonl"))
        .and_then(|name| name.rsplit_once('_'))
    else {
        return;
    };
    facts.insert("task".to_owned(), task.to_owned());
    let beside = folder(path).join(format!("results_{date}.json"));
    let Ok(bytes) = registry::file::read(&beside, registry::file::MANIFEST) else { return };
    let Ok(tree) = JsonTree::parse(&bytes, &["samples", "results", "groups"]) else { return };
    insert_fact(facts, "model", tree.first(&["model_name", "model_source"]));
    let shots = tree.get("n-shot").and_then(|shots| shots.get(task));
    insert_fact(facts, "few-shot examples", shots);
    insert_fact(facts, "chat template", tree.get("chat_template_sha"));
    insert_fact(facts, "system prompt", tree.get("system_instruction_sha"));
    if let Some(config) = tree.get("config") {
        insert_fact(facts, "dtype", config.get("model_dtype"));
        if let Some(stated) = config.get("model_args")
            && let Some(dtype) = argument(stated, "dtype").filter(|dtype| dtype != "auto")
        {
            facts.insert("dtype".to_owned(), dtype);
        }
    }
}

/// Inserts a fact, if its value can be written as words.
fn insert_fact(facts: &mut BTreeMap<String, String>, key: &str, value: Option<&JsonTree>) {
    if let Some(value) = value.and_then(JsonTree::words) {
        facts.insert(key.to_owned(), value);
    }
}

/// Returns an argument of the model, from a map or from a list such as `a=1,b=2`.
fn argument(stated: &JsonTree, key: &str) -> Option<String> {
    match stated {
        JsonTree::Text(list) => {
            let mut pairs = list.split(',').filter_map(|pair| pair.split_once('='));
            pairs.find(|(name, _)| *name == key).map(|(_, value)| value.to_owned())
        }
        map => map.get(key).and_then(JsonTree::word),
    }
}
