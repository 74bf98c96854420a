//! The `quant:` section of a spec.

use super::SpecDecoder;
use crate::spec::QuantDecl;
use crate::spec::keys::QUANT;
use crate::syntax::Ident;
use crate::yaml::{YamlEntry, YamlMap};

impl SpecDecoder {
    pub(super) fn quant(&mut self, entry: &YamlEntry) -> Option<QuantDecl> {
        let map = self.map(&entry.value, "a map with `keep:` and `together:`")?;
        self.check_keys(map, &QUANT, &entry.key.span());
        let what = "a map from words to patterns of modules";
        Some(QuantDecl {
            keep: self.patterns(map, "keep", what),
            together: self.patterns(map, "together", what),
        })
    }

    /// Reads a section that maps words to patterns.
    pub(super) fn patterns(
        &mut self,
        tree: &YamlMap,
        key: &str,
        what: &str,
    ) -> Vec<(Ident, Ident)> {
        let Some(entry) = tree.get(key) else { return Vec::new() };
        let Some(map) = self.map(&entry.value, what) else { return Vec::new() };
        map.values().filter_map(|entry| Some((entry.name(), self.word(&entry.value)?))).collect()
    }
}
