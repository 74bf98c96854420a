//! Finds the special tokens that begin, end and pad texts, and those added around every text.
//!
//! The order of sources is that of llama.cpp's converter, because the first that names a token takes
//! precedence. The sources are tokenizer_config.json by text, with the post-processor's tokens around
//! texts, then config.json by id, then the caller's additions.

use std::collections::BTreeMap;
use std::path::Path;

use registry::config::INNER;
use serde_json::Value;

use super::doc::{Doc, DocNode};
use super::json::TokenizerJson;
use super::{Error, TokenizerOptions};
use formats::shown;

/// Roles of special tokens and their keys.
pub(super) const ROLES: [(&str, &str); 18] = [
    ("bos", "tokenizer.ggml.bos_token_id"),
    ("eos", "tokenizer.ggml.eos_token_id"),
    ("unk", "tokenizer.ggml.unknown_token_id"),
    ("sep", "tokenizer.ggml.seperator_token_id"),
    ("pad", "tokenizer.ggml.padding_token_id"),
    ("cls", "tokenizer.ggml.cls_token_id"),
    ("mask", "tokenizer.ggml.mask_token_id"),
    ("eot", "tokenizer.ggml.eot_token_id"),
    ("eom", "tokenizer.ggml.eom_token_id"),
    ("prefix", "tokenizer.ggml.prefix_token_id"),
    ("suffix", "tokenizer.ggml.suffix_token_id"),
    ("middle", "tokenizer.ggml.middle_token_id"),
    ("fim_pre", "tokenizer.ggml.fim_pre_token_id"),
    ("fim_suf", "tokenizer.ggml.fim_suf_token_id"),
    ("fim_mid", "tokenizer.ggml.fim_mid_token_id"),
    ("fim_pad", "tokenizer.ggml.fim_pad_token_id"),
    ("fim_rep", "tokenizer.ggml.fim_rep_token_id"),
    ("fim_sep", "tokenizer.ggml.fim_sep_token_id"),
];
/// Number of roles that checkpoints name, in search order.
const NAMED: usize = 7;

/// Special tokens of a checkpoint.
#[derive(Debug, Default)]
pub(super) struct SpecialTokens {
    /// Roles and ids, in the order of their keys.
    pub(super) ids: Vec<(String, u32)>,
    /// Roles of tokens, with true if they are added around texts.
    pub(super) adds: Vec<(String, bool)>,
    pub(super) lowercase: Option<bool>,
    pub(super) strip_accents: Option<bool>,
}

/// Reads all sources.
pub(super) fn read(
    dir: &Path,
    json: Option<&TokenizerJson>,
    rows: usize,
    options: &TokenizerOptions,
    warnings: &mut Vec<String>,
) -> Result<SpecialTokens, Error> {
    let mut special = SpecialTokens::default();
    let config = Doc::read(dir, "tokenizer_config.json")?;
    let mut words = named(config.as_ref());
    let mut roles: Vec<String> = ROLES[..NAMED].iter().map(|(role, _)| (*role).into()).collect();
    if let Some(json) = json {
        special.normalizer(&DocNode::new(&json.file, "normalizer", &json.normalizer))?;
        let node = DocNode::new(&json.file, "post_processor", &json.post_processor);
        special.processors(&node, &mut words, &mut roles)?;
    }
    if let Some(config) = &config {
        for role in &roles {
            special.flag(config, role)?;
            let Some(word) = words.get(role) else { continue };
            let id = match json {
                Some(json) => json.added.iter().find(|token| token.text == *word).map(|t| t.id),
                None => decoder_id(config, word)?,
            };
            if let Some(id) = id {
                special.put(role, i128::from(id), rows, warnings);
            }
        }
    }
    if let Some(config) = Doc::read(dir, "config.json")? {
        for role in &roles {
            let key = format!("{role}_token_id");
            let node = config.get(&key).or_else(|| {
                let inner = INNER.iter().find_map(|place| config.find(place))?;
                inner.get(&key)
            });
            // A list of ids names no single token.
            if let Some(id) = node.and_then(|node| node.value.as_i64()) {
                special.put(role, i128::from(id), rows, warnings);
            }
        }
    }
    for (role, token) in &options.special {
        if !ROLES.iter().any(|(known, _)| known == role) {
            let known = ROLES.map(|(role, _)| role).join(", ");
            return Err(Error::UnknownRole { role: shown(role), known });
        }
        let id = json.and_then(|json| json.id(token));
        // A vocabulary without the token never produces it.
        let Some(id) = id else { continue };
        special.put(role, i128::from(id), rows, warnings);
    }
    Ok(special)
}

/// Returns the special tokens of a checkpoint, by their keys (`bos_token`), as transformers hands them to
/// chat templates: those of tokenizer_config.json, with special_tokens_map.json for older checkpoints.
pub fn special_texts(dir: &Path) -> Result<Vec<(String, String)>, Error> {
    let mut texts = BTreeMap::new();
    let config = Doc::read(dir, "tokenizer_config.json")?;
    if let Some(config) = &config {
        collect_texts(&config.value, &mut texts);
    }
    if config.is_none_or(|config| config.get("added_tokens_decoder").is_none())
        && let Some(map) = Doc::read(dir, "special_tokens_map.json")?
    {
        collect_texts(&map.value, &mut texts);
    }
    Ok(texts.into_iter().collect())
}

