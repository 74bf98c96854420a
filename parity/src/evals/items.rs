//! The items of a task: multiple choice, or generation. `docs/evals.md` has their keys.
//!
//! Samples of lm-eval are read as items too, so that the same questions can be scored by another engine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use formats::shown;

use super::read::{self, ResultRecord, SKIP, lines};
use super::sample::Sample;
use super::tree::JsonTree;

/// Question of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalItem {
    /// Id from the file, or the index of the item.
    pub id: String,
    /// Hash of the document, if lm-eval wrote one.
    pub hash: Option<String>,
    /// Question of the item.
    pub question: Question,
}

impl EvalItem {
    /// True if the item is scored by the likelihoods of its choices.
    pub fn is_choice(&self) -> bool {
        matches!(self.question, Question::Choice { .. })
    }

    /// True for an item with text, and for one that is answered with text.
    pub fn needs_text(&self) -> bool {
        match &self.question {
            Question::Choice { prompts, .. } => {
                prompts.iter().any(|prompt| matches!(prompt, PromptInput::Text(_)))
            }
            Question::Text { .. } => true,
        }
    }
}

/// Question by its kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Question {
    /// Continuations of prompts, of which the most likely is the answer.
    Choice {
        /// One prompt, or one for each choice.
        prompts: Vec<PromptInput>,
        /// The choices.
        choices: Vec<PromptInput>,
        /// Text between prompt and choice.
        delimiter: String,
        /// Indices of correct choices; empty if the file does not list them.
        target: Vec<usize>,
    },
    /// A prompt that is continued.
    Text {
        /// The prompt.
        prompt: PromptInput,
        /// Correct answer.
        target: Option<String>,
        /// Texts that end the answer.
        until: Option<Vec<String>>,
        /// Maximum number of tokens of the answer.
        max_tokens: Option<usize>,
        /// Pattern that extracts the answer from the text.
        regex: Option<String>,
    },
}

/// Text, or token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptInput {
    /// Text.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

/// Error in reading a task file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Error of the operating system.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The line is not an item.
    #[error("`{path}`, line {line}: {why}")]
    Item {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// Description of the fault, and of the expected form.
        why: String,
    },
    /// The file has no items.
    #[error(
        "`{path}` has no items; expected JSON lines with `prompt`, `choices` and `target`, or `prompt` and `target` (`onboard help evals`)"
    )]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// Reads the items of a task file, or of the samples of lm-eval.
pub fn items(path: &Path) -> Result<Vec<EvalItem>, Error> {
    let mut items = Vec::new();
    let mut seen = BTreeSet::new();
    lines(path, |line, bytes| {
        let tree = bytes.and_then(|bytes| JsonTree::parse(bytes, SKIP));
        let tree = tree.map_err(|why| item_error(path, line, why))?;
        if tree.get("schema").is_some() {
            return Ok(true);
        }
        let samples = tree.get("doc_id").is_some() && tree.get("arguments").is_some();
        let item = if samples { sampled(&tree) } else { item(&tree, items.len()) };
        let item = item.map_err(|why| item_error(path, line, why))?;
        if seen.insert(item.id.clone()) {
            items.push(item);
        } else if !samples {
            let id = shown(&item.id);
            let why = format!("the id `{id}` came before; ids name items in results");
            return Err(item_error(path, line, why));
        }
        Ok::<_, Error>(true)
    })?;
    if items.is_empty() { Err(Error::Empty { path: path.to_owned() }) } else { Ok(items) }
}

/// Returns the error for a line of a task file.
fn item_error(path: &Path, line: usize, why: String) -> Error {
    Error::Item { path: path.to_owned(), line, why }
}

