//! State that llama.cpp keeps of a tokenizer's keys.

use indexmap::IndexMap;

use super::super::TokenizerKind;
use super::super::pre_table::{self, PreName, PreTokenizer};
use super::super::reference::Charsmap;
use super::super::spm::byte;
use super::super::vocabulary::{TokenBytes, spelled_bytes};
use super::load_error::LoadError;
use super::split::Splitter;
use formats::gguf::{self, Metadata, MetadataArray, MetadataValue};
use formats::shown;

/// Tokenizer as llama.cpp loads it, for encoding and decoding text in the same way.
pub struct LlamaTokenizer {
    pub(super) kind: TokenizerKind,
    pub(super) texts: Vec<String>,
    pub(super) types: Vec<i128>,
    pub(super) ids: IndexMap<String, u32>,
    pub(super) scores: Vec<f32>,
    /// Ranks of merges, by the two texts with a space between them.
    ranks: IndexMap<String, usize>,
    /// Tokens that text is searched for before anything else, longest first.
    pub(super) added: Vec<u32>,
    /// Tokens that a prompt may name (`added` and control tokens), longest first.
    pub(super) named: Vec<u32>,
    /// Tokens before and after every prompt.
    pub(super) around: (Option<u32>, Option<u32>),
    /// Tokens that end a text.
    pub(super) ends: Vec<u32>,
    pub(super) bytes: IndexMap<u8, u32>,
    pub(super) blank_first: bool,
    /// True if consecutive spaces are merged.
    pub(super) merges_blanks: bool,
    /// Replacements that are applied before text is split.
    pub(super) charsmap: Option<Charsmap>,
    /// Token of characters that no piece contains.
    pub(super) unknown: u32,
    /// Bytes of the longest token.
    pub(super) longest: usize,
    pub(super) group: Option<&'static PreTokenizer>,
    pub(super) name: Option<&'static PreName>,
    pub(super) splitter: Splitter,
}

/// Types of tokens in files.
pub(super) const NORMAL: i128 = 1;
pub(super) const BYTE: i128 = 6;
const UNKNOWN: i128 = 2;
const CONTROL: i128 = 3;
pub(super) const USER_DEFINED: i128 = 4;
pub(super) const UNUSED: i128 = 5;

/// Roles of tokens that end a model's output.
const ENDS: [&str; 3] = ["eos", "eot", "eom"];

