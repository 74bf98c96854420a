//! Tokens that llama.cpp looks up by text, depending on the model name in the file.
//!
//! Its loader does not open a file with such a name if one of them is missing.

use std::sync::LazyLock;

use serde::Deserialize;

use super::TokenType;
use formats::gguf::{Metadata, MetadataArray, MetadataValue};

#[derive(Deserialize)]
struct TokensByName {
    /// Substrings of `general.name`, in lower case.
    names: Vec<String>,
    tokens: Vec<String>,
}

static RULES: LazyLock<Vec<TokensByName>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../data/named_tokens.json"))
        .expect("the table is part of the program, and a test reads it")
});

/// Assigns the required texts to padding rows for a file of this name, and warns of each.
pub fn complete(name: &str, keys: &mut Metadata, warnings: &mut Vec<String>) {
    const TEXTS: &str = "tokenizer.ggml.tokens";
    const TYPES: &str = "tokenizer.ggml.token_type";
    let lower = name.to_lowercase();
    let (
        Some(MetadataValue::Array(MetadataArray::String(texts))),
        Some(MetadataValue::Array(MetadataArray::I32(types))),
    ) = (keys.get(TEXTS), keys.get(TYPES))
    else {
        return;
    };
    let mut texts = texts.clone();
    let mut types = types.clone();
    for rule in RULES.iter() {
        let Some(part) = rule.names.iter().find(|part| lower.contains(part.as_str())) else {
            continue;
        };
        for token in &rule.tokens {
            if texts.contains(token) {
                continue;
            }
            let free = types.iter().rposition(|&ty| ty == TokenType::Unused as i32);
            let why = format!(
                "llama.cpp looks for the token `{token}` in files whose name contains `{part}`"
            );
            let Some(row) = free else {
                warnings.push(format!(
                    "{why}, and will not open this one without it: convert from a folder of another name"
                ));
                continue;
            };
            token.clone_into(&mut texts[row]);
            types[row] = TokenType::Control as i32;
            warnings.push(format!("{why}: row {row}, which no token has, is called that"));
        }
    }
    keys.set(TEXTS, texts);
    keys.set(TYPES, types);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(types: &[i32]) -> Metadata {
        let mut keys = Metadata::new();
        let texts = ["<unk>", "<s>", "</s>", "a", "[PAD4]"].map(str::to_owned).to_vec();
        keys.set("tokenizer.ggml.tokens", texts);
        keys.set("tokenizer.ggml.token_type", types.to_vec());
        keys
    }

    #[test]
    fn a_file_of_the_name_gets_the_token() {
        let name = RULES[0].names[0].to_uppercase();
        let mut metadata = keys(&[2, 3, 3, 1, 5]);
        let mut warnings = Vec::new();
        complete("other", &mut metadata, &mut warnings);
        assert!(warnings.is_empty());
        complete(&name, &mut metadata, &mut warnings);
        assert_eq!(metadata.strings("tokenizer.ggml.tokens").unwrap().unwrap()[4], "<|endoftext|>");
        assert!(warnings.len() == 1 && warnings[0].contains("row 4"), "{warnings:?}");
        complete(&name, &mut metadata, &mut warnings);
        assert_eq!(warnings.len(), 1);
        let mut metadata = keys(&[2, 3, 3, 1, 1]);
        let mut warnings = Vec::new();
        complete(&name, &mut metadata, &mut warnings);
        assert!(warnings[0].contains("will not open"), "{warnings:?}");
    }
}
