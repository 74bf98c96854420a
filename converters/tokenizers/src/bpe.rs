//! Byte-level BPE tokenizers: token texts spell bytes, and merges build tokens.

use indexmap::IndexMap;

use super::json::TokenizerJson;
use super::table::{TokenType, VocabTable};
use super::{Error, ReferenceTokenizer, TokenizerOptions, pre, pre_table, structure};
use formats::gguf::Metadata;

/// Writes the vocabulary. Returns the name of the pre-tokenizer.
pub(super) fn write(
    json: &TokenizerJson,
    rows: usize,
    options: &TokenizerOptions,
    keys: &mut Metadata,
    warnings: &mut Vec<String>,
) -> Result<String, Error> {
    let reference = ReferenceTokenizer::build(json)?;
    let pre = pre::choose(json, &reference, options, warnings)?;
    for name in structure::normalizers(&json.normalizer) {
        warnings.push(format!(
            "tokenizer.json changes text before it splits it ({name}); llama.cpp will not"
        ));
    }
    let adds_blank = super::json::has_flag(&json.pre_tokenizer, "ByteLevel", "add_prefix_space");
    if adds_blank {
        let text = "tokenizer.json puts a blank before every text; llama.cpp will not";
        warnings.push(text.into());
    }
    let table = table(json, &reference, rows)?;
    table.check_unique(&json.file)?;
    if json.merges.is_empty() {
        return Err(Error::NoMerges { file: json.file.clone() });
    }
    keys.set("tokenizer.ggml.model", pre_table::merges_model());
    keys.set("tokenizer.ggml.pre", pre.as_str());
    let types = table.type_ids();
    keys.set("tokenizer.ggml.tokens", table.texts);
    keys.set("tokenizer.ggml.token_type", types);
    keys.set("tokenizer.ggml.merges", json.merge_lines());
    Ok(pre)
}

fn table(
    json: &TokenizerJson,
    reference: &ReferenceTokenizer,
    rows: usize,
) -> Result<VocabTable, Error> {
    let mut table = VocabTable::new(rows)?;
    // Texts by row: of two tokens with one row, or two rows with one text, one would be lost.
    let mut taken: IndexMap<u64, &str> = IndexMap::new();
    for (text, id) in &json.vocab {
        let row = super::row_of(json, *id, text, rows)?;
        if let Some(other) = taken.insert(*id, text) {
            return Err(super::same_id(json, *id, other, text));
        }
        table.set(row, text.clone(), TokenType::Normal, 0.0);
    }
    for token in &json.added {
        let row = super::row_of(json, token.id, &token.text, rows)?;
        if let Some(other) = taken.insert(token.id, &token.text)
            && other != token.text
        {
            return Err(super::same_id(json, token.id, other, &token.text));
        }
        // Loaders search text for added tokens without normalizing it, so the normalized search text is
        // written.
        let text =
            if token.normalized { token.text.clone() } else { written(reference, &token.text)? };
        table.add(row, &text, token.special);
    }
    Ok(table)
}

/// Returns the text that a token decodes to.
fn written(reference: &ReferenceTokenizer, text: &str) -> Result<String, Error> {
    reference.decode(&reference.encode(text, false)?, false)
}
