//! Tokenizers of every kind, as seeds for damage: two of the fixtures, and two made here.

use std::path::Path;

use serde_json::{Value, json};

/// Returns names and contents of valid files.
pub(crate) fn seeds() -> Vec<(&'static str, Value)> {
    vec![
        ("bytes", fixture("qwen2")),
        ("fallback", fixture("llama")),
        ("blanks", fixture("gemma2")),
        ("pieces", pieces()),
        ("words", words()),
    ]
}

fn fixture(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures")
        .join(name)
        .join("tokenizer.json");
    serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap()
}

/// Returns a Unigram tokenizer with a table of replacements.
pub(crate) fn pieces() -> Value {
    let mut vocab = vec![json!(["<unk>", 0.0]), json!(["<s>", 0.0]), json!(["</s>", 0.0])];
    let texts = ["▁", "▁the", "▁a", "he", "ss", "ab", "th", "é", "世界", "▁世"];
    for (n, text) in texts.iter().enumerate() {
        vocab.push(json!([text, -2.5 - n as f64 / 8.0]));
    }
    vocab.extend(('a'..='z').map(|c| json!([c.to_string(), -7.0])));
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [
            {"id": 1, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
            {"id": 39, "content": "<mask>", "single_word": true, "lstrip": true, "rstrip": true, "normalized": true, "special": true},
        ],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": encode(&charsmap(b'q', "ss"))},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": false},
    })
}

/// Returns a WordPiece tokenizer.
pub(crate) fn words() -> Value {
    let mut vocab = serde_json::Map::new();
    let texts =
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "quick", "##ing", "##s", "世", "界", "!"];
    for text in texts.map(str::to_owned).into_iter().chain(('a'..='z').map(|c| c.to_string())) {
        let id = vocab.len();
        vocab.insert(text, id.into());
    }
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": [
            {"id": 2, "content": "[CLS]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
            {"id": 3, "content": "[SEP]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
        ],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocab},
    })
}

/// Returns a table that replaces one byte by a text.
pub(crate) fn charsmap(byte: u8, text: &str) -> Vec<u8> {
    let root = 256_u32;
    let node = 512;
    let mut units = vec![0_u32; 1024];
    let at = root ^ u32::from(byte);
    units[0] = root << 10;
    units[at as usize] = (at ^ node) << 10 | 1 << 8 | u32::from(byte);
    units[node as usize] = 1 << 31;
    let mut bytes = 4096_u32.to_le_bytes().to_vec();
    bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
    bytes.extend(text.as_bytes());
    bytes.push(0);
    bytes
}

/// Encodes bytes as Base64 with padding.
pub(crate) fn encode(bytes: &[u8]) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let mut word = [0; 4];
        word[1..=group.len()].copy_from_slice(group);
        let word = u32::from_be_bytes(word);
        for n in 0..4 {
            let digit = ALPHABET[(word >> (18 - 6 * n)) as usize & 63];
            text.push(if n <= group.len() { digit.into() } else { '=' });
        }
    }
    text
}
