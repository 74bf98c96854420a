//! Reads vocab.json with merges.txt, the older form of byte-level tokenizers.
//!
//! These files define no pipeline steps: the tokenizer class in transformers implies them.
//! `data/pair_tokenizers.json` lists the classes, as transformers 5.23 builds them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use registry::file::{TOKENIZER, read_text};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Error;
use super::doc::{Doc, parse};
use super::json::{AddedToken, JsonModel, TokenizerJson, halves};
use super::special::decoder;

/// Tokenizer class, with the pipeline that it adds to vocabulary and merges.
#[derive(Deserialize)]
struct TokenizerClass {
    classes: Vec<String>,
    /// Model types that use the class if no file names one.
    models: Vec<String>,
    normalizer: Value,
    pre_tokenizer: Value,
    special: BTreeMap<String, String>,
}

static CLASSES: LazyLock<Vec<TokenizerClass>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../data/pair_tokenizers.json"))
        .expect("the table is part of the program, and a test reads it")
});

/// Special tokens in the order of transformers.
const ROLES: [&str; 7] = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"];

impl TokenizerJson {
    /// Reads the tokenizer of a folder in either form, if there is one.
    pub(super) fn read(dir: &Path) -> Result<Option<Self>, Error> {
        match Self::read_json(dir)? {
            Some(json) => Ok(Some(json)),
            None => pair(dir),
        }
    }
}

/// Reads the pair of a folder, if both files exist.
fn pair(dir: &Path) -> Result<Option<TokenizerJson>, Error> {
    let file = dir.join("merges.txt");
    if !file.is_file() {
        return Ok(None);
    }
    let Some((vocab_file, vocab)) = parse::<VocabIds>(dir, "vocab.json")? else { return Ok(None) };
    let config = Doc::read(dir, "tokenizer_config.json")?;
    let Some(class) = class(dir, config.as_ref())? else {
        // A tokenizer.model describes its own steps.
        if dir.join("tokenizer.model").is_file() {
            return Ok(None);
        }
        let known: Vec<&str> =
            CLASSES.iter().filter_map(|class| class.classes.first()).map(String::as_str).collect();
        return Err(Error::PairClass { file: vocab_file, known: known.join(", ") });
    };
    let mut merges = Vec::new();
    for (n, line) in read_text(&file, TOKENIZER)?.lines().enumerate() {
        if line.is_empty() || (n == 0 && line.starts_with("#version")) {
            continue;
        }
        let pair = halves(line).ok_or_else(|| {
            let key = format!("line {}", n + 1);
            Error::key(&file, &key, format!("`{line}`"), "two texts with a blank between")
        })?;
        merges.push(pair);
    }
    let added = added(dir, config.as_ref(), class, &vocab.0)?;
    let mut pre_tokenizer = class.pre_tokenizer.clone();
    if flag(config.as_ref(), "add_prefix_space")? {
        pre_tokenizer["add_prefix_space"] = true.into();
    }
    let before = surrounding_token("bos", config.as_ref(), class, &added)?;
    let after = surrounding_token("eos", config.as_ref(), class, &added)?;
    let post_processor = around(before, after);
    Ok(Some(TokenizerJson {
        normalizer: class.normalizer.clone(),
        pre_tokenizer,
        post_processor,
        decoder: json!({
            "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true,
        }),
        model: JsonModel::Merges { prefix: None, suffix: None, fuse_unknown: false },
        vocab: vocab.0,
        added,
        merges,
        byte_level: true,
        byte_fallback: false,
        ignore_merges: false,
        unknown: None,
        unused: Vec::new(),
        file: vocab_file,
    }))
}

/// Returns a flag of the config; false if it is missing.
fn flag(config: Option<&Doc>, key: &str) -> Result<bool, Error> {
    match config.and_then(|config| config.get(key)) {
        Some(node) => node.bool(),
        None => Ok(false),
    }
}

/// Returns the token of a role, if the config adds it to every text.
fn surrounding_token<'a>(
    role: &str,
    config: Option<&Doc>,
    class: &TokenizerClass,
    added: &'a [AddedToken],
) -> Result<Option<&'a AddedToken>, Error> {
    if !flag(config, &format!("add_{role}_token"))? {
        return Ok(None);
    }
    let text = word(role, config, class);
    Ok(text.and_then(|text| added.iter().find(|token| token.text == text)))
}

