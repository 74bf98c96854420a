//! Requests of a conversation, and the form in which templates get them.

use indexmap::IndexMap;

use crate::json::OrderedJson;

/// Names of a message's reasoning, in the order in which they are read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// Text that marks the end of a message that is continued.
const MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Conversation in the form of OpenAI's chat API, and the settings of its prompt.
#[derive(Debug, Clone, Default)]
pub struct ChatRequest {
    /// Messages: objects with `role`, and `content` as text or parts. Arguments of tool calls may be
    /// JSON text, which templates get as an object.
    pub messages: Vec<OrderedJson>,
    /// Tools as JSON schemas. None differs from an empty list: `tool_use` templates are for the latter too.
    pub tools: Option<Vec<OrderedJson>>,
    /// Documents for retrieval-augmented generation.
    pub documents: Option<Vec<OrderedJson>>,
    /// True to end the prompt with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// True to end the prompt inside of the last message, so that the model continues it.
    pub continue_final_message: bool,
    /// Further variables of the template, such as `enable_thinking`.
    pub variables: IndexMap<String, OrderedJson>,
    /// Time of `strftime_now`; none for the present, in UTC.
    pub now: Option<jiff::civil::DateTime>,
}

/// Reason why a request is no conversation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum RequestError {
    #[error("the conversation has no messages; give at least one")]
    Empty,

    #[error("`{place}` is {found}; expected {expected}")]
    Form { place: String, found: &'static str, expected: &'static str },

    #[error("`{place}` is not JSON: {why}; arguments of a call are the JSON text of an object")]
    Arguments { place: String, why: String },

    #[error(
        "a prompt either starts an answer or continues the last message: leave out \
         `add_generation_prompt` or `continue_final_message`"
    )]
    Both,

    #[error(
        "`{place}` is of the type `{found}`; expected `text`, because the model reads nothing else"
    )]
    Part { place: String, found: String },

    #[error("the last message has no text that could be continued; give it as `content`")]
    NothingToContinue,

    #[error("values are nested in {found} levels; at most {most} are read")]
    Deep { found: usize, most: usize },
}

/// Deepest nesting of a request.
const DEPTH: usize = 100;

/// Messages as templates get them.
#[derive(Debug)]
pub(crate) struct TemplateMessages {
    pub(crate) list: Vec<OrderedJson>,
    /// Text of the last message that is continued.
    pub(crate) continued: Option<String>,
}

impl ChatRequest {
    /// Parses a request from its JSON form: an object with the fields of this struct.
    pub fn from_json(json: &OrderedJson) -> Result<Self, RequestError> {
        let variables = match json.get("variables") {
            None => IndexMap::new(),
            Some(OrderedJson::Map(map)) => map.clone(),
            Some(other) => return Err(form("variables", other, "an object")),
        };
        Ok(Self {
            messages: list(json, "messages")?.unwrap_or_default(),
            tools: list(json, "tools")?,
            documents: list(json, "documents")?,
            add_generation_prompt: flag(json, "add_generation_prompt")?,
            continue_final_message: flag(json, "continue_final_message")?,
            variables,
            now: None,
        })
    }

    /// Returns the bytes of all values.
    pub fn size(&self) -> usize {
        let lists = [Some(&self.messages), self.tools.as_ref(), self.documents.as_ref()];
        let lists = lists.into_iter().flatten().flatten().map(OrderedJson::size);
        lists.sum::<usize>() + self.variables.values().map(OrderedJson::size).sum::<usize>()
    }

