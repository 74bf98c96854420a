//! Formats of tool calls against the parsers of vLLM and SGLang, on the outputs that `formats/make.py` made.

#[path = "formats/damaged.rs"]
mod damaged;
#[path = "formats/reasons.rs"]
mod reasons;

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use fs_err as fs;
use onboard_chat::{Format, OutputEvent, ParserOptions, ReasoningMode};
use serde_json::Value;

use reasons::{REASONS, Verdict, verdict, within};

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
    ParserOptions { tools: tools().clone(), whole_calls, ..ParserOptions::default() }
}

fn golden(name: &str) -> Vec<Golden> {
    let text = fs::read_to_string(folder().join(format!("{name}.jsonl"))).expect("golden outputs");
    text.lines().map(line).collect()
}

fn line(text: &str) -> Golden {
    let line: Value = serde_json::from_str(text).expect("a line of JSON");
    let mut engines = BTreeMap::new();
    for (key, names) in [("b", &["vllm", "sglang"][..]), ("v", &["vllm"]), ("s", &["sglang"])] {
        if let Some(value) = line.get(key) {
            for name in names {
                engines.insert(*name, reading(value));
            }
        }
    }
    Golden {
        text: text_of(&line, "t").expect("a text"),
        kind: text_of(&line, "k").expect("a kind"),
        why: text_of(&line, "why"),
        engines,
    }
}

fn text_of(line: &Value, key: &str) -> Option<String> {
    line.get(key).and_then(Value::as_str).map(str::to_owned)
}

fn reading(value: &Value) -> Option<Reading> {
    let calls = value.get(1)?.as_array()?.iter();
    Some(Reading {
        content: text_at(value, 0),
        calls: calls.map(|call| (text_at(call, 0), text_at(call, 1))).collect(),
    })
}

