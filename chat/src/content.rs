//! Contents of messages in the form that a template reads: text, or lists of parts.
//!
//! Clients of the OpenAI API send either form, and templates read one or both. vLLM decides by the source of the
//! template (`chat_template_content_format: auto`). Here a short conversation is rendered in both forms.

use formats::shown;
use indexmap::IndexMap;

use crate::json::OrderedJson;
use crate::request::{ChatRequest, RequestError, form};
use crate::template::{RenderControl, Template, TemplateError};

/// Form of contents that a template reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentForm {
    /// Text and lists of parts alike.
    Any,
    /// Text alone.
    Text,
    /// Lists of parts alone.
    Parts,
}

/// Text of the conversation that shows the form.
const PROBE: &str = "ProbeOfContents";
/// Text between parts that become one text, as in vLLM.
const BETWEEN: &str = "\n";

impl Template {
    /// Returns the form of contents that a template reads, with or without tools; an error if the control ended it.
    pub fn content_form(
        &self,
        tools: bool,
        control: &RenderControl,
    ) -> Result<ContentForm, TemplateError> {
        let text = self.render_probe(PROBE.into(), tools, control)?;
        let parts = OrderedJson::List(vec![part(PROBE.to_owned())]);
        let parts = self.render_probe(parts, tools, control)?;
        // A template for texts may print the list itself.
        let parts = parts.filter(|parts| text.as_ref() == Some(parts) || !prints_list(parts));
        Ok(match (text, parts) {
            (Some(_), None) => ContentForm::Text,
            (None, Some(_)) => ContentForm::Parts,
            _ => ContentForm::Any,
        })
    }

    /// Renders a message with this content: none if its text is not in the result; an error if the control ended it.
    fn render_probe(
        &self,
        content: OrderedJson,
        tools: bool,
        control: &RenderControl,
    ) -> Result<Option<String>, TemplateError> {
        let message = [("role", "user".into()), ("content", content)];
        let request = ChatRequest {
            messages: vec![object(message)],
            tools: tools.then(Vec::new),
            add_generation_prompt: true,
            ..ChatRequest::default()
        };
        match self.render_within(&request, control) {
            Err(stop @ (TemplateError::Late { .. } | TemplateError::Cancelled { .. })) => Err(stop),
            rendered => Ok(rendered.ok().filter(|text| text.contains(PROBE))),
        }
    }

    /// Renders a conversation whose contents are brought into the form of the template. A template that fails
    /// without a content, or on a list in one place, gets texts in all places.
    pub fn render_contents(
        &self,
        request: ChatRequest,
        form: ContentForm,
        control: &RenderControl,
    ) -> Result<String, TemplateError> {
        let text = &self.variants()[self.variant(request.tools.is_some())?].text;
        let knows = ["'developer'", "\"developer\""].iter().any(|word| text.contains(word));
        let request = if knows { request } else { request.with_system_role()? };
        let request = request.with_contents(form)?;
        let first = match self.render_within(&request, control) {
            Err(error @ TemplateError::Run { .. }) => error,
            rendered => return rendered,
        };
        match request.clone().with_texts() {
            texts if texts.messages != request.messages => {
                self.render_within(&texts, control).map_err(|error| match error {
                    stop @ (TemplateError::Late { .. } | TemplateError::Cancelled { .. }) => stop,
                    _ => first,
                })
            }
            _ => Err(first),
        }
    }
}

/// True if the text of the probe follows its key.
fn prints_list(rendered: &str) -> bool {
    let before = rendered.split(PROBE).next().unwrap_or_default();
    before.trim_end_matches(['\'', '"', ':', ' ']).ends_with("text")
}

impl ChatRequest {
    /// Makes messages of developers those of the system, for a template that does not know the role. All of the system
    /// become one at the start, as in vLLM: many templates read only the first.
    fn with_system_role(mut self) -> Result<Self, RequestError> {
        if !self.messages.iter().any(|message| role(message) == Some("developer")) {
            return Ok(self);
        }
        let mut system = Vec::new();
        let mut messages = Vec::new();
        for (n, message) in self.messages.into_iter().enumerate() {
            if !matches!(role(&message), Some("developer" | "system")) {
                messages.push(message);
                continue;
            }
            let text = match message.get("content") {
                Some(OrderedJson::List(parts)) => texts(n, parts)?.join(BETWEEN),
                Some(OrderedJson::Text(text)) => text.clone(),
                None | Some(OrderedJson::Null) => String::new(),
                Some(other) => {
                    let place = format!("messages[{n}].content");
                    return Err(form(&place, other, "a text or a list of parts"));
                }
            };
            if !text.is_empty() {
                system.push(text);
            }
        }
        let content = OrderedJson::Text(system.join("\n\n"));
        messages.insert(0, object([("role", "system".into()), ("content", content)]));
        self.messages = messages;
        Ok(self)
    }

