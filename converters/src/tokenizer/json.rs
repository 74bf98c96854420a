//! `tokenizer.json`, as far as a conversion reads it.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::doc::{Node, parse};
use super::{Error, table};

#[derive(Deserialize)]
struct Whole {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    added_tokens: Value,
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    #[serde(default, rename = "type")]
    kind: Value,
    #[serde(default)]
    vocab: Vocab,
    #[serde(default)]
    merges: Value,
    #[serde(default)]
    byte_fallback: Value,
    #[serde(default)]
    ignore_merges: Value,
    #[serde(default)]
    unk_token: Value,
}

/// Texts and ids as they stand: a map would forget the first of two equal texts.
#[derive(Default)]
struct Vocab(Option<Vec<(String, Value)>>);

/// A token that was added to the vocabulary.
pub(super) struct Added {
    pub(super) id: u64,
    pub(super) text: String,
    pub(super) special: bool,
    pub(super) normalized: bool,
}

/// The parts of a `tokenizer.json`.
pub(super) struct Json {
    pub(super) file: PathBuf,
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    pub(super) post_processor: Value,
    /// Texts and ids of the model, without what was added.
    pub(super) vocab: Vec<(String, u64)>,
    pub(super) added: Vec<Added>,
    pub(super) merges: Vec<(String, String)>,
    pub(super) byte_level: bool,
    pub(super) byte_fallback: bool,
    pub(super) ignore_merges: bool,
    pub(super) unknown: Option<String>,
}

impl Json {
    /// Reads the file if it is there. Other kinds than pair merging are refused.
    pub(super) fn read(dir: &Path) -> Result<Option<Self>, Error> {
        let Some((file, whole)) = parse::<Whole>(dir, "tokenizer.json")? else { return Ok(None) };
        let kind = whole.model.kind.as_str().unwrap_or("BPE");
        if kind != "BPE" {
            let expected = "only those that merge pairs (BPE) are written";
            return Err(Error::Unsupported { file, found: crate::shown(kind), expected });
        }
        let Some(vocab) = whole.model.vocab.0 else {
            return Err(Error::key(
                &file,
                "model.vocab",
                "not there",
                "an object of texts and ids",
            ));
        };
        let mut pairs = Vec::with_capacity(vocab.len());
        for (text, id) in vocab {
            let at = format!("model.vocab.{text}");
            let id = Node::new(&file, &at, &id).u64()?;
            pairs.push((text, id));
        }
        let flag = |key, value: &Value| match value {
            Value::Null => Ok(false),
            value => Node::new(&file, key, value).bool(),
        };
        let unknown = whole.model.unk_token.as_str().map(str::to_owned);
        Ok(Some(Self {
            added: added(&file, &whole.added_tokens)?,
            merges: merges(&file, &whole.model.merges)?,
            byte_level: has(&whole.pre_tokenizer, "ByteLevel") || has(&whole.decoder, "ByteLevel"),
            byte_fallback: flag("model.byte_fallback", &whole.model.byte_fallback)?,
            ignore_merges: flag("model.ignore_merges", &whole.model.ignore_merges)?,
            vocab: pairs,
            normalizer: whole.normalizer,
            pre_tokenizer: whole.pre_tokenizer,
            post_processor: whole.post_processor,
            unknown,
            file,
        }))
    }

    /// The id of a token by its text.
    pub(super) fn id(&self, text: &str) -> Option<u64> {
        let added = self.added.iter().find(|token| token.text == text).map(|token| token.id);
        added.or_else(|| self.vocab.iter().find(|(word, _)| word == text).map(|(_, id)| *id))
    }
}

/// Whether a step of a pipeline is like this.
pub(super) fn any(step: &Value, is: &dyn Fn(&Value) -> bool) -> bool {
    match step {
        Value::Object(map) => {
            is(step) || map.values().any(|value| value.is_array() && any(value, is))
        }
        Value::Array(list) => list.iter().any(|value| any(value, is)),
        _ => false,
    }
}

/// Whether a step of this type stands in a pipeline.
pub(super) fn has(step: &Value, kind: &str) -> bool {
    any(step, &|step| step.get("type").and_then(Value::as_str) == Some(kind))
}

/// Whether a step of this type has a flag that is true.
pub(super) fn flagged(step: &Value, kind: &str, flag: &str) -> bool {
    any(step, &|step| {
        step.get("type").and_then(Value::as_str) == Some(kind)
            && step.get(flag).and_then(Value::as_bool) == Some(true)
    })
}

fn added(file: &Path, value: &Value) -> Result<Vec<Added>, Error> {
    if value.is_null() {
        return Ok(Vec::new());
    }
    let token = |node: Node<'_>| -> Result<Added, Error> {
        let flag = |key| node.get(key).map_or(Ok(false), |node| node.bool());
        Ok(Added {
            id: node.need("id", "a number")?.u64()?,
            text: node.need("content", "a text")?.str()?.to_owned(),
            special: flag("special")?,
            normalized: flag("normalized")?,
        })
    };
    Node::new(file, "added_tokens", value).list()?.map(token).collect()
}

/// Both spellings: `"a b"`, and `["a", "b"]` where a part may hold a space.
fn merges(file: &Path, value: &Value) -> Result<Vec<(String, String)>, Error> {
    if value.is_null() {
        return Ok(Vec::new());
    }
    let expected = "two texts, as `\"a b\"` or `[\"a\", \"b\"]`";
    let pair = |node: Node<'_>| -> Result<(String, String), Error> {
        if let Some(text) = node.value.as_str() {
            // Loaders look for the space behind the first byte.
            let mut ends = text.char_indices().skip(1).filter(|(_, c)| *c == ' ');
            let (at, _) = ends.next().ok_or_else(|| node.wrong(expected))?;
            return Ok((text[..at].to_owned(), text[at + 1..].to_owned()));
        }
        let parts: Vec<Node<'_>> = node.list().map_err(|_| node.wrong(expected))?.collect();
        let [left, right] = parts.as_slice() else { return Err(node.wrong(expected)) };
        Ok((left.str()?.to_owned(), right.str()?.to_owned()))
    };
    Node::new(file, "model.merges", value).list()?.map(pair).collect()
}

impl Json {
    /// The merges as files hold them: a blank within a part is spelled as byte-level texts spell it.
    pub(super) fn merge_lines(&self) -> Vec<String> {
        let blank = table::BLANK.to_string();
        let part = |text: &str| text.replace(' ', &blank);
        self.merges.iter().map(|(left, right)| format!("{} {}", part(left), part(right))).collect()
    }
}

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Vocab;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts and ids as `model.vocab`")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Vocab(Some(pairs)))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocab, A::Error> {
                // Another kind of tokenizer, which is refused by its name.
                while list.next_element::<serde::de::IgnoredAny>()?.is_some() {}
                Ok(Vocab(None))
            }
        }
        deserializer.deserialize_any(Pairs)
    }
}
