//! Comparison of templates and tokenizers with a record of transformers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use formats::shown;
use serde::Serialize;

use crate::json::OrderedJson;
use crate::request::{ChatRequest, RequestError};
use crate::template::{Template, TemplateError};

mod model;

pub use model::{ModelChatCheck, ModelChatError};

/// Name of the record in a dump.
pub const RECORD: &str = "chat.json";
/// Most findings of one kind that are listed.
const LISTED: usize = 5;

/// Record of transformers: renderings of a fixed set of conversations, and tokens of a corpus.
#[derive(Debug)]
pub struct ChatRecord {
    /// Versions of the packages that made the record, by name.
    pub producer: BTreeMap<String, String>,
    templates: Vec<(String, String)>,
    tokens: BTreeMap<String, String>,
    conversations: Vec<RecordedChat>,
    corpus: Vec<RecordedText>,
}

/// Conversation and its result.
#[derive(Debug)]
struct RecordedChat {
    name: String,
    request: ChatRequest,
    /// Text and tokens; none if transformers refuses the conversation.
    result: Option<(String, Vec<u32>)>,
}

/// Text of the corpus and its tokens.
#[derive(Debug)]
struct RecordedText {
    text: String,
    ids: Vec<u32>,
    /// Tokens with the special tokens around texts.
    prompt: Vec<u32>,
}

/// Reason why a record cannot be read.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum RecordError {
    #[error(
        "`{}` has no record of chats; write one with `parity dump` and the option `chat`", dir.display()
    )]
    Missing { dir: PathBuf },

    #[error(transparent)]
    Io(#[from] std::io::Error),

    #[error("`{}` is not a record of chats: {why}; write it again with `parity dump`", file.display())]
    Form { file: PathBuf, why: String },
}

/// Failure of the tokenizer that is compared, as text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ChatTokensError(pub String);

/// Tokenizer that is compared: tokens of a text, with the special tokens around it if asked for.
pub type ChatTokenizer<'a> = dyn Fn(&str, bool) -> Result<Vec<u32>, ChatTokensError> + 'a;

/// Result of a comparison.
#[derive(Debug, Default, Serialize)]
pub struct ChatReport {
    /// Conversations that give the same text, or that both refuse.
    pub renderings: ComparedCount,
    /// Conversations that give the same tokens.
    pub tokens: ComparedCount,
    /// Texts of the corpus that give the same tokens, without and with special tokens around them.
    pub corpus: ComparedCount,
    /// Differences and warnings.
    pub findings: Vec<ChatFinding>,
}

/// Number of equal results among all.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ComparedCount {
    /// Equal results.
    pub equal: usize,
    /// All results.
    pub of: usize,
}

impl ComparedCount {
    fn add(&mut self, equal: bool) {
        self.equal += usize::from(equal);
        self.of += 1;
    }
}

/// Difference, or a property of the model that a caller has to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChatFinding {
    /// True if it is a difference from the record.
    pub differs: bool,
    /// Name of the kind: `text`, `tokens`, `corpus`, `template`, `special-token`, `double-bos`,
    /// `generation-prompt`.
    pub kind: &'static str,
    /// Facts, ready to print.
    pub text: String,
    /// Remedy.
    pub remedy: &'static str,
}

impl ChatReport {
    /// Returns true if something differs from the record.
    pub fn differs(&self) -> bool {
        self.findings.iter().any(|finding| finding.differs)
    }

    /// Returns the counts of equal results with their names.
    pub fn counts(&self) -> [(&'static str, ComparedCount); 3] {
        [
            ("conversations with equal text", self.renderings),
            ("conversations with equal tokens", self.tokens),
            ("texts with equal tokens", self.corpus),
        ]
    }

    fn find(&mut self, differs: bool, kind: &'static str, text: String, remedy: &'static str) {
        let known = self.findings.iter().filter(|finding| finding.kind == kind).count();
        if known < LISTED {
            self.findings.push(ChatFinding { differs, kind, text, remedy });
        }
    }
}

impl ChatRecord {
    /// Reads the record of a dump.
    pub fn read(dump: &Path) -> Result<Self, RecordError> {
        let file = dump.join(RECORD);
        if !file.is_file() {
            return Err(RecordError::Missing { dir: dump.to_owned() });
        }
        let text = registry::file::read_text(&file, registry::file::MANIFEST)?;
        Self::parse(&text).map_err(|why| RecordError::Form { file, why: why.0 })
    }