    /// Brings contents into a form. Parts that are not text are refused.
    fn with_contents(mut self, target: ContentForm) -> Result<Self, RequestError> {
        for (n, message) in self.messages.iter_mut().enumerate() {
            let OrderedJson::Map(map) = message else { continue };
            if matches!(map.get("tool_calls"), Some(OrderedJson::List(all)) if all.is_empty()) {
                map.shift_remove("tool_calls");
            }
            let is_result = map.get("role").and_then(OrderedJson::as_str) == Some("tool");
            let Some(content) = map.get_mut("content") else { continue };
            let texts = match content {
                OrderedJson::List(parts) => texts(n, parts)?,
                OrderedJson::Text(text) if target == ContentForm::Parts && !is_result => {
                    vec![std::mem::take(text)]
                }
                OrderedJson::Text(_) | OrderedJson::Null => continue,
                other => {
                    return Err(form(
                        &format!("messages[{n}].content"),
                        other,
                        "a text or a list of parts",
                    ));
                }
            };
            // Results of tools are texts in all templates, as in vLLM.
            *content = if is_result || target == ContentForm::Text {
                OrderedJson::Text(texts.join(BETWEEN))
            } else {
                OrderedJson::List(texts.into_iter().map(part).collect())
            };
        }
        Ok(self)
    }

    /// Gives every message a text as its content.
    fn with_texts(mut self) -> Self {
        for message in &mut self.messages {
            let OrderedJson::Map(map) = message else { continue };
            let text = match map.get("content") {
                Some(OrderedJson::List(parts)) => {
                    let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
                    texts.collect::<Vec<_>>().join(BETWEEN)
                }
                None | Some(OrderedJson::Null) => String::new(),
                Some(_) => continue,
            };
            map.insert("content".to_owned(), OrderedJson::Text(text));
        }
        self
    }
}

/// Returns the texts of the parts of a content. Empty ones are left out, as in vLLM.
fn texts(message: usize, parts: &[OrderedJson]) -> Result<Vec<String>, RequestError> {
    let mut texts = Vec::new();
    for (n, part) in parts.iter().enumerate() {
        let text = match part {
            OrderedJson::Text(text) => text.as_str(),
            OrderedJson::Map(_) => {
                let kind = part.get("type").and_then(OrderedJson::as_str).unwrap_or("text");
                let key = match kind {
                    "text" | "input_text" | "output_text" => "text",
                    "refusal" | "thinking" => kind,
                    other => {
                        let kind = shown(&other.chars().take(100).collect::<String>());
                        return Err(RequestError::Part {
                            place: part_place(message, n),
                            found: kind,
                        });
                    }
                };
                match part.get(key) {
                    None => "",
                    Some(OrderedJson::Text(text)) => text.as_str(),
                    Some(other) => {
                        let place = format!("{}.{key}", part_place(message, n));
                        return Err(form(&place, other, "a text"));
                    }
                }
            }
            other => {
                let place = part_place(message, n);
                return Err(form(&place, other, "an object with `type` and `text`"));
            }
        };
        if !text.is_empty() {
            texts.push(text.to_owned());
        }
    }
    Ok(texts)
}

/// Returns the place of a part in the request.
fn part_place(message: usize, part: usize) -> String {
    format!("messages[{message}].content[{part}]")
}

/// Returns the role of a message.
fn role(message: &OrderedJson) -> Option<&str> {
    message.get("role").and_then(OrderedJson::as_str)
}

fn part(text: String) -> OrderedJson {
    object([("type", "text".into()), ("text", OrderedJson::Text(text))])
}