/// Returns the class that the files name, or the default of the model type.
fn class(dir: &Path, config: Option<&Doc>) -> Result<Option<&'static TokenizerClass>, Error> {
    if let Some(node) = config.and_then(|config| config.get("tokenizer_class")) {
        let name = node.str()?;
        return Ok(CLASSES.iter().find(|class| class.classes.iter().any(|known| known == name)));
    }
    let config = Doc::read(dir, "config.json")?;
    let Some(node) = config.as_ref().and_then(|config| config.get("model_type")) else {
        return Ok(None);
    };
    let name = node.str()?;
    Ok(CLASSES.iter().find(|class| class.models.iter().any(|known| known == name)))
}

/// Returns the special token of a role, from the config or else from the class.
fn word(role: &str, config: Option<&Doc>, class: &TokenizerClass) -> Option<String> {
    let key = format!("{role}_token");
    let Some(value) = config.and_then(|config| config.value.get(&key)) else {
        return class.special.get(role).cloned();
    };
    let text = value.get("content").unwrap_or(value);
    text.as_str().map(str::to_owned)
}

/// Returns the added tokens: those listed by id, then special ones, numbered after the vocabulary.
fn added(
    dir: &Path,
    config: Option<&Doc>,
    class: &TokenizerClass,
    vocab: &[(String, u64)],
) -> Result<Vec<AddedToken>, Error> {
    let mut listed = config.map(decoder).transpose()?.unwrap_or_default();
    if listed.is_empty()
        && let Some(doc) = Doc::read(dir, "added_tokens.json")?
    {
        for text in doc.value.as_object().into_iter().flat_map(|map| map.keys()) {
            let Some(node) = doc.get(text) else { continue };
            listed.push((node.u64()?, text.clone(), false));
        }
    }
    listed.sort();
    let mut tokens: Vec<AddedToken> = Vec::new();
    for (id, text, special) in listed {
        tokens.push(AddedToken { id, text, special, ..AddedToken::default() });
    }
    let vocabulary: BTreeMap<&str, u64> =
        vocab.iter().map(|(text, id)| (text.as_str(), *id)).collect();
    let mut next = vocab.len() as u64;
    next +=
        tokens.iter().filter(|token| !vocabulary.contains_key(token.text.as_str())).count() as u64;
    for role in ROLES {
        let Some(text) = word(role, config, class) else { continue };
        if let Some(token) = tokens.iter_mut().find(|token| token.text == text) {
            token.special = true;
            continue;
        }
        let id = vocabulary.get(text.as_str()).copied().unwrap_or_else(|| {
            next += 1;
            next - 1
        });
        tokens.push(AddedToken { id, text, special: true, ..AddedToken::default() });
    }
    Ok(tokens)
}

/// Returns a post-processor that adds tokens before and after every text; null without such tokens.
fn around(before: Option<&AddedToken>, after: Option<&AddedToken>) -> Value {
    if before.is_none() && after.is_none() {
        return Value::Null;
    }
    let mut listed = serde_json::Map::new();
    for token in before.iter().chain(&after) {
        let entry = json!({"id": token.text, "ids": [token.id], "tokens": [token.text]});
        listed.insert(token.text.clone(), entry);
    }
    let single = template_steps("A", before, after);
    let pair = [single.clone(), template_steps("B", before, after)].concat();
    json!({
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": listed,
    })
}

/// Returns the steps of a template for one text, with its tokens before and after.
fn template_steps(id: &str, before: Option<&AddedToken>, after: Option<&AddedToken>) -> Vec<Value> {
    let text = json!({"Sequence": {"id": id, "type_id": 0}});
    let steps = before.map(special_step).into_iter().chain([text]);
    steps.chain(after.map(special_step)).collect()
}

/// Returns the step of a template that adds a token.
fn special_step(token: &AddedToken) -> Value {
    json!({"SpecialToken": {"id": token.text, "type_id": 0}})
}

/// Texts and ids in file order.
struct VocabIds(Vec<(String, u64)>);

impl<'de> Deserialize<'de> for VocabIds {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IdsVisitor;
        impl<'de> serde::de::Visitor<'de> for IdsVisitor {
            type Value = VocabIds;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of texts and ids")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<VocabIds, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(VocabIds(pairs))
            }
        }
        deserializer.deserialize_map(IdsVisitor)
    }
}
