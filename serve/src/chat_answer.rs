//! Answers of `/v1/chat/completions`: messages with text, reasoning and tool calls.

use std::sync::Arc;

use chat::{OutputEvent, OutputParser};
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use crate::answer::ChoiceText;
use crate::error::ApiError;
use crate::fields::StreamUsage;
use crate::logprobs::TokenScore;
use crate::sequence::{EndReason, SequenceEvent};
use crate::sse::GrowingAnswer;
use crate::state::ServerState;

/// A call of a tool.
#[derive(Debug)]
struct ToolCall {
    id: String,
    name: String,
    arguments: String,
}

impl ToolCall {
    /// True if the arguments are complete. A streamed call that turns out to be malformed never is.
    fn is_whole(&self) -> bool {
        serde_json::from_str::<IgnoredAny>(&self.arguments).is_ok()
    }
}

/// One choice of an answer.
pub(crate) struct ChatChoice {
    progress: ChoiceText,
    /// Parser of calls and reasoning; without one, all text is content.
    parser: Option<OutputParser>,
    content: String,
    reasoning: String,
    calls: Vec<ToolCall>,
    logprobs: Vec<Value>,
    ids: Vec<u32>,
    /// Changes that are not streamed yet.
    deltas: Vec<Value>,
    new_logprobs: usize,
    new_ids: usize,
    begun: bool,
    closed: bool,
    /// True if the choice ends with its first call.
    single: bool,
}

impl ChatChoice {
    pub(crate) fn new(progress: ChoiceText, parser: Option<OutputParser>, single: bool) -> Self {
        Self {
            single,
            progress,
            parser,
            content: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
            logprobs: Vec::new(),
            ids: Vec::new(),
            deltas: Vec::new(),
            new_logprobs: 0,
            new_ids: 0,
            begun: false,
            closed: false,
        }
    }

    /// Reads the new text of the choice.
    fn read(&mut self, id: &dyn Fn() -> String) {
        let text = std::mem::take(&mut self.progress.text);
        let ended = self.progress.finish.is_some();
        let events = match &mut self.parser {
            None if text.is_empty() => Vec::new(),
            None => vec![OutputEvent::Content(text)],
            Some(parser) => {
                let mut events = parser.push(&text);
                if ended {
                    events.extend(parser.finish());
                }
                events
            }
        };
        for event in events {
            let delta = match event {
                OutputEvent::Content(text) => {
                    self.content.push_str(&text);
                    json!({ "content": text })
                }
                OutputEvent::Reasoning(text) => {
                    self.reasoning.push_str(&text);
                    json!({ "reasoning_content": text })
                }
                OutputEvent::Call { index, .. } if self.single && index > 0 => {
                    self.progress.stop("tool_calls");
                    return;
                }
                OutputEvent::Call { index, name } => {
                    let id = id();
                    let delta = json!({ "tool_calls": [{
                        "index": index, "id": id, "type": "function",
                        "function": { "name": name, "arguments": "" },
                    }] });
                    self.calls.push(ToolCall { id, name, arguments: String::new() });
                    delta
                }
                OutputEvent::Arguments { index, piece } => {
                    if let Some(call) = self.calls.get_mut(index) {
                        call.arguments.push_str(&piece);
                    }
                    json!({ "tool_calls": [{ "index": index, "function": { "arguments": piece } }] })
                }
            };
            self.deltas.push(delta);
        }
        let called = self.calls.iter().any(ToolCall::is_whole);
        if ended && called && self.progress.finish == Some(EndReason::Stop.name()) {
            self.progress.finish = Some("tool_calls");
        }
    }