fn text_at(value: &Value, at: usize) -> String {
    value.get(at).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Joins events: content, reasoning and calls.
fn joined(events: &[OutputEvent]) -> (Reading, String) {
    let mut reading = Reading { content: String::new(), calls: Vec::new() };
    let mut reasoning = String::new();
    for event in events {
        match event {
            OutputEvent::Content(text) => reading.content.push_str(text),
            OutputEvent::Reasoning(text) => reasoning.push_str(text),
            OutputEvent::Call { index, name } => {
                assert_eq!(*index, reading.calls.len(), "calls are counted from 0");
                reading.calls.push((name.clone(), String::new()));
            }
            OutputEvent::Arguments { index, piece } => reading.calls[*index].1.push_str(piece),
        }
    }
    (reading, reasoning)
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
    let (reading, reasoning) = joined(&events);
    let bytes = parser.bytes();
    assert_eq!(bytes.sum(), length, "each byte is used once: {bytes:?}");
    assert_eq!(bytes.content, reading.content.len(), "{bytes:?}");
    assert_eq!(bytes.reasoning, reasoning.len(), "{bytes:?}");
    assert!(
        bytes.calls == 0 || !reading.calls.is_empty(),
        "bytes of calls without a call: {bytes:?}"
    );
    (reading, reasoning)
}

/// JSON without layout: strings by their characters, integers as written, other numbers by their value.
fn canonical(text: &str) -> String {
    let mut out = String::new();
    let mut remaining = text;
    while let Some(c) = remaining.chars().next() {
        if c == '"' {
            let end = string_end(remaining);
            let value: Result<String, _> = serde_json::from_str(&remaining[..end]);
            match value {
                Ok(value) => write!(out, "{value:?}").expect("a string"),
                Err(_) => out.push_str(&remaining[..end]),
            }
            remaining = &remaining[end..];
        } else if c == '-' || c.is_ascii_digit() {
            let end = remaining
                .find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c))
                .unwrap_or(remaining.len());
            let number = &remaining[..end];
            match number.parse::<f64>() {
                Ok(value) if number.contains(['.', 'e', 'E']) => {
                    write!(out, "{value}").expect("a string");
                }
                _ => out.push_str(number),
            }
            remaining = &remaining[end..];
        } else {
            if !c.is_whitespace() {
                out.push(c);
            }
            remaining = &remaining[c.len_utf8()..];
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
        && a.calls
            .iter()
            .zip(&b.calls)
            .all(|(a, b)| a.0 == b.0 && canonical(&a.1) == canonical(&b.1))
}

fn same(a: &Reading, b: &Reading) -> bool {
    same_calls(a, b) && squeezed(&a.content) == squeezed(&b.content)
}

/// Returns the golden outputs of a format, or none for a format of reasoning alone.
fn outputs() -> impl Iterator<Item = (&'static Format, Vec<Golden>)> {
    Format::all()
        .iter()
        .filter(|format| format.has_calls() && !format.is_fallback())
        .map(|format| (format, golden(format.name())))
}

/// `UPDATE=1` writes the reasons into the golden outputs, and the table into the page.
#[test]
fn outputs_are_read_as_the_engines_read_them_or_for_a_named_reason() {
    let update = env::var_os("UPDATE").is_some();
    let mut table =
        String::from("| format | outputs | as both | as vLLM alone | as SGLang alone |");
    for (name, _, _) in REASONS {
        write!(table, " {name} |").expect("a string");
    }
    writeln!(table, "\n|---|{}", "---:|".repeat(4 + REASONS.len())).expect("a string");
    let mut wrong = Vec::new();
    for (format, cases) in outputs() {
        let name = format.name();
        assert!(cases.len() >= 100, "{name}: {} outputs", cases.len());
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut reasons = Vec::new();
        for case in &cases {
            let (ours, _) = parsed(format, &options(true), [case.text.as_str()]);
            for (tool, arguments) in &ours.calls {
                let object: Result<serde_json::Map<String, Value>, _> =
                    serde_json::from_str(arguments);
                assert!(object.is_ok(), "{name}: arguments of {tool} are no object: {arguments}");
            }
            let (column, why) = match verdict(case, &ours) {
                Some(Verdict::Same(with)) if case.engines.len() == 1 || with.len() == 2 => {
                    ("both", None)
                }
                Some(Verdict::Same(with)) => (with[0], None),
                Some(Verdict::Differs(why)) => (why, Some(why)),
                None => ("?", Some("?")),
            };
            *counts.entry(column).or_default() += 1;
            if why != case.why.as_deref() && !update || why == Some("?") {
                let text = &case.text;
                wrong.push(format!(
                    "{name}: {:?} instead of {why:?}\n{text:?}\n{ours:?}\n{:?}",
                    case.why, case.engines
                ));
            }
            reasons.push(why);
        }
        write!(table, "| `{name}` | {} |", cases.len()).expect("a string");
        for column in ["both", "vllm", "sglang"].into_iter().chain(REASONS.map(|(name, _, _)| name))
        {
            let count = counts.get(column).map_or_else(String::new, usize::to_string);
            write!(table, " {count} |").expect("a string");
        }
        table.push('\n');
        if update {
            write_reasons(name, &reasons);
        }
    }
    assert!(wrong.is_empty(), "{} outputs\n{}", wrong.len(), wrong.join("\n\n"));
    let mut list = String::new();
    for (name, about, _) in REASONS {
        writeln!(list, "* `{name}`: {about}.").expect("a string");
    }
    section("counts", &table, update);
    section("reasons", &list, update);
}

/// Compares a section of the page with a text, or writes it.
fn section(name: &str, text: &str, update: bool) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tool-calls.md");
    let page = fs::read_to_string(&path).expect("the page");
    let open = format!("<!-- {name} -->\n");
    let close = format!("<!-- end of {name} -->");
    let start = page.find(&open).expect("the section") + open.len();
    let end = start + page[start..].find(&close).expect("the end of the section");
    if update {
        fs::write(&path, format!("{}{text}{}", &page[..start], &page[end..])).expect("written");
    } else {
        assert!(
            page[start..end] == *text,
            "`UPDATE=1 cargo test -p onboard-chat` renews docs/tool-calls.md"
        );
    }
}

fn write_reasons(name: &str, reasons: &[Option<&str>]) {
    let path = folder().join(format!("{name}.jsonl"));
    let text = fs::read_to_string(&path).expect("golden outputs");
    let mut out = String::new();
    for (line, why) in text.lines().zip(reasons) {
        let body = line.strip_suffix('}').expect("an object");
        let body = body.find(",\"why\":").map_or(body, |at| &body[..at]);
        match why {
            Some(why) => writeln!(out, "{body},\"why\":\"{why}\"}}").expect("a string"),
            None => writeln!(out, "{body}}}").expect("a string"),
        }
    }
    fs::write(path, out).expect("written");
}

/// Two pieces with a cut at each place, single characters, and single bytes, of all outputs.
#[test]
fn cuts_change_nothing() {
    let all: Vec<_> = outputs().collect();
    let jobs: Vec<_> = all
        .iter()
        .flat_map(|format| [true, false].map(|whole_calls| (format, whole_calls)))
        .collect();
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(((format, cases), whole_calls)) =
                    jobs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    cuts_of_outputs(format, cases, &options(*whole_calls));
                }
            });
        }
    });
}

