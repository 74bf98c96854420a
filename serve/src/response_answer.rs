//! Answers of `/v1/responses`: items of text, reasoning and calls, whole or as events.

use serde_json::{Map, Value, json};

use crate::chat_answer::{ChatAnswer, ChatChoice};
use crate::error::ApiError;
use crate::sequence::{EndReason, SequenceEvent};
use crate::sse::GrowingAnswer;

/// Kind of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ItemKind {
    Message,
    Reasoning,
    Call,
}

/// An item of the answer.
#[derive(Debug)]
struct AnswerItem {
    kind: ItemKind,
    id: String,
    /// Text, reasoning, or arguments.
    text: String,
    /// Id and name of a call.
    call: (String, String),
}

impl AnswerItem {
    /// Returns the part that has the text of an item.
    fn part(&self) -> Value {
        match self.kind {
            ItemKind::Message => {
                json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] })
            }
            _ => json!({ "type": "reasoning_text", "text": self.text }),
        }
    }

    /// Returns the item; `parts` has its text so far.
    fn object(&self, status: &str, parts: &[Value]) -> Value {
        match self.kind {
            ItemKind::Message => json!({
                "type": "message", "id": self.id, "status": status, "role": "assistant", "content": parts,
            }),
            ItemKind::Reasoning => json!({
                "type": "reasoning", "id": self.id, "status": status, "summary": [], "content": parts,
            }),
            ItemKind::Call => json!({
                "type": "function_call", "id": self.id, "status": status, "call_id": self.call.0,
                "name": self.call.1, "arguments": self.text,
            }),
        }
    }

    fn whole(&self, status: &str) -> Value {
        self.object(status, &[self.part()])
    }

    /// Returns the name of the events about the text.
    fn events(&self) -> &'static str {
        match self.kind {
            ItemKind::Message => "response.output_text",
            ItemKind::Reasoning => "response.reasoning_text",
            ItemKind::Call => "response.function_call_arguments",
        }
    }
}

/// An answer that grows.
pub(crate) struct ResponseAnswer {
    chat: ChatAnswer,
    id: String,
    /// Fields of the request that the answer repeats.
    repeated: Map<String, Value>,
    items: Vec<AnswerItem>,
    /// True while the last item may grow.
    open: bool,
    /// Events that are not streamed yet.
    events: Vec<Value>,
    sequence: usize,
}

impl ResponseAnswer {
    pub(crate) fn new(chat: ChatAnswer, id: String, repeated: Map<String, Value>) -> Self {
        let mut answer = Self {
            chat,
            id,
            repeated,
            items: Vec::new(),
            open: false,
            events: Vec::new(),
            sequence: 0,
        };
        for name in ["response.created", "response.in_progress"] {
            let response = answer.object("in_progress");
            answer.event(name, json!({ "response": response }));
        }
        answer
    }

    fn event(&mut self, name: &str, mut fields: Value) {
        fields["type"] = json!(name);
        fields["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        self.events.push(fields);
    }

    /// Adds an event about the last item.
    fn item_event(&mut self, name: &str, more: &[(&str, Value)]) {
        let Some(item) = self.items.last() else { return };
        let index = self.items.len() - 1;
        let mut fields = json!({ "item_id": item.id, "output_index": index });
        if item.kind != ItemKind::Call {
            fields["content_index"] = json!(0);
        }
        for (key, value) in more {
            fields[*key] = value.clone();
        }
        self.event(name, fields);
    }

    /// Takes in a change of the conversation's message.
    fn change(&mut self, delta: &Value) {
        if let Some(text) = delta["content"].as_str() {
            self.grow(ItemKind::Message, text);
        } else if let Some(text) = delta["reasoning_content"].as_str() {
            self.grow(ItemKind::Reasoning, text);
        }
        for call in delta.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            let function = &call["function"];
            if let (Some(id), Some(name)) = (call["id"].as_str(), function["name"].as_str()) {
                self.begin(ItemKind::Call, (id.to_owned(), name.to_owned()));
            }
            let arguments = function["arguments"].as_str().unwrap_or_default();
            if !arguments.is_empty() {
                self.grow(ItemKind::Call, arguments);
            }
        }
    }

