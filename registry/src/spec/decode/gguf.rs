//! The `gguf:` section of a spec.

use indexmap::IndexMap;

use super::SpecDecoder;
use crate::diag::Finding;
use crate::spec::keys::{GGUF, GGUF_WEIGHT};
use crate::spec::{AbsentKey, DimSource, GgufDecl, GgufEntry, GgufWeight};
use crate::yaml::{YamlEntry, YamlMap, YamlNode, YamlValue};

impl SpecDecoder {
    pub(super) fn gguf(&mut self, entry: &YamlEntry) -> Option<GgufDecl> {
        let map = self.map(&entry.value, "a map with `arch:`, `metadata:` and `weights:`")?;
        self.check_keys(map, &GGUF, &entry.key.span());
        let arch = map.get("arch").map(|entry| self.literal(&entry.value));
        let pre = map.get("pre").map(|entry| self.literal(&entry.value));
        let metadata = self.entries(map, "metadata");
        let tensors = self.entries(map, "tensors");
        let assumes = self.entries(map, "assumes");
        let config = self.entries(map, "config");
        let absent = self.absent(map);
        let scalars = self.patterns(map, "scalars", "a map from keys to patterns of weights");
        let special = self.patterns(map, "special", "a map from kinds of tokens to their texts");
        let weights = self.gguf_weights(map, "weights");
        let nextn = self.gguf_weights(map, "nextn");
        Some(GgufDecl {
            arch: arch.flatten(),
            pre: pre.flatten(),
            metadata,
            absent,
            weights,
            tensors,
            scalars,
            assumes,
            config,
            special,
            nextn,
            wide: self.words(map, "wide"),
            drop: self.words(map, "drop"),
            idle: self.words(map, "idle"),
            filled: self.words(map, "filled"),
            at: entry.key.span(),
        })
    }

    /// Reads `required`, `unread`, or an expression behind `=`, by key.
    fn absent(&mut self, tree: &YamlMap) -> IndexMap<String, AbsentKey> {
        let mut meanings = IndexMap::new();
        let Some(entry) = tree.get("absent") else { return meanings };
        let Some(map) = self.map(&entry.value, "a map from keys to what their absence means")
        else {
            return meanings;
        };
        for entry in map.values() {
            let meaning = match self.literal(&entry.value) {
                Some(DimSource::Compute(expr)) => AbsentKey::Value(expr),
                Some(DimSource::Key(word)) if word.name == "required" => AbsentKey::Required,
                Some(DimSource::Key(word)) if word.name == "unread" => AbsentKey::Unread,
                Some(DimSource::Key(word)) => {
                    let message = format!("`{}` says nothing of an absent key", word.name);
                    let help =
                        "write `required`, `unread`, or the value that llama.cpp takes behind `=`";
                    self.findings.push(Finding::error(&word.at, message).help(help));
                    continue;
                }
                None => continue,
            };
            meanings.insert(entry.name().name, meaning);
        }
        meanings
    }

    /// Reads a literal word, or an expression behind `=`.
    fn literal(&mut self, node: &YamlNode) -> Option<DimSource> {
        match node.text() {
            Some(text) if text.trim().value().starts_with('=') => {
                self.expr(node).map(DimSource::Compute)
            }
            _ => self.word(node).map(DimSource::Key),
        }
    }

    /// Expressions by names that need not be words of the language.
    pub(super) fn entries(&mut self, tree: &YamlMap, key: &str) -> IndexMap<String, GgufEntry> {
        let mut entries = IndexMap::new();
        let Some(entry) = tree.get(key) else { return entries };
        let Some(map) = self.map(&entry.value, "a map of expressions") else { return entries };
        for entry in map.values() {
            if let Some(value) = self.expr(&entry.value) {
                let name = entry.name();
                entries.insert(name.name.clone(), GgufEntry { name, value });
            }
        }
        entries
    }

    fn gguf_weights(&mut self, tree: &YamlMap, key: &str) -> Vec<GgufWeight> {
        let Some(entry) = tree.get(key) else { return Vec::new() };
        let Some(map) = self.map(&entry.value, "a map from GGUF modules to the model's") else {
            return Vec::new();
        };
        map.values().filter_map(|entry| self.gguf_weight(entry)).collect()
    }

    fn gguf_weight(&mut self, entry: &YamlEntry) -> Option<GgufWeight> {
        let name = entry.name();
        let at = entry.key.span();
        let YamlValue::Map(map) = &entry.value.value else {
            let weight = self.word(&entry.value)?;
            return Some(GgufWeight {
                name,
                weight,
                exact: false,
                steps: Vec::new(),
                ty: None,
                when: None,
                layers: None,
                at,
            });
        };
        self.check_keys(map, &GGUF_WEIGHT, &at);
        let weight = self.required_word(map, "weight");
        let tensor = self.required_word(map, "tensor");
        let steps = self.steps(map);
        let ty = map.get("type").map(|entry| self.word(&entry.value));
        let when = map.get("when").map(|entry| self.expr(&entry.value));
        let layers = map.get("layers").map(|entry| self.expr(&entry.value));
        let first = map.get("first").map(|entry| self.expr(&entry.value));
        let exact = tensor.is_some();
        let ((Some(weight), None) | (None, Some(weight))) = (weight, tensor) else {
            let message = format!("`{}` is made of one thing", name.name);
            let help = "write `weight: module.path`, or `tensor: whole.tensor.name`";
            self.findings.push(Finding::error(&at, message).help(help));
            return None;
        };
        let ty = match ty {
            Some(ty) => Some(ty?),
            None => None,
        };
        let when = match when {
            Some(when) => Some(when?),
            None => None,
        };
        let layers = match (layers, first) {
            (None, None) => None,
            (Some(layers), Some(first)) => Some((layers?, first?)),
            _ => {
                let message =
                    format!("`{}` has one of `layers` and `first` without the other", name.name);
                self.findings.push(Finding::error(&at, message));
                return None;
            }
        };
        Some(GgufWeight { name, weight, exact, steps: steps?, ty, when, layers, at })
    }
}
