//! From a YAML tree to a [`Spec`], with every finding on the way.

use std::sync::Arc;

use indexmap::IndexMap;

use super::keys::{IGNORE, KEPT, KeyForm, KeyTable, LAYERS, ROPE, SPEC, STATE, WEIGHT};
use super::{
    Dim, DimSource, IgnoreDecl, LayerProgram, LayerScalarDecl, LayersDecl, RopeDecl, Spec,
    StateDecl, StatePartDecl, UnroundedDecl, WeightRuleDecl,
};
use crate::diag::{Finding, SourceText, Span};
use crate::listing::beginning;
use crate::parse::{parse_expr, parse_function_header, parse_program};
use crate::suggest;
use crate::syntax::{Expr, ExprKind, Function, Ident, Program};
use crate::text::MappedText;
use crate::yaml::{YamlEntry, YamlMap, YamlNode, YamlValue};

mod gguf;
mod image;
mod nextn;
mod quant;

/// Findings beyond which nobody reads on.
const MAX_FINDINGS: usize = 100;

/// Decodes a merged tree. `uses` are the function files merged into it; `orphan` says that a
/// parent is missing, so that keys may be.
pub(crate) fn decode(
    tree: &YamlMap,
    uses: Vec<Ident>,
    source: &Arc<SourceText>,
    orphan: bool,
) -> Result<Spec, Vec<Finding>> {
    let mut decoder = SpecDecoder { findings: Vec::new(), orphan };
    let file_start = Span { source: source.clone(), start: 0, end: 0 };
    let spec = decoder.spec(tree, uses, &file_start);
    let findings = decoder.findings;
    match spec {
        Some(spec) if findings.is_empty() => Ok(spec),
        _ => {
            // A program shared by two kinds is parsed for each.
            let mut unique: Vec<Finding> = Vec::new();
            for finding in findings {
                if unique.len() < MAX_FINDINGS && !unique.contains(&finding) {
                    unique.push(finding);
                }
            }
            Err(unique)
        }
    }
}

/// Methods report and return `None`, or leave out what cannot be read.
struct SpecDecoder {
    findings: Vec<Finding>,
    orphan: bool,
}

/// The dim of the longest sequence.
const CONTEXT: &str = "context";

/// The dim of the kinds of all layers.
const KINDS: &str = "layer_types";

/// Returns the kind of layer `i`, from the list of all.
fn kind_of_layer(at: &Span) -> Expr {
    let kinds = Box::new(dim_of(KINDS, at));
    Expr { kind: ExprKind::Index(kinds, Box::new(dim_of("i", at))), at: at.clone() }
}

/// Returns the value of a dim as an expression.
fn dim_of(name: &str, at: &Span) -> Expr {
    let ident = Ident { name: name.to_owned(), at: at.clone() };
    Expr { kind: ExprKind::Path(vec![ident]), at: at.clone() }
}

impl SpecDecoder {
    fn spec(&mut self, tree: &YamlMap, uses: Vec<Ident>, file_start: &Span) -> Option<Spec> {
        self.check_keys(tree, &SPEC, file_start);
        let name = self.required_word(tree, "name");
        let matches = self.words(tree, "matches");
        let inside = self.words(tree, "inside");
        let encodes = self.words(tree, "encodes");
        let defaults = self.entries(tree, "defaults");
        let assumes = self.entries(tree, "assumes");
        let extends = tree.get("extends").and_then(|entry| self.word(&entry.value));
        let dims = self.section(tree, "dims", |this, name, entry| {
            Some(Dim { name, sources: this.sources(&entry.value)? })
        });
        let mut rope = self.section(tree, "rope", Self::rope);
        if dims.contains_key(CONTEXT) {
            for table in rope.values_mut() {
                table.context.get_or_insert_with(|| dim_of(CONTEXT, &table.at));
            }
        }
        let states = self.section(tree, "states", Self::state);
        let functions = self.functions(tree);
        let mut layers = tree.get("layers").and_then(|entry| self.layers(entry));
        if let Some(layers) = layers.as_mut().filter(|_| dims.contains_key(KINDS)) {
            layers.kind.get_or_insert_with(|| kind_of_layer(&layers.at));
        }
        let model = tree.get("model").and_then(|entry| self.program(&entry.value));
        let ignore = tree.get("ignore").map(|entry| self.ignore(entry)).unwrap_or_default();
        let unrounded = tree.get("kept").map(|entry| self.kept(entry)).unwrap_or_default();
        let weights = self.weights(tree);
        let nextn = tree.get("nextn").and_then(|entry| self.nextn(entry));
        let image = tree.get("image").and_then(|entry| self.image(entry)).unwrap_or_default();
        let gguf = tree.get("gguf").and_then(|entry| self.gguf(entry));
        let quant = tree.get("quant").and_then(|entry| self.quant(entry));
        let reference = tree.get("reference").and_then(|entry| self.word(&entry.value));
        if let Some(word) = reference.as_ref().filter(|word| word.name != "own_steps") {
            let message = format!("`reference` is `{}`; expected `own_steps`", word.name);
            self.findings.push(Finding::error(&word.at, message));
        }
        Some(Spec {
            name: name?,
            matches,
            inside,
            encodes,
            defaults,
            assumes,
            extends,
            uses,
            dims,
            rope,
            states,
            functions,
            layers,
            model: model?,
            ignore,
            kept: unrounded,
            weights,
            nextn,
            image,
            gguf,
            quant,
            reference,
            arch_owner: None,
            source: file_start.source.clone(),
        })
    }

