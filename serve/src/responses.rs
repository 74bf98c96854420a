//! `/v1/responses`: requests become conversations, and answers are written as items.
//!
//! Nothing is stored: a request carries its whole conversation.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::body;
use crate::chat_completions::{self, ChatFields};
use crate::error::ApiError;
use crate::fields::NEUTRAL;
use crate::object::{self, NeutralField};
use crate::response_answer::ResponseAnswer;
use crate::sse;
use crate::state::ServerState;

/// Fields that change no answer at these values, beside those of all paths.
const NEUTRAL_OF_RESPONSES: [NeutralField; 9] = [
    NeutralField::of("previous_response_id", &[]),
    NeutralField::of("conversation", &[]),
    NeutralField::of("prompt", &[]),
    NeutralField::of("include", &["[]"]),
    NeutralField::of("background", &["false"]),
    NeutralField::of("truncation", &["\"disabled\""]),
    NeutralField::of("max_tool_calls", &[]),
    NeutralField::of("top_logprobs", &["0"]),
    NeutralField::of("stream_options", &["{}"]),
];

/// Fields of a request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResponseFields {
    model: Option<String>,
    input: Value,
    instructions: Option<String>,
    #[serde(default, deserialize_with = "object::integer")]
    max_output_tokens: Option<usize>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    #[serde(default, deserialize_with = "object::integer")]
    seed: Option<i64>,
    stream: Option<bool>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    #[serde(default, deserialize_with = "object::optional")]
    text: Option<TextField>,
    #[serde(default, deserialize_with = "object::optional")]
    reasoning: Option<ReasoningField>,
    chat_template_kwargs: Option<Value>,
    ignore_eos: Option<bool>,
    #[expect(dead_code, reason = "it names a person, which changes no answer")]
    user: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TextField {
    format: Option<Value>,
    #[expect(dead_code, reason = "no template reads it")]
    verbosity: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReasoningField {
    effort: Option<String>,
    #[expect(dead_code, reason = "reasoning is shown as it is")]
    summary: Option<Value>,
    #[expect(dead_code, reason = "the older name of `summary`")]
    generate_summary: Option<Value>,
}

/// Returns the value of a key that is a text.
fn text<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value.get(key).and_then(Value::as_str)
}

/// Returns the value of a key that item `n` of the input needs.
fn needed<'v>(item: &'v Value, n: usize, key: &str) -> Result<&'v str, ApiError> {
    text(item, key)
        .ok_or_else(|| ApiError::field("input", format!("`input[{n}]` has no text `{key}`")))
}

impl ResponseFields {
    /// Returns the same request as a conversation.
    fn conversation(&self) -> Result<ChatFields, ApiError> {
        let tools =
            self.tools.as_deref().map(|tools| tools.iter().map(function).collect::<Vec<_>>());
        let format = self.text.as_ref().and_then(|text| text.format.as_ref());
        let effort = self.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_ref());
        let fields = json!({
            "model": self.model,
            "messages": self.messages()?,
            "max_completion_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "tools": tools,
            "tool_choice": self.tool_choice.as_ref().map(function),
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": format.map(response_format),
            "reasoning_effort": effort,
            "chat_template_kwargs": self.chat_template_kwargs,
            "ignore_eos": self.ignore_eos,
            "stream": self.stream,
        });
        // As text, so that integers and the order of keys are read as those of other requests.
        object::parse(fields.to_string().as_bytes(), &[])
    }

    fn messages(&self) -> Result<Vec<Value>, ApiError> {
        let mut messages: Vec<Value> = Vec::new();
        if let Some(instructions) = &self.instructions {
            messages.push(json!({ "role": "system", "content": instructions }));
        }
        let items = match &self.input {
            Value::String(text) => {
                messages.push(json!({ "role": "user", "content": text }));
                return Ok(messages);
            }
            Value::Array(items) => items,
            _ => {
                return Err(ApiError::field(
                    "input",
                    "`input` is neither a text nor a list of items",
                ));
            }
        };
        for (n, item) in items.iter().enumerate() {
            match text(item, "type").unwrap_or("message") {
                "message" => {
                    let role = needed(item, n, "role")?;
                    messages.push(json!({ "role": role, "content": item.get("content") }));
                }
                "function_call" => {
                    let id = needed(item, n, "call_id")?;
                    let name = needed(item, n, "name")?;
                    let arguments = needed(item, n, "arguments")?;
                    let call = json!({
                        "id": id, "type": "function",
                        "function": { "name": name, "arguments": arguments },
                    });
                    add_call(&mut messages, call);
                }
                "function_call_output" => {
                    let id = needed(item, n, "call_id")?;
                    messages.push(json!({
                        "role": "tool", "tool_call_id": id, "content": item.get("output"),
                    }));
                }
                // Templates get reasoning as a part of messages, and drop that of earlier turns.
                "reasoning" => {}
                other => {
                    let known = "`message`, `function_call`, `function_call_output` or `reasoning`";
                    let message =
                        format!("`input[{n}]` is of the type `{other}`; expected {known}");
                    return Err(ApiError::field("input", message));
                }
            }
        }
        Ok(messages)
    }

    /// Returns the fields of the request that an answer repeats.
    fn repeated(&self) -> Map<String, Value> {
        let format = self.text.as_ref().and_then(|text| text.format.clone());
        let fields = json!({
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "temperature": self.temperature.unwrap_or(1.0),
            "top_p": self.top_p.unwrap_or(1.0),
            "tools": self.tools.clone().unwrap_or_default(),
            "tool_choice": self.tool_choice.clone().unwrap_or_else(|| json!("auto")),
            "parallel_tool_calls": self.parallel_tool_calls.unwrap_or(true),
            "text": { "format": format.unwrap_or_else(|| json!({ "type": "text" })) },
            "reasoning": {
                "effort": self.reasoning.as_ref().and_then(|reasoning| reasoning.effort.clone()),
                "summary": null,
            },
        });
        match fields {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }
}

