//! Streamed answers as measurements: times of chunks, and counts of tokens.

use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::failure::{LoadFailure, LoadFailureKind};
use super::sse::{TimedBytes, events};
use crate::error::shown;

/// Measurement of one request. Times are seconds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RequestRecord {
    /// Number of the prompt in the plan.
    pub index: usize,
    /// Time at which the request was due, from the beginning of the run.
    pub due: f64,
    /// Time at which the request was sent, from the beginning of the run.
    pub sent: f64,
    /// Time at which the answer ended, from the beginning of the run.
    pub ended: f64,
    /// Time from sending the request to the first chunk of the output.
    pub ttft: f64,
    /// Time from sending the request to the last chunk.
    pub latency: f64,
    /// Times between consecutive chunks of the output.
    pub itl: Vec<f64>,
    /// Number of chunks of the output.
    pub chunks: usize,
    /// Number of tokens of the prompt as it was made, if known.
    pub prompt_length: Option<u64>,
    /// Number of tokens of the prompt that the server counted.
    pub prompt_tokens: Option<u64>,
    /// Number of generated tokens that the server counted.
    pub output_tokens: Option<u64>,
    /// Generated text, if it was asked for.
    pub text: Option<String>,
    /// Reason why the request failed.
    pub failure: Option<LoadFailure>,
}

/// Rule that says which chunks of an answer are output, and where its latency ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChunkRule {
    /// Chunks with output; the latency ends with the last chunk that has a choice.
    #[default]
    Output,
    /// The rule of `vllm bench serve`: every chunk of a completion that has a choice. Of a chat, chunks with output,
    /// and the latency ends with the last one. Counts of tokens are read from other chunks alone.
    Choice,
    /// The rule of `sglang.bench_serving`: chunks with text; the latency ends with the last event.
    Text,
}

/// Largest count of tokens that is believed.
const MOST_TOKENS: u64 = 1 << 32;

