//! Restores the files of a tokenizer from the keys of a GGUF file: `tokenizer.json` and `tokenizer_config.json`.
//!
//! The keys say less than the files did. Steps before the pre-tokenizer follow from its name
//! (`data/pre_tokenizers.json`), and merges of pieces with scores are those that transformers derives.

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use super::check::loaded;
use super::pre_table::{self, PreName, PreTokenizer};
use super::special::ROLES;
use super::{TokenType, TokenizerKind, json as files};
use formats::gguf::{self, Metadata, MetadataArray, MetadataValue};
use formats::shown;

/// Files of a tokenizer.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizerFiles {
    /// `tokenizer.json`.
    pub tokenizer: Value,
    /// `tokenizer_config.json`, with the chat template.
    pub config: Value,
    /// Tokens that end a model's output: of texts, turns and messages.
    pub ends: Vec<u32>,
}

/// Reason that the keys do not make files. Texts from files are escaped, ready to print.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum RestoreError {
    #[error(transparent)]
    Keys(#[from] gguf::Error),
    #[error(
        "a tokenizer of kind `{model}` is not restored, only byte-level BPE and SentencePiece BPE: copy tokenizer.json \
         and tokenizer_config.json from the checkpoint that the file was made from"
    )]
    Kind { model: String },
    #[error(
        "the pre-tokenizer `{name}` is not known: copy tokenizer.json from the original checkpoint"
    )]
    Pre { name: String },
    #[error(
        "`{key}` is missing or has another length than the list of tokens; the file is damaged"
    )]
    Lists { key: &'static str },
    #[error("merge {number} is `{line}`; expected two tokens with a blank between them")]
    Merge { number: usize, line: String },
}

/// Token of the vocabulary.
struct VocabEntry<'k> {
    id: u32,
    text: &'k str,
    ty: i128,
}

impl VocabEntry<'_> {
    fn is(&self, ty: TokenType) -> bool {
        self.ty == ty as i128
    }
}

/// Makes the files of the tokenizer in the keys of a file.
pub fn restore(keys: &Metadata) -> Result<TokenizerFiles, RestoreError> {
    let model = keys.str("tokenizer.ggml.model")?.unwrap_or_default();
    let kind = match model {
        _ if model == pre_table::scores_model().0 => TokenizerKind::Scores,
        _ if model == pre_table::merges_model() => TokenizerKind::Merges,
        _ => return Err(RestoreError::Kind { model: shown(model) }),
    };
    let list = "tokenizer.ggml.tokens";
    let texts = keys.strings(list)?.ok_or(RestoreError::Lists { key: list })?;
    let key = "tokenizer.ggml.token_type";
    let types = keys.array(key)?.and_then(MetadataArray::integers);
    let types = types.filter(|types| types.len() == texts.len());
    let types = types.ok_or(RestoreError::Lists { key })?;
    let vocab: Vec<VocabEntry<'_>> = texts
        .iter()
        .zip(types)
        .zip(0..)
        .map(|((text, ty), id)| VocabEntry { id, text, ty })
        .filter(|entry| !entry.is(TokenType::Unused))
        .collect();
    let (pre, name) = match kind {
        TokenizerKind::Merges => {
            let name = keys.str("tokenizer.ggml.pre")?.unwrap_or_default();
            let known = pre_table::find(name);
            let (pre, name) = known.ok_or_else(|| RestoreError::Pre { name: shown(name) })?;
            (Some(pre), Some(name))
        }
        TokenizerKind::Scores | TokenizerKind::Pieces => (None, None),
    };
    let merges = match kind {
        TokenizerKind::Merges => listed_merges(keys)?,
        TokenizerKind::Scores | TokenizerKind::Pieces => scored_merges(keys, &vocab, texts.len())?,
    };
    let around = loaded::around(keys, kind, name, texts.len())?;
    let blank = kind == TokenizerKind::Scores
        && keys.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let unknown = vocab.iter().find(|entry| entry.is(TokenType::Unknown));
    let bytes = pre.is_some_and(|pre| pre.bytes);
    let added = vocab.iter().filter(|entry| {
        [TokenType::Control, TokenType::UserDefined, TokenType::Unknown]
            .iter()
            .any(|ty| entry.is(*ty))
    });
    let added = added.map(|entry| {
        json!({
            "id": entry.id, "content": entry.text, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": !entry.is(TokenType::UserDefined),
        })
    });
    let numbered: Map<String, Value> =
        vocab.iter().map(|entry| (entry.text.to_owned(), entry.id.into())).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": normalizer(pre, name, blank),
        "pre_tokenizer": pre.map_or(Value::Null, pre_tokenizer),
        "post_processor": post_processor(texts, around, bytes),
        "decoder": if bytes { byte_level(true, true) } else { piece_decoder(blank) },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": unknown.map(|entry| entry.text),
            "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": !bytes, "byte_fallback": !bytes,
            "ignore_merges": name.is_some_and(|name| name.ignore_merges),
            "vocab": numbered, "merges": merges,
        },
    });
    let config = config(keys, texts, around)?;
    Ok(TokenizerFiles { tokenizer, config, ends: ends(keys, texts.len()) })
}

