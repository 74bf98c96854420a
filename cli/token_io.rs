//! Converts text to tokens and back: with the tokenizer.json beside a model, or with the keys of a GGUF
//! file.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, ensure};
use converter::reference_tokenizer;
use formats::gguf::GgufFile;
use models::is_gguf;
use models::local_model::LocalModel;
use registry::file::CONFIG;
use serve::{ServedTokenizer, TextStream};
use tokenizer::ReferenceTokenizer;
use tokenizer::check::LlamaTokenizer;

use crate::progress::ConversionTerminal;

/// Tokenizer of a model.
pub(crate) enum ModelTokenizer {
    Json(Box<ReferenceTokenizer>),
    /// Tokenizer as llama.cpp loads it from a file.
    Gguf(Box<LlamaTokenizer>),
}

impl ModelTokenizer {
    /// Returns the tokenizer of a model.
    pub(crate) fn of(target: &LocalModel) -> Result<Self> {
        Self::at(&target.dir, target.home())
    }

    /// Returns the tokenizer of a folder or GGUF file; `home` is the folder that it is in.
    pub(crate) fn at(path: &Path, home: &Path) -> Result<Self> {
        if !is_gguf(path) {
            return Ok(Self::Json(Box::new(reference_tokenizer(&ConversionTerminal, home)?)));
        }
        let file = GgufFile::open(path)?;
        match LlamaTokenizer::new(file.metadata()) {
            Ok(loaded) => Ok(Self::Gguf(Box::new(loaded))),
            // Unsupported kind of tokenizer: the tokenizer beside the file is used.
            Err(why) => Ok(Self::Json(Box::new(
                reference_tokenizer(&ConversionTerminal, home).with_context(|| {
                    format!("the tokenizer in `{}` is not used: {why}", path.display())
                })?,
            ))),
        }
    }

    pub(crate) fn prompt(&self, text: &str) -> Result<Vec<u32>> {
        self.encode(text, true)
    }

    /// Returns the tokens of a text, with the special tokens around it if `around` is set.
    pub(crate) fn encode(&self, text: &str, around: bool) -> Result<Vec<u32>> {
        match self {
            Self::Json(tokenizer) => Ok(tokenizer.encode(text, around)?),
            Self::Gguf(loaded) => {
                let ids = if around { loaded.prompt(text) } else { loaded.encode(text) };
                ids.map_err(|error| anyhow!("cannot tokenize the prompt: {error}"))
            }
        }
    }

    /// Returns the tokens that end a text of a model in this folder.
    pub(crate) fn ends(&self, dir: &Path) -> Vec<u32> {
        match self {
            Self::Gguf(loaded) => loaded.ends().to_vec(),
            Self::Json(_) => end_tokens(dir),
        }
    }

    /// Returns the text of tokens, without special tokens if `plain` is set.
    pub(crate) fn decode(&self, tokens: &[u32], plain: bool) -> Result<String> {
        match self {
            Self::Json(tokenizer) => Ok(tokenizer.decode(tokens, plain)?),
            Self::Gguf(loaded) => {
                let shown = tokens.iter().copied().filter(|&id| !plain || !loaded.is_control(id));
                Ok(loaded.decode(&shown.collect::<Vec<u32>>()))
            }
        }
    }
}

/// Input and output form of tokens: ids or text.
pub(crate) enum TokenIo {
    Ids { first: bool },
    Text { words: Arc<ModelTokenizer>, stream: Box<TextStream> },
}

impl TokenIo {
    /// Returns the text form with a tokenizer.
    pub(crate) fn with(tokenizer: ModelTokenizer) -> Self {
        let words = Arc::new(tokenizer);
        let codec = Arc::clone(&words) as Arc<dyn ServedTokenizer>;
        let stream = Box::new(TextStream::new(Some(codec), &[], Vec::new(), true));
        Self::Text { words, stream }
    }

    /// Returns the tokens that end a text.
    pub(crate) fn ends(&self, dir: &Path) -> Vec<u32> {
        match self {
            Self::Text { words, .. } => words.ends(dir),
            Self::Ids { .. } => Vec::new(),
        }
    }

    pub(crate) fn prompt(&self, text: Option<&str>, ids: &[u32]) -> Result<Vec<u32>> {
        let tokens = match (self, text) {
            (Self::Text { words, .. }, Some(text)) => words.prompt(text)?,
            _ => ids.to_vec(),
        };
        ensure!(!tokens.is_empty(), "the prompt has no tokens");
        Ok(tokens)
    }

    /// Returns the text that a token adds to the output. The bytes of one character can span several tokens:
    /// incomplete characters are held back.
    pub(crate) fn next_text(&mut self, token: u32) -> String {
        match self {
            Self::Ids { first } => {
                let comma = if std::mem::take(first) { "" } else { "," };
                format!("{comma}{token}")
            }
            Self::Text { stream, .. } => stream.push(token),
        }
    }

    /// Returns the text that was held back, at the end.
    pub(crate) fn remaining_text(&mut self) -> String {
        match self {
            Self::Text { stream, .. } => stream.finish(),
            Self::Ids { .. } => String::new(),
        }
    }
}

/// Returns the tokens that end a text, from `generation_config.json` or `config.json`.
pub(crate) fn end_tokens(dir: &Path) -> Vec<u32> {
    named_tokens(dir, "eos_token_id")
}

/// Returns the token that begins a text, from `generation_config.json` or `config.json`.
pub(crate) fn begin_token(dir: &Path) -> Option<u32> {
    named_tokens(dir, "bos_token_id").first().copied()
}

fn named_tokens(dir: &Path, key: &str) -> Vec<u32> {
    for file in ["generation_config.json", "config.json"] {
        let Ok(bytes) = registry::file::read(&dir.join(file), CONFIG) else { continue };
        let Ok(json) = serde_json::from_slice::<serde_json::Value>(&bytes) else { continue };
        match &json[key] {
            serde_json::Value::Array(ids) => return ids.iter().filter_map(token_id).collect(),
            one if one.is_u64() => return token_id(one).into_iter().collect(),
            _ => {}
        }
    }
    Vec::new()
}

/// Returns a number as a token id.
fn token_id(value: &serde_json::Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}
