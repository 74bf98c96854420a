//! Parses `tokenizer.json`, or an equivalent older pair of files, as far as needed.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::doc::{DocNode, parse};
use super::{Error, table};

#[derive(Deserialize)]
struct TokenizerFields {
    #[serde(default)]
    truncation: Value,
    #[serde(default)]
    padding: Value,
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
    model: RawModel,
}

#[derive(Deserialize)]
struct RawModel {
    #[serde(default, rename = "type")]
    kind: Value,
    #[serde(default)]
    vocab: Vocab,
    #[serde(default)]
    merges: Option<Vec<Merge>>,
    #[serde(default)]
    byte_fallback: Value,
    #[serde(default)]
    ignore_merges: Value,
    #[serde(default)]
    fuse_unk: Value,
    #[serde(default)]
    dropout: Value,
    #[serde(default)]
    unk_token: Value,
    #[serde(default)]
    unk_id: Value,
    #[serde(default)]
    continuing_subword_prefix: Value,
    #[serde(default)]
    end_of_word_suffix: Value,
    #[serde(default)]
    max_input_chars_per_word: Value,
}

/// Texts and ids in file order: a map would drop the first of two equal texts.
#[derive(Default)]
enum Vocab {
    #[default]
    None,
    Ids(Vec<(String, u64)>),
    Scores(Vec<(String, f64)>),
}

/// Merge in either spelling: `"a b"`, or `["a", "b"]` if a part may hold a space.
struct Merge(String, String);

/// Token that was added to the vocabulary.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are the flags of the file")]
pub(super) struct AddedToken {
    pub(super) id: u64,
    pub(super) text: String,
    pub(super) special: bool,
    pub(super) normalized: bool,
    pub(super) single_word: bool,
    pub(super) lstrip: bool,
    pub(super) rstrip: bool,
}

/// Model settings that depend on its kind.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum JsonModel {
    /// Merging of pairs (BPE).
    Merges { prefix: Option<String>, suffix: Option<String>, fuse_unknown: bool },
    /// Choice of the most probable pieces (Unigram).
    Scores { scores: Vec<f64>, unknown: Option<usize> },
    /// Greedy choice of the longest pieces from the left.
    WordPiece { prefix: String, longest: usize },
    /// Lookup of whole words.
    Words,
}

/// Parts of a `tokenizer.json`.
#[derive(Debug)]
pub(super) struct TokenizerJson {
    pub(super) file: PathBuf,
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    pub(super) post_processor: Value,
    pub(super) decoder: Value,
    pub(super) model: JsonModel,
    /// Texts and ids of the model, without added tokens.
    pub(super) vocab: Vec<(String, u64)>,
    pub(super) added: Vec<AddedToken>,
    pub(super) merges: Vec<(String, String)>,
    pub(super) byte_level: bool,
    pub(super) byte_fallback: bool,
    pub(super) ignore_merges: bool,
    pub(super) unknown: Option<String>,
    /// Settings of training and batching that are set in the file, but ignored.
    pub(super) unused: Vec<&'static str>,
}

impl TokenizerJson {
    /// Reads `tokenizer.json` of a folder, if there is one.
    pub(super) fn read_json(dir: &Path) -> Result<Option<Self>, Error> {
        let parsed = parse::<TokenizerFields>(dir, "tokenizer.json")?;
        parsed.map(|(file, fields)| Self::of(file, fields)).transpose()
    }