    /// Returns an error if the request is not a conversation that can be rendered.
    pub(crate) fn check(&self) -> Result<(), RequestError> {
        if self.messages.is_empty() {
            return Err(RequestError::Empty);
        }
        if self.add_generation_prompt && self.continue_final_message {
            return Err(RequestError::Both);
        }
        let lists = [
            ("messages", Some(&self.messages)),
            ("tools", self.tools.as_ref()),
            ("documents", self.documents.as_ref()),
        ];
        for (name, list) in lists {
            for (n, value) in list.into_iter().flatten().enumerate() {
                if !matches!(value, OrderedJson::Map(_)) {
                    return Err(form(&format!("{name}[{n}]"), value, "an object"));
                }
            }
        }
        let lists = lists.into_iter().filter_map(|(_, list)| list).flatten();
        let depth = lists.chain(self.variables.values()).map(OrderedJson::depth).max().unwrap_or(0);
        if depth > DEPTH {
            return Err(RequestError::Deep { found: depth, most: DEPTH });
        }
        Ok(())
    }

    /// Returns the messages as transformers hands them to templates: without nulls, with the reasoning
    /// under its standard name, with arguments of calls as objects, and with the mark of continuation.
    pub(crate) fn for_template(&self) -> Result<TemplateMessages, RequestError> {
        let mut list = Vec::with_capacity(self.messages.len());
        for (n, message) in self.messages.iter().enumerate() {
            let OrderedJson::Map(map) = message else {
                return Err(form(&format!("messages[{n}]"), message, "an object"));
            };
            let mut fields: IndexMap<String, OrderedJson> = map
                .iter()
                .filter(|(_, value)| !matches!(value, OrderedJson::Null))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            if let Some(calls) = fields.get_mut("tool_calls") {
                parse_arguments(&format!("messages[{n}].tool_calls"), calls)?;
            }
            let reasoning = REASONING.iter().find_map(|key| fields.get(*key)).cloned();
            if let Some(reasoning) = reasoning {
                let thinking = fields.shift_remove("thinking").unwrap_or_else(|| reasoning.clone());
                fields.shift_insert(0, "thinking".to_owned(), thinking);
                fields.insert("reasoning_content".to_owned(), reasoning);
            }
            list.push(OrderedJson::Map(fields));
        }
        let mut continued = None;
        if self.continue_final_message {
            continued = Some(mark_last(&mut list).ok_or(RequestError::NothingToContinue)?);
        }
        Ok(TemplateMessages { list, continued })
    }
}

impl TemplateMessages {
    /// Cuts a rendered text at the mark. None if the template left out or changed the message.
    pub(crate) fn cut(&self, mut text: String) -> Option<String> {
        let Some(message) = &self.continued else { return Some(text) };
        if !text.contains(message.trim()) {
            return None;
        }
        let at = text.rfind(MARK.trim_end())?;
        let exact = text[at..].starts_with(MARK);
        text.truncate(at);
        if !exact {
            // The template trims messages, so the blanks before the mark are not the message's end.
            text.truncate(text.trim_end().len());
        }
        Some(text)
    }
}

/// Parses arguments that are JSON text.
fn parse_arguments(place: &str, calls: &mut OrderedJson) -> Result<(), RequestError> {
    let OrderedJson::List(calls) = calls else {
        return Err(form(place, calls, "a list of calls"));
    };
    for (n, call) in calls.iter_mut().enumerate() {
        let place = format!("{place}[{n}]");
        let OrderedJson::Map(map) = call else { return Err(form(&place, call, "an object")) };
        let Some(OrderedJson::Map(function)) = map.get_mut("function") else { continue };
        let arguments = match function.get("arguments") {
            None | Some(OrderedJson::Null) => OrderedJson::Map(IndexMap::new()),
            Some(OrderedJson::Text(text)) if text.trim().is_empty() => {
                OrderedJson::Map(IndexMap::new())
            }
            Some(OrderedJson::Text(text)) => OrderedJson::parse(text).map_err(|why| {
                let place = format!("{place}.function.arguments");
                RequestError::Arguments { place, why: formats::shown(&why.to_string()) }
            })?,
            Some(_) => continue,
        };
        function.insert("arguments".to_owned(), arguments);
    }
    Ok(())
}

