//! The `nextn:` section.

use super::SpecDecoder;
use crate::diag::Finding;
use crate::spec::keys::NEXTN;
use crate::spec::{LayerScalarDecl, NextnDecl};
use crate::suggest;
use crate::syntax::{Ident, Program};
use crate::yaml::{YamlEntry, YamlMap};

impl SpecDecoder {
    pub(super) fn nextn(&mut self, entry: &YamlEntry) -> Option<NextnDecl> {
        let map = self.map(&entry.value, "a map with `prefix:` and programs")?;
        self.check_keys(map, &NEXTN, &entry.key.span());
        let count = map.get("count").and_then(|entry| self.expr(&entry.value));
        let kind = map.get("kind").and_then(|entry| self.expr(&entry.value));
        let each = self.section(map, "each", |this, name, entry| {
            Some(LayerScalarDecl { name, value: this.expr(&entry.value)? })
        });
        let prefix = self.required_word(map, "prefix");
        let block = map.get("block").and_then(|entry| self.word(&entry.value));
        let from = self.required_word(map, "from");
        let concat = self.order(map);
        let recycle = self.one_of(map, "recycle", ["pre", "post"]);
        let pos = self.one_of(map, "pos", ["token", "hidden"]);
        let first = self.one_of(map, "first", ["kept", "zeroed"]);
        let [embed, norm_e, norm_h, proj, out_norm, head] =
            ["embed", "norm_e", "norm_h", "proj", "out_norm", "head"]
                .map(|key| map.get(key).and_then(|entry| self.program(&entry.value)));
        let all: [Option<Program>; 6] = [embed, norm_e, norm_h, proj, out_norm, head];
        let [Some(embed), Some(norm_e), Some(norm_h), Some(proj), Some(out_norm), Some(head)] = all
        else {
            return None;
        };
        Some(NextnDecl {
            count,
            prefix: prefix?,
            block,
            kind,
            each,
            from: from?,
            embed,
            norm_e,
            norm_h,
            concat: concat?,
            proj,
            out_norm,
            head,
            recycle: recycle?,
            pos: pos?,
            first: first?,
            at: entry.key.span(),
        })
    }

    /// Reads the order of `e` and `h`, each once.
    fn order(&mut self, map: &YamlMap) -> Option<Vec<Ident>> {
        let entry = map.get("concat")?;
        let words = self.words(map, "concat");
        let mut names: Vec<&str> = words.iter().map(|word| word.name.as_str()).collect();
        names.sort_unstable();
        if names == ["e", "h"] {
            return Some(words);
        }
        self.findings.push(
            Finding::error(&entry.value.at, "`concat` is the order of `e` and `h`")
                .help("write `[e, h]` or `[h, e]`"),
        );
        None
    }

    fn one_of(&mut self, map: &YamlMap, key: &str, known: [&'static str; 2]) -> Option<Ident> {
        let word = self.required_word(map, key)?;
        if known.contains(&word.name.as_str()) {
            return Some(word);
        }
        let mut finding =
            Finding::error(&word.at, format!("`{key}` of `nextn` cannot be `{}`", word.name));
        finding.help = suggest::help(&word.name, known);
        self.findings.push(finding);
        None
    }
}
