//! Scores items on a session, with the arithmetic of lm-eval 0.4.13 (`api/model.py`, `api/task.py`).

use std::collections::BTreeMap;

use engine::Session;
use formats::shown;
use regex::Regex;
use serde_json::{Value, json};

use super::items::{EvalItem, PromptInput, Question};
use super::sample::best;
use choices::{ChoiceScore, TokenizedChoice};

mod choices;
mod generate;
mod tokens;

/// Error of a tokenizer.
pub type TextCodecError = Box<dyn std::error::Error + Send + Sync>;

/// Tokenizer of the evaluated model.
pub trait TextCodec {
    /// Returns the tokens of a text, with the special tokens around it if `around` is set.
    fn encode(&self, text: &str, around: bool) -> Result<Vec<u32>, TextCodecError>;
    /// Returns the text of tokens, without special tokens if `plain` is set.
    fn decode(&self, ids: &[u32], plain: bool) -> Result<String, TextCodecError>;
    /// Returns the token that is placed before a choice with an empty prompt.
    fn prefix(&self) -> Option<u32>;
    /// Returns the tokens that end a text.
    fn ends(&self) -> &[u32];
}

/// Error in scoring an item.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScoringError {
    /// The engine failed.
    #[error("item `{}`", shown(id))]
    Engine {
        /// The item.
        id: String,
        /// Error of the engine.
        #[source]
        why: engine::Error,
    },
    /// The tokenizer failed.
    #[error("item `{}`: {why}", shown(id))]
    Text {
        /// The item.
        id: String,
        /// Error of the tokenizer.
        why: TextCodecError,
    },
    /// The item itself is invalid.
    #[error("item `{}`: {why}", shown(id))]
    Item {
        /// The item.
        id: String,
        /// The mistake.
        why: String,
    },
}

/// Options for scoring items.
#[derive(Default)]
pub struct ScoringOptions<'a> {
    /// Tokenizer; not needed for items of token ids.
    pub text: Option<&'a dyn TextCodec>,
    /// Maximum length of a sequence.
    pub context: Option<usize>,
    /// Texts that end an answer, for items that have none.
    pub until: Vec<String>,
    /// Maximum number of tokens of an answer, for items without a limit.
    pub max_tokens: usize,
    /// Pattern that extracts an answer from a text, for items without one.
    pub regex: Option<String>,
    /// True to take the last match of the pattern instead of the first.
    pub last: bool,
}

/// Scored item.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredItem {
    /// Line of the result file.
    pub record: Value,
    /// Scores by metric.
    pub scores: BTreeMap<String, f64>,
    /// Number of prompt tokens that did not fit and were dropped.
    pub dropped: usize,
}

/// Scores items, the choices of several in one step. An error is that of its own item.
pub fn run(
    run: &ScoringOptions<'_>,
    session: &mut dyn Session,
    items: &[EvalItem],
) -> Vec<Result<ScoredItem, ScoringError>> {
    let tokenized = items.iter().map(|item| match &item.question {
        Question::Choice { prompts, choices, delimiter, .. } => {
            tokens::choices(run, item, prompts, choices, delimiter)
        }
        Question::Text { .. } => Ok(Vec::new()),
    });
    let tokenized: Vec<Result<Vec<TokenizedChoice>, ScoringError>> = tokenized.collect();
    let all: Vec<&TokenizedChoice> = tokenized.iter().flatten().flatten().collect();
    let likely = match (choices::score(session, &all), items) {
        (Ok(likely), _) => likely,
        (Err(why), [item]) => {
            return vec![Err(ScoringError::Engine { id: item.id.clone(), why })];
        }
        // Alone, each item has its own result.
        (Err(_), _) => {
            return items.chunks(1).flat_map(|item| self::run(run, session, item)).collect();
        }
    };
    let mut left = likely.as_slice();
    let mut scored = Vec::with_capacity(items.len());
    for (item, tokenized) in items.iter().zip(tokenized) {
        scored.push(match (&item.question, tokenized) {
            (_, Err(why)) => Err(why),
            (Question::Choice { prompts, choices, delimiter, target }, Ok(tokenized)) => {
                let (likely, remaining) = left.split_at(tokenized.len());
                left = remaining;
                Ok(chosen(item, &tokenized, likely, (prompts, choices, delimiter), target))
            }
            (Question::Text { .. }, Ok(_)) => generate::generate(run, session, item),
        });
    }
    scored
}

/// Returns the first line of a result file.
pub fn head(facts: &BTreeMap<String, String>) -> Value {
    let mut head = json!({ "schema": super::read::plain::SCHEMA, "temperature": 0 });
    for (key, value) in facts {
        head[key] = json!(value);
    }
    head
}

