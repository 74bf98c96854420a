//! A file as a [`ProcessorSheet`], with everything that is wrong with it.

use std::sync::Arc;

use indexmap::IndexMap;
use registry::config::Config;
use registry::diag::{Finding, SourceText};
use registry::eval::{Env, EvalError, EvalResult, Fuel, eval_owned};
use registry::parse::parse_expr;
use registry::scalar::Scalar;
use registry::syntax::{Expr, Ident};
use registry::text::MappedText;
use registry::yaml::{self, TreeReader, YamlMap, YamlNode, YamlValue};

use super::{
    FrameLayout, OutputKind, PartKind, ProcessorSheet, PromptPart, PromptRule, ResultRule,
    TextPiece, keys,
};

/// Reads a file, or returns all findings.
pub(super) fn read(source: &Arc<SourceText>) -> Result<ProcessorSheet, Vec<Finding>> {
    let tree = yaml::read(source)?;
    let mut reader = SheetReader::default();
    let sheet = reader.sheet(&tree);
    reader.tree.finish(sheet)?.ok_or_else(Vec::new)
}

#[derive(Default)]
pub(super) struct SheetReader {
    pub(super) tree: TreeReader,
}

impl SheetReader {
    fn sheet(&mut self, tree: &YamlNode) -> Option<ProcessorSheet> {
        let known: Vec<&str> = keys::SHEET.into_iter().chain([keys::PROMPTS]).collect();
        let map = self.tree.map(tree, "a processor", &known)?;
        let name = self.tree.needed(map, "processor", tree, "a processor");
        let steps = self.guarded_list(map, "steps");
        let mut outputs = IndexMap::new();
        for (output, node) in self.tree.entries(map, "outputs") {
            if let Some(value) = self.output(&node) {
                outputs.insert(output.name, value);
            }
        }
        let mut prompts = Vec::new();
        for node in self.tree.list_of(map, keys::PROMPTS) {
            prompts.extend(self.prompt(node));
        }
        let mut values = IndexMap::new();
        let of_classes = map.get("values").and_then(|entry| self.tree.any_map(&entry.value));
        for class in of_classes.into_iter().flat_map(YamlMap::keys) {
            values.insert(class.clone(), self.values(of_classes?, class));
        }
        let mut sizes = IndexMap::new();
        let sized = map.get("sizes").and_then(|entry| self.tree.any_map(&entry.value));
        for key in sized.into_iter().flat_map(YamlMap::keys) {
            if let Some(side) = self.tree.choice(sized?, key, &keys::SIDES) {
                sizes.insert(key.clone(), side);
            }
        }
        Some(ProcessorSheet {
            name: name?.name,
            images: self.tree.strings_of(map, "images"),
            settings: self.values(map, "settings"),
            values,
            sizes,
            ignored: self.tree.strings_of(map, "ignored"),
            torchvision_only: self.flag(map, "torchvision_only"),
            steps,
            outputs,
            prompts,
        })
    }

    /// Reads `true` behind a key; false if the key is missing.
    fn flag(&mut self, map: &YamlMap, key: &str) -> bool {
        self.tree.choice(map, key, &[("true", true), ("false", false)]).unwrap_or(false)
    }

    /// Reads the expression behind a key.
    pub(super) fn expr(&mut self, map: &YamlMap, key: &str) -> Option<Expr> {
        self.expr_of(&map.get(key)?.value)
    }

    /// Reads the expression behind a key that `what` must have.
    pub(super) fn needed(
        &mut self,
        map: &YamlMap,
        key: &str,
        at: &YamlNode,
        what: &str,
    ) -> Option<Expr> {
        if !map.contains_key(key) {
            self.tree.findings.push(Finding::error(&at.at, format!("{what} needs `{key}`")));
        }
        self.expr(map, key)
    }

    /// Reads an expression.
    pub(super) fn expr_of(&mut self, node: &YamlNode) -> Option<Expr> {
        let text = self.tree.text(node)?.clone();
        self.parsed(&text)
    }