/// Converts a sample of lm-eval, which has a record for each filter, to an item.
fn sampled(tree: &JsonTree) -> Result<EvalItem, String> {
    let ResultRecord::Sample(sample, _) = read::lm_eval::record(tree)? else {
        return Err("a sample of lm-eval without its document".to_owned());
    };
    let Sample { id, hash, prompts, choices, target, text, .. } = *sample;
    let prompt = prompts.first().cloned().ok_or("the sample has no prompt (`arguments`)")?;
    if choices.is_empty() {
        if text.is_none() {
            return Err(
                "the sample scores a whole text (loglikelihood_rolling), which is not done here"
                    .to_owned(),
            );
        }
        let mut facts = std::collections::BTreeMap::new();
        read::lm_eval::facts(tree, &mut facts);
        let until = until(tree);
        let limit = facts.get("max_gen_toks").or_else(|| facts.get("max_tokens"));
        let max_tokens = limit.and_then(|limit| limit.parse().ok());
        let prompt = PromptInput::Text(prompt);
        return Ok(EvalItem {
            id,
            hash,
            question: Question::Text { prompt, target, until, max_tokens, regex: None },
        });
    }
    // lm-eval puts its delimiter before each choice and does not count it.
    let blank = choices.iter().all(|choice| choice.starts_with(' '));
    let (delimiter, skip) = if blank { (" ", 1) } else { ("", 0) };
    let choices: Vec<String> = choices.iter().map(|choice| choice[skip..].to_owned()).collect();
    let target = target.and_then(|target| {
        let index = target.parse().ok().filter(|&index: &usize| index < choices.len());
        index.or_else(|| choices.iter().position(|choice| choice.trim() == target.trim()))
    });
    let target = if choices.len() > 1 { Vec::from_iter(target) } else { Vec::new() };
    let question = Question::Choice {
        prompts: prompts.into_iter().map(PromptInput::Text).collect(),
        choices: choices.into_iter().map(PromptInput::Text).collect(),
        delimiter: delimiter.to_owned(),
        target,
    };
    Ok(EvalItem { id, hash, question })
}

/// Returns the stop strings from the settings of a sample of lm-eval.
fn until(tree: &JsonTree) -> Option<Vec<String>> {
    let first = tree.get("arguments")?.entries().first()?;
    strings(first.1.get("arg_1")?.get("until")?)
}

fn strings(value: &JsonTree) -> Option<Vec<String>> {
    match value {
        JsonTree::Text(text) => Some(vec![text.clone()]),
        value => value.texts(),
    }
}

fn item(tree: &JsonTree, number: usize) -> Result<EvalItem, String> {
    let JsonTree::Map(_) = tree else { return Err("the line is JSON, but no object".to_owned()) };
    let id = tree.first(&["id", "doc_id"]).map_or(Some(number.to_string()), JsonTree::word);
    let id = id.ok_or("`id` is neither text nor number")?;
    let hash = tree.get("doc_hash").and_then(JsonTree::word);
    let prompts = match (
        tree.first(&["prompts"]),
        tree.first(&["ids"]),
        tree.first(&["prompt", "context", "query"]),
    ) {
        (Some(prompts), ..) => {
            let texts = prompts.texts().ok_or("`prompts` is no list of texts")?;
            texts.into_iter().map(PromptInput::Text).collect()
        }
        // Text comes first: our own results contain both, and ids depend on a tokenizer.
        (_, _, Some(text)) => {
            vec![PromptInput::Text(text.str().ok_or("`prompt` is no text")?.to_owned())]
        }
        (_, Some(ids), _) => {
            vec![PromptInput::Ids(ids.ids().ok_or("`ids` is no list of token ids")?)]
        }
        _ => return Err("the item has neither `prompt` (text) nor `ids` (token ids)".to_owned()),
    };
    let target = tree.first(&["target", "gold", "label"]);
    if let Some(choices) = tree.first(&["choices"]) {
        let question = choice(tree, prompts, choices, target)?;
        return Ok(EvalItem { id, hash, question });
    }
    let [prompt] =
        <[PromptInput; 1]>::try_from(prompts).map_err(|_| "several `prompts` without `choices`")?;
    let until = match tree.first(&["until"]) {
        Some(until) => Some(strings(until).ok_or("`until` is neither a text nor a list of texts")?),
        None => None,
    };
    let max_tokens = match tree.first(&["max_tokens"]) {
        Some(limit) => Some(count(limit).ok_or("`max_tokens` is no count")?),
        None => None,
    };
    let regex = tree.get("regex").and_then(JsonTree::str).map(str::to_owned);
    let target = target.and_then(JsonTree::word);
    Ok(EvalItem { id, hash, question: Question::Text { prompt, target, until, max_tokens, regex } })
}

fn count(value: &JsonTree) -> Option<usize> {
    match value {
        JsonTree::Number(number) if *number >= 0.0 && number.fract() == 0.0 => {
            Some(*number as usize)
        }
        _ => None,
    }
}

