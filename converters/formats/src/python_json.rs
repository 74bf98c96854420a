//! JSON as Python writes it, with the bare words `NaN`, `Infinity` and `-Infinity`, which JSON parsers
//! reject. They are converted to marked strings for parsing, and back.

use std::borrow::Cow;

/// Prefix of a string that replaces a word. No string of a config begins with it.
const MARK: &str = "\\u0001";
const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Replaces the words by marked strings.
pub fn words_as_texts(json: &[u8]) -> Cow<'_, [u8]> {
    let mut out = Vec::new();
    let mut copied = 0;
    let mut at = 0;
    let mut inside = false;
    while let Some(byte) = json.get(at) {
        let word = WORDS.iter().find(|word| !inside && json[at..].starts_with(word.as_bytes()));
        if let Some(word) = word {
            out.extend_from_slice(&json[copied..at]);
            out.extend_from_slice(format!("\"{MARK}{word}\"").as_bytes());
            at += word.len();
            copied = at;
            continue;
        }
        match byte {
            b'"' => inside = !inside,
            // A backslash escapes the next character, so it does not end the string.
            b'\\' if inside => at += 1,
            _ => {}
        }
        at += 1;
    }
    if copied == 0 {
        return Cow::Borrowed(json);
    }
    out.extend_from_slice(&json[copied..]);
    Cow::Owned(out)
}

/// Replaces marked strings by their words.
pub fn texts_as_words(mut json: String) -> String {
    for word in WORDS {
        json = json.replace(&format!("\"{MARK}{word}\""), word);
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_pass_through_a_json_reader() {
        let text =
            r#"{"a":[0.0,Infinity,-Infinity],"b":NaN,"c":"\"Infinity\" NaN","z":"Infinity"}"#;
        let plain = words_as_texts(text.as_bytes());
        let value: serde_json::Value = serde_json::from_slice(&plain).unwrap();
        assert_eq!(value["c"], "\"Infinity\" NaN");
        assert_eq!(texts_as_words(value.to_string()), text);
        assert!(matches!(words_as_texts(b"{\"a\": \"\\\\\"}"), Cow::Borrowed(_)));
        assert_eq!(*words_as_texts(b"[\"\\\\\", NaN"), *b"[\"\\\\\", \"\\u0001NaN\"");
    }
}
