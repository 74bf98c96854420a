//! Tokenizes prompts and choices, as in lm-eval's `_encode_pair`.

use super::choices::TokenizedChoice;
use super::{ScoringError, ScoringOptions, TextCodec, item_error};
use crate::evals::items::{EvalItem, PromptInput};

/// Returns the tokens of every choice with its prompt.
pub(super) fn choices(
    run: &ScoringOptions<'_>,
    item: &EvalItem,
    prompts: &[PromptInput],
    choices: &[PromptInput],
    delimiter: &str,
) -> Result<Vec<TokenizedChoice>, ScoringError> {
    let mut tokenized = Vec::with_capacity(choices.len());
    for (at, choice) in choices.iter().enumerate() {
        let prompt = prompts.get(at).filter(|_| prompts.len() > 1).or(prompts.first());
        let (context, tokens) = match (prompt, choice) {
            (Some(PromptInput::Ids(ids)), PromptInput::Ids(tokens)) => {
                (ids.clone(), tokens.clone())
            }
            (Some(PromptInput::Text(prompt)), PromptInput::Text(choice)) => {
                pair(text(run, item)?, prompt, &format!("{delimiter}{choice}"))
                    .map_err(|why| ScoringError::Text { id: item.id.clone(), why })?
            }
            _ => {
                return Err(item_error(
                    item,
                    "prompt and choices have to be all text or all token ids".to_owned(),
                ));
            }
        };
        if context.is_empty() {
            let why = "the prompt has no tokens, and the model no token that begins a text; give a prompt";
            return Err(item_error(item, why.to_owned()));
        }
        if tokens.is_empty() {
            return Err(item_error(
                item,
                format!(
                    "choice {at} has no tokens of its own behind the prompt; give a choice that is not empty"
                ),
            ));
        }
        // lm-eval truncates on the left; the last token is not fed.
        let fed_count = context.len() + tokens.len() - 1;
        let dropped = run.context.map_or(0, |limit| fed_count.saturating_sub(limit));
        if dropped >= context.len() {
            let limit = run.context.unwrap_or(0);
            return Err(item_error(
                item,
                format!(
                    "choice {at} has {} tokens, and the model handles {limit} positions",
                    tokens.len()
                ),
            ));
        }
        tokenized.push(TokenizedChoice { context: context[dropped..].to_vec(), tokens, dropped });
    }
    Ok(tokenized)
}

pub(super) fn text<'a>(
    run: &ScoringOptions<'a>,
    item: &EvalItem,
) -> Result<&'a dyn TextCodec, ScoringError> {
    let why = "the item is text, and there is no tokenizer; give token ids";
    run.text.ok_or_else(|| ScoringError::Item { id: item.id.clone(), why: why.to_owned() })
}

/// Encodes a prompt; special tokens are omitted if the text already begins with the first of them.
pub(super) fn prompt(
    text: &dyn TextCodec,
    prompt: &str,
) -> Result<Vec<u32>, super::TextCodecError> {
    let begun = match text.prefix() {
        Some(prefix) => {
            let begin = text.decode(&[prefix], false)?;
            !begin.is_empty() && prompt.starts_with(&begin)
        }
        None => false,
    };
    text.encode(prompt, !begun)
}

/// Encodes prompt and choice together and splits at the length of the prompt alone. Trailing spaces of the
/// prompt belong to the choice.
fn pair(
    text: &dyn TextCodec,
    context: &str,
    choice: &str,
) -> Result<(Vec<u32>, Vec<u32>), super::TextCodecError> {
    // Whitespace of Python's `str.rstrip`.
    let trimmed_context =
        context.trim_end_matches(|c: char| c.is_whitespace() || matches!(c, '\x1c'..='\x1f'));
    let choice = format!("{}{choice}", &context[trimmed_context.len()..]);
    if trimmed_context.is_empty() {
        let tokens = text.encode(&choice, false)?;
        return Ok(match text.prefix() {
            Some(prefix) if tokens.first() == Some(&prefix) => (vec![prefix], tokens[1..].to_vec()),
            prefix => (prefix.into_iter().collect(), tokens),
        });
    }
    let mut joined_tokens = prompt(text, &format!("{trimmed_context}{choice}"))?;
    let context = prompt(text, trimmed_context)?;
    let tokens = joined_tokens.split_off(context.len().min(joined_tokens.len()));
    Ok((context, tokens))
}
