//! Generates greedy continuations.

use std::collections::BTreeMap;

use engine::sample::greedy;
use engine::{Chunk, NoProbe, OutputRows, Session};
use regex::Regex;
use serde_json::json;

use super::tokens::{prompt, text};
use super::{ScoredItem, ScoringError, ScoringOptions, TextCodec, extract, item_error, prompted};
use crate::evals::items::{EvalItem, PromptInput, Question};

/// Continues the prompt of an item and extracts the answer from the text.
pub(super) fn generate(
    run: &ScoringOptions<'_>,
    session: &mut dyn Session,
    item: &EvalItem,
) -> Result<ScoredItem, ScoringError> {
    let Question::Text { prompt: input, target, until, max_tokens, regex } = &item.question else {
        return Err(ScoringError::Item {
            id: item.id.clone(),
            why: "the item has choices".to_owned(),
        });
    };
    let tokenizer = text(run, item)?;
    let mut ids = match input {
        PromptInput::Ids(ids) => ids.clone(),
        PromptInput::Text(input) => prompt(tokenizer, input)
            .map_err(|why| ScoringError::Text { id: item.id.clone(), why })?,
    };
    if ids.is_empty() {
        ids.extend(tokenizer.prefix());
    }
    let limit = max_tokens.unwrap_or(run.max_tokens);
    let dropped = run.context.map_or(0, |room| (ids.len() + limit).saturating_sub(room));
    if ids.is_empty() || dropped >= ids.len() {
        let why = format!(
            "the prompt has {} tokens and {limit} are to follow, which the model has no positions for; lower the option `max-tokens`",
            ids.len()
        );
        return Err(item_error(item, why));
    }
    ids.drain(..dropped);
    let pattern = regex.as_ref().or(run.regex.as_ref());
    let pattern = pattern.map(|pattern| Regex::new(pattern)).transpose();
    let pattern =
        pattern.map_err(|why| item_error(item, format!("the pattern cannot be used: {why}")))?;
    let until = until.as_deref().unwrap_or(&run.until);
    let (generated, text, ended) =
        continued(session, tokenizer, &ids, until, limit).map_err(|why| match why {
            GenerateError::Engine(why) => ScoringError::Engine { id: item.id.clone(), why },
            GenerateError::Text(why) => ScoringError::Text { id: item.id.clone(), why },
        })?;
    let answer = extract(&text, pattern.as_ref(), run.last);
    let mut scores = BTreeMap::new();
    if let Some(target) = target {
        let right = answer.as_deref().is_some_and(|answer| answer == target.trim());
        scores.insert("exact_match".to_owned(), f64::from(u8::from(right)));
    }
    let mut record = json!({
        "id": item.id,
        "ids": ids,
        "text": text,
        "generated_ids": generated,
        "ended": ended,
        "answer": answer,
        "target": target,
        "until": until,
        "max_tokens": limit,
        "scores": scores,
    });
    if let Some(pattern) = &pattern {
        record["regex"] = json!(pattern.as_str());
    }
    prompted(&mut record, item, std::slice::from_ref(input));
    Ok(ScoredItem { record, scores, dropped })
}

enum GenerateError {
    Engine(engine::Error),
    Text(super::TextCodecError),
}

impl From<engine::Error> for GenerateError {
    fn from(why: engine::Error) -> Self {
        Self::Engine(why)
    }
}

/// Returns the tokens, their text up to the first stop string, and the reason for stopping.
fn continued(
    session: &mut dyn Session,
    text: &dyn TextCodec,
    ids: &[u32],
    until: &[String],
    limit: usize,
) -> Result<(Vec<u32>, String, &'static str), GenerateError> {
    let slot = session.open_slot();
    let mut generated = Vec::new();
    let mut ended = "length";
    let mut next = ids.to_vec();
    let mut whole_text = String::new();
    while generated.len() < limit {
        let logits =
            session.step(&[Chunk { slot, tokens: &next, rows: OutputRows::Last }], &mut NoProbe)?;
        let Some(row) = logits.first().filter(|logits| logits.rows > 0) else { break };
        let token = greedy(row.row(0));
        if text.ends().contains(&token) {
            ended = "end token";
            break;
        }
        generated.push(token);
        next = vec![token];
        // Stop strings may span tokens, and the bytes of a character may span several.
        whole_text = text.decode(&generated, true).map_err(GenerateError::Text)?;
        let stop = until
            .iter()
            .filter(|stop| !stop.is_empty())
            .filter_map(|stop| whole_text.find(stop.as_str()));
        if let Some(at) = stop.min() {
            whole_text.truncate(at);
            ended = "stop string";
            break;
        }
    }
    session.release(slot)?;
    Ok((generated, whole_text, ended))
}
