//! Writes SentencePiece BPE tokenizers with byte fallback, from `tokenizer.model` or from a tokenizer.json
//! derived from one.

use std::path::Path;

use indexmap::IndexMap;
use serde_json::Value;

use super::doc::Doc;
use super::json::{TokenizerJson, has, has_flag};
use super::table::{ADDED, TokenType, VocabTable};
use super::{Error, pre_table, proto, special};
use formats::gguf::Metadata;
use formats::shown;

const SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";

/// Writes the vocabulary. Returns the name of the pre-tokenizer, and true if the space before texts must be
/// disabled at the end.
pub(super) fn write(
    dir: &Path,
    json: Option<&TokenizerJson>,
    rows: usize,
    keys: &mut Metadata,
    warnings: &mut Vec<String>,
) -> Result<(String, bool), Error> {
    let file = dir.join("tokenizer.model");
    let config = Doc::read(dir, "tokenizer_config.json")?;
    let (table, blank) = match json {
        _ if file.is_file() => from_model(&file, json, config.as_ref(), dir, rows, warnings)?,
        Some(json) => (from_json(json, rows)?, prepends(json)),
        None => return Err(Error::Missing { dir: dir.to_owned() }),
    };
    table.check_unique(if file.is_file() {
        &file
    } else {
        json.map_or(&file, |json| &json.file)
    })?;
    let stated = match config.as_ref().and_then(|config| config.get("add_prefix_space")) {
        Some(node) => Some(node.bool()?),
        None => None,
    };
    if let Some(stated) = stated {
        if stated != blank {
            warnings.push(format!(
                "`add_prefix_space` of tokenizer_config.json is {stated}, which is written, but the \
                 model of pieces says {blank}"
            ));
        }
        keys.set(SPACE_PREFIX, stated);
    }
    let (model, pre) = pre_table::scores_model();
    keys.set("tokenizer.ggml.model", model);
    keys.set("tokenizer.ggml.pre", pre);
    let types = table.type_ids();
    keys.set("tokenizer.ggml.tokens", table.texts);
    keys.set("tokenizer.ggml.scores", table.scores);
    keys.set("tokenizer.ggml.token_type", types);
    Ok((pre.to_owned(), stated.is_none() && !blank))
}

/// Disables the space before texts, if [`write`] requests it.
pub(super) fn turn_blank_off(keys: &mut Metadata) {
    keys.set(SPACE_PREFIX, false);
}

fn from_model(
    file: &Path,
    json: Option<&TokenizerJson>,
    config: Option<&Doc>,
    dir: &Path,
    rows: usize,
    warnings: &mut Vec<String>,
) -> Result<(VocabTable, bool), Error> {
    let model = proto::read(file)?;
    if model.made_by.is_some_and(|kind| kind != 2) {
        return Err(Error::Unsupported {
            file: file.to_owned(),
            found: "a SentencePiece model that was not made by merging".into(),
            expected: "only those made by merging (BPE) are written",
        });
    }
    for (yes, what) in [
        (model.normalizes, "replaces characters before all else"),
        (model.remove_extra_whitespaces, "removes repeated blanks"),
    ] {
        if yes {
            warnings.push(format!("tokenizer.model {what}; llama.cpp will not"));
        }
    }
    let mut table = VocabTable::new(rows)?;
    for (n, piece) in model.pieces.iter().enumerate() {
        if n >= rows {
            warnings.push(format!(
                "{} tokens from `{}` on have no row in the embedding and are left out",
                model.pieces.len() - rows,
                shown(&piece.text)
            ));
            break;
        }
        table.set(n, piece.text.clone(), piece.ty, piece.score);
    }
    if let Some(added) = Doc::read(dir, "added_tokens.json")? {
        for (text, _) in added.value.as_object().into_iter().flatten() {
            let Some(node) = added.get(text) else { continue };
            if let Some(row) = row_or_warning(node.u64()?, text, rows, warnings) {
                table.set(row, text.clone(), TokenType::UserDefined, ADDED);
            }
        }
    }
    let listed = config.map(special::decoder).transpose()?.unwrap_or_default();
    for (id, text, special) in &listed {
        if let Some(row) = row_or_warning(*id, text, rows, warnings) {
            table.add(row, text, *special);
        }
    }
    // Newer checkpoints list added tokens in tokenizer.json alone.
    for token in json.map_or(&[][..], |json| &json.added) {
        if listed.iter().any(|(id, ..)| *id == token.id) {
            continue;
        }
        let Some(row) = row_or_warning(token.id, &token.text, rows, warnings) else { continue };
        table.add_stated(row, &token.text, token.special);
    }
    // If both files exist, transformers follows tokenizer.json.
    Ok((table, json.map_or(model.dummy_prefix, prepends)))
}

