//! Files of prompts: JSON lines, or a list of conversations in the form of ShareGPT.

use serde_json::{Map, Value};

use crate::error::shown;

/// Content of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptContent {
    /// Token ids.
    Ids(Vec<u32>),
    /// Text; one message of the user in a chat.
    Text(String),
    /// Messages of a chat.
    Messages(Vec<Value>),
}

/// Prompt of a load test.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadPrompt {
    /// The content.
    pub content: PromptContent,
    /// Number of tokens of the content, if known.
    pub tokens: Option<u64>,
    /// Maximum number of generated tokens, if the prompt has its own.
    pub output: Option<usize>,
    /// Answer in the file; its length may serve as the number of generated tokens.
    pub reply: Option<String>,
}

impl LoadPrompt {
    /// Returns a prompt without a number of generated tokens.
    pub fn new(content: PromptContent) -> Self {
        let tokens = match &content {
            PromptContent::Ids(ids) => Some(ids.len() as u64),
            _ => None,
        };
        Self { content, tokens, output: None, reply: None }
    }
}

/// Fault of a file of prompts.
#[derive(Debug, thiserror::Error)]
pub enum PromptFileError {
    /// A line or an entry of the list is no JSON.
    #[error("{place}: {error}; expected a prompt in JSON, as in `{{\"prompt\": \"Hello\"}}`")]
    Json {
        /// Line.
        place: String,
        /// Fault of the syntax.
        error: serde_json::Error,
    },
    /// An entry is no prompt.
    #[error(
        "{place}: {found}; expected a text, a list of token ids, or an object with `prompt`, `messages` or `conversations`"
    )]
    Entry {
        /// Line or entry.
        place: String,
        /// Description of the value.
        found: String,
    },
    /// There is no prompt.
    #[error("the file holds no prompt")]
    Empty,
}

/// Maximum number of prompts that are read from a file.
const MOST_PROMPTS: usize = 1_000_000;
/// Keys of the number of generated tokens.
const OUTPUT: [&str; 4] = ["output_tokens", "max_tokens", "max_completion_tokens", "output_len"];

/// Parses a file of prompts: JSON lines, or one JSON list. At most `limit` prompts are read.
pub fn parse_prompts(text: &str, limit: usize) -> Result<Vec<LoadPrompt>, PromptFileError> {
    let limit = limit.min(MOST_PROMPTS);
    let mut prompts = Vec::new();
    // A list of numbers on the first line is a prompt; a list with objects is a file of ShareGPT.
    let list: Option<Vec<Value>> = text
        .trim_start()
        .starts_with('[')
        .then(|| {
            let list: Option<Vec<Value>> = serde_json::from_str(text).ok();
            list.filter(|list| list.iter().any(Value::is_object))
        })
        .flatten();
    if let Some(list) = list {
        for (n, entry) in list.into_iter().enumerate() {
            if prompts.len() == limit {
                break;
            }
            prompts.extend(prompt(entry, &format!("entry {}", n + 1))?);
        }
    } else {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        for (n, line) in lines {
            if prompts.len() == limit {
                break;
            }
            let place = format!("line {}", n + 1);
            let entry = serde_json::from_str(line)
                .map_err(|error| PromptFileError::Json { place: place.clone(), error })?;
            prompts.extend(prompt(entry, &place)?);
        }
    }
    if prompts.is_empty() { Err(PromptFileError::Empty) } else { Ok(prompts) }
}

/// Reads one prompt; none for a conversation with fewer than two turns, which other clients skip too.
fn prompt(entry: Value, place: &str) -> Result<Option<LoadPrompt>, PromptFileError> {
    let mut object = match entry {
        Value::Object(object) => object,
        other => {
            return content(other)
                .map(|c| Some(LoadPrompt::new(c)))
                .map_err(|problem| wrong_entry(place, problem));
        }
    };
    let output = output(&object).map_err(|problem| wrong_entry(place, problem))?;
    if let Some(turns) = object.remove("conversations").or_else(|| object.remove("conversation")) {
        let Value::Array(turns) = turns else {
            return Err(wrong_entry(place, "`conversations` is no list".to_owned()));
        };
        let mut texts = turns.into_iter().map(|message| {
            let text = message.get("value").or_else(|| message.get("content"))?;
            text.as_str().map(str::to_owned)
        });
        let (Some(first), Some(second)) = (texts.next(), texts.next()) else { return Ok(None) };
        let (Some(first), Some(second)) = (first, second) else {
            let problem = "a turn has no text in `value` or `content`".to_owned();
            return Err(wrong_entry(place, problem));
        };
        let mut prompt = LoadPrompt::new(PromptContent::Text(first));
        prompt.output = output;
        prompt.reply = Some(second);
        return Ok(Some(prompt));
    }
    let content = match (object.remove("prompt"), object.remove("messages")) {
        (Some(prompt), None) => content(prompt).map_err(|problem| wrong_entry(place, problem))?,
        (None, Some(Value::Array(messages))) if messages.iter().all(Value::is_object) => {
            PromptContent::Messages(messages)
        }
        (None, Some(_)) => {
            return Err(wrong_entry(place, "`messages` is no list of objects".to_owned()));
        }
        (None, None) => {
            return Err(wrong_entry(
                place,
                "the object has none of the keys of a prompt".to_owned(),
            ));
        }
        (Some(_), Some(_)) => {
            return Err(wrong_entry(place, "the object has `prompt` and `messages`".to_owned()));
        }
    };
    Ok(Some(LoadPrompt { output, ..LoadPrompt::new(content) }))
}

