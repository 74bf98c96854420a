//! Packages that run a model in an engine which does not know its architecture.
//!
//! A package says that the architecture is another one which the engine knows: config keys and tensors get the other's
//! names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use registry::alias::{Alias, AliasMismatch};
use serde_json::{Value, json};

/// Returns the files of a package: those of the sheet, with names filled in.
pub fn package_files<'a>(
    texts: impl IntoIterator<Item = (&'a String, &'a String)>,
    alias: &Alias,
    architecture: &str,
    model_type: &str,
    package: &str,
) -> BTreeMap<String, String> {
    let words =
        [("@package@", package), ("@architecture@", architecture), ("@base@", &alias.architecture)];
    let mut files: BTreeMap<String, String> = texts
        .into_iter()
        .map(|(path, text)| (filled(path, &words), filled(text, &words)))
        .collect();
    let mut config = json!({});
    for (key, value) in &alias.keys {
        let mut at = &mut config;
        for part in key.split('.') {
            at = &mut at[part];
        }
        *at = value.clone();
    }
    let names = json!({
        "architecture": architecture,
        "base": alias.architecture,
        "model_type": model_type,
        "config": config,
        "renames": patterns(&alias.renames),
    });
    files.insert(format!("{package}/alias.json"), format!("{names:#}\n"));
    files
}

/// Returns a text with values in place of words.
fn filled(text: &str, words: &[(&str, &str)]) -> String {
    words.iter().fold(text.to_owned(), |text, (word, value)| text.replace(word, value))
}

/// Returns regular expressions for renamed modules, one for all layers.
fn patterns(renames: &BTreeMap<String, String>) -> Vec<Value> {
    let mut seen = BTreeSet::new();
    for (from, to) in renames {
        let pair = match (from.rsplit_once('.'), to.rsplit_once('.')) {
            // Scales and biases beside the weight follow its module.
            (Some((a, x)), Some((b, y))) if x == y => general(a, b, true),
            _ => general(from, to, false),
        };
        seen.insert(pair);
    }
    seen.into_iter().map(|(from, to)| json!([from, to])).collect()
}

/// Generalizes the numbers of a name to any number, if the other name has the same numbers.
fn general(from: &str, to: &str, module: bool) -> (String, String) {
    let same = numbers(from) == numbers(to);
    let mut left = with_holes(from, same, regex_escape, "\\.", |_| "(\\d+)".to_owned());
    let mut right = with_holes(to, same, str::to_owned, ".", |n| format!("\\{n}"));
    if module {
        left.push_str("(\\.[^.]+)");
        let last = if same { numbers(from).len() + 1 } else { 1 };
        right = format!("{right}\\{last}");
    }
    (left, right)
}

/// Returns a name with its parts written by `plain`, or its numbers by `hole` with their place from 1 if `holes`.
fn with_holes(
    name: &str,
    holes: bool,
    plain: fn(&str) -> String,
    separator: &str,
    hole: fn(usize) -> String,
) -> String {
    let mut place = 0;
    let mut parts = Vec::new();
    for part in name.split('.') {
        if holes && part.parse::<u32>().is_ok() {
            place += 1;
            parts.push(hole(place));
        } else {
            parts.push(plain(part));
        }
    }
    parts.join(separator)
}

/// Returns the parts of a name that are numbers.
fn numbers(name: &str) -> Vec<&str> {
    name.split('.').filter(|part| part.parse::<u32>().is_ok()).collect()
}

/// Escapes all characters except letters, digits and `_`.
fn regex_escape(text: &str) -> String {
    text.chars()
        .map(
            |c: char| {
                if c.is_alphanumeric() || c == '_' { c.to_string() } else { format!("\\{c}") }
            },
        )
        .collect()
}

/// Returns a valid name for a Python package.
pub fn package_word(name: &str) -> String {
    name.chars()
        .map(|c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
        .collect()
}

/// Says why a model is unsupported, with the obstacle of each known relative.
pub fn refusal(engine: &str, architecture: &str, mismatches: &[AliasMismatch]) -> String {
    let mut text = format!(
        "engine `{engine}` does not know `{architecture}`, and no architecture that it knows computes the same"
    );
    for unlike in mismatches {
        let _ = write!(text, "\n  `{}`: {}", unlike.spec, unlike.why);
    }
    if mismatches.is_empty() {
        text += ": no spec that this one extends is among them";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renames_are_patterns_over_layers() {
        let renames = [
            ("model.blocks.0.attn.query.weight", "model.layers.0.self_attn.q_proj.weight"),
            ("model.blocks.1.attn.query.weight", "model.layers.1.self_attn.q_proj.weight"),
            ("tok.weight", "model.embed_tokens.weight"),
            ("a.0.w", "b.1.v"),
        ];
        let renames = renames.map(|(a, b)| (a.to_owned(), b.to_owned())).into();
        let found = patterns(&renames);
        assert_eq!(
            found,
            [
                json!(["a\\.0\\.w", "b.1.v"]),
                json!([
                    "model\\.blocks\\.(\\d+)\\.attn\\.query(\\.[^.]+)",
                    "model.layers.\\1.self_attn.q_proj\\2"
                ]),
                json!(["tok(\\.[^.]+)", "model.embed_tokens\\1"]),
            ]
        );
    }
}
