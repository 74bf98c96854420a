//! Forced calls: outputs of each format fit the tools, and tools that cannot be called are refused.

use serde_json::{Value, json};

use super::values::{fits, json_of};
use super::{compiler, vocabulary, written};
use crate::constraint::{CallableTool, OutputRule, ReasoningPrefix};
use crate::{Format, OutputEvent, ParserOptions};

fn tools() -> Vec<CallableTool> {
    vec![
        callable("now", Value::Null),
        callable(
            "get_weather",
            json!({
                "type": "object",
                "properties": {
                    "city": { "type": "string", "description": "a city" },
                    "days": { "type": "integer", "minimum": 1, "maximum": 14 },
                    "unit": { "enum": ["celsius", "kelvin"] },
                    "precise": { "type": "boolean" },
                    "note": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
                    "mode": { "anyOf": [{ "enum": ["a", "b"] }, { "type": "null" }] },
                    "code": { "type": "string", "minLength": 2, "maxLength": 5 },
                    "place": { "$ref": "#/$defs/Place" },
                },
                "required": ["city", "unit"],
                "$defs": { "Place": {
                    "type": "object",
                    "properties": {
                        "lat": { "type": "number" },
                        "tags": { "type": "array", "items": { "type": "string" }, "maxItems": 2 },
                        "near": { "anyOf": [{ "$ref": "#/$defs/Place" }, { "type": "null" }] },
                    },
                    "required": ["lat"],
                    "additionalProperties": false,
                } },
            }),
        ),
        callable(
            "text-or_number",
            json!({ "type": "object", "properties": { "x": { "type": ["string", "integer"] } }, "required": ["x"] }),
        ),
        callable(
            "nest",
            json!({
                "type": "object",
                "properties": {
                    "names": { "type": "array", "items": { "type": "string", "maxLength": 40 }, "minItems": 1 },
                    "map": {
                        "type": "object",
                        "properties": { "a": { "type": "string" }, "b": { "type": ["string", "null"] } },
                        "required": ["a"],
                        "additionalProperties": { "type": "string" },
                    },
                },
                "required": ["names", "map"],
            }),
        ),
    ]
}

fn callable(name: &str, parameters: Value) -> CallableTool {
    CallableTool { name: name.to_owned(), parameters }
}

/// Tools with a schema that pairs and objects with bare keys cannot write.
fn hard_tools() -> Vec<CallableTool> {
    let parameters = json!({
        "type": "object",
        "properties": { "iata": { "type": "string", "pattern": "^AB[0-9]$" } },
        "required": ["iata"],
    });
    vec![CallableTool { name: "fly".to_owned(), parameters }]
}

/// Reads calls, and fails unless they are all of the output and fit the tools.
fn read(text: &str, format: &'static Format, tools: &[CallableTool], whole_calls: bool) -> usize {
    let schemas = tools.iter().map(|tool| (tool.name.clone(), tool.parameters.clone()));
    let options =
        ParserOptions { tools: schemas.collect(), whole_calls, ..ParserOptions::default() };
    let mut parser = format.parser(&options);
    let mut events = parser.push(text);
    events.extend(parser.finish());
    let mut calls: Vec<(String, String)> = Vec::new();
    for event in events {
        match event {
            OutputEvent::Call { name, .. } => calls.push((name, String::new())),
            OutputEvent::Arguments { index, piece } => calls[index].1.push_str(&piece),
            OutputEvent::Content(more) => {
                panic!("{}: content {more:?} in {text:?}", format.name())
            }
            OutputEvent::Reasoning(_) => {}
        }
    }
    for (name, arguments) in &calls {
        let place = format!("{}: {name}({arguments}) in {text:?}", format.name());
        let value = json_of(arguments).unwrap_or_else(|| panic!("{place}"));
        let tool =
            tools.iter().find(|tool| tool.name == *name).unwrap_or_else(|| panic!("{place}"));
        let mut schema = tool.parameters.clone();
        if schema.is_null() {
            assert_eq!(value, json!({}), "{place}");
            continue;
        }
        schema["additionalProperties"] = json!(false);
        assert!(fits(&value, &schema, &schema), "{place}");
    }
    calls.len()
}

#[test]
fn forced_calls_of_each_format_are_read_back() {
    let mut formats = 0;
    for format in Format::all().iter().filter(|format| format.has_calls()) {
        let mut marks: Vec<&str> = format.marks().collect();
        marks.sort_unstable();
        marks.dedup();
        let mut ended = 0;
        let mut largest = 0;
        for special in [false, true] {
            let vocabulary = vocabulary(&marks, special);
            let compiler = compiler(&vocabulary);
            for (tools, native) in [(tools(), true), (hard_tools(), false)] {
                for several in [true, false] {
                    let forced = compiler.calls(Some(format), &tools, several).unwrap();
                    // Nested tags are written in the format `json`.
                    if native && format.tags.is_empty() {
                        assert!(std::ptr::eq(forced.format, format), "{}", format.name());
                    }
                    let rule = OutputRule::Calls(forced.clone());
                    let absent = ReasoningPrefix::Absent;
                    let begun =
                        compiler.compile(&rule, absent, Some(format)).unwrap_or_else(|why| {
                            panic!("{}: {why}\n{}", format.name(), forced.grammar)
                        });
                    for seed in 0..12 {
                        let Some(text) = written(begun.clone(), &vocabulary, seed) else {
                            continue;
                        };
                        ended += 1;
                        let count = read(&text, forced.format, &tools, true);
                        assert_eq!(read(&text, forced.format, &tools, false), count);
                        assert!(count >= 1, "{}: {text:?}", format.name());
                        assert!(several || count == 1, "{}: {text:?}", format.name());
                        largest = largest.max(count);
                    }
                }
            }
        }
        assert!(ended > 60, "{}: {ended} outputs ended", format.name());
        assert!(largest > 1, "{}: one call at most", format.name());
        formats += 1;
    }
    assert!(formats > 40, "{formats} formats");
}

#[test]
fn tools_that_cannot_be_called_are_named() {
    let compiler = compiler(&vocabulary(&[], false));
    for (tools, words) in [
        ([callable("", Value::Null)], "name has to be"),
        ([callable("a b", Value::Null)], "`a b`"),
        ([callable("f", json!({ "type": "array" }))], "expected \"object\""),
        ([callable("f", json!(3))], "no schema"),
    ] {
        let error = compiler.calls(None, &tools, true).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    // References of a tool stay in its own schema.
    let away = [callable("f", json!({ "properties": { "a": { "$ref": "http://x" } } }))];
    assert!(compiler.calls(None, &away, true).is_err());
}