    /// Parses a record.
    fn parse(text: &str) -> Result<Self, RecordFault> {
        let json = OrderedJson::parse(text).map_err(|why| fault(&why.to_string()))?;
        if json.get("format").and_then(OrderedJson::as_str) != Some("onboard-chat") {
            return Err(fault("`format` is not `onboard-chat`"));
        }
        let now = need(&json, "now")?.parse().map_err(|_| fault("`now` is not a time"))?;
        let chats = list(&json, "conversations")?;
        let renderings = list(&json, "renderings")?;
        if chats.len() != renderings.len() {
            return Err(fault("`conversations` and `renderings` have different lengths"));
        }
        let mut conversations = Vec::new();
        for (chat, rendering) in chats.iter().zip(renderings) {
            let mut request = ChatRequest::from_json(chat)?;
            request.now = Some(now);
            let result = match rendering.get("text").and_then(OrderedJson::as_str) {
                Some(text) => Some((text.to_owned(), ids(rendering, "ids")?)),
                None => None,
            };
            conversations.push(RecordedChat {
                name: need(chat, "name")?.to_owned(),
                request,
                result,
            });
        }
        let mut corpus = Vec::new();
        for text in list(&json, "corpus")? {
            corpus.push(RecordedText {
                text: need(text, "text")?.to_owned(),
                ids: ids(text, "ids")?,
                prompt: ids(text, "prompt")?,
            });
        }
        Ok(Self {
            producer: texts(&json, "producer").into_iter().collect(),
            templates: texts(&json, "templates"),
            tokens: texts(&json, "tokens").into_iter().collect(),
            conversations,
            corpus,
        })
    }

    /// Returns true if the recorded model has a chat template.
    pub fn has_template(&self) -> bool {
        !self.templates.is_empty()
    }

    /// Compares a model's template and tokenizer with the record.
    pub fn check(
        &self,
        template: Option<&Template>,
        encode: Option<&ChatTokenizer<'_>>,
    ) -> ChatReport {
        let mut report = ChatReport::default();
        match template {
            Some(template) => {
                self.check_sources(template, &mut report);
                self.check_renderings(template, encode, &mut report);
            }
            None if self.has_template() => report.find(
                true,
                "template",
                format!(
                    "the model has no chat template; the recorded one has {}",
                    self.templates.len()
                ),
                "convert the checkpoint again, with its chat_template.jinja beside it",
            ),
            None => {}
        }
        if let Some(encode) = encode {
            self.check_corpus(encode, &mut report);
        }
        report
    }

    /// Compares the texts of the templates, and the special tokens that they get.
    fn check_sources(&self, template: &Template, report: &mut ChatReport) {
        for (name, text) in self.templates.iter().filter(|(_, text)| !text.is_empty()) {
            let ours = template
                .variants()
                .iter()
                .find(|variant| plain_name(&variant.name) == plain_name(name));
            let remedy = "convert the checkpoint again, or copy its template unchanged";
            match ours {
                None => {
                    let text = format!("the template `{}` is missing", shown(name));
                    report.find(true, "template", text, remedy);
                }
                Some(ours) if ours.text.replace("\r\n", "\n") != text.replace("\r\n", "\n") => {
                    let text = format!("the template in {} is not the recorded one", ours.place);
                    report.find(true, "template", text, remedy);
                }
                Some(_) => {}
            }
        }
        for (name, text) in &self.tokens {
            let ours = template.tokens().get(name);
            // A template that does not name the token does not depend on it.
            let used =
                template.variants().iter().any(|variant| variant.text.contains(name.as_str()));
            if used && ours != Some(text) {
                let token =
                    ours.map_or_else(|| "absent".to_owned(), |ours| format!("`{}`", shown(ours)));
                let text =
                    format!("`{}` is {token}; the record has `{}`", shown(name), shown(text));
                let remedy =
                    "name the token in tokenizer_config.json, or convert the checkpoint again";
                report.find(true, "special-token", text, remedy);
            }
        }
    }

    fn check_renderings(
        &self,
        template: &Template,
        encode: Option<&ChatTokenizer<'_>>,
        report: &mut ChatReport,
    ) {
        for chat in &self.conversations {
            let ours = template.render(&chat.request);
            let name = shown(&chat.name);
            match (&chat.result, &ours) {
                (Some((text, _)), Ok(ours)) if text == ours => report.renderings.add(true),
                (
                    None,
                    Err(
                        TemplateError::Raised { .. }
                        | TemplateError::Run { .. }
                        | TemplateError::NotContinued { .. }
                        | TemplateError::Syntax { .. }
                        | TemplateError::Request(_),
                    ),
                ) => {
                    report.renderings.add(true);
                }
                (expected, ours) => {
                    report.renderings.add(false);
                    let expected = expected.as_ref().map(|(text, _)| text.as_str());
                    let text = format!("conversation `{name}`: {}", difference(expected, ours));
                    let remedy = "report the template: the renderer has to give transformers' text";
                    report.find(true, "text", text, remedy);
                }
            }
            let (Some((text, ids)), Some(encode)) = (&chat.result, encode) else { continue };
            let encoded = encode(text, false);
            report.tokens.add(encoded.as_ref() == Ok(ids));
            if encoded.as_ref() != Ok(ids) {
                let text = format!("conversation `{name}`: {}", difference_of_ids(ids, &encoded));
                report.find(true, "tokens", text, TOKENIZER);
            }
        }
        self.warn_of_bos(template, encode, report);
        self.warn_of_generation_prompt(template, report);
    }