/// Returns the tokens that end a model's output.
fn ends(keys: &Metadata, tokens: usize) -> Vec<u32> {
    let mut ids = Vec::new();
    for role in ["eos", "eot", "eom"] {
        if let Some(id) = token_id(keys, &format!("tokenizer.ggml.{role}_token_id"), tokens)
            && !ids.contains(&id)
        {
            ids.push(id);
        }
    }
    ids
}

fn token_id(keys: &Metadata, key: &str, tokens: usize) -> Option<u32> {
    let id = keys.get(key).and_then(MetadataValue::integer)?;
    u32::try_from(id).ok().filter(|id| (*id as usize) < tokens)
}

/// Returns the merges of a byte-level tokenizer.
fn listed_merges(keys: &Metadata) -> Result<Vec<[String; 2]>, RestoreError> {
    let key = "tokenizer.ggml.merges";
    let lines = keys.strings(key)?.ok_or(RestoreError::Lists { key })?;
    lines
        .iter()
        .enumerate()
        .map(|(number, line): (usize, &String)| match files::halves(line) {
            Some((left, right)) => Ok([left, right]),
            None => Err(RestoreError::Merge { number, line: shown(line) }),
        })
        .collect()
}

/// Derives merges from the scores of pieces: every way to make a piece of two others, the best piece first. The order
/// among merges of one score is that of transformers' conversion.
fn scored_merges(
    keys: &Metadata,
    vocab: &[VocabEntry<'_>],
    tokens: usize,
) -> Result<Vec<[String; 2]>, RestoreError> {
    let key = "tokenizer.ggml.scores";
    let scores = match keys.array(key)? {
        Some(MetadataArray::F32(scores)) if scores.len() == tokens => scores,
        _ => return Err(RestoreError::Lists { key }),
    };
    let pieces = vocab.iter().filter(|entry| entry.is(TokenType::Normal));
    let ids: IndexMap<&str, u32> = pieces.map(|entry| (entry.text, entry.id)).collect();
    let mut merges = Vec::new();
    for (&piece, &id) in &ids {
        let cuts = piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at));
        let known =
            cuts.filter_map(|(left, right)| Some((*ids.get(left)?, *ids.get(right)?, left, right)));
        let mut halves: Vec<_> = known.collect();
        halves.sort_by_key(|&(left, right, ..)| (left, right));
        let score = scores[id as usize];
        merges.extend(halves.into_iter().map(|(.., left, right)| (score, left, right)));
    }
    merges.sort_by(|a, b| {
        b.0.total_cmp(&a.0)
            .then_with(|| char_count(b.1).cmp(&char_count(a.1)))
            .then_with(|| char_count(b.2).cmp(&char_count(a.2)))
    });
    Ok(merges.into_iter().map(|(_, left, right)| [left.to_owned(), right.to_owned()]).collect())
}

fn char_count(text: &str) -> usize {
    text.chars().count()
}

/// Returns the step before everything else.
fn normalizer(pre: Option<&PreTokenizer>, name: Option<&PreName>, blank: bool) -> Value {
    let escape = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    match pre {
        Some(pre) if pre.escape => escape,
        Some(_) if name.is_some_and(|name| name.composes) => json!({ "type": "NFC" }),
        Some(_) => Value::Null,
        None if blank => json!({
            "type": "Sequence", "normalizers": [{ "type": "Prepend", "prepend": "▁" }, escape],
        }),
        None => escape,
    }
}

