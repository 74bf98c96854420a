//! Reference tokenizer: the checkpoint's own tokenizer, run by the `tokenizers` crate. No other module
//! calls the crate.
//!
//! The crate trusts its files: malformed ones can cause a panic, a huge allocation, or text that grows a
//! thousandfold. So each component is checked first ([`parts`]) and built from the checked fields alone,
//! and every call converts a panic to an error ([`quiet`]). A failed allocation or a stack overflow cannot
//! be caught, so sizes and depths are limited before the crate sees them.
//!
//! The reasons are in [decision 42](../../../docs/decisions/0042-tokenizers-checked-first.md).

use std::path::{Path, PathBuf};

use indexmap::IndexSet;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizedString, Normalizer as _, NormalizerWrapper,
    PostProcessorWrapper, PreTokenizerWrapper,
};

use super::Error;
use super::json::{JsonModel, TokenizerJson};
use parts::{Budget, ComponentRole};

pub(super) mod base64;
mod charsmap;
mod model;
mod parts;
pub(super) mod quiet;
mod vocabulary;

pub(super) use charsmap::Charsmap;

/// Memory of the crate per byte of normalized text, in bytes: the text, its original and the alignment
/// between both.
const KEPT: f64 = 40.0;
/// Memory limit below which the bound on growth from the components suffices without measuring.
const UNMEASURED: f64 = (256 << 20) as f64;
/// Maximum growth of a whole text in a normalizer.
const GROWTH: usize = 16;
/// Size of the pieces of text that are normalized to measure the growth, in bytes.
const SAMPLE: usize = 256;

/// Tokenizer of a checkpoint. Truncation, padding and dropout in its files are ignored.
#[derive(Debug)]
pub struct ReferenceTokenizer {
    inner: Box<tokenizers::Tokenizer>,
    file: PathBuf,
    /// Upper bound on the bytes that normalizer and pre-tokenizer produce per byte.
    growth: f64,
    notes: Vec<String>,
}

impl ReferenceTokenizer {
    /// Reads tokenizer.json, or vocab.json with merges.txt, if the folder has either.
    pub fn read(dir: &Path) -> Result<Option<Self>, Error> {
        TokenizerJson::read(dir)?.map(|json| Self::build(&json)).transpose()
    }

    pub(super) fn build(json: &TokenizerJson) -> Result<Self, Error> {
        let file = &json.file;
        let ids: IndexSet<u64> = json.ids().collect();
        let mut budget = Budget::new(&ids);
        let (normalizer, normalized) = checked(json, ComponentRole::Normalizer, &mut budget)?;
        let (pre_tokenizer, split) = checked(json, ComponentRole::PreTokenizer, &mut budget)?;
        let (post_processor, _) = checked(json, ComponentRole::PostProcessor, &mut budget)?;
        let (decoder, _) = checked(json, ComponentRole::Decoder, &mut budget)?;
        model::check(json).map_err(|(at, why)| component_error(file, &at, why))?;
        let model = match quiet::call(|| wrapped(json)) {
            Ok(Ok(model)) => model,
            Ok(Err(why)) | Err(why) => {
                return Err(component_error(file, "model", formats::shown(&why)));
            }
        };
        let normalizer: Option<NormalizerWrapper> =
            component(json, ComponentRole::Normalizer, normalizer)?;
        if let Some(normalizer) = &normalizer {
            let texts = json.added.iter().filter(|token| token.normalized);
            grown(normalizer, texts.map(|token| token.text.as_str()))
                .map_err(|why| component_error(file, "added_tokens", why))?;
        }
        let pre_tokenizer: Option<PreTokenizerWrapper> =
            component(json, ComponentRole::PreTokenizer, pre_tokenizer)?;
        let post_processor: Option<PostProcessorWrapper> =
            component(json, ComponentRole::PostProcessor, post_processor)?;
        let decoder: Option<DecoderWrapper> = component(json, ComponentRole::Decoder, decoder)?;
        let built = quiet::call(|| -> Result<_, String> {
            let mut inner = tokenizers::Tokenizer::new(model);
            inner.with_normalizer(normalizer).map_err(|why| why.to_string())?;
            inner.with_pre_tokenizer(pre_tokenizer);
            inner.with_post_processor(post_processor);
            inner.with_decoder(decoder);
            inner.add_tokens(json.added.iter().map(token)).map_err(|why| why.to_string())?;
            Ok(inner)
        });
        let inner = match built {
            Ok(Ok(inner)) => inner,
            Ok(Err(why)) | Err(why) => {
                return Err(component_error(file, "added_tokens", formats::shown(&why)));
            }
        };
        // The crate numbers added tokens itself; other ids in a file belong to another vocabulary.
        for (n, token) in json.added.iter().enumerate().filter(|(_, token)| !token.text.is_empty())
        {
            let given = inner.token_to_id(&token.text);
            if given.map(u64::from) != Some(token.id) {
                let why = format!(
                    "token `{}` has id {}, and the library numbers it {}: ids of added tokens have \
                     to follow the vocabulary without gaps",
                    formats::shown(&token.text),
                    token.id,
                    given.map_or_else(|| "not at all".into(), |id| id.to_string())
                );
                return Err(component_error(file, &format!("added_tokens[{n}]"), why));
            }
        }
        Ok(Self {
            inner: Box::new(inner),
            file: json.file.clone(),
            growth: normalized * split,
            notes: json.ignored(),
        })
    }