    /// Returns the changes since the last call.
    pub(crate) fn take_deltas(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.deltas)
    }

    /// Returns the reason of the end, if the choice has ended.
    pub(crate) fn finish(&self) -> Option<&'static str> {
        self.progress.finish
    }

    fn message(&self) -> Value {
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("assistant"));
        let no_text = self.content.is_empty() && !self.calls.is_empty();
        message
            .insert("content".to_owned(), if no_text { Value::Null } else { json!(self.content) });
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), json!(self.reasoning));
        }
        if !self.calls.is_empty() {
            let calls = self.calls.iter().map(|call| {
                json!({
                    "id": call.id, "type": "function",
                    "function": { "name": call.name, "arguments": call.arguments },
                })
            });
            message.insert("tool_calls".to_owned(), calls.collect());
        }
        Value::Object(message)
    }
}

/// An answer that grows.
pub(crate) struct ChatAnswer {
    pub(crate) state: Arc<ServerState>,
    pub(crate) id: String,
    pub(crate) created: u64,
    /// Number of likely tokens for each token, if log-probabilities are shown.
    pub(crate) top: Option<usize>,
    pub(crate) token_ids: bool,
    pub(crate) usage: StreamUsage,
    pub(crate) ends: Arc<[u32]>,
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) choices: Vec<ChatChoice>,
}

impl GrowingAnswer for ChatAnswer {
    fn accept(&mut self, index: usize, event: SequenceEvent) -> Result<(), ApiError> {
        let Some(choice) = self.choices.get_mut(index) else { return Ok(()) };
        if choice.progress.finish.is_some() {
            return Ok(());
        }
        match event {
            SequenceEvent::Prompt(_) => {}
            SequenceEvent::Token { id, score, end } => {
                if let (Some(top), Some(score)) = (self.top, score) {
                    choice.logprobs.push(logprob(&self.state, &score, top));
                }
                choice.ids.push(id);
                choice.progress.push(id, self.ends.contains(&id));
                if let (Some(reason), None) = (end, choice.progress.finish) {
                    choice.progress.end(reason);
                }
            }
            SequenceEvent::End(reason) => choice.progress.end(reason),
            SequenceEvent::Failed(error) => return Err(error),
        }
        choice.read(&|| self.state.id("call"));
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.choices.iter().all(|choice| choice.progress.finish.is_some())
    }

    fn chunks(&mut self) -> Vec<Value> {
        let mut chunks = Vec::new();
        for index in 0..self.choices.len() {
            let top = self.top;
            let token_ids = self.token_ids;
            let choice = &mut self.choices[index];
            if choice.closed {
                continue;
            }
            let mut deltas = std::mem::take(&mut choice.deltas);
            if !std::mem::replace(&mut choice.begun, true) {
                deltas.insert(0, json!({ "role": "assistant", "content": "" }));
            }
            let finish = choice.progress.finish;
            let new = &choice.logprobs[choice.new_logprobs..];
            let logprobs = top.map(|_| json!({ "content": new }));
            let new_ids = &choice.ids[choice.new_ids..];
            let shown = (top.is_some() && !new.is_empty()) || (token_ids && !new_ids.is_empty());
            if deltas.is_empty() && (shown || finish.is_some()) {
                deltas.push(json!({}));
            }
            choice.closed = finish.is_some();
            let last = deltas.len().saturating_sub(1);
            let mut parts = Vec::new();
            for (n, delta) in deltas.into_iter().enumerate() {
                let mut part = json!({
                    "index": index, "delta": delta, "logprobs": null,
                    "finish_reason": finish.filter(|_| n == last),
                });
                if n == last {
                    part["logprobs"] = json!(logprobs);
                    if token_ids {
                        part["token_ids"] = json!(new_ids);
                    }
                }
                parts.push(part);
            }
            if !parts.is_empty() {
                (choice.new_logprobs, choice.new_ids) = (choice.logprobs.len(), choice.ids.len());
            }
            for part in parts {
                let mut chunk = self.object("chat.completion.chunk", &json!([part]));
                if self.usage.each {
                    chunk["usage"] = self.usage();
                }
                chunks.push(chunk);
            }
        }
        chunks
    }