impl LlamaTokenizer {
    /// Reads the keys of a file as the loader does.
    pub fn new(keys: &Metadata) -> Result<Self, LoadError> {
        let model = keys.str("tokenizer.ggml.model")?.unwrap_or_default();
        let kind = match model {
            _ if model == pre_table::scores_model().0 => TokenizerKind::Scores,
            _ if model == pre_table::merges_model() => TokenizerKind::Merges,
            _ if model == pre_table::pieces_model() => TokenizerKind::Pieces,
            _ => return Err(LoadError::Kind { model: shown(model) }),
        };
        let texts = keys.strings("tokenizer.ggml.tokens")?;
        let texts: Vec<String> = texts.ok_or(LoadError::NoTokens)?.to_vec();
        let types = array(keys, "tokenizer.ggml.token_type")?.and_then(MetadataArray::integers);
        let types = types.filter(|types| types.len() == texts.len());
        let types = types.ok_or(LoadError::Types)?;
        let merges = keys.strings("tokenizer.ggml.merges")?;
        let mut ranks = IndexMap::with_capacity(merges.map_or(0, <[String]>::len));
        for (n, line) in merges.unwrap_or_default().iter().enumerate() {
            separator(line).ok_or_else(|| LoadError::Merge { number: n, line: shown(line) })?;
            // Of two equal lines the first counts.
            ranks.entry(line.clone()).or_insert(n);
        }
        let scores = match array(keys, "tokenizer.ggml.scores")? {
            Some(MetadataArray::F32(scores)) if scores.len() >= texts.len() => scores.clone(),
            Some(_) => return Err(LoadError::Scores),
            None => vec![0.0; texts.len()],
        };
        let mut ids = IndexMap::with_capacity(texts.len());
        let mut bytes = IndexMap::new();
        let mut added = Vec::new();
        let mut named = Vec::new();
        for (n, text) in texts.iter().enumerate() {
            let id = u32::try_from(n).map_err(|_| LoadError::TooMany)?;
            ids.insert(text.clone(), id);
            if let Some(byte) = byte(text) {
                bytes.insert(byte, id);
            }
            if types[n] == USER_DEFINED && !text.is_empty() {
                added.push(id);
            }
            if matches!(types[n], CONTROL | USER_DEFINED) && !text.is_empty() {
                named.push(id);
            }
        }
        for list in [&mut added, &mut named] {
            list.sort_by_key(|&id| std::cmp::Reverse(texts[id as usize].len()));
        }
        let name = keys.str("tokenizer.ggml.pre")?.unwrap_or_default();
        let known = match kind {
            TokenizerKind::Merges => {
                Some(pre_table::find(name).ok_or_else(|| LoadError::Pre { name: shown(name) })?)
            }
            TokenizerKind::Scores | TokenizerKind::Pieces => None,
        };
        let group: Option<&'static PreTokenizer> = known.map(|(group, _)| group);
        let around = around(keys, kind, known.map(|(_, name)| name), texts.len())?;
        let ends = ENDS.iter().filter_map(|role| special_id(keys, role, texts.len())).collect();
        let blank = keys.bool("tokenizer.ggml.add_space_prefix")?;
        let charsmap = match array(keys, "tokenizer.ggml.precompiled_charsmap")? {
            Some(MetadataArray::U8(bytes)) => Some(parse_charsmap(bytes)?),
            Some(MetadataArray::I8(bytes)) => {
                let bytes: Vec<u8> = bytes.iter().map(|byte| byte.cast_unsigned()).collect();
                Some(parse_charsmap(&bytes)?)
            }
            Some(_) => return Err(LoadError::NotCharsmap),
            None => None,
        };
        Ok(Self {
            kind,
            splitter: Splitter::new(group.map_or(&[], |group| &group.split))?,
            blank_first: match kind {
                TokenizerKind::Scores => blank.unwrap_or(true),
                TokenizerKind::Pieces => blank.unwrap_or(false),
                TokenizerKind::Merges => false,
            },
            merges_blanks: keys.bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false),
            charsmap,
            // Default of the loader for this kind.
            unknown: special_id(keys, "unknown", texts.len()).unwrap_or(2),
            longest: texts.iter().map(String::len).max().unwrap_or(0),
            name: known.map(|(_, name)| name),
            group,
            texts,
            types,
            ids,
            scores,
            ranks,
            added,
            named,
            around,
            ends,
            bytes,
        })
    }

    /// True if a token is a control token.
    pub fn is_control(&self, id: u32) -> bool {
        self.types.get(id as usize) == Some(&CONTROL)
    }

    /// Returns the tokens that end a model's output.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Returns the readable texts of tokens.
    pub(super) fn names(&self, ids: &[u32]) -> Vec<String> {
        ids.iter()
            .map(|&id| shown(self.texts.get(id as usize).map_or("?", String::as_str)))
            .collect()
    }

    /// Returns the rank of the merge of two texts, if there is one.
    pub(super) fn rank(&self, left: &str, right: &str) -> Option<usize> {
        let line = format!("{left} {right}");
        // A text with a space of its own would be cut there.
        let is_unambiguous = separator(&line) == Some(left.len());
        self.ranks.get(&line).copied().filter(|_| is_unambiguous)
    }

    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// True if spaces become `▁`.
    pub(super) fn escapes(&self) -> bool {
        self.group.is_none_or(|group| group.escape)
    }

    /// True if texts of tokens spell bytes.
    pub(super) fn spells_bytes(&self) -> bool {
        self.group.is_some_and(|group| group.bytes)
    }

    /// True if llama.cpp only approximates the pre-tokenizer.
    pub(super) fn is_approximate(&self) -> bool {
        self.group.is_some_and(|group| group.approximate.is_some())
    }

    pub(super) fn is_normal(&self, id: u32) -> bool {
        self.types.get(id as usize) == Some(&NORMAL)
    }

    /// Returns the bytes of every token, by id.
    pub fn vocabulary(&self) -> Vec<TokenBytes> {
        let tokens = self.texts.iter().zip(&self.types);
        tokens
            .map(|(text, &ty)| TokenBytes {
                bytes: self.bytes_of(text, ty),
                special: ty == CONTROL,
            })
            .collect()
    }

    /// Returns the bytes of a token in the middle of an output.
    fn bytes_of(&self, text: &str, ty: i128) -> Vec<u8> {
        match ty {
            BYTE => byte(text).map(|byte| vec![byte]).unwrap_or_default(),
            UNKNOWN | UNUSED => Vec::new(),
            NORMAL if self.kind == TokenizerKind::Merges && self.spells_bytes() => {
                spelled_bytes(text).unwrap_or_default()
            }
            NORMAL => text.replace('▁', " ").into_bytes(),
            _ => text.as_bytes().to_vec(),
        }
    }
}