    /// Returns the file that the tokenizer was read from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the number of tokens, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Returns the ignored settings of the file, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Treats special tokens in texts as plain text from now on.
    pub fn read_specials_as_text(&mut self) {
        self.inner.set_encode_special_tokens(true);
    }

    /// Returns the tokens of a text, with the special tokens around it if `around` is set.
    pub fn encode(&self, text: &str, around: bool) -> Result<Vec<u32>, Error> {
        if text.len() as f64 * self.growth * KEPT > UNMEASURED
            && let Some(normalizer) = self.inner.get_normalizer()
        {
            grown(normalizer, std::iter::once(text))
                .map_err(|why| component_error(&self.file, "normalizer", why))?;
        }
        match quiet::call(|| self.inner.encode_fast(text, around)) {
            Ok(Ok(encoding)) => Ok(encoding.get_ids().to_vec()),
            Ok(Err(why)) => Err(self.failed("tokenize a text", &why.to_string())),
            Err(why) => Err(self.failed("tokenize a text", &why)),
        }
    }

    /// Returns the text of tokens, without special tokens if `plain` is set.
    pub fn decode(&self, ids: &[u32], plain: bool) -> Result<String, Error> {
        match quiet::call(|| self.inner.decode(ids, plain)) {
            Ok(Ok(text)) => Ok(text),
            Ok(Err(why)) => Err(self.failed("decode tokens", &why.to_string())),
            Err(why) => Err(self.failed("decode tokens", &why)),
        }
    }

    fn failed(&self, doing: &'static str, why: &str) -> Error {
        Error::Run { file: self.file.clone(), doing, why: formats::shown(why) }
    }
}

/// Builds a component from its checked fields.
fn component<T: DeserializeOwned>(
    json: &TokenizerJson,
    role: ComponentRole,
    value: Value,
) -> Result<Option<T>, Error> {
    if value.is_null() {
        return Ok(None);
    }
    let why = match quiet::call(|| serde_json::from_value::<T>(value)) {
        Ok(Ok(component)) => return Ok(Some(component)),
        Ok(Err(why)) => why.to_string(),
        Err(why) => why,
    };
    Err(component_error(&json.file, role.key(), formats::shown(&why)))
}