/// Collects the texts of the special tokens of a map, by their keys.
fn collect_texts(map: &Value, texts: &mut BTreeMap<String, String>) {
    for (key, value) in map.as_object().into_iter().flatten() {
        if let (true, Some(text)) = (key.ends_with("_token"), content(value)) {
            texts.insert(key.clone(), text.to_owned());
        }
    }
    // Tokens of this model alone, by their names.
    for (key, value) in
        map.get("extra_special_tokens").and_then(Value::as_object).into_iter().flatten()
    {
        if let Some(text) = content(value) {
            texts.insert(key.clone(), text.to_owned());
        }
    }
}

/// Returns the text of a token, which is a text or an object with its content.
fn content(token: &Value) -> Option<&str> {
    match token {
        Value::Object(map) => map.get("content").and_then(Value::as_str),
        value => value.as_str(),
    }
}

/// Returns the texts that tokenizer_config.json names, by role.
fn named(config: Option<&Doc>) -> BTreeMap<String, String> {
    let mut words = BTreeMap::new();
    let Some(config) = config else { return words };
    for (role, _) in &ROLES[..NAMED] {
        let Some(node) = config.get(&format!("{role}_token")) else { continue };
        if let Some(text) = content(node.value) {
            words.insert((*role).to_owned(), text.to_owned());
        }
    }
    words
}

