//! The file of a format as a [`Format`], with everything that is wrong with it.

use std::sync::Arc;

use indexmap::IndexMap;
use registry::diag::{Finding, SourceText};
use registry::suggest;
use registry::yaml::{self, TreeReader, YamlMap, YamlNode};

use super::data::{EngineParsers, Format, PairValue, ReasoningMarks, SectionMarks, ValueTrim};
use super::parts::CallKeys;
use super::pattern::{CallPattern, CallPatternError, Hole, PatternStep};
use super::value::ValueType;

const FORMAT: [&str; 17] = [
    "format",
    "about",
    "find",
    "without",
    "engines",
    "reasoning",
    "section",
    "calls",
    "pair",
    "value",
    "keys",
    "name_prefix",
    "between",
    "strings",
    "tags",
    "drop",
    "fallback",
];
const ENGINE: [&str; 2] = ["tools", "reasoning"];
const REASONING: [&str; 4] = ["open", "close", "ends_at_calls", "repeats"];
const SECTION: [&str; 3] = ["open", "close", "optional"];
const VALUE: [&str; 4] = ["trim", "untyped", "wrap", "types"];
const KEYS: [&str; 3] = ["name", "arguments", "by_name"];
const TRIMS: [(&str, ValueTrim); 3] =
    [("nothing", ValueTrim::Nothing), ("newline", ValueTrim::Newline), ("space", ValueTrim::Space)];
const TYPES: [(&str, ValueType); 2] = [("text", ValueType::Text), ("json", ValueType::Json)];

/// Longest mark of a format, in bytes.
const MAX_MARK: usize = 256;

/// Reads a format, or returns all findings.
pub(super) fn read(source: &Arc<SourceText>) -> Result<Format, Vec<Finding>> {
    let tree = yaml::read(source)?;
    let mut reader = FormatReader::default();
    let format = reader.format(&tree);
    // A format without a finding is there.
    reader.tree.finish(format)?.ok_or_else(Vec::new)
}

#[derive(Default)]
struct FormatReader {
    tree: TreeReader,
}

impl FormatReader {
    fn format(&mut self, tree: &YamlNode) -> Option<Format> {
        let map = self.tree.map(tree, "a format", &FORMAT)?;
        let name = self.tree.needed(map, "format", tree, "a format");
        let pair = map.get("pair").and_then(|entry| self.pattern(&entry.value, true));
        let mut calls = Vec::new();
        if let Some(entry) = map.get("calls") {
            for item in self.tree.list(&entry.value) {
                if let Some(pattern) = self.pattern(item, false) {
                    if pattern.has(Hole::Pairs) && !map.contains_key("pair") {
                        let finding = Finding::error(&item.at, "`{pairs}` needs the key `pair`");
                        self.tree
                            .findings
                            .push(finding.help("write the pattern of one pair behind `pair`"));
                    }
                    if pattern.has(Hole::Object) && !map.contains_key("strings") {
                        let finding =
                            Finding::error(&item.at, "`{object}` needs the key `strings`");
                        self.tree
                            .findings
                            .push(finding.help("write the mark around strings behind `strings`"));
                    }
                    if pattern.has(Hole::Tags) && !map.contains_key("tags") {
                        let finding = Finding::error(&item.at, "`{tags}` needs the key `tags`");
                        self.tree
                            .findings
                            .push(finding.help("write the mark before each tag behind `tags`"));
                    }
                    calls.push(pattern);
                }
            }
        }
        let reasoning = self.inner(map, "reasoning", "reasoning", &REASONING, Self::reasoning);
        let section = self.inner(map, "section", "a section", &SECTION, Self::section);
        if !map.contains_key("calls") && !map.contains_key("reasoning") {
            let finding = Finding::error(&tree.at, "a format needs `calls` or `reasoning`");
            self.tree
                .findings
                .push(finding.help("write the patterns of its tool calls behind `calls`"));
        }
        let mut find = Vec::new();
        if let Some(entry) = map.get("find") {
            for item in self.tree.list(&entry.value) {
                find.push(self.tree.strings(item));
            }
        }
        let mut engines = IndexMap::new();
        for (engine, node) in self.tree.entries(map, "engines") {
            if let Some(parsers) = self.tree.map(&node, "an engine's parsers", &ENGINE) {
                let tools = self.tree.string(parsers, "tools");
                let reasoning = self.tree.string(parsers, "reasoning");
                engines.insert(engine.name, EngineParsers { tools, reasoning });
            }
        }
        let value =
            self.inner(map, "value", "a value", &VALUE, |reader, _, map| Some(reader.value(map)));
        let value = value.unwrap_or(PairValue {
            trim: ValueTrim::Nothing,
            untyped: ValueType::Text,
            wrap: None,
            types: IndexMap::new(),
        });
        let keys = self
            .inner(map, "keys", "keys of calls", &KEYS, |reader, _, map| Some(reader.keys(map)));
        let keys = keys.unwrap_or(CallKeys {
            name: vec!["name".to_owned()],
            arguments: vec!["arguments".to_owned(), "parameters".to_owned()],
            by_name: false,
        });
        Some(Format {
            name: name?.name,
            about: self.tree.string(map, "about").unwrap_or_default(),
            find,
            without: self.tree.strings_of(map, "without"),
            engines,
            reasoning,
            section,
            calls,
            pair,
            value,
            keys,
            name_prefix: self.tree.string(map, "name_prefix").unwrap_or_default(),
            between: self.tree.string(map, "between").unwrap_or_default(),
            strings: self.mark(map, "strings").unwrap_or_default(),
            tags: self.mark(map, "tags").unwrap_or_default(),
            fallback: map.contains_key("fallback") && self.flag(map, "fallback"),
            drop: map.get("drop").map(|entry| self.marks(&entry.value)).unwrap_or_default(),
        })
    }