    /// Reports keys that are unknown or missing.
    fn check_keys(&mut self, map: &YamlMap, table: &KeyTable, at: &Span) {
        for entry in map.values() {
            let name = entry.key.value();
            if !table.knows(name) && table.others.is_none() {
                let message = format!("{} has no key `{}`", table.what, beginning(name));
                let mut finding = Finding::error(&entry.key.span(), message);
                finding.help = suggest::help(name, table.names());
                self.findings.push(finding);
            }
        }
        if self.orphan && table.inherits {
            return;
        }
        // The version is asked of every file, not of what they make together.
        let needed = table.keys.iter().filter(|key| key.required && key.form != KeyForm::Version);
        for key in needed.filter(|key| !map.contains_key(key.name)) {
            let message = format!("{} needs the key `{}`", table.what, key.name);
            let mut finding = Finding::error(at, message).help(key.doc);
            // The key is there, but for a slip: one finding with a place is enough.
            let unknown = map.values().map(|entry| entry.key.value());
            let unknown = unknown.filter(|name| !table.knows(name) && table.others.is_some());
            if let Some(close) = suggest::closest(key.name, unknown) {
                finding.help = Some(format!("is `{close}` meant to be `{}`?", key.name));
            }
            self.findings.push(finding);
        }
    }

    fn wrong(&mut self, node: &YamlNode, expected: &str) {
        let shown = match node.text() {
            Some(text) if text.value().len() <= 40 && !text.value().contains('\n') => {
                format!("`{}`", text.value())
            }
            _ => node.kind().to_owned(),
        };
        let message = format!("expected {expected}");
        self.findings.push(Finding::error(&node.at, message).label(format!("found {shown}")));
    }

    /// Reads a section whose entries the author names.
    fn section<T>(
        &mut self,
        tree: &YamlMap,
        key: &str,
        mut read: impl FnMut(&mut Self, Ident, &YamlEntry) -> Option<T>,
    ) -> IndexMap<String, T> {
        let mut items = IndexMap::new();
        let Some(entry) = tree.get(key) else { return items };
        let Some(map) = self.map(&entry.value, "a map of names") else { return items };
        for entry in map.values() {
            let name = self.name(&entry.key);
            let item = read(self, entry.name(), entry);
            if let (Some(name), Some(item)) = (name, item) {
                items.insert(name.name, item);
            }
        }
        items
    }

