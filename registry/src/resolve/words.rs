//! Texts of `config.json` that a spec compares, and lists with one item per layer.
//!
//! `a if kind == 'x' else b` computes `b` for every text but `x`, so a misspelled `x` would give
//! another model. A text that a spec compares is therefore held to the words that the spec names
//! in the same place: those it is compared with, the programs of `layers:`, and its defaults.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Config;
use crate::eval::expected;
use crate::scalar::Scalar;

use super::FindingSet;
use super::unknown_word::{at, listed, shown, unknown_word};

mod uses;

pub(super) use uses::of;

/// Findings of one key; the rest of a faulty list says nothing new.
const MAX_FINDINGS: usize = 8;

/// Config keys whose texts a spec compares, or whose items it takes one per layer.
#[derive(Debug, Default)]
pub(super) struct KeyUses {
    keys: BTreeMap<String, KeyUse>,
}

/// Uses of one config key.
#[derive(Debug, Default)]
struct KeyUse {
    /// Words that its texts are compared with; none if nothing compares them.
    words: BTreeSet<String>,
    /// Words that ops take; an op refuses others by itself.
    taken: BTreeSet<&'static str>,
    /// True if it is compared with numbers, booleans or null too.
    others: bool,
    /// True if a text there is a word per letter.
    letters: bool,
    /// True if item `i` belongs to layer `i`.
    each_layer: bool,
}

impl KeyUse {
    /// Iterates over the words that a text may be.
    fn known(&self) -> impl Iterator<Item = &str> + Clone {
        self.words.iter().map(String::as_str).chain(self.taken.iter().copied())
    }

    /// True if a text is a known word.
    fn knows(&self, text: &str) -> bool {
        self.known().any(|word| word == text)
    }
}

/// Reports texts that the spec does not know, and lists that are not as long as there are layers.
/// Returns the unknown texts.
pub(super) fn check(
    words: &KeyUses,
    config: &Config,
    layers: Option<usize>,
    report: &mut FindingSet,
) -> BTreeSet<String> {
    let mut refused = BTreeSet::new();
    for (key, usage) in &words.keys {
        let Some(value) = config.peek(key) else { continue };
        let texts: Vec<char>;
        let length = match value {
            Scalar::List(items) => Some(items.len()),
            Scalar::Str(text) if usage.letters => {
                texts = text.chars().collect();
                Some(texts.len())
            }
            _ => None,
        };
        if let (Some(length), Some(layers), true) = (length, layers, usage.each_layer)
            // An empty list says nothing: the default is in force, or the index is refused.
            && ![0, layers].contains(&length)
        {
            let items = if length == 1 { "item" } else { "items" };
            let of = if layers == 1 { "layer" } else { "layers" };
            report.add(
                at(config, key, &[], format!("`{key}` has {length} {items} for {layers} {of}"))
                    .label("expected one item per layer")
                    .help("correct the list, or the number of layers"),
            );
        }
        if !usage.words.is_empty() {
            unknown_items(usage, config, key, value, &mut Vec::new(), &mut refused, report);
        }
    }
    refused
}

/// Reports unknown texts of a value of the config; `path` leads to it inside of the key.
fn unknown_items(
    usage: &KeyUse,
    config: &Config,
    key: &str,
    value: &Scalar,
    path: &mut Vec<usize>,
    refused: &mut BTreeSet<String>,
    report: &mut FindingSet,
) {
    match value {
        _ if refused.len() >= MAX_FINDINGS => {}
        Scalar::Str(text) if path.is_empty() && usage.letters => {
            for letter in text.chars().map(String::from) {
                if !usage.knows(&letter) && refused.insert(letter.clone()) {
                    report.add(unknown_word(config, key, path, &letter, usage.known()));
                }
            }
        }
        Scalar::Str(text) if !usage.knows(text) && refused.insert(text.clone()) => {
            report.add(unknown_word(config, key, path, text, usage.known()));
        }
        Scalar::List(items) => {
            for (n, item) in items.iter().enumerate() {
                path.push(n);
                unknown_items(usage, config, key, item, path, refused, report);
                path.pop();
            }
        }
        Scalar::Null | Scalar::Bool(_) | Scalar::Int(_) | Scalar::Float(_) | Scalar::Map(_)
            if path.len() == 1 && usage.each_layer && !usage.others =>
        {
            let message = format!("`{}` is {}", shown(key, path), value.kind());
            report
                .add(at(config, key, path, message).label(expected(&listed(usage.known()), value)));
        }
        _ => {}
    }
}
