//! Formats of tool calls against the parsers of vLLM and SGLang, on the outputs that `formats/make.py` made.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use onboard_chat::{Format, OutputEvent, ParserOptions};
use serde_json::Value;

/// Output of a parser: content, and calls as name and arguments.
#[derive(Debug, Clone, PartialEq)]
struct Reading {
    content: String,
    calls: Vec<(String, String)>,
}

/// Line of a file of golden outputs.
struct Golden {
    text: String,
    kind: String,
    why: Option<String>,
    /// Readings by engine; none where its parser raises.
    engines: BTreeMap<&'static str, Option<Reading>>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats")
}

fn options(whole_calls: bool) -> ParserOptions {
    let text = fs::read_to_string(folder().join("tools.json")).expect("tools");
    let tools = serde_json::from_str(&text).expect("tools");
    ParserOptions { tools, whole_calls, ..ParserOptions::default() }
}

fn golden(name: &str) -> Vec<Golden> {
    let text = fs::read_to_string(folder().join(format!("{name}.jsonl"))).expect("golden outputs");
    text.lines().map(line).collect()
}

fn line(text: &str) -> Golden {
    let line: Value = serde_json::from_str(text).expect("a line of JSON");
    let mut engines = BTreeMap::new();
    for (key, names) in [("b", &["vllm", "sglang"][..]), ("v", &["vllm"]), ("s", &["sglang"])] {
        if let Some(found) = line.get(key) {
            names.iter().for_each(|name| drop(engines.insert(*name, reading(found))));
        }
    }
    let text = |key: &str| line.get(key).and_then(Value::as_str).map(str::to_owned);
    Golden { text: text("t").expect("a text"), kind: text("k").expect("a kind"), why: text("why"), engines }
}

fn reading(value: &Value) -> Option<Reading> {
    let calls = value.get(1)?.as_array()?.iter();
    let text = |value: &Value, at: usize| value.get(at).and_then(Value::as_str).unwrap_or_default().to_owned();
    Some(Reading {
        content: text(value, 0),
        calls: calls.map(|call| (text(call, 0), text(call, 1))).collect(),
    })
}

/// Joins events: content, reasoning and calls.
fn joined(events: &[OutputEvent]) -> (Reading, String) {
    let mut found = Reading { content: String::new(), calls: Vec::new() };
    let mut reasoning = String::new();
    for event in events {
        match event {
            OutputEvent::Content(text) => found.content.push_str(text),
            OutputEvent::Reasoning(text) => reasoning.push_str(text),
            OutputEvent::Call { index, name } => {
                assert_eq!(*index, found.calls.len(), "calls are counted from 0");
                found.calls.push((name.clone(), String::new()));
            }
            OutputEvent::Arguments { index, piece } => found.calls[*index].1.push_str(piece),
        }
    }
    (found, reasoning)
}

fn parsed<'a>(
    format: &'static Format,
    options: &ParserOptions,
    pieces: impl IntoIterator<Item = &'a str>,
) -> (Reading, String) {
    let mut parser = format.parser(options);
    let mut events = Vec::new();
    let mut length = 0;
    for piece in pieces {
        length += piece.len();
        events.extend(parser.push(piece));
    }
    events.extend(parser.finish());
    let (found, reasoning) = joined(&events);
    let bytes = parser.bytes();
    assert_eq!(bytes.sum(), length, "each byte is used once: {bytes:?}");
    assert_eq!(bytes.content, found.content.len(), "{bytes:?}");
    assert_eq!(bytes.reasoning, reasoning.len(), "{bytes:?}");
    assert!(bytes.calls == 0 || !found.calls.is_empty(), "bytes of calls without a call: {bytes:?}");
    (found, reasoning)
}