    /// Reads a map, or nothing where nothing is written.
    fn map<'a>(&mut self, node: &'a YamlNode, expected: &str) -> Option<&'a YamlMap> {
        match &node.value {
            YamlValue::Map(map) => Some(map),
            YamlValue::Null => None,
            _ => {
                self.wrong(node, expected);
                None
            }
        }
    }

    /// Reads a name that expressions can use.
    fn name(&mut self, key: &MappedText) -> Option<Ident> {
        match parse_expr(key) {
            Ok(Expr { kind: ExprKind::Path(path), .. }) if path.len() == 1 => Some(key.ident()),
            _ => {
                let message = format!("`{}` is not a name", key.value());
                let help = "names are letters, digits and `_`, and no word of the language";
                self.findings.push(Finding::error(&key.span(), message).help(help));
                None
            }
        }
    }

    fn word(&mut self, node: &YamlNode) -> Option<Ident> {
        match node.text() {
            Some(text)
                if !text.value().is_empty() && !text.value().contains(char::is_whitespace) =>
            {
                Some(text.ident())
            }
            _ => {
                self.wrong(node, "one word");
                None
            }
        }
    }

    /// Reads a pattern of names: one word, with spaces in its holes alone.
    fn pattern(&mut self, node: &YamlNode) -> Option<Ident> {
        let text = node.text().filter(|text| {
            let parts = text.value().split('{');
            let mut outside = parts.map(|part| part.split_once('}').map_or(part, |(_, end)| end));
            !text.value().is_empty() && outside.all(|part| !part.contains(char::is_whitespace))
        });
        match text {
            Some(text) => Some(text.ident()),
            None => self.word(node),
        }
    }

    fn required_pattern(&mut self, map: &YamlMap, key: &str) -> Option<Ident> {
        map.get(key).and_then(|entry| self.pattern(&entry.value))
    }

    fn required_word(&mut self, map: &YamlMap, key: &str) -> Option<Ident> {
        map.get(key).and_then(|entry| self.word(&entry.value))
    }

    /// Reads a word or a list of words.
    fn words(&mut self, map: &YamlMap, key: &str) -> Vec<Ident> {
        match map.get(key).map(|entry| &entry.value) {
            None | Some(YamlNode { value: YamlValue::Null, .. }) => Vec::new(),
            Some(YamlNode { value: YamlValue::List(items), .. }) => {
                items.iter().filter_map(|item| self.word(item)).collect()
            }
            Some(node) => self.word(node).into_iter().collect(),
        }
    }

    fn parsed<T>(&mut self, parsed: Result<T, Vec<Finding>>) -> Option<T> {
        parsed.map_err(|findings| self.findings.extend(findings)).ok()
    }

    /// Reads an expression; a leading `=` is allowed everywhere.
    fn expr(&mut self, node: &YamlNode) -> Option<Expr> {
        match &node.value {
            YamlValue::Plain(text) | YamlValue::Quoted(text) => {
                let text = text.trim();
                let skip = usize::from(text.value().starts_with('='));
                let text = text.slice(skip..text.value().len());
                self.parsed(parse_expr(&text))
            }
            YamlValue::Null if !node.at.text().is_empty() => {
                Some(Expr { kind: ExprKind::Null, at: node.at.clone() })
            }
            _ => {
                self.wrong(node, "an expression");
                None
            }
        }
    }

    /// Expressions in a list; in words, what a list of them is here.
    fn exprs(&mut self, node: &YamlNode, expected: &str) -> Option<Vec<Expr>> {
        let YamlValue::List(items) = &node.value else {
            self.wrong(node, expected);
            return None;
        };
        // All are read before one that fails loses the rest.
        let exprs: Vec<_> = items.iter().map(|item| self.expr(item)).collect();
        exprs.into_iter().collect()
    }

    fn program(&mut self, node: &YamlNode) -> Option<Program> {
        if let Some(text) = node.text() {
            self.parsed(parse_program(text))
        } else {
            self.wrong(node, "a program");
            if let Some(last) = self.findings.last_mut() {
                last.help = Some("write `|` and the lines of the program below it".into());
            }
            None
        }
    }

    fn sources(&mut self, node: &YamlNode) -> Option<Vec<DimSource>> {
        let single = std::slice::from_ref(node);
        let items = match &node.value {
            YamlValue::List(items) if items.is_empty() => {
                self.wrong(node, "a config key or `= expression`");
                return None;
            }
            YamlValue::List(items) => items,
            _ => single,
        };
        let sources: Vec<_> = items.iter().map(|item| self.source(item)).collect();
        if let Some(end) = sources
            .iter()
            .position(|source: &Option<DimSource>| matches!(source, Some(DimSource::Compute(_))))
            && let Some(after) = items.get(end + 1)
        {
            let help = "an expression is always present: put it last; quote it if it has a comma";
            let message = "this alternative is never reached";
            self.findings.push(Finding::error(&after.at, message).help(help));
            return None;
        }
        sources.into_iter().collect()
    }

    fn source(&mut self, node: &YamlNode) -> Option<DimSource> {
        let Some(text) = node.text() else {
            self.wrong(node, "a config key or `= expression`");
            return None;
        };
        let text = text.trim();
        if text.value().starts_with('=') {
            return self.expr(node).map(DimSource::Compute);
        }
        let value = text.value();
        let literal = value.parse::<f64>().is_ok() || matches!(value, "true" | "false");
        let words =
            !value.is_empty() && value.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c));
        if words && !(literal && matches!(node.value, YamlValue::Plain(_))) {
            return Some(DimSource::Key(text.ident()));
        }
        let message = format!("`{value}` is not a config key");
        let help = format!("write `= {value}` if it is meant as a value or an expression");
        self.findings.push(Finding::error(&node.at, message).help(help));
        None
    }

    fn rope(&mut self, name: Ident, entry: &YamlEntry) -> Option<RopeDecl> {
        let Some(map) = entry.value.map() else {
            self.wrong(&entry.value, "a map");
            return None;
        };
        self.check_keys(map, &ROPE, &name.at);
        let head = || Some(dim_of("head_dim", &name.at));
        let dim = map.get("dim").map_or_else(head, |entry| self.expr(&entry.value));
        let partial = map.get("partial").map(|entry| self.expr(&entry.value));
        let context = map.get("context").map(|entry| self.expr(&entry.value));
        let behind = map.get("behind").map(|entry| self.expr(&entry.value));
        let axes = map.get("axes").map(|entry| self.expr(&entry.value));
        let order = map.get("order").map(|entry| self.expr(&entry.value));
        let theta = map.get("theta").map(|entry| self.sources(&entry.value));
        let parameters = map.get("parameters").map(|entry| self.sources(&entry.value));
        let long = map.get("long").and_then(|entry| self.word(&entry.value));
        if let Some(word) =
            long.as_ref().filter(|word| word.name != "factors" && word.name != "scale")
        {
            let message = format!("`long` of a rope table cannot be `{}`", word.name);
            let mut finding = Finding::error(&word.at, message);
            finding.help = suggest::help(&word.name, ["factors", "scale"]);
            self.findings.push(finding);
        }
        Some(RopeDecl {
            long_by_scale: long.is_some_and(|word| word.name == "scale"),
            dim: dim?,
            theta: theta??,
            parameters: parameters.unwrap_or(Some(Vec::new()))?,
            partial: partial.flatten(),
            context: context.flatten(),
            behind: behind.flatten(),
            axes: axes.flatten(),
            order: order.flatten(),
            at: name.at.clone(),
            name,
        })
    }

    fn state(&mut self, name: Ident, entry: &YamlEntry) -> Option<StateDecl> {
        let Some(map) = entry.value.map() else {
            self.wrong(&entry.value, "a map");
            return None;
        };
        self.check_keys(map, &STATE, &name.at);
        let kind = self.required_word(map, "kind");
        let dtype = self.required_word(map, "dtype");
        let layer = map.get("layer").and_then(|entry| self.expr(&entry.value));
        let mut parts = Vec::new();
        for entry in map.values() {
            let part = match entry.key.value() {
                "kind" | "dtype" | "layer" => continue,
                "shape" => kind
                    .as_ref()
                    .map(|kind| Ident { name: kind.name.clone(), at: entry.key.span() }),
                _ => self.name(&entry.key),
            };
            let shape = self.exprs(&entry.value, "a shape, as a list");
            parts.extend(part.zip(shape).map(|(name, shape)| StatePartDecl { name, shape }));
        }
        if map.keys().all(|key| matches!(key.as_str(), "kind" | "dtype" | "layer")) {
            let message = format!("state `{}` has no shape", name.name);
            let help = "write `shape: [hidden, width - 1]`, or one shape per part";
            self.findings.push(Finding::error(&name.at, message).help(help));
        }
        let at = entry.value.at.clone();
        Some(StateDecl { kind: kind?, dtype: dtype?, layer, parts, at, name })
    }

    fn functions(&mut self, tree: &YamlMap) -> IndexMap<String, Function> {
        let mut functions = IndexMap::new();
        let Some(entry) = tree.get("functions") else { return functions };
        let Some(map) = self.map(&entry.value, "a map of functions") else { return functions };
        for entry in map.values() {
            let header = self.parsed(parse_function_header(&entry.key));
            let program = self.program(&entry.value);
            if let (Some((name, params)), Some(program)) = (header, program) {
                functions.insert(name.name.clone(), Function { name, params, program });
            }
        }
        functions
    }

    fn layers(&mut self, entry: &YamlEntry) -> Option<LayersDecl> {
        let map = self.map(&entry.value, "a map with `prefix:` and programs")?;
        self.check_keys(map, &LAYERS, &entry.key.span());
        let prefix = self.required_word(map, "prefix");
        if let Some(prefix) = &prefix
            && !prefix.name.contains('{')
        {
            let message = "the prefix of layers has no `{i}`";
            let help = "write it as `model.layers.{i}`";
            self.findings.push(Finding::error(&prefix.at, message).help(help));
        }
        let count = map.get("count").and_then(|entry| self.expr(&entry.value));
        let kind = map.get("kind").and_then(|entry| self.expr(&entry.value));
        let each = self.section(map, "each", |this, name, entry| {
            Some(LayerScalarDecl { name, value: this.expr(&entry.value)? })
        });
        let carry = self.words(map, "carry");
        let beside = map.get("beside").and_then(|entry| self.expr(&entry.value));
        let mut programs = IndexMap::new();
        for entry in map.values().filter(|entry| !LAYERS.knows(entry.key.value())) {
            if entry.value.text().is_none() {
                let name = entry.key.value();
                let message = format!("layers of kind `{name}` have no program");
                let mut finding = Finding::error(&entry.key.span(), message);
                let kind = entry.value.kind();
                finding.label = format!("found {kind}; expected the lines of a program");
                finding.help = suggest::closest(name, LAYERS.names())
                    .map(|close| format!("did you mean `{close}`?"));
                self.findings.push(finding);
                continue;
            }
            if let Some(program) = self.program(&entry.value) {
                let kind = entry.name();
                programs.insert(kind.name.clone(), LayerProgram { kind, program });
            }
        }
        let at = entry.value.at.clone();
        Some(LayersDecl { prefix: prefix?, count, kind, each, carry, beside, programs, at })
    }

    fn ignore(&mut self, entry: &YamlEntry) -> IgnoreDecl {
        let Some(map) = self.map(&entry.value, "a map with `weights:` and `config:`") else {
            return IgnoreDecl::default();
        };
        self.check_keys(map, &IGNORE, &entry.key.span());
        IgnoreDecl { weights: self.words(map, "weights"), config: self.words(map, "config") }
    }

    fn kept(&mut self, entry: &YamlEntry) -> UnroundedDecl {
        let Some(map) = self.map(&entry.value, "a map with `f32:`") else {
            return UnroundedDecl::default();
        };
        self.check_keys(map, &KEPT, &entry.key.span());
        UnroundedDecl { f32: self.words(map, "f32"), f32_in_f16: self.words(map, "f32_in_f16") }
    }

    fn weights(&mut self, tree: &YamlMap) -> Vec<WeightRuleDecl> {
        let items = match tree.get("weights").map(|entry| &entry.value) {
            None | Some(YamlNode { value: YamlValue::Null, .. }) => return Vec::new(),
            Some(YamlNode { value: YamlValue::List(items), .. }) => items,
            Some(node) => {
                self.wrong(node, "a list of rules");
                return Vec::new();
            }
        };
        items.iter().filter_map(|item| self.weight(item)).collect()
    }

    /// Reads the steps behind `do:`, one or a list.
    fn steps(&mut self, map: &YamlMap) -> Option<Vec<Expr>> {
        match map.get("do").map(|entry| &entry.value) {
            None => Some(Vec::new()),
            Some(node @ YamlNode { value: YamlValue::List(_), .. }) => {
                self.exprs(node, "a list of steps")
            }
            Some(node) => self.expr(node).map(|step| vec![step]),
        }
    }

    fn weight(&mut self, node: &YamlNode) -> Option<WeightRuleDecl> {
        let Some(map) = node.map() else {
            self.wrong(node, "a rule: `{ disk: ..., weight: ... }`");
            return None;
        };
        self.check_keys(map, &WEIGHT, &node.at);
        let disk = self.required_pattern(map, "disk");
        let weight = self.required_pattern(map, "weight");
        let steps = self.steps(map);
        Some(WeightRuleDecl { disk: disk?, weight: weight?, steps: steps?, at: node.at.clone() })
    }
}