    fn reasoning(&mut self, node: &YamlNode, map: &YamlMap) -> Option<ReasoningMarks> {
        let open = self.needed_mark(map, "open", node, "reasoning");
        let close = self.needed_mark(map, "close", node, "reasoning");
        let ends_at_calls = self.flag(map, "ends_at_calls");
        let repeats = self.flag(map, "repeats");
        Some(ReasoningMarks { open: open?, close: close?, ends_at_calls, repeats })
    }

    fn section(&mut self, node: &YamlNode, map: &YamlMap) -> Option<SectionMarks> {
        let open = self.needed_mark(map, "open", node, "a section");
        let close = self.needed_mark(map, "close", node, "a section");
        let optional = self.flag(map, "optional");
        Some(SectionMarks { open: open?, close: close?, optional })
    }

    fn value(&mut self, map: &YamlMap) -> PairValue {
        let trim = self.tree.choice(map, "trim", &TRIMS).unwrap_or(ValueTrim::Nothing);
        let untyped = self.tree.choice(map, "untyped", &TYPES).unwrap_or(ValueType::Text);
        let mut types = IndexMap::new();
        if let Some(inner) = map.get("types").and_then(|entry| self.tree.any_map(&entry.value)) {
            for word in inner.keys() {
                if let Some(kind) = self.tree.choice(inner, word, &TYPES) {
                    types.insert(word.clone(), kind);
                }
            }
        }
        let mut wrap = None;
        if let Some(entry) = map.get("wrap") {
            match self.marks(&entry.value).as_slice() {
                [open, close] => wrap = Some((open.clone(), close.clone())),
                _ => self.tree.expected(&entry.value, "a list of two marks"),
            }
        }
        PairValue { trim, untyped, wrap, types }
    }

    fn keys(&mut self, map: &YamlMap) -> CallKeys {
        let name = self.tree.strings_of(map, "name");
        let arguments = self.tree.strings_of(map, "arguments");
        CallKeys { name, arguments, by_name: self.flag(map, "by_name") }
    }

    /// Reads a pattern and checks that its holes are those of a call or of a pair.
    fn pattern(&mut self, node: &YamlNode, pair: bool) -> Option<CallPattern> {
        let text = self.tree.text(node)?.value();
        let pattern = match CallPattern::parse(text) {
            Ok(pattern) => pattern,
            Err(error) => {
                let mut finding = Finding::error(&node.at, error.to_string());
                if let CallPatternError::Unknown(word) = &error {
                    finding.help = suggest::help(word, CallPattern::words());
                }
                self.tree.findings.push(finding);
                return None;
            }
        };
        let (what, wrong) = match mistake(&pattern, pair) {
            Some(wrong) => (if pair { "a pair" } else { "a call" }, wrong),
            None => return Some(pattern),
        };
        self.tree
            .findings
            .push(Finding::error(&node.at, format!("this pattern of {what} {wrong}")));
        None
    }

    fn inner<T>(
        &mut self,
        map: &YamlMap,
        key: &str,
        what: &str,
        known: &[&str],
        read: fn(&mut Self, &YamlNode, &YamlMap) -> Option<T>,
    ) -> Option<T> {
        let node = &map.get(key)?.value;
        let inner = self.tree.map(node, what, known)?;
        read(self, node, inner)
    }

    fn marks(&mut self, node: &YamlNode) -> Vec<String> {
        self.tree.list(node).iter().filter_map(|item| self.mark_of(item)).collect()
    }