    /// Warns if both the template and the tokenizer write the token that begins texts.
    fn warn_of_bos(
        &self,
        template: &Template,
        encode: Option<&ChatTokenizer<'_>>,
        report: &mut ChatReport,
    ) {
        let Some(bos) = template.tokens().get("bos_token").filter(|bos| !bos.is_empty()) else {
            return;
        };
        let Some(encode) = encode else { return };
        let Some((text, _)) = self.conversations.iter().find_map(|chat| chat.result.as_ref())
        else {
            return;
        };
        if !text.starts_with(bos.as_str()) {
            return;
        }
        let Ok(ids) = encode(text, true) else { return };
        if let [first, second, ..] = ids[..]
            && first == second
        {
            report.find(
                false,
                "double-bos",
                format!(
                    "the template writes `{}`, and the tokenizer adds it again (id {first})",
                    shown(bos)
                ),
                "tokenize rendered prompts without special tokens (`add_special_tokens: false`)",
            );
        }
    }

    /// Warns if the template ignores `add_generation_prompt`.
    fn warn_of_generation_prompt(&self, template: &Template, report: &mut ChatReport) {
        let asks =
            |chat: &&RecordedChat| chat.request.add_generation_prompt && chat.result.is_some();
        let Some(chat) = self.conversations.iter().find(asks) else { return };
        let without = ChatRequest { add_generation_prompt: false, ..chat.request.clone() };
        if let (Ok(with), Ok(without)) = (template.render(&chat.request), template.render(&without))
            && with == without
        {
            report.find(
                false,
                "generation-prompt",
                "the template ignores `add_generation_prompt`".to_owned(),
                "if the model needs a header before its answers, use a template that writes one",
            );
        }
    }

    fn check_corpus(&self, encode: &ChatTokenizer<'_>, report: &mut ChatReport) {
        for RecordedText { text, ids, prompt } in &self.corpus {
            for (ids, around) in [(ids, false), (prompt, true)] {
                let encoded = encode(text, around);
                report.corpus.add(encoded.as_ref() == Ok(ids));
                if encoded.as_ref() != Ok(ids) {
                    let with = if around { " with special tokens" } else { "" };
                    let text: String = text.chars().take(40).collect();
                    let text =
                        format!("`{}`{with}: {}", shown(&text), difference_of_ids(ids, &encoded));
                    report.find(true, "corpus", text, TOKENIZER);
                }
            }
        }
    }
}

const TOKENIZER: &str =
    "compare the tokenizer's files with the recorded model's, or convert the checkpoint again";

/// Fault of a record, as text.
struct RecordFault(String);

impl From<RequestError> for RecordFault {
    fn from(error: RequestError) -> Self {
        Self(error.to_string())
    }
}

fn fault(why: &str) -> RecordFault {
    RecordFault(shown(why))
}

/// Returns the name of a template with `_` in place of all signs.
fn plain_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

fn need<'a>(json: &'a OrderedJson, key: &str) -> Result<&'a str, RecordFault> {
    json.get(key)
        .and_then(OrderedJson::as_str)
        .ok_or_else(|| fault(&format!("`{key}` is not a text")))
}

fn list<'a>(json: &'a OrderedJson, key: &str) -> Result<&'a [OrderedJson], RecordFault> {
    match json.get(key) {
        Some(OrderedJson::List(list)) => Ok(list),
        _ => Err(fault(&format!("`{key}` is not a list"))),
    }
}

/// Returns the texts of an object by name; none if there is no such object.
fn texts(json: &OrderedJson, key: &str) -> Vec<(String, String)> {
    let Some(OrderedJson::Map(map)) = json.get(key) else { return Vec::new() };
    map.iter().filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned()))).collect()
}

fn ids(json: &OrderedJson, key: &str) -> Result<Vec<u32>, RecordFault> {
    let ids: Option<Vec<u32>> = list(json, key)?
        .iter()
        .map(|value: &OrderedJson| match value {
            OrderedJson::Number(number) => number.as_u64().and_then(|id| u32::try_from(id).ok()),
            _ => None,
        })
        .collect();
    ids.ok_or_else(|| fault(&format!("`{key}` is not a list of token ids")))
}