#[derive(Deserialize)]
struct ChunkJson {
    #[serde(default)]
    choices: Option<Vec<ChoiceJson>>,
    #[serde(default)]
    usage: Option<UsageJson>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct ChoiceJson {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    delta: Option<DeltaJson>,
    #[serde(default)]
    finish_reason: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct DeltaJson {
    #[serde(default)]
    role: Option<IgnoredAny>,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    reasoning_content: Option<String>,
    #[serde(default)]
    reasoning: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<IgnoredAny>>,
    #[serde(default)]
    function_call: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct UsageJson {
    #[serde(default)]
    prompt_tokens: Option<u64>,
    #[serde(default)]
    completion_tokens: Option<u64>,
}

/// True if there is text, and not an empty one.
fn is_filled(text: Option<&String>) -> bool {
    text.is_some_and(|text| !text.is_empty())
}

impl ChoiceJson {
    /// True if the chunk carries output. A token may decode to no text, but the chunks that only open or
    /// finish an answer are no tokens.
    fn is_output(&self, rule: ChunkRule) -> bool {
        let unfinished = self.finish_reason.is_none();
        match &self.delta {
            Some(delta) => {
                let text = is_filled(delta.content.as_ref())
                    || is_filled(delta.reasoning_content.as_ref())
                    || is_filled(delta.reasoning.as_ref());
                if rule == ChunkRule::Text {
                    return text;
                }
                let unfinished = unfinished || rule == ChunkRule::Choice;
                text || delta.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty())
                    || delta.function_call.is_some()
                    || (delta.content.is_some() && delta.role.is_none() && unfinished)
            }
            None => match rule {
                ChunkRule::Choice => true,
                ChunkRule::Text => is_filled(self.text.as_ref()),
                ChunkRule::Output => {
                    is_filled(self.text.as_ref()) || (self.text.is_some() && unfinished)
                }
            },
        }
    }

    fn add_text(&self, to: &mut String) {
        let delta = self.delta.as_ref();
        // Some servers send reasoning under both names; the text is the same.
        let reasoning = delta.and_then(|d| d.reasoning_content.as_ref().or(d.reasoning.as_ref()));
        let content = delta.and_then(|d| d.content.as_ref());
        for text in [self.text.as_ref(), reasoning, content].into_iter().flatten() {
            to.push_str(text);
        }
    }
}

/// Returns a count of the server's usage; none if it is 0 or missing.
fn plausible_count(count: Option<u64>) -> Result<Option<u64>, LoadFailure> {
    match count {
        Some(count) if count > MOST_TOKENS => {
            Err(LoadFailure::malformed(format!("`usage` counts {count} tokens")))
        }
        Some(0) | None => Ok(None),
        count => Ok(count),
    }
}

impl RequestRecord {
    /// Fills in the times and counts of an answer. `limit` is the largest number of tokens that was asked
    /// for; the text is kept if `keep_text`.
    pub(super) fn read(
        &mut self,
        stream: &TimedBytes,
        limit: usize,
        keep_text: bool,
        rule: ChunkRule,
    ) -> Result<(), LoadFailure> {
        let mut text = String::new();
        let mut last: Option<Duration> = None;
        let mut done = false;
        let mut finished = false;
        let mut any = false;
        for event in events(stream)? {
            any = true;
            if rule == ChunkRule::Text {
                self.latency = event.at.as_secs_f64();
            }
            if event.data.trim() == "[DONE]" {
                done = true;
                break;
            }
            let chunk: ChunkJson = serde_json::from_str(&event.data).map_err(|error| {
                let near = shown(&event.data.chars().take(80).collect::<String>());
                LoadFailure::malformed(format!(
                    "event `{near}` is no chunk: {}",
                    shown(&error.to_string())
                ))
            })?;
            if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
                let message = error.get("message").and_then(Value::as_str);
                let words = shown(message.unwrap_or(&error.to_string()));
                return Err(LoadFailure::new(LoadFailureKind::ErrorEvent, words));
            }
            let choice = chunk.choices.and_then(|list| list.into_iter().next());
            let output = choice.as_ref().is_some_and(|choice| choice.is_output(rule));
            if let Some(usage) = chunk.usage {
                self.prompt_tokens = plausible_count(usage.prompt_tokens)?.or(self.prompt_tokens);
                let generated = plausible_count(usage.completion_tokens)?;
                // The client of that rule does not see a count beside output.
                if rule != ChunkRule::Choice || !output {
                    self.output_tokens = generated.or(self.output_tokens);
                }
            }
            let Some(choice) = choice else { continue };
            finished |= choice.finish_reason.is_some();
            let closes = rule != ChunkRule::Choice || choice.delta.is_none();
            if output || closes || last.is_none() {
                self.latency = event.at.as_secs_f64();
            }
            if !output {
                continue;
            }
            match last {
                None => self.ttft = event.at.as_secs_f64(),
                Some(last) => self.itl.push(event.at.saturating_sub(last).as_secs_f64()),
            }
            last = Some(event.at);
            self.chunks += 1;
            if self.chunks > limit.saturating_mul(2).saturating_add(64) {
                let words = format!("more than {} chunks for {limit} tokens", self.chunks - 1);
                return Err(LoadFailure::malformed(words));
            }
            if keep_text {
                choice.add_text(&mut text);
            }
        }
        if !any {
            return Err(LoadFailure::new(LoadFailureKind::NoOutput, "the answer has no event"));
        }
        if !done && !finished {
            let words = "the stream ends without `[DONE]` and without a `finish_reason`";
            return Err(LoadFailure::new(LoadFailureKind::BrokenOff, words));
        }
        if last.is_none() && finished && self.output_tokens.is_some() {
            // llama-server holds back tokens that end within a character, so that all may be held back.
            // The closing chunk then tells of them, as for vllm's client.
            self.ttft = self.latency;
            self.chunks = 1;
        } else if last.is_none() {
            let words = "the stream ends before the first token";
            return Err(LoadFailure::new(LoadFailureKind::NoOutput, words));
        }
        self.text = keep_text.then_some(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads an answer whose events arrive one second apart.
    fn read_by(rule: ChunkRule, events: &[&str]) -> Result<RequestRecord, LoadFailure> {
        let mut stream = TimedBytes::default();
        for (n, event) in events.iter().enumerate() {
            let line = format!("data: {event}\n\n");
            stream.push(line.as_bytes(), Duration::from_secs(n as u64 + 1));
        }
        let mut record = RequestRecord::default();
        record.read(&stream, 8, true, rule).map(|()| record)
    }

    fn read(events: &[&str]) -> Result<RequestRecord, LoadFailure> {
        read_by(ChunkRule::Output, events)
    }

    #[test]
    fn times_and_counts_of_completions() {
        let record = read(&[
            r#"{"choices": [{"text": "a", "finish_reason": null}]}"#,
            r#"{"choices": [{"text": "", "finish_reason": null}]}"#,
            r#"{"choices": [{"text": "b", "finish_reason": "length"}]}"#,
            r#"{"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 4}}"#,
            "[DONE]",
        ])
        .unwrap();
        assert_eq!((record.ttft, record.latency, record.chunks), (1.0, 3.0, 3));
        assert_eq!(record.itl, [1.0, 1.0]);
        assert_eq!((record.prompt_tokens, record.output_tokens), (Some(5), Some(4)));
        assert_eq!(record.text.as_deref(), Some("ab"));
    }

    #[test]
    fn chunks_that_open_and_finish_a_chat_are_no_tokens() {
        let record = read(&[
            r#"{"choices": [{"delta": {"role": "assistant", "content": ""}}]}"#,
            r#"{"choices": [{"delta": {"reasoning_content": "x", "reasoning": "x"}}]}"#,
            r#"{"choices": [{"delta": {"content": ""}}]}"#,
            r#"{"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}"#,
            r#"{"choices": [{"delta": {}, "finish_reason": "stop"}]}"#,
        ])
        .unwrap();
        assert_eq!((record.ttft, record.latency, record.chunks), (2.0, 5.0, 3));
        assert_eq!(record.text.as_deref(), Some("x"));
        assert_eq!((record.prompt_tokens, record.output_tokens), (None, None));
    }

    #[test]
    fn a_last_chunk_with_text_counts_and_one_without_does_not() {
        let first = r#"{"choices": [{"text": "a"}]}"#;
        let empty = r#"{"choices": [{"text": "", "finish_reason": "length"}]}"#;
        assert_eq!(read(&[first, empty]).unwrap().chunks, 1);
        let last = r#"{"choices": [{"text": "b", "finish_reason": "length"}]}"#;
        assert_eq!(read(&[first, last]).unwrap().chunks, 2);
    }

    /// Times as the clients of the two engines record them, from their sources.
    #[test]
    fn rules_of_other_clients_have_their_times() {
        let completion = [
            r#"{"choices": [{"text": "a", "finish_reason": null}]}"#,
            r#"{"choices": [{"text": "", "finish_reason": null}]}"#,
            r#"{"choices": [{"text": "b", "finish_reason": null}]}"#,
            r#"{"choices": [{"text": "", "finish_reason": "length"}]}"#,
            r#"{"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}"#,
            "[DONE]",
        ];
        let chat = [
            r#"{"choices": [{"delta": {"role": "assistant", "content": ""}}]}"#,
            r#"{"choices": [{"delta": {"content": "a"}}]}"#,
            r#"{"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}"#,
            r#"{"choices": [{"delta": {"content": "b"}}]}"#,
            r#"{"choices": [{"delta": {}, "finish_reason": "stop"}]}"#,
            "[DONE]",
        ];
        for (rule, events, ttft, latency, gaps) in [
            (ChunkRule::Output, completion, 1.0, 4.0, &[1.0, 1.0][..]),
            (ChunkRule::Choice, completion, 1.0, 4.0, &[1.0, 1.0, 1.0]),
            (ChunkRule::Text, completion, 1.0, 6.0, &[2.0]),
            (ChunkRule::Output, chat, 2.0, 5.0, &[1.0, 1.0]),
            (ChunkRule::Choice, chat, 2.0, 4.0, &[1.0, 1.0]),
            (ChunkRule::Text, chat, 2.0, 6.0, &[2.0]),
        ] {
            let record = read_by(rule, &events).unwrap();
            assert_eq!((record.ttft, record.latency), (ttft, latency), "{rule:?} {record:?}");
            assert_eq!(record.itl, gaps, "{rule:?}");
        }
    }

    #[test]
    fn counts_beside_output_are_read_by_some_rules() {
        let events = [
            r#"{"choices": [{"text": "a"}]}"#,
            r#"{"choices": [{"text": "", "finish_reason": "length"}], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}"#,
        ];
        for (rule, tokens) in
            [(ChunkRule::Output, Some(3)), (ChunkRule::Text, Some(3)), (ChunkRule::Choice, None)]
        {
            let record = read_by(rule, &events).unwrap();
            assert_eq!((record.prompt_tokens, record.output_tokens), (Some(5), tokens), "{rule:?}");
        }
    }

    #[test]
    fn tokens_without_text_arrive_with_the_closing_chunk() {
        let close = r#"{"choices": [{"text": "", "finish_reason": "length"}], "usage": {"completion_tokens": 3}}"#;
        let record = read(&["{\"choices\": []}", close, "[DONE]"]).unwrap();
        assert_eq!((record.ttft, record.latency, record.chunks), (2.0, 2.0, 1));
        let close = close.replace('3', "0");
        assert_eq!(read(&[&close]).unwrap_err().kind, LoadFailureKind::NoOutput);
    }

    #[test]
    fn faults_have_a_kind() {
        let token = r#"{"choices": [{"text": "a"}]}"#;
        let many = vec![token; 81];
        for (events, kind) in [
            (&[][..], LoadFailureKind::NoOutput),
            (&["[DONE]"], LoadFailureKind::NoOutput),
            (&[token], LoadFailureKind::BrokenOff),
            (&[token, "{\"choices\": 1}"], LoadFailureKind::Malformed),
            (&[token, "{"], LoadFailureKind::Malformed),
            (&[r#"{"error": {"message": "no room"}}"#], LoadFailureKind::ErrorEvent),
            (&[token, r#"{"usage": {"completion_tokens": 1e99}}"#], LoadFailureKind::Malformed),
            (
                &[token, r#"{"usage": {"prompt_tokens": 18446744073709551615}}"#],
                LoadFailureKind::Malformed,
            ),
            (&many, LoadFailureKind::Malformed),
        ] {
            assert_eq!(read(events).unwrap_err().kind, kind, "{events:?}");
        }
        let failure = read(&[r#"{"error": {"message": "no room"}}"#]).unwrap_err();
        assert_eq!(failure.to_string(), "error event: no room");
    }

    proptest! {
        #[test]
        fn any_event_is_read_or_refused(
            text in "[\\[\\]{}\":,a-z0-9_.-]{0,40}|\\{\"choices\":\\[\\{\"text\":\"a\"[^x]{0,9}",
        ) {
            drop(read(&[&text]));
        }
    }
}