fn cuts_of_outputs(format: &'static Format, cases: &[Golden], options: &ParserOptions) {
    for case in cases {
        let text = case.text.as_str();
        let whole_output = parsed(format, options, [text]);
        let chars =
            parsed(format, options, char_ranges(text).map(|(start, end)| &text[start..end]));
        assert_eq!(whole_output, chars, "{} by characters: {text:?}", format.name());
        for (cut, _) in char_ranges(text) {
            let halves = parsed(format, options, [&text[..cut], &text[cut..]]);
            assert_eq!(whole_output, halves, "{} cut at {cut}: {text:?}", format.name());
        }
        let mut parser = format.parser(options);
        let mut events: Vec<_> = text.bytes().flat_map(|byte| parser.push_bytes(&[byte])).collect();
        events.extend(parser.finish());
        assert_eq!(whole_output, joined(&events), "{} by bytes: {text:?}", format.name());
    }
}

fn char_ranges(text: &str) -> impl Iterator<Item = (usize, usize)> {
    text.char_indices().map(|(at, c)| (at, at + c.len_utf8()))
}

/// Pieces of arguments come before the call ends, where the format has the name first.
#[test]
fn arguments_come_in_pieces() {
    let format = Format::find("<tool_call>{{ call | tojson }}</tool_call>").expect("a format");
    let mut parser = format.parser(&options(false));
    assert_eq!(parser.push("<tool_call>{\"name\": \"now\""), [call_event("now")]);
    assert_eq!(parser.push(", \"arguments\": {\"a\": 12"), [arguments_event("{\"a\": 12")]);
    assert_eq!(parser.push("34}}</tool"), [arguments_event("34}")]);
    assert_eq!(parser.push("_call>"), []);
    assert_eq!(parser.finish(), []);
}

fn arguments_event(piece: &str) -> OutputEvent {
    OutputEvent::Arguments { index: 0, piece: piece.to_owned() }
}

fn call_event(name: &str) -> OutputEvent {
    OutputEvent::Call { index: 0, name: name.to_owned() }
}

/// Content and names of the calls of an output, in the format that the marks of a template show.
fn read(template: &str, options: &ParserOptions, text: &str) -> (String, Vec<String>) {
    let format = Format::find(template).expect("a format");
    let (reading, _) = parsed(format, options, [text]);
    (reading.content, reading.calls.into_iter().map(|(name, _)| name).collect())
}

const JSON_CALLS: &str = "<tool_call>{{ call | tojson }}</tool_call>";

#[test]
fn the_longest_mark_counts() {
    // `<|start|>assistant` alone is a mark too.
    let text = "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>";
    let output = read("<|channel|><|start|><|message|>", &options(true), text);
    assert_eq!(output, (String::new(), vec!["now".to_owned()]));
}

#[test]
fn a_call_behind_a_malformed_one_is_found() {
    let first = "<tool_call>{\"name\": \"run_code\"}";
    let text = format!("{first}<tool_call>{{\"name\": \"now\", \"arguments\": {{}}}}</tool_call>");
    assert_eq!(read(JSON_CALLS, &options(true), &text), (first.to_owned(), vec!["now".to_owned()]));
}

#[test]
fn a_call_needs_a_name() {
    let template = "<tool_call><function=f><parameter=p></parameter></function></tool_call>";
    let text = "<tool_call><function=></function></tool_call>";
    assert_eq!(read(template, &options(true), text), (text.to_owned(), Vec::new()));
}

/// Text beyond the limit is not kept back until the end of the output.
#[test]
fn a_call_of_a_given_tool_needs_no_section() {
    const TEMPLATE: &str = "<tool_call><function=<parameter=";
    let known = tagged_call("get_weather");
    for whole_calls in [true, false] {
        let options = options(whole_calls);
        for (text, content, calls) in [
            (known.clone(), "", 1),
            (format!("Sure.\n{known}\n</tool_call>"), "Sure.", 1),
            (format!("{known}\n<tool_call>\n{known}\n</tool_call>\n{known}"), "", 3),
            (format!("{known}\n{known} Done."), " Done.", 2),
        ] {
            let (answer, read) = read(TEMPLATE, &options, &text);
            assert_eq!((answer.as_str(), read.len()), (content, calls), "{text}");
            let format = Format::find(TEMPLATE).unwrap();
            let by_characters = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]);
            assert_eq!(
                parsed(format, &options, by_characters),
                parsed(format, &options, [text.as_str()])
            );
        }
        // Text about calls stays text, as does a call in the reasoning.
        for text in [tagged_call("other"), "Write <function=get_weather> then.".to_owned()] {
            let (answer, calls) = read(TEMPLATE, &options, &text);
            if whole_calls || !calls.is_empty() {
                assert_eq!((answer, calls.len()), (text, 0));
            }
        }
        let (_, calls) = read(TEMPLATE, &options, &format!("<think>{known}</think>No."));
        assert!(calls.is_empty());
    }
    let none = ParserOptions { tools: BTreeMap::new(), ..options(true) };
    assert_eq!(read(TEMPLATE, &none, &known), (known.clone(), Vec::new()));
}

