//! The `image:` section.

use super::SpecDecoder;
use crate::diag::Finding;
use crate::spec::ImageDecl;
use crate::spec::keys::IMAGE;
use crate::syntax::Expr;
use crate::yaml::{YamlEntry, YamlMap};

impl SpecDecoder {
    pub(super) fn image(&mut self, entry: &YamlEntry) -> Option<ImageDecl> {
        let map = self.map(&entry.value, "a map with `side:`, `block:` and others")?;
        self.check_keys(map, &IMAGE, &entry.key.span());
        let order = map.get("order").and_then(|entry| self.word(&entry.value));
        if let Some(word) =
            order.as_ref().filter(|word| !["lines", "blocks"].contains(&&*word.name))
        {
            let message = format!("`order` is `{}`; expected `lines` or `blocks`", word.name);
            self.findings.push(Finding::error(&word.at, message));
        }
        Some(ImageDecl {
            side: self.size(map, "side"),
            block: self.size(map, "block"),
            window: self.size(map, "window"),
            skip: self.size(map, "skip"),
            order,
        })
    }

    fn size(&mut self, map: &YamlMap, key: &str) -> Option<Expr> {
        self.expr(&map.get(key)?.value)
    }
}