/// Returns the id that the keys give a special token, if the vocabulary has it.
fn special_id(keys: &Metadata, role: &str, tokens: usize) -> Option<u32> {
    let id = keys.get(&format!("tokenizer.ggml.{role}_token_id"))?.integer()?;
    u32::try_from(id).ok().filter(|&id| (id as usize) < tokens)
}

/// Parses a table of replacements.
fn parse_charsmap(bytes: &[u8]) -> Result<Charsmap, LoadError> {
    Charsmap::parse(bytes).map_err(|why| LoadError::Charsmap { why })
}

/// Returns the place of the space between the parts of a merge: the first one after the first byte.
fn separator(line: &str) -> Option<usize> {
    line.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at)
}

/// Returns the tokens that the loader puts before and after every text. If the keys are missing, each kind
/// has its own rule and ids, which are those of `llama_vocab::impl::load`.
pub(in super::super) fn around(
    keys: &Metadata,
    kind: TokenizerKind,
    name: Option<&PreName>,
    tokens: usize,
) -> Result<(Option<u32>, Option<u32>), gguf::Error> {
    let (bos, eos) = match kind {
        TokenizerKind::Scores => ((true, Some(1)), (false, Some(2))),
        TokenizerKind::Pieces => ((false, None), (true, Some(1))),
        TokenizerKind::Merges => {
            // The only name without a default BOS token.
            let id = name.is_none_or(|name| name.name != "glm5").then_some(11);
            ((name.is_some_and(|name| name.add_bos), id), (false, Some(11)))
        }
    };
    Ok((surrounding(keys, "bos", bos, tokens)?, surrounding(keys, "eos", eos, tokens)?))
}

/// Returns the token of a role, if it is added to every text. The defaults are those for missing keys.
fn surrounding(
    keys: &Metadata,
    role: &str,
    (default_adds, default_id): (bool, Option<u32>),
    tokens: usize,
) -> Result<Option<u32>, gguf::Error> {
    let key = format!("tokenizer.ggml.add_{role}_token");
    let adds = keys.bool(&key)?.unwrap_or(default_adds);
    let default_id = default_id.filter(|&id| (id as usize) < tokens);
    Ok(special_id(keys, role, tokens).or(default_id).filter(|_| adds))
}

fn array<'a>(keys: &'a Metadata, key: &str) -> Result<Option<&'a MetadataArray>, LoadError> {
    match keys.get(key) {
        None => Ok(None),
        Some(MetadataValue::Array(array)) => Ok(Some(array)),
        Some(other) => Err(LoadError::NotArray { key: key.to_owned(), found: other.kind_name() }),
    }
}
