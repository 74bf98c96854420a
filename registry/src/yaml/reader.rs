//! Reads maps, lists and texts of a tree, and collects what is wrong with them.
//!
//! Every kind of file but specs is read with these methods, so that each mistake has one wording. Specs have tables of
//! keys that pages and schemas are made of.

use super::{YamlMap, YamlNode, YamlValue};
use crate::diag::Finding;
use crate::listing::beginning;
use crate::suggest;
use crate::syntax::Ident;
use crate::text::MappedText;

/// Most keys that a message lists.
const LISTED: usize = 12;

/// Reader of a tree.
///
/// ```
/// use std::sync::Arc;
///
/// use onboard_spec::diag::SourceText;
/// use onboard_spec::yaml::{self, TreeReader};
///
/// let source = SourceText { path: "plan.yaml".to_owned(), text: "models: [a]\nmodel: b\n".to_owned() };
/// let tree = yaml::read(&Arc::new(source)).unwrap();
/// let mut reader = TreeReader::default();
/// let map = reader.map(&tree, "a plan", &["models", "engines"]).unwrap();
/// assert_eq!(reader.words(map, "models")[0].name, "a");
/// assert_eq!(reader.findings[0].message, "a plan has no key `model`");
/// ```
#[derive(Debug, Default)]
pub struct TreeReader {
    /// Everything that is wrong so far.
    pub findings: Vec<Finding>,
}

impl TreeReader {
    /// Reports a value that is not what is expected.
    pub fn expected(&mut self, node: &YamlNode, what: &str) {
        let finding = Finding::error(&node.at, format!("expected {what}"));
        self.findings.push(finding.label(format!("found {}", node.kind())));
    }

    /// Reads a map whose keys are known; each other key is reported.
    pub fn map<'n>(
        &mut self,
        node: &'n YamlNode,
        what: &str,
        known: &[&str],
    ) -> Option<&'n YamlMap> {
        let Some(map) = node.map() else {
            let keys = if known.len() <= LISTED { known.join(", ") } else { "keys".to_owned() };
            self.expected(node, &format!("{what}: a map of {keys}"));
            return None;
        };
        for entry in map.values().filter(|entry| !known.contains(&entry.key.value())) {
            let message = format!("{what} has no key `{}`", beginning(entry.key.value()));
            let mut finding = Finding::error(&entry.key.span(), message);
            finding.help = suggest::help(entry.key.value(), known.iter().copied());
            self.findings.push(finding);
        }
        Some(map)
    }

    /// Reads a map whose keys the author chooses.
    pub fn any_map<'n>(&mut self, node: &'n YamlNode) -> Option<&'n YamlMap> {
        let map = node.map();
        if map.is_none() {
            self.expected(node, "a map");
        }
        map
    }

    /// Reads the entries of such a map behind a key; none if the key is missing.
    pub fn entries(&mut self, map: &YamlMap, key: &str) -> Vec<(Ident, YamlNode)> {
        let inner = map.get(key).and_then(|entry| self.any_map(&entry.value));
        let Some(inner) = inner else { return Vec::new() };
        inner.values().map(|entry| (entry.name(), entry.value.clone())).collect()
    }

    /// Reads the items of a list.
    pub fn list<'n>(&mut self, node: &'n YamlNode) -> &'n [YamlNode] {
        if let YamlValue::List(items) = &node.value {
            return items;
        }
        self.expected(node, "a list");
        &[]
    }

    /// Reads the items of the list behind a key; none if the key is missing.
    pub fn list_of<'n>(&mut self, map: &'n YamlMap, key: &str) -> &'n [YamlNode] {
        map.get(key).map_or(&[], |entry| self.list(&entry.value))
    }

    /// Reads a text.
    pub fn text<'n>(&mut self, node: &'n YamlNode) -> Option<&'n MappedText> {
        let text = node.text();
        if text.is_none() {
            self.expected(node, "a text");
        }
        text
    }

    /// Reads the text behind a key, with its place.
    pub fn word(&mut self, map: &YamlMap, key: &str) -> Option<Ident> {
        self.text(&map.get(key)?.value).map(MappedText::ident)
    }

    /// Reads the text behind a key.
    pub fn string(&mut self, map: &YamlMap, key: &str) -> Option<String> {
        self.word(map, key).map(|word| word.name)
    }

    /// Reads the text behind a key that `what` must have.
    pub fn needed(&mut self, map: &YamlMap, key: &str, at: &YamlNode, what: &str) -> Option<Ident> {
        if !map.contains_key(key) {
            self.findings.push(Finding::error(&at.at, format!("{what} needs `{key}`")));
        }
        self.word(map, key)
    }

    /// Reads the texts of a list, or a single text.
    pub fn words(&mut self, map: &YamlMap, key: &str) -> Vec<Ident> {
        let Some(entry) = map.get(key) else { return Vec::new() };
        let nodes = match &entry.value.value {
            YamlValue::List(nodes) => nodes.as_slice(),
            _ => std::slice::from_ref(&entry.value),
        };
        nodes.iter().filter_map(|node| self.text(node).map(MappedText::ident)).collect()
    }

    /// Reads the texts of a list.
    pub fn strings(&mut self, node: &YamlNode) -> Vec<String> {
        let texts = self.list(node).iter().filter_map(|item| self.text(item));
        texts.map(|text| text.value().to_owned()).collect()
    }

    /// Reads the texts of the list behind a key; none if the key is missing.
    pub fn strings_of(&mut self, map: &YamlMap, key: &str) -> Vec<String> {
        map.get(key).map(|entry| self.strings(&entry.value)).unwrap_or_default()
    }

    /// Reads texts, in lists of any depth.
    pub fn names(&mut self, node: &YamlNode) -> Vec<String> {
        match &node.value {
            YamlValue::List(items) => items.iter().flat_map(|item| self.names(item)).collect(),
            YamlValue::Plain(text) | YamlValue::Quoted(text) => vec![text.value().to_owned()],
            _ => {
                self.expected(node, "a list of names");
                Vec::new()
            }
        }
    }

    /// Reads one of the known texts behind a key.
    pub fn choice<T: Copy>(&mut self, map: &YamlMap, key: &str, known: &[(&str, T)]) -> Option<T> {
        let word = self.word(map, key)?;
        let value = known.iter().find(|(name, _)| *name == word.name).map(|(_, value)| *value);
        if value.is_none() {
            let text = beginning(&word.name);
            let mut finding = Finding::error(&word.at, format!("`{key}` cannot be `{text}`"));
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            finding.help = suggest::help(&word.name, names);
            self.findings.push(finding);
        }
        value
    }

    /// Returns the value if nothing is wrong, or else all findings.
    pub fn finish<T>(self, value: T) -> Result<T, Vec<Finding>> {
        if self.findings.is_empty() { Ok(value) } else { Err(self.findings) }
    }
}