/// Returns the row of a token, or warns that the embedding has no row for its id.
fn row_or_warning(id: u64, text: &str, rows: usize, warnings: &mut Vec<String>) -> Option<usize> {
    let row = usize::try_from(id).ok().filter(|&row| row < rows);
    if row.is_none() {
        let text = shown(text);
        warnings.push(format!("token {id} `{text}` has no row in the embedding and is left out"));
    }
    row
}

/// Derives scores for pieces without scores. Merges are listed in order of priority, so a piece scores by
/// the first merge that builds it: the earlier, the better.
fn from_json(json: &TokenizerJson, rows: usize) -> Result<VocabTable, Error> {
    let mut table = VocabTable::new(rows)?;
    let mut rank: IndexMap<String, usize> = IndexMap::new();
    for (n, (left, right)) in json.merges.iter().enumerate() {
        rank.entry(format!("{left}{right}")).or_insert(n);
    }
    let mut taken: IndexMap<u64, &str> = IndexMap::new();
    for (text, id) in &json.vocab {
        let row = super::row_of(json, *id, text, rows)?;
        if let Some(other) = taken.insert(*id, text) {
            return Err(super::same_id(json, *id, other, text));
        }
        let ty = if byte(text).is_some() {
            TokenType::Byte
        } else if json.unknown.as_ref() == Some(text) {
            TokenType::Unknown
        } else {
            TokenType::Normal
        };
        // Single characters and other pieces without a merge come after all merges.
        let score = rank.get(text).copied().unwrap_or(json.merges.len() + row);
        table.set(row, text.clone(), ty, -(score as f32));
    }
    for token in &json.added {
        let row = super::row_of(json, token.id, &token.text, rows)?;
        if let Some(other) = taken.insert(token.id, &token.text)
            && other != token.text
        {
            return Err(super::same_id(json, token.id, other, &token.text));
        }
        table.add_stated(row, &token.text, token.special);
    }
    Ok(table)
}

/// Parses the byte of a text like `<0x0A>`.
pub(super) fn byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let plain = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if plain { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// True if tokenizer.json adds a space before text.
pub(super) fn prepends(json: &TokenizerJson) -> bool {
    has(&json.normalizer, "Prepend") || metaspace(&json.pre_tokenizer)
}

/// True if a step spells spaces as `▁` and prepends one.
pub(super) fn metaspace(pre: &Value) -> bool {
    has(pre, "Metaspace") && !scheme_is_never(pre) && !flagged_off(pre)
}

fn scheme_is_never(pre: &Value) -> bool {
    has_scheme(pre, "never")
}

/// True if a step puts a blank before texts by this scheme.
pub(super) fn has_scheme(pre: &Value, scheme: &str) -> bool {
    super::json::any(pre, &|step| {
        step.get("prepend_scheme").and_then(Value::as_str) == Some(scheme)
    })
}

fn flagged_off(pre: &Value) -> bool {
    // Older files use a flag.
    super::json::any(pre, &|step| step.get("add_prefix_space").is_some())
        && !has_flag(pre, "Metaspace", "add_prefix_space")
}