/// Returns the id of a token in the `added_tokens_decoder` list of older tokenizer_config.json files.
fn decoder_id(config: &Doc, word: &str) -> Result<Option<u64>, Error> {
    for (id, text, _) in decoder(config)? {
        if text == word {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Returns the `added_tokens_decoder` list: ids, texts, and true for special tokens.
pub(super) fn decoder(config: &Doc) -> Result<Vec<(u64, String, bool)>, Error> {
    let Some(node) = config.get("added_tokens_decoder") else { return Ok(Vec::new()) };
    let expected = "an object of ids and tokens";
    let map = node.value.as_object().ok_or_else(|| node.wrong(expected))?;
    let mut list = Vec::with_capacity(map.len());
    for key in map.keys() {
        let Some(token) = node.get(key) else { continue };
        let id = key.parse::<u64>().map_err(|_| token.wrong("a token under its id"))?;
        let special = token.get("special").map_or(Ok(false), |node| node.bool())?;
        list.push((id, token.need("content", "a text")?.str()?.to_owned(), special));
    }
    Ok(list)
}

impl SpecialTokens {
    /// Sets the id of a role, unless an earlier source has set it.
    fn put(&mut self, role: &str, id: i128, rows: usize, warnings: &mut Vec<String>) {
        match u32::try_from(id) {
            Ok(id) if (id as usize) < rows => {
                if !self.ids.iter().any(|(known, _)| known == role) {
                    self.ids.push((role.to_owned(), id));
                }
            }
            _ => warnings
                .push(format!("the {role} token {id} is not written: there are {rows} tokens")),
        }
    }

    fn adds(&self, role: &str) -> Option<bool> {
        self.adds.iter().find(|(known, _)| known == role).map(|(_, yes)| *yes)
    }

    fn set(&mut self, role: &str, yes: bool) {
        match self.adds.iter_mut().find(|(known, _)| known == role) {
            Some((_, old)) => *old = yes,
            None => self.adds.push((role.to_owned(), yes)),
        }
    }

    /// Reads the `add_{role}_token` flag of tokenizer_config.json, unless the post-processor has set it.
    fn flag(&mut self, config: &Doc, role: &str) -> Result<(), Error> {
        let Some(node) = config.get(&format!("add_{role}_token")) else { return Ok(()) };
        let yes = node.bool()?;
        if self.adds(role).is_none() {
            self.set(role, yes);
        }
        Ok(())
    }

    fn normalizer(&mut self, node: &DocNode<'_>) -> Result<(), Error> {
        match node.get("type").and_then(|kind| kind.value.as_str()) {
            Some("Lowercase") => self.lowercase = Some(true),
            Some("StripAccents") => self.strip_accents = Some(true),
            Some("BertNormalizer") => {
                if let Some(yes) = node.get("lowercase") {
                    self.lowercase = Some(yes.bool()?);
                }
                if let Some(yes) = node.get("strip_accents") {
                    self.strip_accents = Some(yes.bool()?);
                }
            }
            Some("Sequence") => {
                for inner in node.need("normalizers", "a list")?.list()? {
                    self.normalizer(&inner)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads the tokens around texts from the post-processor.
    fn processors(
        &mut self,
        node: &DocNode<'_>,
        words: &mut BTreeMap<String, String>,
        roles: &mut Vec<String>,
    ) -> Result<(), Error> {
        // Models without BOS or EOS tokens use CLS and SEP.
        for (role, other) in [("bos", "cls"), ("eos", "sep")] {
            if let (None, Some(word)) = (words.get(role), words.get(other).cloned()) {
                words.insert(role.into(), word);
            }
        }
        if node.value.is_null() {
            return Ok(());
        }
        let all = match node.get("processors") {
            Some(inner) => inner.list()?.collect(),
            None => vec![node.clone()],
        };
        for processor in all {
            match processor.get("type").and_then(|kind| kind.value.as_str()) {
                Some("ByteLevel") => {
                    for role in ["bos", "eos"] {
                        if self.adds(role).is_none() {
                            self.set(role, false);
                        }
                    }
                }
                Some("RobertaProcessing") => {
                    for role in ["bos", "eos", "sep"] {
                        self.set(role, true);
                    }
                    for role in ["cls", "sep"] {
                        let list = processor.get(role).map(|list| list.list()).transpose()?;
                        let first = list.and_then(|mut list| list.next());
                        if let (None, Some(word)) = (words.get(role), first) {
                            let word = word.str()?.to_owned();
                            words.insert(role.into(), word);
                        }
                    }
                }
                Some("TemplateProcessing") => self.template(&processor, words, roles)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads simple templates: a token before the text, one after it, one or two between a pair.
    fn template(
        &mut self,
        node: &DocNode<'_>,
        words: &mut BTreeMap<String, String>,
        roles: &mut Vec<String>,
    ) -> Result<(), Error> {
        let single = steps(node, "single")?;
        let pair = steps(node, "pair")?;
        let mut first = None;
        let mut last = None;
        if single.len() > 1 {
            first = single.first().and_then(TemplateStep::special).map(str::to_owned);
            last = single.last().and_then(TemplateStep::special).map(str::to_owned);
        }
        if let Some(first) = &first {
            if words.get("bos") != Some(first) && words.get("cls") != Some(first) {
                for role in ["bos", "cls"] {
                    words.entry(role.into()).or_insert_with(|| first.clone());
                }
            }
            let known = words.get("bos") == Some(first) || words.get("cls") == Some(first);
            self.set("bos", known);
        }
        if let Some(last) = &last {
            if words.get("eos") != Some(last) {
                // The previous EOS token becomes the end of a turn, or of a message.
                if let Some(old) = words.insert("eos".into(), last.clone()) {
                    let free = ["eot", "eom"].iter().find(|role| !words.contains_key(**role));
                    if let Some(role) = free {
                        words.insert((*role).into(), old);
                        roles.push((*role).into());
                    }
                }
            }
            self.set("eos", true);
        }
        let begins =
            first.is_some() && pair.first().and_then(TemplateStep::special) == first.as_deref();
        let ends = last.is_some() && pair.last().and_then(TemplateStep::special) == last.as_deref();
        let inner = &pair[usize::from(begins).min(pair.len())..];
        let inner = &inner[..inner.len() - usize::from(ends && !inner.is_empty())];
        if let [TemplateStep::Sequence(a), between @ .., TemplateStep::Sequence(b)] = inner
            && (a.as_str(), b.as_str()) == ("A", "B")
            && !between.is_empty()
        {
            let yes = (between[0].separates(words) && last.is_none())
                || (between.len() == 2 && between[1].separates(words));
            self.set("sep", yes);
            if let (true, None, Some(eos)) = (yes, words.get("sep"), words.get("eos").cloned()) {
                words.insert("sep".into(), eos);
            }
        }
        Ok(())
    }
}

/// Step of a template.
enum TemplateStep {
    Special(String),
    Sequence(String),
}

impl TemplateStep {
    fn special(&self) -> Option<&str> {
        match self {
            Self::Special(word) => Some(word),
            Self::Sequence(_) => None,
        }
    }

    /// True for a token that separates texts or ends them.
    fn separates(&self, words: &BTreeMap<String, String>) -> bool {
        let word = self.special();
        word.is_some()
            && [words.get("sep"), words.get("eos")]
                .iter()
                .any(|known| known.map(String::as_str) == word)
    }
}

/// Returns the steps of a template; none if it is missing.
fn steps(node: &DocNode<'_>, key: &str) -> Result<Vec<TemplateStep>, Error> {
    let Some(list) = node.get(key) else { return Ok(Vec::new()) };
    list.list()?.map(|node| step(&node)).collect()
}

fn step(node: &DocNode<'_>) -> Result<TemplateStep, Error> {
    if let Some(special) = node.get("SpecialToken") {
        let id = special.need("id", "a text")?.str()?;
        return Ok(TemplateStep::Special(id.to_owned()));
    }
    match node.get("Sequence") {
        Some(sequence) => {
            let id = sequence.need("id", "a text")?.str()?;
            Ok(TemplateStep::Sequence(id.to_owned()))
        }
        None => Err(node.wrong("a `SpecialToken` or a `Sequence`")),
    }
}
