//! Special tokens and templates where checkpoints and GGUF files keep them.

use std::path::Path;

use formats::gguf::{Metadata, MetadataValue};
use formats::shown;
use indexmap::IndexMap;

use super::{DEFAULT, TemplateError, TemplateVariant};

const KEY: &str = "tokenizer.chat_template";
/// Roles of special tokens in templates, and their keys in GGUF files.
const ROLES: [(&str, &str); 6] = [
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
    ("sep_token", "tokenizer.ggml.seperator_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
    ("mask_token", "tokenizer.ggml.mask_token_id"),
];

/// Reads the special tokens of a checkpoint, as transformers hands them to templates.
pub(super) fn of_folder(dir: &Path) -> Result<IndexMap<String, String>, TemplateError> {
    Ok(tokenizer::special_texts(dir)?.into_iter().collect())
}

/// Returns the special tokens of a GGUF file.
pub(super) fn of_gguf(keys: &Metadata) -> IndexMap<String, String> {
    let texts = keys.strings("tokenizer.ggml.tokens").ok().flatten().unwrap_or_default();
    let named = ROLES.iter().filter_map(|(role, key)| {
        let id = keys.u32(key).ok().flatten()?;
        Some(((*role).to_owned(), texts.get(usize::try_from(id).ok()?)?.clone()))
    });
    named.collect()
}

/// Returns the templates of a GGUF file: the default, then named ones.
pub(super) fn templates_of_gguf(path: &Path, keys: &Metadata) -> Vec<TemplateVariant> {
    let templates = keys.iter().filter_map(|(key, value)| {
        let suffix = key.strip_prefix(KEY)?;
        let name = if suffix.is_empty() { DEFAULT } else { suffix.strip_prefix('.')? };
        let MetadataValue::String(text) = value else { return None };
        let place = format!("`{}` of `{}`", shown(key), path.display());
        Some(TemplateVariant { name: name.to_owned(), place, text: text.clone() })
    });
    templates.collect()
}