/// Checks a component. Returns its known fields, and the maximum growth of a byte in it.
fn checked(
    json: &TokenizerJson,
    role: ComponentRole,
    budget: &mut Budget<'_>,
) -> Result<(Value, f64), Error> {
    let value = match role {
        ComponentRole::Normalizer => &json.normalizer,
        ComponentRole::PreTokenizer => &json.pre_tokenizer,
        ComponentRole::PostProcessor => &json.post_processor,
        ComponentRole::Decoder => &json.decoder,
    };
    parts::check(role, value, budget).map_err(|(at, why)| component_error(&json.file, &at, why))
}

fn component_error(file: &Path, component: &str, why: String) -> Error {
    Error::Component { file: file.to_owned(), component: component.to_owned(), why }
}

fn wrapped(json: &TokenizerJson) -> Result<ModelWrapper, String> {
    Ok(match &json.model {
        JsonModel::Merges { prefix, suffix, fuse_unknown } => {
            let mut builder = BPE::builder()
                .vocab_and_merges(vocab_of(json), json.merges.clone())
                .fuse_unk(*fuse_unknown)
                .byte_fallback(json.byte_fallback)
                .ignore_merges(json.ignore_merges);
            if let Some(token) = &json.unknown {
                builder = builder.unk_token(token.clone());
            }
            if let Some(prefix) = prefix {
                builder = builder.continuing_subword_prefix(prefix.clone());
            }
            if let Some(suffix) = suffix {
                builder = builder.end_of_word_suffix(suffix.clone());
            }
            builder.build().map_err(|why| why.to_string())?.into()
        }
        JsonModel::Scores { scores, unknown } => {
            let texts = json.vocab.iter().map(|(text, _)| text.clone());
            let pieces = texts.zip(scores.iter().copied()).collect();
            Unigram::from(pieces, *unknown, json.byte_fallback)
                .map_err(|why| why.to_string())?
                .into()
        }
        JsonModel::WordPiece { prefix, longest } => WordPiece::builder()
            .vocab(vocab_of(json))
            .unk_token(json.unknown.clone().unwrap_or_default())
            .continuing_subword_prefix(prefix.clone())
            .max_input_chars_per_word(*longest)
            .build()
            .map_err(|why| why.to_string())?
            .into(),
        JsonModel::Words => WordLevel::builder()
            .vocab(vocab_of(json))
            .unk_token(json.unknown.clone().unwrap_or_default())
            .build()
            .map_err(|why| why.to_string())?
            .into(),
    })
}

/// Returns the texts and ids of the model's vocabulary.
fn vocab_of(json: &TokenizerJson) -> Vocab {
    json.vocab
        .iter()
        .filter_map(|(text, id): &(String, u64)| Some((text.clone(), u32::try_from(*id).ok()?)))
        .collect()
}

fn token(token: &super::json::AddedToken) -> AddedToken {
    AddedToken::from(token.text.clone(), token.special)
        .normalized(token.normalized)
        .single_word(token.single_word)
        .lstrip(token.lstrip)
        .rstrip(token.rstrip)
}

/// Normalizes texts piece by piece, and returns an error if one grows too much.
fn grown<'a>(
    normalizer: &NormalizerWrapper,
    texts: impl Iterator<Item = &'a str>,
) -> Result<(), String> {
    let mut before = 0;
    let mut after = 0;
    for mut remaining in texts {
        while !remaining.is_empty() {
            let mut end = remaining.len().min(SAMPLE);
            while !remaining.is_char_boundary(end) {
                end += 1;
            }
            let (piece, next) = remaining.split_at(end);
            remaining = next;
            let length = quiet::call(|| {
                let mut text = NormalizedString::from(piece);
                normalizer.normalize(&mut text).map(|()| text.get().len())
            });
            before += piece.len();
            after += length?.map_err(|why| why.to_string())?;
            if after > before.saturating_mul(GROWTH) + (1 << 20) {
                return Err(format!(
                    "the normalizer makes {after} bytes of {before}, more than {GROWTH} for each"
                ));
            }
        }
    }
    Ok(())
}
