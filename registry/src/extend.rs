//! `extends:`, `use:` and `--set`: one tree from several files.
//!
//! Trees are merged before they are decoded, so that every entry keeps its
//! place in the file that wrote it and only what is in force is checked.

use std::sync::Arc;

use crate::diag::{Finding, SourceText, Span};
use crate::spec::keys::{KeyTable, LAYERS, ROPE, STATE, VERSION};
use crate::suggest;
use crate::syntax::Ident;
use crate::text::MappedText;
use crate::yaml::{self, YamlEntry, YamlMap, YamlNode, YamlValue};

/// Sections that merge by name; any other key of a spec replaces.
const MERGED: [&str; 12] = [
    "assumes",
    "dims",
    "rope",
    "states",
    "functions",
    "layers",
    "ignore",
    "kept",
    "nextn",
    "image",
    "gguf",
    "quant",
];
/// Sections of maps that merge by key: each entry has the keys of one table.
const TABLES: [&str; 2] = ["rope", "states"];
/// Entries of sections that merge by name themselves.
const NESTED: [(&str, &str); 13] = [
    ("layers", "each"),
    ("nextn", "each"),
    ("gguf", "metadata"),
    ("gguf", "absent"),
    ("gguf", "weights"),
    ("gguf", "nextn"),
    ("gguf", "special"),
    ("gguf", "tensors"),
    ("gguf", "scalars"),
    ("gguf", "assumes"),
    ("gguf", "config"),
    ("quant", "keep"),
    ("quant", "together"),
];
/// Keys that describe one file and are never inherited.
const OWN: [&str; 9] =
    ["spec", "name", "matches", "inside", "encodes", "kinds", "defaults", "extends", "use"];

/// Findings of merging.
#[derive(Debug, Default)]
pub(crate) struct MergeFindings {
    pub(crate) list: Vec<Finding>,
    /// True if a parent could not be read, so that nobody knows what is inherited.
    pub(crate) orphan: bool,
}

impl MergeFindings {
    pub(crate) fn push(&mut self, finding: Finding) {
        self.list.push(finding);
    }

    /// Reports a removal of something that is not there.
    fn nothing_to_remove<'a>(
        &mut self,
        entry: &YamlEntry,
        known: impl Iterator<Item = &'a String>,
    ) {
        if !self.orphan {
            let name = entry.key.value();
            let message = format!("there is no inherited `{name}` to remove");
            let mut finding = Finding::error(&entry.value.at, message);
            let close = suggest::closest(name, known.map(String::as_str));
            finding.help = close.map(|close| format!("did you mean `{close}`?"));
            self.push(finding);
        }
    }
}

/// The most kinds that may share a program by `a|b`.
const MAX_ALTERNATIVES: usize = 32;

/// Lays `child` over `parent`. An entry that is `~` removes the parent's.
pub(crate) fn merge(mut parent: YamlMap, child: YamlMap, findings: &mut MergeFindings) -> YamlMap {
    for key in OWN {
        parent.shift_remove(key);
    }
    for (key, entry) in child {
        let inherited = parent.shift_remove(&key);
        if let YamlValue::Null = entry.value.value
            && !entry.value.at.text().is_empty()
        {
            if inherited.is_none() && !OWN.contains(&key.as_str()) {
                findings.nothing_to_remove(&entry, parent.keys());
            }
            continue;
        }
        let merged = match (inherited.map(|old| old.value.value), entry.value.value) {
            (Some(YamlValue::Map(old)), YamlValue::Map(new)) if MERGED.contains(&key.as_str()) => {
                YamlValue::Map(section(&key, old, new, findings))
            }
            (Some(old @ YamlValue::Map(_)), YamlValue::Null) if MERGED.contains(&key.as_str()) => {
                old
            }
            (None, YamlValue::Map(new)) if MERGED.contains(&key.as_str()) => {
                YamlValue::Map(section(&key, YamlMap::new(), new, findings))
            }
            (_, new) => new,
        };
        let value = YamlNode { value: merged, at: entry.value.at };
        parent.insert(key, YamlEntry { key: entry.key, value });
    }
    parent
}