    fn of(file: PathBuf, fields: TokenizerFields) -> Result<Self, Error> {
        let raw = fields.model;
        // The first file versions have no type.
        let kind = match text_of(&file, "model.type", &raw.kind)? {
            Some(kind) => kind,
            None if matches!(raw.vocab, Vocab::Scores(_)) => "Unigram".to_owned(),
            None => "BPE".to_owned(),
        };
        let mut unused = Vec::new();
        for (name, value) in [
            ("truncation", &fields.truncation),
            ("padding", &fields.padding),
            ("dropout", &raw.dropout),
        ] {
            if !value.is_null() && value.as_f64() != Some(0.0) {
                unused.push(name);
            }
        }
        let unknown = text_of(&file, "model.unk_token", &raw.unk_token)?;
        let prefix =
            text_of(&file, "model.continuing_subword_prefix", &raw.continuing_subword_prefix)?;
        let (model, vocab) = match (kind.as_str(), raw.vocab) {
            ("BPE", Vocab::Ids(vocab)) => {
                let suffix = text_of(&file, "model.end_of_word_suffix", &raw.end_of_word_suffix)?;
                let fuse_unknown = flag_of(&file, "model.fuse_unk", &raw.fuse_unk)?;
                (JsonModel::Merges { prefix, suffix, fuse_unknown }, vocab)
            }
            ("WordPiece", Vocab::Ids(vocab)) => {
                let longest = number_of(
                    &file,
                    "model.max_input_chars_per_word",
                    &raw.max_input_chars_per_word,
                )?;
                let prefix = prefix.unwrap_or_else(|| "##".into());
                (JsonModel::WordPiece { prefix, longest: longest.unwrap_or(100) }, vocab)
            }
            ("WordLevel", Vocab::Ids(vocab)) => (JsonModel::Words, vocab),
            ("Unigram", Vocab::Scores(pieces)) => {
                let unknown = number_of(&file, "model.unk_id", &raw.unk_id)?;
                let (texts, scores): (Vec<String>, _) = pieces.into_iter().unzip();
                (JsonModel::Scores { scores, unknown }, texts.into_iter().zip(0..).collect())
            }
            ("BPE" | "WordPiece" | "WordLevel", _) => {
                let expected = "an object of texts and ids";
                return Err(Error::key(&file, "model.vocab", "not there", expected));
            }
            ("Unigram", _) => {
                let expected = "a list of texts and scores";
                return Err(Error::key(&file, "model.vocab", "not there", expected));
            }
            (other, _) => {
                return Err(Error::Unsupported {
                    file: file.clone(),
                    found: formats::shown(other),
                    expected: "expected BPE, Unigram, WordPiece or WordLevel",
                });
            }
        };
        Ok(Self {
            added: added(&file, &fields.added_tokens)?,
            byte_level: has(&fields.pre_tokenizer, "ByteLevel")
                || has(&fields.decoder, "ByteLevel"),
            byte_fallback: flag_of(&file, "model.byte_fallback", &raw.byte_fallback)?,
            ignore_merges: flag_of(&file, "model.ignore_merges", &raw.ignore_merges)?,
            model,
            vocab,
            merges: raw.merges.unwrap_or_default().into_iter().map(|Merge(a, b)| (a, b)).collect(),
            normalizer: fields.normalizer,
            pre_tokenizer: fields.pre_tokenizer,
            post_processor: fields.post_processor,
            decoder: fields.decoder,
            unknown,
            unused,
            file,
        })
    }

    /// Returns the id of a token by its text.
    pub(super) fn id(&self, text: &str) -> Option<u64> {
        let added = self.added.iter().find(|token| token.text == text).map(|token| token.id);
        added.or_else(|| self.vocab.iter().find(|(word, _)| word == text).map(|(_, id)| *id))
    }

    /// Returns the ids of all tokens.
    pub(super) fn ids(&self) -> impl Iterator<Item = u64> {
        let added = self.added.iter().map(|token| token.id);
        self.vocab.iter().map(|(_, id)| *id).chain(added)
    }

    /// Describes the ignored settings.
    pub(super) fn ignored(&self) -> Vec<String> {
        if self.unused.is_empty() {
            return Vec::new();
        }
        let names = self.unused.join(" and ");
        let file = self.file.display();
        vec![format!(
            "`{file}` sets {names}, which only training and batches need: ignored, whole texts are read"
        )]
    }

    /// Returns the merges as lines of a file: a space within a part is spelled in byte-level form.
    pub(super) fn merge_lines(&self) -> Vec<String> {
        let blank = table::BLANK.to_string();
        self.merges
            .iter()
            .map(|(left, right)| {
                format!("{} {}", left.replace(' ', &blank), right.replace(' ', &blank))
            })
            .collect()
    }
}