/// Adds a call to the message of the assistant before it, or to a new one.
fn add_call(messages: &mut Vec<Value>, call: Value) {
    let last = messages.last_mut().filter(|last| text(last, "role") == Some("assistant"));
    match last.and_then(Value::as_object_mut) {
        Some(message) => {
            let calls = message.entry("tool_calls").or_insert_with(|| json!([]));
            if let Some(calls) = calls.as_array_mut() {
                calls.push(call);
            }
        }
        None => {
            messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
        }
    }
}

/// Returns an object that keeps its type, and has its other keys in an object below `under`.
fn nested(value: &Value, under: &str) -> Value {
    let Some(map) = value.as_object() else { return value.clone() };
    let mut outer = Map::new();
    let mut inner = Map::new();
    for (key, value) in map {
        let target = if key == "type" { &mut outer } else { &mut inner };
        target.insert(key.clone(), value.clone());
    }
    outer.insert(under.to_owned(), Value::Object(inner));
    Value::Object(outer)
}

/// Returns a tool, or the choice of one, in the form of conversations.
fn function(value: &Value) -> Value {
    if text(value, "type") == Some("function") { nested(value, "function") } else { value.clone() }
}

fn response_format(format: &Value) -> Value {
    match text(format, "type") {
        Some("json_schema") => nested(format, "json_schema"),
        _ => format.clone(),
    }
}

/// Answers a request.
pub(crate) async fn responses(
    State(state): State<Arc<ServerState>>,
    request: Request,
) -> Result<Response, ApiError> {
    let guard = state.begin()?;
    let fields: ResponseFields = {
        let neutral = [&NEUTRAL[..], &NEUTRAL_OF_RESPONSES].concat();
        body::read(&state, request, &neutral).await?
    };
    let streamed = fields.stream == Some(true);
    let conversation = fields.conversation().map_err(renamed)?;
    let (answer, mut events) =
        chat_completions::start(&state, &guard, conversation).await.map_err(renamed)?;
    let mut answer = ResponseAnswer::new(answer, state.id("resp"), fields.repeated());
    if streamed {
        return Ok(sse::respond(answer, events, guard, state));
    }
    sse::complete(&mut answer, &mut events, &guard).await?;
    Ok(Json(answer.whole()).into_response())
}

/// Returns an error with the field's name in this API.
fn renamed(mut error: ApiError) -> ApiError {
    let names = [
        ("max_completion_tokens", "max_output_tokens"),
        ("max_tokens", "max_output_tokens"),
        ("messages", "input"),
        ("response_format", "text"),
    ];
    if let Some((from, to)) =
        names.into_iter().find(|(from, _)| error.param.as_deref() == Some(*from))
    {
        error.param = Some(to.to_owned());
        error.message = error.message.replace(&format!("`{from}"), &format!("`{to}"));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(fields: Value) -> Result<Value, String> {
        let fields: ResponseFields = serde_json::from_value(fields).unwrap();
        fields.messages().map(Value::from).map_err(|error| error.message)
    }

    #[test]
    fn items_become_messages() {
        let input = json!([
            { "role": "user", "content": [{ "type": "input_text", "text": "a" }] },
            { "type": "reasoning", "id": "r", "summary": [] },
            { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "b" }] },
            call_item("1"), call_item("2"),
            { "type": "function_call_output", "call_id": "1", "output": "c" },
            call_item("3"),
        ]);
        let expected = json!([
            { "role": "system", "content": "s" },
            { "role": "user", "content": [{ "type": "input_text", "text": "a" }] },
            {
                "role": "assistant", "content": [{ "type": "output_text", "text": "b" }],
                "tool_calls": [tool_call("1"), tool_call("2")],
            },
            { "role": "tool", "tool_call_id": "1", "content": "c" },
            { "role": "assistant", "content": null, "tool_calls": [tool_call("3")] },
        ]);
        assert_eq!(messages(json!({ "instructions": "s", "input": input })), Ok(expected));
        assert_eq!(
            messages(json!({ "input": "a" })),
            Ok(json!([{ "role": "user", "content": "a" }]))
        );
        for (input, words) in [
            (json!(1), "neither a text nor a list"),
            (json!([{ "type": "image" }]), "`input[0]` is of the type `image`"),
            (json!([{}]), "`input[0]` has no text `role`"),
            (json!([{ "type": "function_call" }]), "no text `call_id`"),
        ] {
            let error = messages(json!({ "input": input })).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    fn tool_call(id: &str) -> Value {
        json!({ "id": id, "type": "function", "function": { "name": "f", "arguments": "{}" } })
    }

    fn call_item(id: &str) -> Value {
        json!({ "type": "function_call", "call_id": id, "name": "f", "arguments": "{}" })
    }

    #[test]
    fn tools_and_formats_take_the_form_of_conversations() {
        assert_eq!(
            function(&json!({ "type": "function", "name": "f", "strict": true })),
            json!({ "type": "function", "function": { "name": "f", "strict": true } })
        );
        assert_eq!(function(&json!({ "type": "web_search" })), json!({ "type": "web_search" }));
        assert_eq!(function(&json!("auto")), json!("auto"));
        assert_eq!(
            response_format(&json!({ "type": "json_schema", "name": "n", "schema": {} })),
            json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": {} } })
        );
        assert_eq!(response_format(&json!({ "type": "text" })), json!({ "type": "text" }));
    }
}