/// Lays a section over the inherited one, in place where a name stays.
fn section(name: &str, mut old: YamlMap, new: YamlMap, findings: &mut MergeFindings) -> YamlMap {
    for entry in named(name, new, findings).into_values() {
        let key = entry_name(name, &entry.key);
        // `null` is a value where expressions stand; `~` is not.
        let null = matches!(entry.value.value, YamlValue::Null);
        let valued = matches!(name, "each" | "metadata" | "tensors" | "config");
        let removes = null && (entry.value.at.text() == "~" || !valued);
        if removes {
            if old.shift_remove(&key).is_none() {
                findings.nothing_to_remove(&entry, old.keys());
            }
            continue;
        }
        let table = TABLES.contains(&name);
        let nested = table || NESTED.contains(&(name, key.as_str()));
        let value = match (entry.value.value, old.get(&key).map(|old| &old.value.value)) {
            (YamlValue::Map(new), inherited) if nested => {
                let inherited = match inherited {
                    Some(YamlValue::Map(map)) => map.clone(),
                    _ => YamlMap::new(),
                };
                // The author's names are no names of sections.
                YamlValue::Map(section(if table { "" } else { &key }, inherited, new, findings))
            }
            (value, _) => value,
        };
        let value = YamlNode { value, at: entry.value.at };
        old.insert(key, YamlEntry { key: entry.key, value });
    }
    old
}

/// Returns the name of an entry: for a function, the key without its parameters.
fn entry_name(section: &str, key: &MappedText) -> String {
    let name = key.value();
    match section {
        "functions" => name.split('(').next().unwrap_or(name).trim().to_owned(),
        _ => name.to_owned(),
    }
}

/// Splits a section into one name per entry: `a|b` of layers is two, and two functions of one name are a
/// finding.
fn named(section: &str, map: YamlMap, findings: &mut MergeFindings) -> YamlMap {
    let mut result = YamlMap::new();
    for (key, entry) in map {
        let entries = if section == "layers" && key.contains('|') && !LAYERS.knows(&key) {
            alternatives(&entry, findings)
        } else {
            vec![entry]
        };
        for entry in entries {
            let name = entry_name(section, &entry.key);
            if result.contains_key(&name) {
                let message = format!("`{name}` stands twice");
                findings.push(Finding::error(&entry.key.span(), message));
            } else {
                result.insert(name, entry);
            }
        }
    }
    result
}

fn alternatives(entry: &YamlEntry, findings: &mut MergeFindings) -> Vec<YamlEntry> {
    let text = entry.key.value();
    // Each gets a copy of the program, and a file must not decide how many.
    if text.matches('|').count() >= MAX_ALTERNATIVES {
        let message = format!("more than {MAX_ALTERNATIVES} kinds share a program");
        findings.push(Finding::error(&entry.key.span(), message));
        return Vec::new();
    }
    let mut start = 0;
    let mut entries = Vec::new();
    for part in text.split('|') {
        let key = entry.key.slice(start..start + part.len()).trim();
        start += part.len() + 1;
        entries.push(YamlEntry { key, value: entry.value.clone() });
    }
    entries
}

/// Lays the sections of a library file over the tree's.
pub(crate) fn add_library(tree: &mut YamlMap, lib: &YamlMap, findings: &mut MergeFindings) {
    for name in ["functions", "quant", "gguf"] {
        let Some(entry) = lib.get(name) else { continue };
        let YamlValue::Map(new) = &entry.value.value else { continue };
        let old = match tree.get(name).map(|entry| &entry.value.value) {
            Some(YamlValue::Map(map)) => map.clone(),
            _ => YamlMap::new(),
        };
        let merged = section(name, old, new.clone(), findings);
        let value = YamlNode { value: YamlValue::Map(merged), at: entry.value.at.clone() };
        tree.insert(name.into(), YamlEntry { key: entry.key.clone(), value });
    }
}

/// Appends the weight rules of a library file to the tree's, which are tried first.
pub(crate) fn append_rules(tree: &mut YamlMap, lib: &YamlMap) {
    let Some(entry) = lib.get("weights") else { return };
    let YamlValue::List(new) = &entry.value.value else { return };
    match tree.get_mut("weights").map(|entry| &mut entry.value.value) {
        Some(YamlValue::List(rules)) => rules.extend(new.iter().cloned()),
        _ => drop(tree.insert("weights".into(), entry.clone())),
    }
}

/// Returns the words of a key such as `use:`, leaving wrong kinds to the decoder.
pub(crate) fn words(tree: &YamlMap, key: &str) -> Vec<Ident> {
    match tree.get(key).map(|entry| &entry.value.value) {
        Some(YamlValue::Plain(text) | YamlValue::Quoted(text)) => vec![text.ident()],
        Some(YamlValue::List(items)) => {
            items.iter().filter_map(|item| item.text().map(MappedText::ident)).collect()
        }
        _ => Vec::new(),
    }
}