fn object<const N: usize>(pairs: [(&str, OrderedJson); N]) -> OrderedJson {
    let pairs = pairs.into_iter().map(|(key, value)| (key.to_owned(), value));
    OrderedJson::Map(pairs.collect::<IndexMap<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Templates that read texts, both forms, and parts.
    const TEXTS: [&str; 3] = [
        "{% for m in messages %}<{{ m.role }}>{{ m.content + '|' }}{% endfor %}",
        "{% for m in messages %}<{{ m.role }}>{{ m['content'] | trim }}|{% endfor %}",
        "{% for m in messages %}<{{ m.role }}>{{ m['content'] }}|{% endfor %}",
    ];
    const BOTH: &str = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}\
        {% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}|{% endfor %}";
    const PARTS: &str = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{% if p.type == 'text' %}\
        {{ p.text }}{% endif %}{% endfor %}|{% endfor %}";

    fn template(text: &str) -> Template {
        Template::from_source("t", text, [])
    }

    fn rendered(text: &str, messages: &str) -> Result<String, String> {
        let json = format!("{{\"messages\": {messages}}}");
        let request = ChatRequest::from_json(&OrderedJson::parse(&json).unwrap()).unwrap();
        let template = template(text);
        let control = RenderControl::default();
        let form = template.content_form(false, &control).unwrap();
        template.render_contents(request, form, &control).map_err(|error| error.to_string())
    }

    #[test]
    fn templates_get_the_contents_that_they_read() {
        for text in TEXTS {
            assert_eq!(form_of(text, false), ContentForm::Text, "{text}");
        }
        assert_eq!(form_of(BOTH, false), ContentForm::Any);
        assert_eq!(form_of(PARTS, true), ContentForm::Parts);
        assert_eq!(form_of("{{ raise_exception('no') }}", false), ContentForm::Any);
        let list = r#"[{"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"type": "text", "text": ""}]},
            {"role": "tool", "content": [{"type": "text", "text": "c"}]}, {"role": "user", "content": "d"}]"#;
        for text in TEXTS {
            assert_eq!(
                rendered(text, list),
                Ok("<user>a\nb|<tool>c|<user>d|".to_owned()),
                "{text}"
            );
        }
        assert_eq!(rendered(BOTH, list), Ok("<user>ab|<tool>c|<user>d|".to_owned()));
        assert_eq!(rendered(PARTS, list), Ok("<user>ab|<tool>|<user>d|".to_owned()));
    }

    fn form_of(text: &str, tools: bool) -> ContentForm {
        template(text).content_form(tools, &RenderControl::default()).unwrap()
    }

    #[test]
    fn a_missing_content_is_empty_where_templates_need_one() {
        let calls = r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls":
            [{"function": {"name": "f", "arguments": "{}"}}]}, {"role": "assistant", "tool_calls": []}]"#;
        for text in TEXTS.into_iter().chain([BOTH, PARTS]) {
            let want = "<user>a|<assistant>|<assistant>|";
            assert_eq!(rendered(text, calls).as_deref(), Ok(want), "{text}");
        }
        // A template that asks gets the conversation as transformers gives it.
        let asks = "{% for m in messages %}{{ 'content' in m }} {{ m.tool_calls is defined }},{% endfor %}";
        assert_eq!(rendered(asks, calls).as_deref(), Ok("True False,False True,False False,"));
    }

    #[test]
    fn developers_speak_for_the_system_where_templates_do_not_know_them() {
        let list = r#"[{"role": "user", "content": "a"}, {"role": "developer", "content": [{"type": "text", "text": "b"}]},
            {"role": "system", "content": "c"}, {"role": "developer", "content": null}]"#;
        for text in TEXTS {
            let want = "<system>b\n\nc|<user>a|";
            assert_eq!(rendered(text, list).as_deref(), Ok(want), "{text}");
        }
        let knows = format!("{{# 'developer' #}}{}", TEXTS[2]);
        let alone = r#"[{"role": "developer", "content": "b"}, {"role": "user", "content": "a"}]"#;
        assert_eq!(rendered(&knows, alone).as_deref(), Ok("<developer>b|<user>a|"));
        let systems = r#"[{"role": "system", "content": "b"}, {"role": "system", "content": "c"}]"#;
        assert_eq!(rendered(TEXTS[2], systems).as_deref(), Ok("<system>b|<system>c|"));
        let wrong = r#"[{"role": "developer", "content": 7}]"#;
        assert!(
            rendered(TEXTS[0], wrong).unwrap_err().contains("`messages[0].content` is a number")
        );
    }

    #[test]
    fn parts_of_other_kinds_are_refused() {
        for (content, words) in [
            (
                r#"[{"type": "image_url", "image_url": {"url": "x"}}]"#,
                "`messages[0].content[0]` is of the type `image_url`",
            ),
            (r#"[{"type": "text", "text": 3}]"#, "`messages[0].content[0].text` is a number"),
            ("[[]]", "`messages[0].content[0]` is a list"),
            ("7", "`messages[0].content` is a number"),
        ] {
            for text in [TEXTS[0], BOTH, PARTS] {
                let error = rendered(text, &user_message(content)).unwrap_err();
                assert!(error.contains(words), "{content}: {error}");
            }
        }
    }

    fn user_message(content: &str) -> String {
        format!("[{{\"role\": \"user\", \"content\": {content}}}]")
    }
}