    fn last_chunks(&mut self) -> Vec<Value> {
        if !self.usage.last {
            return Vec::new();
        }
        let mut chunk = self.object("chat.completion.chunk", &json!([]));
        chunk["usage"] = self.usage();
        vec![chunk]
    }
}

impl ChatAnswer {
    fn object(&self, kind: &str, choices: &Value) -> Value {
        json!({
            "id": self.id, "object": kind, "created": self.created, "model": self.state.name,
            "choices": choices,
        })
    }

    /// Returns the numbers of tokens of the prompt and of the answer.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.prompt.len(), self.choices.iter().map(|choice| choice.progress.count).sum())
    }

    fn usage(&self) -> Value {
        let (_, generated) = self.counts();
        json!({
            "prompt_tokens": self.prompt.len(), "completion_tokens": generated,
            "total_tokens": self.prompt.len() + generated,
        })
    }

    /// Returns the whole answer.
    pub(crate) fn whole(&self) -> Value {
        let choices = self.choices.iter().enumerate().map(|(index, choice)| {
            let mut part = json!({
                "index": index,
                "message": choice.message(),
                "logprobs": self.top.map(|_| json!({ "content": choice.logprobs })),
                "finish_reason": choice.progress.finish,
            });
            if self.token_ids {
                part["token_ids"] = json!(choice.ids);
            }
            part
        });
        let mut answer = self.object("chat.completion", &choices.collect());
        answer["usage"] = self.usage();
        if self.token_ids {
            answer["prompt_token_ids"] = json!(*self.prompt);
        }
        answer
    }
}

/// Returns the log-probability of a token in the form of the chat API.
fn logprob(state: &ServerState, score: &TokenScore, top: usize) -> Value {
    let mut entry = logprob_entry(state, score.id, score.logprob);
    let top = score.top.iter().take(top);
    entry["top_logprobs"] = top.map(|(id, logprob)| logprob_entry(state, *id, *logprob)).collect();
    entry
}

/// Returns one token with its log-probability.
fn logprob_entry(state: &ServerState, id: u32, logprob: f32) -> Value {
    let texts = &state.texts;
    json!({ "token": texts.name(id), "logprob": logprob, "bytes": texts.bytes(id) })
}

#[cfg(test)]
mod tests {
    use chat::{Format, ParserOptions};

    use super::*;
    use crate::sequence::CancelFlag;
    use crate::text_stream::TextStream;
    use crate::{CodecError, ServedTokenizer};

    /// One token per byte.
    struct ByteTokens;

    impl ServedTokenizer for ByteTokens {
        fn encode(&self, text: &str, _: bool) -> Result<Vec<u32>, CodecError> {
            Ok(text.bytes().map(u32::from).collect())
        }

        fn decode(&self, tokens: &[u32], _: bool) -> Result<String, CodecError> {
            let bytes: Vec<u8> = tokens.iter().map(|token| *token as u8).collect();
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
    }

    /// Reads an output token by token; returns the choice, and all changes put together.
    fn read(output: &str, parser: Option<OutputParser>) -> (ChatChoice, Value) {
        read_calls(output, parser, false)
    }

    fn read_calls(output: &str, parser: Option<OutputParser>, single: bool) -> (ChatChoice, Value) {
        let stream = TextStream::new(Some(Arc::new(ByteTokens)), &[], Vec::new(), true);
        let mut choice =
            ChatChoice::new(ChoiceText::new(stream, CancelFlag::default()), parser, single);
        for byte in output.bytes() {
            if choice.progress.finish.is_none() {
                choice.progress.push(byte.into(), false);
                choice.read(&|| "call-1".to_owned());
            }
        }
        if choice.progress.finish.is_none() {
            choice.progress.end(EndReason::Stop);
            choice.read(&|| "call-1".to_owned());
        }
        let mut content = String::new();
        let mut reasoning = String::new();
        let mut calls = Vec::new();
        for delta in &choice.deltas {
            content.push_str(delta["content"].as_str().unwrap_or_default());
            reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
            for call in delta["tool_calls"].as_array().into_iter().flatten() {
                let index = call["index"].as_u64().unwrap() as usize;
                let function = &call["function"];
                if index == calls.len() {
                    calls.push((function["name"].as_str().unwrap().to_owned(), String::new()));
                }
                calls[index].1.push_str(function["arguments"].as_str().unwrap());
            }
        }
        (choice, json!([content, reasoning, calls]))
    }

