//! The file of a format as a [`Format`], with everything that is wrong with it.

use std::sync::Arc;

use indexmap::IndexMap;
use registry::diag::{Finding, SourceText};
use registry::suggest;
use registry::yaml::{self, YamlMap, YamlNode, YamlValue};

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
    match format {
        Some(format) if reader.findings.is_empty() => Ok(format),
        _ => Err(reader.findings),
    }
}

#[derive(Default)]
struct FormatReader {
    findings: Vec<Finding>,
}

impl FormatReader {
    fn format(&mut self, tree: &YamlNode) -> Option<Format> {
        let map = self.map(tree, "a format", &FORMAT)?;
        let name = self.needed(map, "format", tree, "a format");
        let pair = map.get("pair").and_then(|entry| self.pattern(&entry.value, true));
        let mut calls = Vec::new();
        if let Some(entry) = map.get("calls") {
            for item in self.list(&entry.value) {
                if let Some(pattern) = self.pattern(item, false) {
                    if pattern.has(Hole::Pairs) && !map.contains_key("pair") {
                        let finding = Finding::error(&item.at, "`{pairs}` needs the key `pair`");
                        self.findings
                            .push(finding.help("write the pattern of one pair behind `pair`"));
                    }
                    if pattern.has(Hole::Object) && !map.contains_key("strings") {
                        let finding =
                            Finding::error(&item.at, "`{object}` needs the key `strings`");
                        self.findings
                            .push(finding.help("write the mark around strings behind `strings`"));
                    }
                    if pattern.has(Hole::Tags) && !map.contains_key("tags") {
                        let finding = Finding::error(&item.at, "`{tags}` needs the key `tags`");
                        self.findings
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
            self.findings.push(finding.help("write the patterns of its tool calls behind `calls`"));
        }
        let mut find = Vec::new();
        if let Some(entry) = map.get("find") {
            for item in self.list(&entry.value) {
                find.push(self.texts(item));
            }
        }
        let mut engines = IndexMap::new();
        if let Some(entry) = map.get("engines")
            && let Some(inner) = self.any_map(&entry.value)
        {
            for (engine, entry) in inner {
                if let Some(parsers) = self.map(&entry.value, "an engine's parsers", &ENGINE) {
                    let parsers = EngineParsers {
                        tools: self.text(parsers, "tools"),
                        reasoning: self.text(parsers, "reasoning"),
                    };
                    engines.insert(engine.clone(), parsers);
                }
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
            name: name?,
            about: self.text(map, "about").unwrap_or_default(),
            find,
            without: map.get("without").map(|entry| self.texts(&entry.value)).unwrap_or_default(),
            engines,
            reasoning,
            section,
            calls,
            pair,
            value,
            keys,
            name_prefix: self.text(map, "name_prefix").unwrap_or_default(),
            between: self.text(map, "between").unwrap_or_default(),
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
        let trim = self.choice(map, "trim", &TRIMS).unwrap_or(ValueTrim::Nothing);
        let untyped = self.choice(map, "untyped", &TYPES).unwrap_or(ValueType::Text);
        let mut types = IndexMap::new();
        if let Some(entry) = map.get("types")
            && let Some(inner) = self.any_map(&entry.value)
        {
            for word in inner.keys() {
                if let Some(kind) = self.choice(inner, word, &TYPES) {
                    types.insert(word.clone(), kind);
                }
            }
        }
        let mut wrap = None;
        if let Some(entry) = map.get("wrap") {
            match self.marks(&entry.value).as_slice() {
                [open, close] => wrap = Some((open.clone(), close.clone())),
                _ => self.expected(&entry.value, "a list of two marks"),
            }
        }
        PairValue { trim, untyped, wrap, types }
    }

    fn keys(&mut self, map: &YamlMap) -> CallKeys {
        let mut words =
            |key: &str| map.get(key).map(|entry| self.texts(&entry.value)).unwrap_or_default();
        let name = words("name");
        let arguments = words("arguments");
        CallKeys { name, arguments, by_name: self.flag(map, "by_name") }
    }

    /// Reads a pattern and checks that its holes are those of a call or of a pair.
    fn pattern(&mut self, node: &YamlNode, pair: bool) -> Option<CallPattern> {
        let text = self.scalar(node)?;
        let pattern = match CallPattern::parse(&text) {
            Ok(pattern) => pattern,
            Err(error) => {
                let mut finding = Finding::error(&node.at, error.to_string());
                if let CallPatternError::Unknown(word) = &error {
                    finding.help = suggest::help(word, CallPattern::words());
                }
                self.findings.push(finding);
                return None;
            }
        };
        let (what, wrong) = match mistake(&pattern, pair) {
            Some(wrong) => (if pair { "a pair" } else { "a call" }, wrong),
            None => return Some(pattern),
        };
        self.findings.push(Finding::error(&node.at, format!("this pattern of {what} {wrong}")));
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
        let inner = self.map(node, what, known)?;
        read(self, node, inner)
    }

    fn map<'n>(&mut self, node: &'n YamlNode, what: &str, known: &[&str]) -> Option<&'n YamlMap> {
        let map = self.any_map(node)?;
        for entry in map.values().filter(|entry| !known.contains(&entry.key.value())) {
            let message = format!("{what} has no key `{}`", entry.key.value());
            let mut finding = Finding::error(&entry.key.span(), message);
            finding.help = suggest::help(entry.key.value(), known.iter().copied());
            self.findings.push(finding);
        }
        Some(map)
    }

    fn any_map<'n>(&mut self, node: &'n YamlNode) -> Option<&'n YamlMap> {
        let map = node.map();
        if map.is_none() {
            self.expected(node, "a map");
        }
        map
    }

    fn list<'n>(&mut self, node: &'n YamlNode) -> &'n [YamlNode] {
        if let YamlValue::List(items) = &node.value {
            return items;
        }
        self.expected(node, "a list");
        &[]
    }

    fn texts(&mut self, node: &YamlNode) -> Vec<String> {
        self.list(node).iter().filter_map(|item| self.scalar(item)).collect()
    }

    fn marks(&mut self, node: &YamlNode) -> Vec<String> {
        let items = self.list(node).iter();
        items.filter_map(|item| self.scalar(item).filter(|text| self.is_mark(item, text))).collect()
    }

    fn scalar(&mut self, node: &YamlNode) -> Option<String> {
        let text = node.text().map(|text| text.value().to_owned());
        if text.is_none() {
            self.expected(node, "a text");
        }
        text
    }

    fn text(&mut self, map: &YamlMap, key: &str) -> Option<String> {
        self.scalar(&map.get(key)?.value)
    }

    fn mark(&mut self, map: &YamlMap, key: &str) -> Option<String> {
        let node = &map.get(key)?.value;
        self.scalar(node).filter(|text| self.is_mark(node, text))
    }

    /// Reports a text that cannot be a mark.
    fn is_mark(&mut self, node: &YamlNode, text: &str) -> bool {
        let sound = !text.trim().is_empty()
            && text.len() <= MAX_MARK
            && !text.starts_with(char::is_whitespace);
        if !sound {
            let finding = Finding::error(&node.at, "this text cannot be a mark");
            self.findings.push(
                finding.label(format!("expected 1 to {MAX_MARK} bytes that begin with no space")),
            );
        }
        sound
    }

    fn needed(&mut self, map: &YamlMap, key: &str, at: &YamlNode, what: &str) -> Option<String> {
        if !map.contains_key(key) {
            self.findings.push(Finding::error(&at.at, format!("{what} needs `{key}`")));
        }
        self.text(map, key)
    }

    fn needed_mark(
        &mut self,
        map: &YamlMap,
        key: &str,
        at: &YamlNode,
        what: &str,
    ) -> Option<String> {
        self.needed(map, key, at, what)?;
        self.mark(map, key)
    }

    fn flag(&mut self, map: &YamlMap, key: &str) -> bool {
        self.choice(map, key, &[("true", true), ("false", false)]).unwrap_or_default()
    }

    fn choice<T: Copy>(&mut self, map: &YamlMap, key: &str, known: &[(&str, T)]) -> Option<T> {
        let node = &map.get(key)?.value;
        let text = self.scalar(node)?;
        let value = known.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        if value.is_none() {
            let mut finding = Finding::error(&node.at, format!("`{key}` cannot be `{text}`"));
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            finding.help = suggest::help(&text, names);
            self.findings.push(finding);
        }
        value
    }

    fn expected(&mut self, node: &YamlNode, what: &str) {
        let finding = Finding::error(&node.at, format!("expected {what}"));
        self.findings.push(finding.label(format!("found {}", node.kind())));
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
