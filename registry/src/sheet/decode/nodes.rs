//! Parts of a sheet's tree: words, names, expressions, maps whose keys are known.

use indexmap::IndexMap;

use super::{QUOTE, SheetDecoder};
use crate::diag::Finding;
use crate::listing::beginning;
use crate::parse::parse_expr;
use crate::scalar::Scalar;
use crate::sheet::versions::VersionRange;
use crate::sheet::{SheetText, SourceReference};
use crate::syntax::{Expr, ExprKind, Ident};
use crate::yaml::{YamlMap, YamlNode, YamlValue};

impl SheetDecoder {
    /// Reads the entries of a list of maps.
    pub(super) fn items<T>(
        &mut self,
        map: &YamlMap,
        key: &str,
        what: &str,
        known: &[&str],
        read: fn(&mut Self, &YamlNode, &YamlMap) -> Option<T>,
    ) -> Vec<T> {
        let mut results = Vec::new();
        for item in self.tree.list_of(map, key) {
            if let Some(map) = self.tree.map(item, what, known) {
                results.extend(read(self, item, map));
            }
        }
        results
    }

    pub(super) fn missing(&mut self, name: &Ident, what: &str, key: &str) {
        let message = format!("{what} `{}` needs `{key}`", beginning(&name.name));
        self.tree.findings.push(Finding::error(&name.at, message));
    }

    pub(super) fn versions(&mut self, map: &YamlMap) -> Option<VersionRange> {
        let word = self.tree.word(map, "versions")?;
        let versions = VersionRange::parse(&word.name);
        if versions.is_none() {
            let finding = Finding::error(&word.at, "these are no versions");
            self.tree.findings.push(finding.help("write comparisons: `>=0.5.20, <0.6`"));
        }
        versions
    }

    /// Reads a map of words.
    pub(super) fn words(&mut self, map: &YamlMap, key: &str) -> IndexMap<String, String> {
        let mut words = IndexMap::new();
        for (name, node) in self.tree.entries(map, key) {
            if let Some(text) = self.tree.text(&node) {
                words.insert(name.name, text.value().to_owned());
            }
        }
        words
    }

    /// Reads an expression; a text in quotes is that text.
    pub(super) fn value(&mut self, node: &YamlNode) -> Option<Expr> {
        match &node.value {
            YamlValue::Quoted(text) if !node.at.text().starts_with('|') => {
                Some(Expr { kind: ExprKind::Str(text.value().to_owned()), at: node.at.clone() })
            }
            YamlValue::Plain(text) | YamlValue::Quoted(text) => match parse_expr(text) {
                Ok(expr) => Some(expr),
                Err(errors) => {
                    self.tree.findings.extend(errors);
                    None
                }
            },
            _ => {
                self.tree.expected(node, "an expression");
                None
            }
        }
    }

    pub(super) fn expr(&mut self, map: &YamlMap, key: &str) -> Option<Expr> {
        map.get(key).and_then(|entry| self.value(&entry.value))
    }

    /// Reads an expression, in quotes or not.
    pub(super) fn condition(&mut self, map: &YamlMap) -> Option<Expr> {
        let node = &map.get("when")?.value;
        match node.text().map(parse_expr) {
            Some(Ok(expr)) => Some(expr),
            Some(Err(errors)) => {
                self.tree.findings.extend(errors);
                None
            }
            None => {
                self.tree.expected(node, "an expression");
                None
            }
        }
    }

    /// Reads a value without names: a number, a text, `true`.
    pub(super) fn constant(&mut self, map: &YamlMap, key: &str) -> Scalar {
        let Some(entry) = map.get(key) else { return Scalar::Null };
        match self.value(&entry.value).map(|expr| expr.kind) {
            Some(ExprKind::Bool(flag)) => Scalar::Bool(flag),
            Some(ExprKind::Int(n)) => Scalar::Int(n),
            Some(ExprKind::Float(x)) => Scalar::Float(x),
            Some(ExprKind::Str(text)) => Scalar::Str(text),
            // A bare word is a text.
            Some(ExprKind::Path(_)) => {
                Scalar::Str(entry.value.text().map(|t| t.value().to_owned()).unwrap_or_default())
            }
            _ => Scalar::Null,
        }
    }

    pub(super) fn template(&mut self, map: &YamlMap, key: &str) -> Option<SheetText> {
        let node = &map.get(key)?.value;
        let text = self.tree.text(node)?;
        Some(SheetText::parse(text, &mut self.tree.findings))
    }

    pub(super) fn assignments(&mut self, map: &YamlMap, key: &str) -> Vec<(Ident, Expr)> {
        let entries = self.tree.entries(map, key);
        entries.into_iter().filter_map(|(name, node)| Some((name, self.value(&node)?))).collect()
    }

    pub(super) fn source(
        &mut self,
        map: &YamlMap,
        at: &YamlNode,
        what: &str,
    ) -> Option<SourceReference> {
        let Some(entry) = map.get("source") else {
            let finding = Finding::error(&at.at, format!("{what} needs `source`"));
            self.tree.findings.push(finding.help("name the file and line that say so"));
            return None;
        };
        self.origin(&entry.value)
    }

    /// Reads `FILE:LINE`, or a map of the place and a quote of its text.
    pub(super) fn origin(&mut self, node: &YamlNode) -> Option<SourceReference> {
        if let Some(text) = node.text() {
            return Some(SourceReference { place: text.value().to_owned(), quote: None });
        }
        let map = self.tree.map(node, "a source", &QUOTE)?;
        let place = self.tree.needed(map, "place", node, "a source")?;
        Some(SourceReference { place: place.name, quote: self.tree.string(map, "quote") })
    }
}