/// Returns the steps that split text: those of a known tokenizer.json if they are plain splits, else the expressions
/// of llama.cpp, which keep every match and what lies between.
fn pre_tokenizer(pre: &PreTokenizer) -> Value {
    let known = pre.steps().into_iter().find_map(|steps| {
        let splits = steps.iter().filter(|step| *step != "bytes");
        splits.map(|step| step.strip_prefix("split ")).collect::<Option<Vec<_>>>()
    });
    let regexes = known.unwrap_or_else(|| pre.split.iter().map(String::as_str).collect());
    let mut steps: Vec<Value> = regexes.into_iter().map(split_step).collect();
    if pre.bytes {
        steps.push(byte_level(false, false));
    }
    json!({ "type": "Sequence", "pretokenizers": steps })
}

/// Returns the step that splits text at the matches of an expression, and keeps them.
fn split_step(regex: &str) -> Value {
    json!({
        "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false,
    })
}

fn byte_level(add_prefix_space: bool, use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true,
        "use_regex": use_regex,
    })
}

fn piece_decoder(blank: bool) -> Value {
    let mut steps = vec![
        json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if blank {
        steps.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    json!({ "type": "Sequence", "decoders": steps })
}

/// Returns the step that puts tokens around texts.
fn post_processor(texts: &[String], around: (Option<u32>, Option<u32>), bytes: bool) -> Value {
    let (before, after) = around;
    let plain = byte_level(false, false);
    if before.is_none() && after.is_none() {
        return if bytes { plain } else { Value::Null };
    }
    let named = before.into_iter().chain(after).map(|id| {
        let text = &texts[id as usize];
        (text.clone(), json!({ "id": text, "ids": [id], "tokens": [text] }))
    });
    let single = template_steps("A", 0, texts, around);
    let pair = [single.clone(), template_steps("B", 1, texts, around)].concat();
    let template = json!({
        "type": "TemplateProcessing", "single": single, "pair": pair,
        "special_tokens": named.collect::<Map<String, Value>>(),
    });
    if bytes { json!({ "type": "Sequence", "processors": [plain, template] }) } else { template }
}

/// Returns the steps of a template for one text, with its tokens before and after.
fn template_steps(
    name: &str,
    ty: u8,
    texts: &[String],
    (before, after): (Option<u32>, Option<u32>),
) -> Vec<Value> {
    let text = json!({ "Sequence": { "id": name, "type_id": ty } });
    let first = before.map(|id| special_step(&texts[id as usize], ty));
    let last = after.map(|id| special_step(&texts[id as usize], ty));
    first.into_iter().chain([text]).chain(last).collect()
}

/// Returns the step of a template that adds a token.
fn special_step(token: &str, ty: u8) -> Value {
    json!({ "SpecialToken": { "id": token, "type_id": ty } })
}

/// Returns `tokenizer_config.json`.
fn config(
    keys: &Metadata,
    texts: &[String],
    (before, after): (Option<u32>, Option<u32>),
) -> Result<Value, RestoreError> {
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false,
        "add_bos_token": before.is_some(), "add_eos_token": after.is_some(),
    });
    for (role, key) in ROLES.iter().take(7) {
        if let Some(id) = token_id(keys, key, texts.len()) {
            config[format!("{role}_token")] = texts[id as usize].clone().into();
        }
    }
    if let Some(space) = keys.bool("tokenizer.ggml.add_space_prefix")? {
        config["add_prefix_space"] = space.into();
    }
    let mut named = Vec::new();
    for (key, value) in keys.iter() {
        if let (Some(name), MetadataValue::String(text)) =
            (key.strip_prefix("tokenizer.chat_template"), value)
        {
            let name = name.strip_prefix('.').unwrap_or("default");
            named.push(json!({ "name": name, "template": text }));
        }
    }
    match &named[..] {
        [] => {}
        [one] => config["chat_template"] = one["template"].clone(),
        several => config["chat_template"] = several.into(),
    }
    Ok(config)
}
