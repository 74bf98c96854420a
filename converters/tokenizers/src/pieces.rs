//! Writes Unigram tokenizers from a tokenizer.json.
//!
//! The keys are those of llama.cpp's converter for T5 vocabularies, which its loader accepts for models of
//! any kind: pieces and scores, the table of replacements, and the treatment of spaces.

use serde_json::Value;

use super::json::{JsonModel, TokenizerJson, has};
use super::reference::{Charsmap, base64};
use super::table::{ADDED, TokenType, VocabTable};
use super::{Error, pre_table, spm};
use formats::gguf::MetadataValue as Gguf;
use formats::gguf::{Metadata, MetadataArray};
use formats::shown;

/// Writes the vocabulary. Returns the name of the pre-tokenizer.
pub(super) fn write(
    json: &TokenizerJson,
    rows: usize,
    keys: &mut Metadata,
    warnings: &mut Vec<String>,
) -> Result<String, Error> {
    let JsonModel::Scores { scores, unknown } = &json.model else {
        let expected = "expected scored pieces";
        return Err(Error::Unsupported {
            file: json.file.clone(),
            found: "merges".into(),
            expected,
        });
    };
    let table = table(json, scores, *unknown, rows)?;
    table.check_unique(&json.file)?;
    let pre = pre_table::scores_model().1;
    let types = table.type_ids();
    keys.set("tokenizer.ggml.model", pre_table::pieces_model());
    keys.set("tokenizer.ggml.pre", pre);
    keys.set("tokenizer.ggml.tokens", table.texts);
    keys.set("tokenizer.ggml.scores", table.scores);
    keys.set("tokenizer.ggml.token_type", types);
    if let Some(id) = unknown.and_then(|id| u32::try_from(id).ok()) {
        keys.set("tokenizer.ggml.unknown_token_id", id);
    }
    let steps = steps(&json.normalizer);
    let merged = steps.iter().any(|step| merges_blanks(step));
    keys.set("tokenizer.ggml.add_space_prefix", spm::prepends(json));
    keys.set("tokenizer.ggml.remove_extra_whitespaces", merged);
    let mut tables = steps.iter().filter_map(|step| step.get("precompiled_charsmap"));
    if let Some(bytes) = tables.next().and_then(Value::as_str).and_then(base64::decode) {
        Charsmap::parse(&bytes).map_err(|why| Error::Component {
            file: json.file.clone(),
            component: "normalizer".into(),
            why,
        })?;
        let bytes = Gguf::Array(MetadataArray::U8(bytes));
        keys.set("tokenizer.ggml.precompiled_charsmap", bytes);
    }
    for step in &steps {
        let name = step.get("type").and_then(Value::as_str).unwrap_or_default();
        if !matches!(name, "Precompiled" | "Prepend") && !merges_blanks(step) && !escapes(step) {
            warnings.push(format!(
                "tokenizer.json changes text before it splits it ({}); llama.cpp will not",
                shown(name)
            ));
        }
    }
    if json.byte_fallback || has(&json.decoder, "ByteFallback") {
        warnings.push(
            "characters that no piece has are bytes in tokenizer.json; llama.cpp will make the \
             unknown token of them"
                .into(),
        );
    }
    Ok(pre.to_owned())
}

fn table(
    json: &TokenizerJson,
    scores: &[f64],
    unknown: Option<usize>,
    rows: usize,
) -> Result<VocabTable, Error> {
    let mut table = VocabTable::new(rows)?;
    for ((text, id), score) in json.vocab.iter().zip(scores) {
        let row = super::row_of(json, *id, text, rows)?;
        let ty = if unknown == Some(row) {
            TokenType::Unknown
        } else if spm::byte(text).is_some() {
            TokenType::Byte
        } else {
            TokenType::Normal
        };
        table.set(row, text.clone(), ty, *score as f32);
    }
    for token in &json.added {
        let row = super::row_of(json, token.id, &token.text, rows)?;
        let listed = row < json.vocab.len();
        if listed && table.types[row] != TokenType::Normal {
            continue;
        }
        let score = if listed { table.scores[row] } else { ADDED };
        table.add(row, &token.text, token.special);
        table.scores[row] = score;
    }
    Ok(table)
}

/// Returns the steps of a normalizer, with sequences flattened.
fn steps(normalizer: &Value) -> Vec<&Value> {
    match normalizer.get("normalizers").and_then(Value::as_array) {
        Some(list) => list.iter().flat_map(steps).collect(),
        None if normalizer.is_null() => Vec::new(),
        None => vec![normalizer],
    }
}

/// True for a step that merges consecutive spaces.
fn merges_blanks(step: &Value) -> bool {
    let regex = step.get("pattern").and_then(|pattern| pattern.get("Regex"));
    regex.and_then(Value::as_str).is_some_and(|regex| matches!(regex, " {2,}" | r"\s{2,}" | " +"))
}

/// True for a step that spells spaces as `▁`.
fn escapes(step: &Value) -> bool {
    let text = step.get("pattern").and_then(|pattern| pattern.get("String"));
    text.and_then(Value::as_str) == Some(" ")
        && step.get("content").and_then(Value::as_str) == Some("▁")
}