/// Returns a flag of the file; false if it is null.
fn flag_of(file: &Path, key: &str, value: &Value) -> Result<bool, Error> {
    match DocNode::set(file, key, value) {
        Some(node) => node.bool(),
        None => Ok(false),
    }
}

/// Returns a text of the file; none if it is null.
fn text_of(file: &Path, key: &str, value: &Value) -> Result<Option<String>, Error> {
    let node = DocNode::set(file, key, value);
    node.map(|node| node.str().map(str::to_owned)).transpose()
}

/// Returns a number of the file; none if it is null.
fn number_of(file: &Path, key: &str, value: &Value) -> Result<Option<usize>, Error> {
    let node = DocNode::set(file, key, value);
    Ok(node.map(|node| node.u64()).transpose()?.map(|number| number as usize))
}

/// True if a predicate holds for any step of a pipeline.
pub(super) fn any(step: &Value, is: &dyn Fn(&Value) -> bool) -> bool {
    match step {
        Value::Object(map) => {
            is(step) || map.values().any(|value| value.is_array() && any(value, is))
        }
        Value::Array(list) => list.iter().any(|value| any(value, is)),
        _ => false,
    }
}

/// True if a pipeline contains a step of this type.
pub(super) fn has(step: &Value, kind: &str) -> bool {
    any(step, &|step| step.get("type").and_then(Value::as_str) == Some(kind))
}

/// True if a pipeline contains a step of this type with a true flag.
pub(super) fn has_flag(step: &Value, kind: &str, flag: &str) -> bool {
    any(step, &|step| {
        step.get("type").and_then(Value::as_str) == Some(kind)
            && step.get(flag).and_then(Value::as_bool) == Some(true)
    })
}

fn added(file: &Path, value: &Value) -> Result<Vec<AddedToken>, Error> {
    if value.is_null() {
        return Ok(Vec::new());
    }
    DocNode::new(file, "added_tokens", value).list()?.map(|node| added_token(&node)).collect()
}

/// Parses an added token. Missing flags are false.
fn added_token(node: &DocNode<'_>) -> Result<AddedToken, Error> {
    Ok(AddedToken {
        id: node.need("id", "a number")?.u64()?,
        text: node.need("content", "a text")?.str()?.to_owned(),
        special: node.flag("special")?,
        normalized: node.flag("normalized")?,
        single_word: node.flag("single_word")?,
        lstrip: node.flag("lstrip")?,
        rstrip: node.flag("rstrip")?,
    })
}

/// Splits a merge into its parts: like loaders, at the only space after the first byte.
pub(super) fn halves(text: &str) -> Option<(String, String)> {
    let mut ends = text.char_indices().skip(1).filter(|(_, c)| *c == ' ');
    let (at, _) = ends.next()?;
    Some((text[..at].to_owned(), text[at + 1..].to_owned()))
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two texts as a merge: `\"a b\"` or `[\"a\", \"b\"]`")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Merge, E> {
                let (left, right) = halves(text)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))?;
                Ok(Merge(left, right))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merge, A::Error> {
                let left = list.next_element()?;
                let right = list.next_element()?;
                let surplus = list.next_element::<de::IgnoredAny>()?;
                match (left, right, surplus) {
                    (Some(left), Some(right), None) => Ok(Merge(left, right)),
                    _ => Err(de::Error::invalid_value(de::Unexpected::Seq, &self)),
                }
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct VocabVisitor;
        impl<'de> Visitor<'de> for VocabVisitor {
            type Value = Vocab;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("texts with ids or scores as `model.vocab`")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Vocab::Ids(pairs))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocab, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = list.next_element()? {
                    pairs.push(pair);
                }
                Ok(Vocab::Scores(pairs))
            }
            fn visit_unit<E>(self) -> Result<Vocab, E> {
                Ok(Vocab::None)
            }
        }
        deserializer.deserialize_any(VocabVisitor)
    }
}