    fn mark(&mut self, map: &YamlMap, key: &str) -> Option<String> {
        self.mark_of(&map.get(key)?.value)
    }

    fn mark_of(&mut self, node: &YamlNode) -> Option<String> {
        let text = self.tree.text(node)?.value();
        self.is_mark(node, text).then(|| text.to_owned())
    }

    /// Reports a text that cannot be a mark.
    fn is_mark(&mut self, node: &YamlNode, text: &str) -> bool {
        let sound = !text.trim().is_empty()
            && text.len() <= MAX_MARK
            && !text.starts_with(char::is_whitespace);
        if !sound {
            let finding = Finding::error(&node.at, "this text cannot be a mark");
            self.tree.findings.push(
                finding.label(format!("expected 1 to {MAX_MARK} bytes that begin with no space")),
            );
        }
        sound
    }

    fn needed_mark(
        &mut self,
        map: &YamlMap,
        key: &str,
        at: &YamlNode,
        what: &str,
    ) -> Option<String> {
        if !map.contains_key(key) {
            self.tree.needed(map, key, at, what)?;
        }
        self.mark(map, key)
    }

    fn flag(&mut self, map: &YamlMap, key: &str) -> bool {
        self.tree.choice(map, key, &[("true", true), ("false", false)]).unwrap_or_default()
    }
}

/// Returns the reason that a pattern cannot be read.
fn mistake(pattern: &CallPattern, pair: bool) -> Option<&'static str> {
    let mut steps = pattern.steps.iter();
    if steps.any(|step| matches!(step, PatternStep::Literal(text) if text.len() > MAX_MARK)) {
        return Some("has a text of more than 256 bytes");
    }
    if pattern.steps.windows(2).any(lack_text_between) {
        return Some("needs a text between two holes, and directly behind `{value}` and `{tags}`");
    }
    let ends_open = match pattern.steps.last() {
        Some(PatternStep::Hole(hole)) => !matches!(
            hole,
            Hole::Arguments | Hole::Call | Hole::Calls | Hole::Python | Hole::Object
        ),
        Some(PatternStep::Space) | None => true,
        Some(PatternStep::Literal(_)) => false,
    };
    if ends_open {
        return Some("needs a text at its end");
    }
    if pair {
        let sound =
            pattern.has(Hole::Key) && pattern.has(Hole::Value) && !pattern.opener().is_empty();
        let foreign = has_any(
            pattern,
            &[
                Hole::Name,
                Hole::Arguments,
                Hole::Call,
                Hole::Calls,
                Hole::Python,
                Hole::Object,
                Hole::Pairs,
                Hole::Tags,
            ],
        );
        return (!sound || foreign)
            .then_some("needs a text at its start, `{key}` and `{value}`, and no hole of a call");
    }
    let with_name = [Hole::Arguments, Hole::Object, Hole::Pairs, Hole::Tags];
    let payloads = [&with_name[..], &[Hole::Call, Hole::Calls, Hole::Python]].concat();
    let count = pattern
        .steps
        .iter()
        .filter(|step| matches!(step, PatternStep::Hole(h) if payloads.contains(h)))
        .count();
    let named = has_any(pattern, &with_name);
    if count != 1
        || has_any(pattern, &[Hole::Key, Hole::Value, Hole::Type])
        || named != pattern.has(Hole::Name)
    {
        return Some(
            "needs one of `{call}`, `{calls}`, `{python}`, or `{name}` with one of `{arguments}`, `{object}`, `{pairs}`, `{tags}`",
        );
    }
    if named && pattern.opener().is_empty() {
        return Some("needs a text before `{name}`");
    }
    let steps = &pattern.steps;
    let at = steps.iter().position(|step| *step == PatternStep::Hole(Hole::Pairs));
    if at.is_some_and(|at| !steps[at..].iter().any(|step| matches!(step, PatternStep::Literal(_))))
    {
        return Some("needs a text behind `{pairs}`");
    }
    None
}

/// True if a pattern has one of these holes.
fn has_any(pattern: &CallPattern, holes: &[Hole]) -> bool {
    holes.iter().any(|hole| pattern.has(*hole))
}

/// True for two neighbouring steps that need a text between them.
fn lack_text_between(steps: &[PatternStep]) -> bool {
    matches!(
        steps,
        [PatternStep::Hole(Hole::Value | Hole::Tags), PatternStep::Space | PatternStep::Hole(_)]
            | [
                PatternStep::Hole(_),
                PatternStep::Hole(Hole::Key | Hole::Value | Hole::Name | Hole::Id | Hole::Type)
            ]
    )
}