/// Returns the error for an entry that is no prompt.
fn wrong_entry(place: &str, problem: String) -> PromptFileError {
    PromptFileError::Entry { place: place.to_owned(), found: problem }
}

fn content(value: Value) -> Result<PromptContent, String> {
    match value {
        Value::String(text) => Ok(PromptContent::Text(text)),
        Value::Array(items) if !items.is_empty() => Ok(PromptContent::Ids(
            items
                .iter()
                .map(|item: &Value| {
                    let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
                    id.ok_or_else(|| format!("`{}` is no token id", shown(&item.to_string())))
                })
                .collect::<Result<_, _>>()?,
        )),
        other => Err(format!("`{}` is no prompt", shown(&other.to_string()))),
    }
}

fn output(object: &Map<String, Value>) -> Result<Option<usize>, String> {
    let Some((key, value)) = OUTPUT.iter().find_map(|key| Some((key, object.get(*key)?))) else {
        return Ok(None);
    };
    let count = value.as_u64().filter(|count| (1..=1 << 24).contains(count));
    let count = count.ok_or_else(|| {
        let value = shown(&value.to_string());
        format!("`{key}` is `{value}`; expected an integer from 1 to {}", 1 << 24)
    })?;
    Ok(Some(count as usize))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_form_of_a_prompt_is_read() {
        let text = "\"a\"\n\n[1, 2]\n{\"prompt\": \"b\", \"output_tokens\": 3}\n\
                    {\"prompt\": [4], \"max_tokens\": 5}\n{\"messages\": [{\"role\": \"user\"}]}\n";
        let prompts = parse_prompts(text, 99).unwrap();
        let outputs: Vec<_> = prompts.iter().map(|prompt| prompt.output).collect();
        assert_eq!(outputs, [None, None, Some(3), Some(5), None]);
        let tokens: Vec<_> = prompts.iter().map(|prompt| prompt.tokens).collect();
        assert_eq!(tokens, [None, Some(2), None, Some(1), None]);
        assert!(matches!(&prompts[4].content, PromptContent::Messages(list) if list.len() == 1));
        assert_eq!(parse_prompts(text, 2).unwrap().len(), 2);
    }

    #[test]
    fn conversations_give_their_first_turn() {
        let text = r#"[{"id": 1, "conversations": [{"from": "human", "value": "a"}]},
            {"conversation": [{"content": "b"}, {"content": "c"}, {"content": "d"}]}]"#;
        let prompts = parse_prompts(text, 99).unwrap();
        assert_eq!(prompts.len(), 1, "a conversation without a reply is left out");
        assert_eq!(prompts[0].content, PromptContent::Text("b".to_owned()));
        assert_eq!(prompts[0].reply.as_deref(), Some("c"));
    }

    #[test]
    fn faults_are_named_with_their_place() {
        for (text, words) in [
            ("\"a\"\nb", "line 2: expected value"),
            ("{\"text\": 1}", "line 1: the object has none"),
            ("[-1]", "`-1` is no token id"),
            ("[{\"prompt\": \"a\"},\n 7]", "entry 2: `7` is no prompt"),
            ("{\"prompt\": \"a\", \"max_tokens\": 0}", "`max_tokens` is `0`; expected"),
            ("{\"messages\": [1]}", "`messages` is no list of objects"),
            ("{\"conversations\": [{}, {}]}", "a turn has no text"),
            ("  \n", "no prompt"),
        ] {
            let error = parse_prompts(text, 9).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[\\[\\]{}\",:a-e0-9 \n-]{0,60}") {
            drop(parse_prompts(&text, 10));
        }
    }
}