/// Appends the mark to the text of the last message, and returns the text before.
fn mark_last(list: &mut [OrderedJson]) -> Option<String> {
    let OrderedJson::Map(last) = list.last_mut()? else { return None };
    match last.get_mut("content")? {
        OrderedJson::Text(text) => {
            let before = text.clone();
            text.push_str(MARK);
            Some(before)
        }
        OrderedJson::List(parts) => parts.iter_mut().rev().find_map(|part| match part {
            OrderedJson::Map(part) => match part.get_mut("text")? {
                OrderedJson::Text(text) => {
                    let before = text.clone();
                    text.push_str(MARK);
                    Some(before)
                }
                _ => None,
            },
            _ => None,
        }),
        _ => None,
    }
}

/// Returns the list of a field, if the request has it.
fn list(json: &OrderedJson, key: &str) -> Result<Option<Vec<OrderedJson>>, RequestError> {
    match json.get(key) {
        None => Ok(None),
        Some(OrderedJson::List(list)) => Ok(Some(list.clone())),
        Some(other) => Err(form(key, other, "a list")),
    }
}

/// Returns the truth value of a field; false without it.
fn flag(json: &OrderedJson, key: &str) -> Result<bool, RequestError> {
    match json.get(key) {
        None => Ok(false),
        Some(OrderedJson::Bool(yes)) => Ok(*yes),
        Some(other) => Err(form(key, other, "true or false")),
    }
}

pub(crate) fn form(place: &str, value: &OrderedJson, expected: &'static str) -> RequestError {
    let kind = match value {
        OrderedJson::Null => "null",
        OrderedJson::Bool(_) => "a boolean",
        OrderedJson::Number(_) => "a number",
        OrderedJson::Text(_) => "a text",
        OrderedJson::List(_) => "a list",
        OrderedJson::Map(_) => "an object",
    };
    RequestError::Form { place: place.to_owned(), found: kind, expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(json: &str) -> ChatRequest {
        ChatRequest::from_json(&OrderedJson::parse(json).unwrap()).unwrap()
    }

    fn rendered(request: &ChatRequest) -> String {
        let list = OrderedJson::List(request.for_template().unwrap().list);
        serde_json::to_string(&list).unwrap()
    }

    #[test]
    fn arguments_become_objects_and_nulls_go() {
        let request = request(
            r#"{"messages": [{"role": "assistant", "content": null, "tool_calls": [
                {"function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2.50}"}},
                {"function": {"name": "g", "arguments": ""}}]}]}"#,
        );
        assert_eq!(
            rendered(&request),
            r#"[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"z":1,"a":2.5}}},{"function":{"name":"g","arguments":{}}}]}]"#
        );
    }

    #[test]
    fn reasoning_is_given_under_both_names() {
        let request = request(r#"{"messages": [{"role": "assistant", "reasoning": "r"}]}"#);
        assert_eq!(
            rendered(&request),
            r#"[{"thinking":"r","role":"assistant","reasoning":"r","reasoning_content":"r"}]"#
        );
    }

    #[test]
    fn mistakes_name_their_place() {
        assert!(mistake("{}").contains("no messages"));
        assert!(mistake(r#"{"messages": [7]}"#).contains("`messages[0]` is a number"));
        let call = r#"{"messages": [{"tool_calls": [{"function": {"arguments": "{"}}]}]}"#;
        assert!(
            mistake(call).contains("`messages[0].tool_calls[0].function.arguments` is not JSON")
        );
        let deep = format!(r#"{{"messages": [{{"a": {}1{}}}]}}"#, "[".repeat(110), "]".repeat(110));
        assert!(mistake(&deep).contains("111 levels"));
        let both =
            r#"{"messages": [{}], "add_generation_prompt": true, "continue_final_message": true}"#;
        assert!(mistake(both).contains("leave out"));
        let nothing = r#"{"messages": [{"content": 1}], "continue_final_message": true}"#;
        assert!(mistake(nothing).contains("continued"));
    }

    fn mistake(json: &str) -> String {
        let request = request(json);
        let checked = request.check();
        checked.and_then(|()| request.for_template().map(|_| ())).unwrap_err().to_string()
    }
}