/// Describes the first difference of two results.
fn difference(expected: Option<&str>, ours: &Result<String, TemplateError>) -> String {
    match (expected, ours) {
        (Some(expected), Ok(ours)) => {
            let same = expected.chars().zip(ours.chars()).take_while(|(a, b)| a == b).count();
            format!(
                "after {same} characters the record has `{}`, and the template gives `{}`",
                excerpt(expected, same),
                excerpt(ours, same)
            )
        }
        (Some(_), Err(error)) => error.to_string(),
        (None, Ok(_)) => "transformers refuses it, and the template gives a text".to_owned(),
        (None, Err(error)) => format!("transformers refuses it for another reason: {error}"),
    }
}

/// Returns the characters of a text from this one on, as they are shown.
fn excerpt(text: &str, start: usize) -> String {
    shown(&text.chars().skip(start).take(40).collect::<String>())
}

fn difference_of_ids(expected: &[u32], encoded: &Result<Vec<u32>, ChatTokensError>) -> String {
    let encoded = match encoded {
        Ok(encoded) => encoded,
        Err(why) => return shown(&why.0),
    };
    let same = expected.iter().zip(encoded).take_while(|(a, b)| a == b).count();
    format!(
        "token {same} of {} differs: the record has {}, the tokenizer gives {}",
        expected.len(),
        ids_from(expected, same),
        ids_from(encoded, same)
    )
}

/// Lists the token ids from this one on.
fn ids_from(ids: &[u32], start: usize) -> String {
    format!("{:?}", ids.iter().skip(start).take(6).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"format": "onboard-chat", "now": "2025-06-05T09:07:03", "producer": {"transformers": "5"},
        "tokens": {"bos_token": "<s>"}, "templates": {"default": "{{ bos_token }}{{ messages[0].content }}"},
        "conversations": [{"name": "one", "messages": [{"role": "user", "content": "ab"}], "add_generation_prompt": true}],
        "renderings": [{"text": "<s>ab", "ids": [1, 97, 98]}],
        "corpus": [{"text": "a", "ids": [97], "prompt": [1, 97]}]}"#;

    #[expect(clippy::unnecessary_wraps, reason = "tokenizers can fail")]
    fn encode(text: &str, around: bool) -> Result<Vec<u32>, ChatTokensError> {
        let mut ids = if around { vec![1] } else { Vec::new() };
        let body = match text.strip_prefix("<s>") {
            Some(body) => {
                ids.push(1);
                body
            }
            None => text,
        };
        ids.extend(body.bytes().map(u32::from));
        Ok(ids)
    }

    fn template(text: &str, bos: &str) -> Template {
        Template::from_source("t", text, [("bos_token".to_owned(), bos.to_owned())])
    }

    fn kinds(report: &ChatReport) -> Vec<&str> {
        report.findings.iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn an_equal_model_has_warnings_alone() {
        let record = ChatRecord::parse(TEXT).ok().unwrap();
        let ours = template("{{ bos_token }}{{ messages[0].content }}", "<s>");
        let report = record.check(Some(&ours), Some(&encode));
        assert_eq!(kinds(&report), ["double-bos", "generation-prompt"]);
        assert!(!report.differs());
        assert_eq!(report.renderings, ComparedCount { equal: 1, of: 1 });
        assert_eq!(report.tokens, ComparedCount { equal: 1, of: 1 });
        assert_eq!(report.corpus, ComparedCount { equal: 2, of: 2 });
    }

    #[test]
    fn differences_are_named() {
        let record = ChatRecord::parse(TEXT).ok().unwrap();
        let ours = template("{{ bos_token }}{{ messages[0].content }}!", "</s>");
        let report = record.check(Some(&ours), Some(&encode_wrongly));
        assert_eq!(
            kinds(&report),
            [
                "template",
                "special-token",
                "text",
                "tokens",
                "generation-prompt",
                "corpus",
                "corpus"
            ]
        );
        assert!(report.differs());
        let lost = record.check(None, None);
        assert_eq!(kinds(&lost), ["template"]);
    }

    fn encode_wrongly(text: &str, around: bool) -> Result<Vec<u32>, ChatTokensError> {
        encode(text, around).map(|ids| ids.iter().map(|id| id + 1).collect())
    }

    #[test]
    fn damaged_records_are_refused() {
        for (from, to) in [
            ("onboard-chat", "onboard"),
            ("2025", "x"),
            ("[1, 97, 98]", "[-1]"),
            ("[97]", "7"),
            ("\"name\": \"one\",", ""),
            ("\"renderings\": [", "\"renderings\": [{}, "),
        ] {
            assert!(ChatRecord::parse(&TEXT.replacen(from, to, 1)).is_err(), "{from}");
        }
    }
}