fn choice(
    tree: &JsonTree,
    prompts: Vec<PromptInput>,
    choices: &JsonTree,
    target: Option<&JsonTree>,
) -> Result<Question, String> {
    let list = choices.list().ok_or("`choices` is no list")?;
    let choices: Option<Vec<PromptInput>> = list.iter().map(choice_input).collect();
    let choices =
        choices.ok_or("`choices` is neither a list of texts nor of lists of token ids")?;
    if choices.is_empty() {
        return Err("`choices` is empty".to_owned());
    }
    if prompts.len() != 1 && prompts.len() != choices.len() {
        let prompts = prompts.len();
        let choices = choices.len();
        return Err(format!(
            "{prompts} `prompts` for {choices} `choices`; expected one, or one for each"
        ));
    }
    let inputs = prompts.iter().chain(&choices);
    let texts = inputs.filter(|input| matches!(input, PromptInput::Text(_))).count();
    if texts != 0 && texts != prompts.len() + choices.len() {
        return Err("prompt and choices have to be all text or all token ids".to_owned());
    }
    let delimiter = match tree.first(&["delimiter"]) {
        Some(delimiter) => delimiter.str().ok_or("`delimiter` is no text")?.to_owned(),
        None => tree.get("delimiter").map_or(" ", |_| "").to_owned(),
    };
    let target = match target {
        None => Some(Vec::new()),
        Some(JsonTree::List(targets)) => {
            targets.iter().map(|target| choice_index(&choices, target)).collect()
        }
        Some(target) => choice_index(&choices, target).map(|index| vec![index]),
    };
    let target = target.ok_or_else(|| {
        format!("`target` is neither an index below {} nor the text of a choice", choices.len())
    })?;
    Ok(Question::Choice { prompts, choices, delimiter, target })
}

/// Returns the text or the token ids of a choice.
fn choice_input(choice: &JsonTree) -> Option<PromptInput> {
    match choice {
        JsonTree::Text(text) => Some(PromptInput::Text(text.clone())),
        ids => ids.ids().map(PromptInput::Ids),
    }
}

/// Returns the choice that a target names by its text or its index.
fn choice_index(choices: &[PromptInput], target: &JsonTree) -> Option<usize> {
    if let JsonTree::Text(text) = target {
        return choices
            .iter()
            .position(|choice| matches!(choice, PromptInput::Text(choice) if choice == text));
    }
    count(target).filter(|&index| index < choices.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<EvalItem>, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.jsonl");
        fs_err::write(&path, text).unwrap();
        items(&path)
    }

    #[test]
    fn mistakes_have_a_place() {
        for (text, words) in [
            ("", "has no items"),
            ("{\"prompt\": \"a\"", "line 1: EOF"),
            ("[1]", "no object"),
            ("{\"choices\": [\"a\"]}", "neither `prompt` (text) nor `ids`"),
            ("{\"prompt\": \"a\", \"choices\": []}", "`choices` is empty"),
            ("{\"prompt\": \"a\", \"choices\": [1]}", "neither a list of texts nor"),
            ("{\"prompt\": \"a\", \"choices\": [[1]]}", "all text or all token ids"),
            ("{\"prompt\": \"a\", \"choices\": [\"b\"], \"target\": 1}", "an index below 1"),
            (
                "{\"prompt\": \"a\", \"choices\": [\"b\"], \"target\": \"c\"}",
                "the text of a choice",
            ),
            ("{\"prompts\": [\"a\", \"b\"], \"choices\": [\"a\"]}", "2 `prompts` for 1 `choices`"),
            (
                "{\"id\": 1, \"prompt\": \"a\"}\n{\"id\": 1, \"prompt\": \"a\"}",
                "line 2: the id `1` came before",
            ),
            ("{\"prompt\": \"a\", \"max_tokens\": -1}", "`max_tokens` is no count"),
            ("{\"ids\": [-1]}", "no list of token ids"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn samples_of_lm_eval_are_items() {
        let line = r#"{"doc_id": 7, "target": "1", "arguments": {"gen_args_0": {"arg_0": "Q", "arg_1": " a"}, "gen_args_1": {"arg_0": "Q", "arg_1": " b"}}, "resps": [[["0.0", "False"]], [["0.0", "False"]]], "filtered_resps": [["0.0", "False"], ["0.0", "False"]], "filter": "none", "doc_hash": "h"}"#;
        let items = read(line).unwrap();
        assert_eq!((items[0].id.as_str(), items[0].hash.as_deref()), ("7", Some("h")));
        let Question::Choice { choices, delimiter, target, .. } = &items[0].question else {
            panic!("a choice")
        };
        assert_eq!(
            (choices[1].clone(), delimiter.as_str()),
            (PromptInput::Text("b".to_owned()), " ")
        );
        assert_eq!(target, &[1]);
    }
}