    fn parsed(&mut self, text: &MappedText) -> Option<Expr> {
        match parse_expr(text) {
            Ok(expr) => Some(expr),
            Err(findings) => {
                self.tree.findings.extend(findings);
                None
            }
        }
    }

    /// Reads the expressions of a list.
    fn exprs(&mut self, map: &YamlMap, key: &str) -> Vec<Expr> {
        let nodes = self.tree.list_of(map, key);
        nodes.iter().filter_map(|node| self.expr_of(node)).collect()
    }

    /// Reads values by key.
    fn values(&mut self, map: &YamlMap, key: &str) -> IndexMap<String, Scalar> {
        let mut values = IndexMap::new();
        for (name, node) in self.tree.entries(map, key) {
            if let Some(value) = self.value(&node) {
                values.insert(name.name, value);
            }
        }
        values
    }

    /// Reads a value: a constant expression, a text in quotes, or a list or map of values.
    fn value(&mut self, node: &YamlNode) -> Option<Scalar> {
        match &node.value {
            YamlValue::Null => Some(Scalar::Null),
            YamlValue::Quoted(text) => Some(Scalar::Str(text.value().to_owned())),
            YamlValue::List(items) => {
                let values: Vec<Scalar> =
                    items.iter().filter_map(|item| self.value(item)).collect();
                Some(Scalar::List(values))
            }
            YamlValue::Map(map) => {
                let mut entries = Vec::with_capacity(map.len());
                for entry in map.values() {
                    entries.push((entry.key.value().to_owned(), self.value(&entry.value)?));
                }
                Some(Scalar::Map(entries))
            }
            YamlValue::Plain(text) => {
                let expr = self.parsed(text)?;
                match eval_owned(&expr, &NoNames::default()) {
                    Ok(value) => Some(value),
                    Err(EvalError::Finding(finding)) => {
                        self.tree.findings.push(*finding);
                        None
                    }
                    Err(EvalError::Reported) => None,
                }
            }
        }
    }

    fn output(&mut self, node: &YamlNode) -> Option<ResultRule> {
        let map = self.tree.map(node, "a result", &keys::OUTPUT)?;
        let when = self.expr(map, "when");
        let kind = if map.contains_key("number") {
            OutputKind::Number(self.expr(map, "number")?, self.flag(map, "batch"))
        } else if map.contains_key("numbers") {
            OutputKind::Numbers(self.exprs(map, "numbers"))
        } else if map.contains_key("each") {
            OutputKind::Each(self.exprs(map, "each"))
        } else if let Some(entry) = map.get("positions") {
            let what = "a result of positions";
            let inner = self.tree.map(&entry.value, what, &keys::POSITIONS)?;
            OutputKind::Positions {
                rows: self.needed(inner, "rows", &entry.value, what)?,
                columns: self.needed(inner, "columns", &entry.value, what)?,
                count: self.needed(inner, "count", &entry.value, what)?,
            }
        } else if map.contains_key("mask") {
            OutputKind::Mask(self.frames(map, "mask")?)
        } else if map.contains_key("frames") {
            OutputKind::Frames(self.frames(map, "frames")?)
        } else {
            let finding = Finding::error(&node.at, "a result needs a kind");
            let help = "write `frames`, `mask`, `positions`, `number`, `numbers` or `each`";
            self.tree.findings.push(finding.help(help));
            return None;
        };
        Some(ResultRule { when, at: node.at.clone(), kind })
    }

    fn frames(&mut self, map: &YamlMap, key: &str) -> Option<FrameLayout> {
        let shape = self.tree.choice(map, key, &keys::SHAPES)?;
        let rows = self.expr(map, "rows");
        Some(FrameLayout { shape, rows, largest: self.expr(map, "largest") })
    }