/// Replaces the value at a dotted path: `states.conv.dtype=bf16`.
pub(crate) fn apply_set(tree: &mut YamlMap, set: &str, findings: &mut MergeFindings) {
    let path = format!("the option `set {set}`");
    let source: Arc<SourceText> = SourceText { path, text: set.to_owned() }.into();
    let Some(equals) = set.find('=') else {
        let message = "an override without a value";
        let finding = Finding::error(&span_in(&source, 0, set.len()), message);
        return findings.push(finding.help("write the option `set states.conv.dtype=f32`"));
    };
    let dims = set.starts_with("dims.");
    let value = if dims {
        // The `=` makes it a computed value.
        let at = span_in(&source, equals, set.len());
        Ok(YamlNode { value: YamlValue::Plain(MappedText::of(&at)), at })
    } else {
        yaml::read_value(&source, equals + 1)
    };
    let value = match value {
        Ok(value) => value,
        Err(errors) => return findings.list.extend(errors),
    };
    let path: Vec<&str> = set[..equals].split('.').map(str::trim).collect();
    let mut map = tree;
    let mut start = 0;
    for (depth, (part, &name)) in set[..equals].split('.').zip(&path).enumerate() {
        let end = start + part.len();
        let table = if depth == 2 { table(path[0]) } else { None };
        let Some(index) = map.get_index_of(name) else {
            if let Some(table) = table
                && end == equals
                && table.knows(name)
            {
                let key = MappedText::of(&span_in(&source, start, end)).trim();
                map.insert(name.to_owned(), YamlEntry { key, value });
                return;
            }
            let place = if depth == 0 { "the spec" } else { path[depth - 1] };
            let message = format!("{place} has no `{name}`");
            let mut finding = Finding::error(&span_in(&source, start, end), message);
            let mut known: Vec<&str> = map.keys().map(String::as_str).collect();
            if let Some(table) = table {
                table.names().for_each(|name| known.push(name));
            }
            finding.help = suggest::help(name, known);
            return findings.push(finding);
        };
        let removes = matches!(value.value, YamlValue::Null) && !value.at.text().is_empty();
        if removes && (depth == 0 || table.is_some()) && end == equals {
            map.shift_remove(name);
            return;
        }
        let entry = &mut map[index];
        if end == equals {
            let held = &mut entry.value.value;
            if let (YamlValue::Map(held), YamlValue::Map(new)) = (&mut *held, &value.value)
                && TABLES.contains(&path[0])
            {
                let name = if depth == 0 { path[0] } else { "" };
                *held = section(name, std::mem::take(held), new.clone(), findings);
                return;
            }
            if matches!(held, YamlValue::Map(_)) || (matches!(held, YamlValue::List(_)) && !dims) {
                let message = format!("`{}` is {}", &set[..equals], entry.value.kind());
                let finding = Finding::error(&span_in(&source, 0, equals), message);
                return findings.push(finding.label("only a single value can be set"));
            }
            if depth == 1 && path[0] == "functions" {
                let finding =
                    Finding::error(&span_in(&source, 0, equals), "a function cannot be set");
                return findings.push(finding.help("write a spec that `extends:` this one"));
            }
            entry.value = value;
            return;
        }
        let YamlValue::Map(next) = &mut entry.value.value else {
            let message = format!("`{}` has nothing inside it", &set[..end]);
            return findings.push(Finding::error(&span_in(&source, 0, end), message));
        };
        map = next;
        start = end + 1;
    }
}

/// Returns the span of the bytes `start..end` of a source.
fn span_in(source: &Arc<SourceText>, start: usize, end: usize) -> Span {
    Span { source: Arc::clone(source), start, end }
}

/// Returns the keys that entries of a section may have, where they merge by key.
fn table(section: &str) -> Option<&'static KeyTable> {
    match section {
        "rope" => Some(&ROPE),
        "states" => Some(&STATE),
        _ => None,
    }
}

/// Reports keys that a file of this kind does not have, and a wrong version.
pub(crate) fn check_file(tree: &YamlNode, table: &KeyTable, findings: &mut MergeFindings) {
    let file_start = Span { source: tree.at.source.clone(), start: 0, end: 0 };
    let Some(map) = tree.map() else {
        let message = format!("{} is a map of keys", table.what);
        let finding = Finding::error(&tree.at, message).label(format!("found {}", tree.kind()));
        return findings.push(finding);
    };
    match map.get("spec").map(|entry| &entry.value) {
        None if table.keys.iter().any(|key| key.name == "spec" && key.required) => {
            let message = format!("{} needs the key `spec`", table.what);
            findings.push(
                Finding::error(&file_start, message)
                    .help(format!("begin the file with `spec: {VERSION}`")),
            );
        }
        Some(node) if node.text().map(MappedText::value) != Some(VERSION) => {
            let version = node.text().map_or(node.kind(), MappedText::value);
            let message = format!("version `{version}` of the spec language is not known");
            findings.push(
                Finding::error(&node.at, message)
                    .help(format!("this program reads `spec: {VERSION}`")),
            );
        }
        _ => {}
    }
}