/// JSON without layout: strings by their characters, integers as written, other numbers by their value.
fn canonical(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if c == '"' {
            let end = string_end(rest);
            let value: Result<String, _> = serde_json::from_str(&rest[..end]);
            match value {
                Ok(value) => write!(out, "{value:?}").expect("a string"),
                Err(_) => out.push_str(&rest[..end]),
            }
            rest = &rest[end..];
        } else if c == '-' || c.is_ascii_digit() {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c)).unwrap_or(rest.len());
            let number = &rest[..end];
            match number.parse::<f64>() {
                Ok(value) if number.contains(['.', 'e', 'E']) => write!(out, "{value}").expect("a string"),
                _ => out.push_str(number),
            }
            rest = &rest[end..];
        } else {
            if !c.is_whitespace() {
                out.push(c);
            }
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Text without white space, which engines strip at different places.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn same_calls(a: &Reading, b: &Reading) -> bool {
    a.calls.len() == b.calls.len()
        && a.calls.iter().zip(&b.calls).all(|(a, b)| a.0 == b.0 && canonical(&a.1) == canonical(&b.1))
}

fn same(a: &Reading, b: &Reading) -> bool {
    same_calls(a, b) && squeezed(&a.content) == squeezed(&b.content)
}

/// Reading of one output beside those of the engines.
enum Verdict {
    /// Engines with the same reading.
    Same(Vec<&'static str>),
    /// Reason of a difference from all of them.
    Differs(&'static str),
}

/// Reasons of differences, with the relation to an engine's reading that each one claims.
const REASONS: [(&str, &str, Relation); 8] = [
    ("text_kept", "text beside the calls that the engine drops", text_kept),
    ("marks_dropped", "marks that the engine leaves in the text", marks_dropped),
    ("typed", "values that the engine returns as strings: numbers, `null`, `true`", typed),
    ("values_kept", "arguments that the engine drops", values_kept),
    ("call_kept", "calls that the engine drops", call_kept),
    ("malformed_is_text", "a malformed call, which the engine repairs or drops", malformed_is_text),
    ("repaired", "a damaged call of which the engine makes other arguments", repaired),
    ("raises", "the engine's parser raises", |_, _, _| false),
];

type Relation = fn(&Golden, &Reading, &Reading) -> bool;

fn text_kept(_: &Golden, ours: &Reading, theirs: &Reading) -> bool {
    same_calls(ours, theirs) && within(&theirs.content, &ours.content)
}

fn marks_dropped(_: &Golden, ours: &Reading, theirs: &Reading) -> bool {
    same_calls(ours, theirs) && within(&ours.content, &theirs.content)
}

/// True if the characters of `part` stand in `whole` in the same order, but for white space.
fn within(part: &str, whole: &str) -> bool {
    let mut rest = whole.chars();
    part.chars().filter(|c| !c.is_whitespace()).all(|c| rest.any(|other| other == c))
}

fn typed(_: &Golden, ours: &Reading, theirs: &Reading) -> bool {
    let plain = |text: &str| canonical(text).replace(['"', '\\'], "");
    let number = |text: &str| text.parse::<f64>().map_or_else(|_| text.to_owned(), |value| format!("{value:?}"));
    let loose = |text: &str| plain(text).split(['{', '}', '[', ']', ',', ':']).map(number).collect::<Vec<_>>();
    ours.calls.len() == theirs.calls.len()
        && ours.calls.iter().zip(&theirs.calls).all(|(a, b)| a.0 == b.0 && loose(&a.1) == loose(&b.1))
        && within(&theirs.content, &ours.content)
}

fn values_kept(_: &Golden, ours: &Reading, theirs: &Reading) -> bool {
    let object = |text: &str| serde_json::from_str::<serde_json::Map<String, Value>>(text).unwrap_or_default();
    ours.calls.len() == theirs.calls.len()
        && within(&theirs.content, &ours.content)
        && ours.calls.iter().zip(&theirs.calls).all(|(a, b)| {
            a.0 == b.0 && object(&b.1).len() <= object(&a.1).len()
        })
        && ours.calls.iter().zip(&theirs.calls).any(|(a, b)| object(&b.1).len() < object(&a.1).len())
}

fn call_kept(_: &Golden, ours: &Reading, theirs: &Reading) -> bool {
    ours.calls.len() > theirs.calls.len() && subset(&theirs.calls, &ours.calls)
}

fn malformed_is_text(case: &Golden, ours: &Reading, theirs: &Reading) -> bool {
    is_damaged(case) && subset(&ours.calls, &theirs.calls) && ours.content.len() >= theirs.content.trim().len()
}

fn repaired(case: &Golden, ours: &Reading, theirs: &Reading) -> bool {
    is_damaged(case) && !ours.calls.is_empty() && ours.calls.len() == theirs.calls.len()
}

/// True if calls are among others in the same order.
fn subset(part: &[(String, String)], whole: &[(String, String)]) -> bool {
    let mut rest = whole.iter();
    part.iter().all(|call| rest.any(|other| call.0 == other.0 && canonical(&call.1) == canonical(&other.1)))
}

fn is_damaged(case: &Golden) -> bool {
    ["cut", "left_out", "put_in", "doubled"].contains(&case.kind.as_str())
}

fn verdict(case: &Golden, ours: &Reading) -> Option<Verdict> {
    let readings = || case.engines.iter().filter_map(|(name, reading)| Some((*name, reading.as_ref()?)));
    let with: Vec<_> = readings().filter(|(_, theirs)| same(ours, theirs)).map(|(name, _)| name).collect();
    if !with.is_empty() {
        return Some(Verdict::Same(with));
    }
    if readings().next().is_none() {
        return Some(Verdict::Differs("raises"));
    }
    let reason = REASONS.iter().find(|(_, _, holds)| readings().any(|(_, theirs)| holds(case, ours, theirs)))?;
    Some(Verdict::Differs(reason.0))
}

#[test]
fn show() {
    let Ok(wanted) = env::var("SHOW") else { return };
    let limit: usize = env::var("LIMIT").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let reason = env::var("REASON").unwrap_or_default();
    for format in Format::all() {
        let name = format.name();
        if !folder().join(format!("{name}.jsonl")).exists() || wanted != "all" && wanted != name {
            continue;
        }
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let mut shown = 0;
        for case in golden(name) {
            let (ours, _) = parsed(format, &options(true), [case.text.as_str()]);
            let key = match verdict(&case, &ours) {
                Some(Verdict::Same(with)) => with.join("+"),
                Some(Verdict::Differs(why)) => why.to_owned(),
                None => "?".to_owned(),
            };
            let key = format!("{} {key}", if is_damaged(&case) { "damaged" } else { "well" });
            if key.ends_with(&reason) && !reason.is_empty() && shown < limit {
                shown += 1;
                println!("--- {} {:?}\nours {:?}", case.kind, case.text, ours);
                for (name, reading) in &case.engines {
                    println!("{name} {reading:?}");
                }
            }
            *counts.entry(key).or_default() += 1;
        }
        println!("== {name} {counts:?}");
    }
}