    fn grow(&mut self, kind: ItemKind, text: &str) {
        let grows = self.open && self.items.last().is_some_and(|item| item.kind == kind);
        if !grows {
            self.begin(kind, (String::new(), String::new()));
        }
        let Some(item) = self.items.last_mut() else { return };
        item.text.push_str(text);
        let name = format!("{}.delta", item.events());
        let logprobs = (kind == ItemKind::Message).then(|| ("logprobs", json!([])));
        let fields: Vec<_> = [("delta", json!(text))].into_iter().chain(logprobs).collect();
        self.item_event(&name, &fields);
    }

    fn begin(&mut self, kind: ItemKind, call: (String, String)) {
        self.end_item("completed");
        let prefix = match kind {
            ItemKind::Message => "msg",
            ItemKind::Reasoning => "rs",
            ItemKind::Call => "fc",
        };
        let item = AnswerItem { kind, id: self.chat.state.id(prefix), text: String::new(), call };
        let begun = item.object("in_progress", &[]);
        let part = item.part();
        self.items.push(item);
        self.open = true;
        let index = self.items.len() - 1;
        self.event("response.output_item.added", json!({ "output_index": index, "item": begun }));
        if kind == ItemKind::Message {
            self.item_event("response.content_part.added", &[("part", part)]);
        }
    }

    /// Ends the last item, if it is open.
    fn end_item(&mut self, status: &str) {
        let Some(item) = self.items.last().filter(|_| self.open) else { return };
        let kind = item.kind;
        let name = format!("{}.done", item.events());
        let part = item.part();
        let text = json!(item.text);
        let ended_item = item.whole(status);
        let called = json!(item.call.1);
        self.open = false;
        match kind {
            ItemKind::Message => {
                self.item_event(&name, &[("text", text), ("logprobs", json!([]))]);
                self.item_event("response.content_part.done", &[("part", part)]);
            }
            ItemKind::Reasoning => self.item_event(&name, &[("text", text)]),
            ItemKind::Call => self.item_event(&name, &[("arguments", text), ("name", called)]),
        }
        let index = self.items.len() - 1;
        self.event(
            "response.output_item.done",
            json!({ "output_index": index, "item": ended_item }),
        );
    }

    /// Returns the status of the ended answer.
    fn status(&self) -> &'static str {
        let finish = self.chat.choices.first().and_then(ChatChoice::finish);
        if finish == Some(EndReason::Length.name()) { "incomplete" } else { "completed" }
    }

    fn object(&self, status: &str) -> Value {
        let last = self.items.len().saturating_sub(1);
        let output = self
            .items
            .iter()
            .enumerate()
            .map(|(n, item)| item.whole(if n == last { status } else { "completed" }));
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": self.chat.created, "status": status,
            "model": self.chat.state.name, "output": output.collect::<Value>(), "error": null,
            "incomplete_details": null, "previous_response_id": null, "store": false, "background": false,
            "truncation": "disabled", "metadata": {}, "user": null, "usage": null,
        });
        for (key, value) in &self.repeated {
            response[key] = value.clone();
        }
        if status == "incomplete" {
            response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        if status != "in_progress" {
            let (prompt, generated) = self.chat.counts();
            response["usage"] = json!({
                "input_tokens": prompt, "input_tokens_details": { "cached_tokens": 0 },
                "output_tokens": generated, "output_tokens_details": { "reasoning_tokens": 0 },
                "total_tokens": prompt + generated,
            });
        }
        response
    }

    /// Returns the whole answer.
    pub(crate) fn whole(&self) -> Value {
        self.object(self.status())
    }
}

impl GrowingAnswer for ResponseAnswer {
    fn accept(&mut self, index: usize, event: SequenceEvent) -> Result<(), ApiError> {
        self.chat.accept(index, event)?;
        let deltas = self.chat.choices.first_mut().map(ChatChoice::take_deltas);
        for delta in deltas.unwrap_or_default() {
            self.change(&delta);
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.chat.is_complete()
    }

    fn chunks(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.events)
    }

    fn last_chunks(&mut self) -> Vec<Value> {
        let status = self.status();
        self.end_item(status);
        let response = self.object(status);
        self.event(&format!("response.{status}"), json!({ "response": response }));
        std::mem::take(&mut self.events)
    }

    fn end(&self) -> &'static str {
        ""
    }
}