fn chosen(
    item: &EvalItem,
    tokenized: &[TokenizedChoice],
    likely: &[ChoiceScore],
    (prompts, choices, delimiter): (&[PromptInput], &[PromptInput], &str),
    target: &[usize],
) -> ScoredItem {
    let mut scores = BTreeMap::new();
    let answer = best(likely.iter().map(|likely| likely.logprob));
    let ways = [
        ("acc", answer),
        ("acc_norm", best_by_length(likely, |at| Some(text_of(&choices[at])?.chars().count()))),
        ("acc_bytes", best_by_length(likely, |at| Some(text_of(&choices[at])?.len()))),
        ("acc_tokens", best_by_length(likely, |at| Some(tokenized[at].tokens.len()))),
    ];
    if likely.len() == 1 {
        // lm-eval's `acc` of a single continuation.
        scores.insert("acc".to_owned(), f64::from(u8::from(likely[0].greedy)));
    } else if !target.is_empty() {
        for (metric, taken) in ways {
            if let Some(taken) = taken {
                scores.insert(metric.to_owned(), f64::from(u8::from(target.contains(&taken))));
            }
        }
    }
    let mut record = json!({
        "id": item.id,
        "logprobs": likely.iter().map(|likely| likely.logprob).collect::<Vec<_>>(),
        "greedy": likely.iter().map(|likely| likely.greedy).collect::<Vec<_>>(),
        "tokens": tokenized.iter().map(|choice| choice.tokens.len()).collect::<Vec<_>>(),
        "delimiter": delimiter,
        "scores": scores,
    });
    let texts: Vec<&String> = choices.iter().filter_map(text_of).collect();
    record["choices"] = if texts.len() == choices.len() {
        json!(texts)
    } else {
        json!(tokenized.iter().map(|choice| &choice.tokens).collect::<Vec<_>>())
    };
    prompted(&mut record, item, prompts);
    if tokenized.windows(2).all(|pair| pair[0].context == pair[1].context)
        && let Some(first) = tokenized.first()
    {
        record["ids"] = json!(first.context);
    }
    match target {
        [] => {}
        [one] => record["target"] = json!(one),
        several => record["target"] = json!(several),
    }
    if likely.len() > 1 {
        record["answer"] = json!(answer);
    }
    let dropped = tokenized.iter().map(|choice| choice.dropped).max().unwrap_or(0);
    ScoredItem { record, scores, dropped }
}

/// Returns the choice with the largest log-likelihood per unit of length; none without all lengths.
fn best_by_length(
    likely: &[ChoiceScore],
    length: impl Fn(usize) -> Option<usize>,
) -> Option<usize> {
    let lengths: Option<Vec<usize>> = (0..likely.len()).map(length).collect();
    best(likely.iter().zip(lengths?).map(|(likely, length)| likely.logprob / length as f64))
}

/// Returns the text of a choice that is not given by ids.
fn text_of(choice: &PromptInput) -> Option<&String> {
    match choice {
        PromptInput::Text(text) => Some(text),
        PromptInput::Ids(_) => None,
    }
}

/// Returns the error of an item that cannot be scored.
fn item_error(item: &EvalItem, why: String) -> ScoringError {
    ScoringError::Item { id: item.id.clone(), why }
}

/// Adds the prompts and the hash of the document.
fn prompted(record: &mut Value, item: &EvalItem, prompts: &[PromptInput]) {
    let texts: Vec<&String> = prompts
        .iter()
        .filter_map(|prompt| match prompt {
            PromptInput::Text(text) => Some(text),
            PromptInput::Ids(_) => None,
        })
        .collect();
    match texts.as_slice() {
        [] => {}
        [one] => record["prompt"] = json!(one),
        several => record["prompts"] = json!(several),
    }
    if let Some(hash) = &item.hash {
        record["doc_hash"] = json!(hash);
    }
}

/// Extracts the answer from a text: the first group of the pattern, or the whole match.
fn extract(text: &str, regex: Option<&Regex>, last: bool) -> Option<String> {
    let Some(regex) = regex else { return Some(text.trim().to_owned()) };
    let mut matches = regex.captures_iter(text);
    let groups = if last { matches.last() } else { matches.next() }?;
    let group = groups.iter().skip(1).flatten().find(|group| !group.is_empty());
    Some(group.map_or(&groups[0], |group| group.as_str()).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_the_first_group_of_a_match() {
        let number = Regex::new(r"#### (-?[0-9.,]+)|answer: (\w+)").unwrap();
        for (text, last, answer) in [
            ("so #### 7 and #### 8", false, Some("7")),
            ("so #### 7 and #### 8", true, Some("8")),
            ("answer: yes", false, Some("yes")),
            ("none", false, None),
        ] {
            assert_eq!(extract(text, Some(&number), last).as_deref(), answer, "{text}");
        }
        assert_eq!(extract(" 7\n", None, false).as_deref(), Some("7"));
        let plain = Regex::new("[0-9]+").unwrap();
        assert_eq!(extract("a 12 b", Some(&plain), false).as_deref(), Some("12"));
    }
}