    fn prompt(&mut self, node: &YamlNode) -> Option<PromptRule> {
        let map = self.tree.map(node, "a prompt", &keys::PROMPT)?;
        let mut tokens = IndexMap::new();
        for (name, node) in self.tree.entries(map, "tokens") {
            if let Some(text) = self.tree.text(&node) {
                tokens.insert(name.name, text.value().to_owned());
            }
        }
        let replaces = self.tree.needed(map, "replaces", node, "a prompt")?;
        self.known_token(&replaces, &tokens);
        let parts = self.parts(map, &tokens);
        Some(PromptRule {
            classes: self.tree.strings_of(map, "classes"),
            settings: self.values(map, "settings"),
            call: self.values(map, "call"),
            replaces: replaces.name,
            tokens,
            parts,
        })
    }

    fn known_token(&mut self, name: &Ident, tokens: &IndexMap<String, String>) {
        if !tokens.contains_key(&name.name) {
            let message = format!("there is no token `{}`", name.name);
            let mut finding = Finding::error(&name.at, message);
            finding.help = registry::suggest::help(&name.name, tokens.keys().map(String::as_str));
            self.tree.findings.push(finding);
        }
    }

    fn parts(&mut self, map: &YamlMap, tokens: &IndexMap<String, String>) -> Vec<PromptPart> {
        let nodes = self.tree.list_of(map, "parts");
        nodes.iter().filter_map(|node| self.part(node, tokens)).collect()
    }

    fn part(&mut self, node: &YamlNode, tokens: &IndexMap<String, String>) -> Option<PromptPart> {
        let map = self.tree.map(node, "a part of a prompt", &keys::PART)?;
        let kind = if map.contains_key("let") {
            PartKind::Let(self.names(map)?)
        } else if let Some(name) = self.tree.word(map, "token") {
            self.known_token(&name, tokens);
            PartKind::Token(name)
        } else if let Some(entry) = map.get("text") {
            let text = self.tree.text(&entry.value)?.clone();
            PartKind::Text(self.pieces(&text)?)
        } else if let Some(variable) = self.tree.word(map, "for") {
            let below = self.needed(map, "below", node, "`for`")?;
            PartKind::For(variable, below, self.parts(map, tokens))
        } else {
            PartKind::Parts(self.parts(map, tokens))
        };
        let when = self.expr(map, "when");
        Some(PromptPart { when, times: self.expr(map, "times"), at: node.at.clone(), kind })
    }

    /// Reads the names and expressions behind `let`.
    pub(super) fn names(&mut self, map: &YamlMap) -> Option<Vec<(Ident, Expr)>> {
        let mut names = Vec::new();
        for (name, node) in self.tree.entries(map, "let") {
            names.push((name, self.expr_of(&node)?));
        }
        Some(names)
    }

    /// Divides a text at its expressions in braces.
    fn pieces(&mut self, text: &MappedText) -> Option<Vec<TextPiece>> {
        let mut pieces = Vec::new();
        let mut at = 0;
        while let Some(open) = text.value()[at..].find('{') {
            let open = at + open;
            let Some(length) = text.value()[open..].find('}') else {
                let place = text.at(open..open + 1);
                self.tree.findings.push(Finding::error(&place, "the brace is not closed"));
                return None;
            };
            pieces.push(TextPiece::Plain(text.value()[at..open].to_owned()));
            pieces.push(TextPiece::Hole(self.parsed(&text.slice(open + 1..open + length))?));
            at = open + length + 1;
        }
        pieces.push(TextPiece::Plain(text.value()[at..].to_owned()));
        Some(pieces)
    }
}

/// Constants have no names around them.
struct NoNames {
    config: Config,
    fuel: Fuel,
}

impl Default for NoNames {
    fn default() -> Self {
        Self { config: Config::of("constants", Scalar::Map(Vec::new())), fuel: Fuel::new(10_000) }
    }
}

impl Env for NoNames {
    fn lookup(&self, name: &Ident) -> EvalResult<'_> {
        let message = format!("`{}` is a name, and a constant is needed here", name.name);
        Err(Finding::error(&name.at, message).help("write texts in quotes").into())
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn fuel(&self) -> &Fuel {
        &self.fuel
    }
}