fn tagged_call(name: &str) -> String {
    format!("<function={name}>\n<parameter=city>\nParis\n</parameter>\n</function>")
}

#[test]
fn a_call_without_end_is_text() {
    let format = Format::find(JSON_CALLS).expect("a format");
    for whole_calls in [true, false] {
        let options = ParserOptions { max_call: 1000, ..options(whole_calls) };
        let mut parser = format.parser(&options);
        let text = format!("<tool_call>{{\"{}", "x".repeat(5000));
        let (reading, _) = joined(&parser.push(&text));
        assert_eq!(
            (reading.content == text, reading.calls.len()),
            (true, 0),
            "whole calls: {whole_calls}"
        );
    }
}

#[test]
fn reasoning_is_read_as_the_engines_read_it() {
    let text = fs::read_to_string(folder().join("reasoning.jsonl")).expect("golden outputs");
    let update = env::var_os("UPDATE").is_some();
    let mut seen = BTreeMap::new();
    let mut reasons = Vec::new();
    let mut wrong = Vec::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect("a line of JSON");
        let name = line["f"].as_str().expect("a format");
        let text = line["t"].as_str().expect("a text");
        let format = Format::named(name).expect("a format");
        let inside = line["i"] == true;
        let reasoning = if inside { ReasoningMode::Inside } else { ReasoningMode::Marked };
        let options = ParserOptions { reasoning, ..options(true) };
        let (ours, thoughts) = parsed(format, &options, [text]);
        let chars: Vec<String> = text.chars().map(String::from).collect();
        let cut = parsed(format, &options, chars.iter().map(String::as_str));
        assert_eq!(cut, (ours.clone(), thoughts.clone()), "{name} by characters: {text:?}");
        let theirs = ["0", "1"].map(|at| {
            line["r"][at.parse::<usize>().expect("a number")].as_str().unwrap_or_default()
        });
        *seen.entry(name.to_owned()).or_insert(0) += 1;
        let differs = squeezed(&thoughts) != squeezed(theirs[0])
            || squeezed(&ours.content) != squeezed(theirs[1]);
        // The engine drops text without marks, and the start of a mark at the end of the text.
        let why = match differs {
            true if theirs[0].is_empty() && theirs[1].is_empty() => Some("text_kept"),
            true if within(theirs[0], &thoughts) && ours.content.starts_with("<|") => {
                Some("cut_mark")
            }
            true if thoughts.is_empty() && ours.content == theirs[0] => Some("cut_mark"),
            // The engine takes reasoning without its closing mark for content.
            true if ours.content.is_empty()
                && theirs[0].is_empty()
                && squeezed(&thoughts) == squeezed(theirs[1]) =>
            {
                Some("unclosed")
            }
            true => Some("?"),
            false => None,
        };
        reasons.push(why);
        if why == Some("?") || !update && why != line.get("why").and_then(Value::as_str) {
            wrong.push(format!(
                "{name} inside {inside} {text:?}\nours   {thoughts:?} {:?}\ntheirs {theirs:?}",
                ours.content
            ));
        }
    }
    if update {
        write_reasons("reasoning", &reasons);
    }
    assert!(wrong.is_empty(), "{} of {seen:?}\n{}", wrong.len(), wrong.join("\n"));
    assert!(seen.len() >= 9 && seen.values().all(|count| *count >= 20), "{seen:?}");
}

fn tools() -> &'static BTreeMap<String, Value> {
    static TOOLS: OnceLock<BTreeMap<String, Value>> = OnceLock::new();
    TOOLS.get_or_init(|| {
        let text = fs::read_to_string(folder().join("tools.json")).expect("tools");
        serde_json::from_str(&text).expect("tools")
    })
}
