//! Normalizes a pre-tokenizer of tokenizer.json to a list of steps, in one spelling.

use serde_json::Value;

use super::pre_table::spelled;

/// Default regular expression of a byte-level step.
const WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Returns the steps, in order: `split REGEX`, `bytes`, and others by their type.
pub(super) fn steps(pre: &Value) -> Vec<String> {
    let mut list = Vec::new();
    collect(pre, &mut list);
    list
}

fn collect(pre: &Value, steps: &mut Vec<String>) {
    match word(pre, "type") {
        "" if pre.is_null() => {}
        "Sequence" => {
            for inner in pre.get("pretokenizers").and_then(Value::as_array).into_iter().flatten() {
                collect(inner, steps);
            }
        }
        "Split" => {
            let pattern = pre.get("pattern");
            let regex = pattern.and_then(|p| p.get("Regex")).and_then(Value::as_str);
            let text = pattern.and_then(|p| p.get("String")).and_then(Value::as_str);
            let regex = regex.map(spelled).or_else(|| text.map(quoted)).unwrap_or_default();
            // Isolating every match and keeping only matches are equivalent if all text matches.
            let how = match (word(pre, "behavior"), flag(pre, "invert").unwrap_or(false)) {
                ("Isolated", _) | ("Removed", true) => "split".to_owned(),
                (behavior, false) => format!("split[{}]", behavior.to_lowercase()),
                (behavior, true) => format!("split[{} between]", behavior.to_lowercase()),
            };
            steps.push(format!("{how} {regex}"));
        }
        "Digits" => {
            let each = flag(pre, "individual_digits").unwrap_or(false);
            steps.push(if each { r"split \p{N}" } else { r"split \p{N}+" }.into());
        }
        "ByteLevel" => {
            if flag(pre, "use_regex").unwrap_or(true) {
                steps.push(format!("split {WORDS}"));
            }
            steps.push("bytes".into());
        }
        "Punctuation" => {
            steps.push(format!("punctuation {}", word(pre, "behavior").to_lowercase()));
        }
        other => steps.push(other.to_lowercase()),
    }
}

/// Returns the text of a key; empty if it is missing.
fn word<'a>(pre: &'a Value, key: &str) -> &'a str {
    pre.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the flag of a key.
fn flag(pre: &Value, key: &str) -> Option<bool> {
    pre.get(key).and_then(Value::as_bool)
}

/// Escapes a text as a regular expression that matches it alone.
fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    for c in text.chars() {
        if c.is_ascii_punctuation() {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    spelled(&quoted)
}

/// Lists normalizer steps that llama.cpp does not apply for BPE models. Unicode composition is ignored:
/// nearly all text is composed, and nearly all models ask for it.
pub(super) fn normalizers(normalizer: &Value) -> Vec<String> {
    match normalizer.get("type").and_then(Value::as_str) {
        None | Some("NFC" | "Lowercase" | "StripAccents") => Vec::new(),
        Some("Sequence") => {
            let list = normalizer.get("normalizers").and_then(Value::as_array);
            list.into_iter().flatten().flat_map(normalizers).collect()
        }
        Some(other) => vec![formats::shown(other)],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn steps_are_spelled_one_way() {
        let pre = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\n|\\p{N}{1}|x"}, "behavior": "Isolated", "invert": false},
            {"type": "Split", "pattern": {"String": " ."}, "behavior": "Removed", "invert": false},
            {"type": "Digits", "individual_digits": true},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
        ]});
        let expected = [
            "split \\n|\\p{N}|x",
            "split[removed]  \\.",
            "split \\p{N}",
            &format!("split {WORDS}"),
            "bytes",
        ];
        assert_eq!(steps(&pre), expected);
        let plain = json!({"type": "ByteLevel", "use_regex": false});
        assert_eq!(steps(&plain), ["bytes"]);
        assert_eq!(steps(&Value::Null), Vec::<String>::new());
        assert_eq!(steps(&json!({"type": "WhitespaceSplit"})), ["whitespacesplit"]);
        assert_eq!(steps(&json!({"typ": 3})), [""]);
    }

    #[test]
    fn what_no_loader_repeats_is_named() {
        let normalizer =
            json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKC"}]});
        assert_eq!(normalizers(&normalizer), ["NFKC"]);
        assert!(normalizers(&Value::Null).is_empty());
    }
}