    #[test]
    fn calls_and_reasoning_are_streamed_as_they_are_answered() {
        let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\"}}\n</tool_call>";
        let text = format!("Let me see. {call}{call}");
        let (choice, streamed) = read(&text, Some(hermes_parser(true)));
        let message = choice.message();
        let calls = message["tool_calls"].as_array().unwrap();
        assert_eq!((calls.len(), choice.progress.finish), (2, Some("tool_calls")));
        for (n, call) in calls.iter().enumerate() {
            let function = &call["function"];
            let arguments: Value =
                serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
            assert_eq!(arguments, json!({ "city": "Köln" }));
            assert_eq!(streamed[2][n], json!([function["name"], function["arguments"]]));
        }
        assert_eq!(streamed[0], message["content"]);
        assert!(message["content"].as_str().unwrap().starts_with("Let me see."), "{message}");
        // Pieces of arguments are those of the whole call.
        let (pieces, again) = read(&text, Some(hermes_parser(false)));
        assert_eq!((&again, &pieces.message()), (&streamed, &message));
        assert_eq!(call_deltas(&choice), 4);
        assert!(call_deltas(&pieces) > 30, "{:?}", pieces.deltas);
        let first = pieces.deltas.iter().find(|delta| delta["tool_calls"].is_array()).unwrap();
        assert_eq!(
            first["tool_calls"][0],
            json!({ "index": 0, "id": "call-1", "type": "function",
                "function": { "name": "weather", "arguments": "" } })
        );
        // With one call at most, the choice ends where the second begins.
        for whole_calls in [true, false] {
            let (choice, streamed) = read_calls(&text, Some(hermes_parser(whole_calls)), true);
            assert_eq!((choice.calls.len(), choice.progress.finish), (1, Some("tool_calls")));
            assert_eq!(streamed[2], json!([["weather", "{\"city\": \"Köln\"}"]]));
        }
        // A call that is not whole is text.
        let (choice, streamed) = read("<tool_call>\n{\"name\": \"wea", Some(hermes_parser(true)));
        assert_eq!((choice.calls.len(), choice.progress.finish), (0, Some("stop")));
        assert_eq!(streamed[0], choice.message()["content"]);
        // A mistake in a streamed call leaves its arguments incomplete, and ends no turn with calls.
        let bad = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\" \"Köln\"}}\n</tool_call>";
        let (choice, streamed) = read(bad, Some(hermes_parser(false)));
        assert_eq!(streamed[2], json!([["weather", "{\"city\" "]]));
        assert_eq!(streamed[0], "\"Köln\"}}\n</tool_call>");
        assert_eq!(choice.progress.finish, Some("stop"));
        let (choice, _) = read(&format!("{bad}{call}"), Some(hermes_parser(false)));
        assert_eq!((choice.calls.len(), choice.progress.finish), (2, Some("tool_calls")));
        // Without a format, marks are text.
        let (choice, _) = read(call, None);
        assert_eq!(choice.message()["content"], call);
        assert_eq!(choice.progress.finish, Some("stop"));
    }

    fn call_deltas(choice: &ChatChoice) -> usize {
        choice.deltas.iter().filter(|delta| delta["tool_calls"].is_array()).count()
    }

    fn hermes_parser(whole_calls: bool) -> OutputParser {
        let format = Format::named("hermes").unwrap();
        format.parser(&ParserOptions { whole_calls, ..ParserOptions::default() })
    }
}
