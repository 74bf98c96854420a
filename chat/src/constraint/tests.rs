use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::format::{Hole, PatternStep};
use crate::{OutputEvent, ParserOptions};

mod schemas;

/// Seeded numbers.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (((z ^ (z >> 27)) >> 20) % limit as u64) as usize
    }
}

/// Token that ends outputs.
const END: u32 = 0;

/// A vocabulary of an end, of bytes, and of these marks, which are special tokens or plain ones.
fn vocabulary(marks: &[&str], special: bool) -> Vec<TokenBytes> {
    let mut all = vec![TokenBytes { bytes: b"<end>".to_vec(), special: true }];
    all.extend((1..=u8::MAX).map(|byte| TokenBytes { bytes: vec![byte], special: false }));
    for mark in marks {
        all.push(TokenBytes { bytes: mark.as_bytes().to_vec(), special });
    }
    all
}

fn compiler(vocabulary: &[TokenBytes]) -> ConstraintCompiler {
    ConstraintCompiler::new(vocabulary, vocabulary.len() + 3, &[END]).unwrap()
}

/// Writes an output of random tokens; none if it does not end.
fn written(
    mut constraint: OutputConstraint,
    vocabulary: &[TokenBytes],
    seed: u64,
) -> Option<String> {
    let mut draw = Draw(seed);
    let mut bytes = Vec::new();
    for _ in 0..4_000 {
        if constraint.is_complete() {
            return String::from_utf8(bytes).ok();
        }
        let mut row = vec![0.0_f32; vocabulary.len() + 3];
        constraint.restrict(&mut row, &[END]);
        let mut allowed = Vec::new();
        for (id, logit) in row.iter().enumerate() {
            // Marks and quotes are likely, so that texts end.
            let weight = match vocabulary.get(id) {
                Some(token) if token.bytes.len() > 1 || token.bytes == b"\"" => 40,
                Some(token) if token.bytes[0].is_ascii() => 4,
                _ => 1,
            };
            allowed.extend(std::iter::repeat_n(id, if *logit == 0.0 { weight } else { 0 }));
        }
        assert!(!allowed.is_empty());
        let id = allowed[draw.below(allowed.len())] as u32;
        if id == END {
            assert!(constraint.accepts_end());
            return String::from_utf8(bytes).ok();
        }
        bytes.extend_from_slice(&vocabulary[id as usize].bytes);
        constraint.accept(id).unwrap();
    }
    None
}

/// Reads JSON in which numbers have any exponent: those of serde_json are f64, and outputs may have `5E745`.
fn json_of(text: &str) -> Option<Value> {
    let mut plain = String::new();
    let mut inside = false;
    let mut escaped = false;
    let mut exponent = false;
    for c in text.chars() {
        if inside {
            (inside, escaped) = (c != '"' || escaped, c == '\\' && !escaped);
        } else if exponent && (c.is_ascii_digit() || matches!(c, '+' | '-')) {
            continue;
        } else if matches!(c, 'e' | 'E') && plain.ends_with(|c: char| c.is_ascii_digit()) {
            exponent = true;
            continue;
        } else {
            (inside, exponent) = (c == '"', false);
        }
        plain.push(c);
    }
    serde_json::from_str(&plain).ok()
}

/// True if a value fits a schema. Only the keywords of the tests are known.
fn fits(value: &Value, schema: &Value, root: &Value) -> bool {
    let Value::Object(map) = schema else { return schema != &json!(false) };
    map.iter().all(|(key, rule)| match key.as_str() {
        "$ref" => {
            let target = root.pointer(rule.as_str().unwrap().strip_prefix('#').unwrap()).unwrap();
            fits(value, target, root)
        }
        "anyOf" => rule.as_array().unwrap().iter().any(|schema| fits(value, schema, root)),
        "enum" => rule.as_array().unwrap().contains(value),
        "const" => rule == value,
        "type" => match rule {
            Value::String(kind) => has_type(value, kind),
            kinds => {
                kinds.as_array().unwrap().iter().any(|kind| has_type(value, kind.as_str().unwrap()))
            }
        },
        "required" => {
            rule.as_array().unwrap().iter().all(|key| value.get(key.as_str().unwrap()).is_some())
        }
        "properties" => rule
            .as_object()
            .unwrap()
            .iter()
            .all(|(key, schema)| value.get(key).is_none_or(|value| fits(value, schema, root))),
        "additionalProperties" => value.as_object().is_none_or(|object| {
            object.iter().all(|(key, value)| {
                map.get("properties").is_some_and(|named| named.get(key).is_some())
                    || fits(value, rule, root)
            })
        }),
        "items" => {
            value.as_array().is_none_or(|list| list.iter().all(|item| fits(item, rule, root)))
        }
        "minItems" => {
            value.as_array().is_none_or(|list| list.len() as u64 >= rule.as_u64().unwrap())
        }
        "maxItems" => {
            value.as_array().is_none_or(|list| list.len() as u64 <= rule.as_u64().unwrap())
        }
        "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap()),
        "minLength" => {
            value.as_str().is_none_or(|text| text.chars().count() as u64 >= rule.as_u64().unwrap())
        }
        "maxLength" => {
            value.as_str().is_none_or(|text| text.chars().count() as u64 <= rule.as_u64().unwrap())
        }
        "pattern" => value.as_str().is_none_or(|text| text.starts_with("AB")),
        "$defs" | "description" | "title" => true,
        other => panic!("unknown keyword {other}"),
    })
}

fn has_type(value: &Value, kind: &str) -> bool {
    match kind {
        "string" => value.is_string(),
        // `-0` is an integer, and serde_json reads it as a float.
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other}"),
    }
}

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

/// Returns the literal text behind the values of pairs.
fn close_of_pairs(format: &Format) -> Option<&str> {
    let steps = &format.pair.as_ref()?.steps;
    let at = steps.iter().position(|step| *step == PatternStep::Hole(Hole::Value))?;
    match steps.get(at + 1) {
        Some(PatternStep::Literal(close)) => Some(close),
        _ => None,
    }
}

#[test]
fn values_of_pairs_hold_no_closing_mark() {
    let compiler = compiler(&vocabulary(&[], false));
    let mut formats = 0;
    for format in Format::all().iter().filter(|format| format.has_calls()) {
        let Some(close) = close_of_pairs(format) else { continue };
        formats += 1;
        let text = format!("a{close}b");
        for (schema, native) in [
            (list_of(&json!({ "const": text })), false),
            (list_of(&json!({ "enum": ["a", { "b": [text] }] })), false),
            (json!({ "const": ["\u{1}"] }), false),
            (json!({ "const": [close] }), false),
            (
                json!({ "type": "object", "properties": { (text.clone()): { "type": "null" } } }),
                false,
            ),
            (json!({ "type": "object", "required": [close] }), false),
            (json!({ "type": "object", "patternProperties": { "^x": true } }), false),
            (list_of(&json!({ "allOf": [{ "type": "string" }, { "minLength": 1 }] })), false),
            (list_of(&json!({ "$ref": "#/$defs/Marked" })), false),
            (list_of(&json!({ "$ref": "#/$defs/Free" })), true),
            (
                list_of(&json!({ "type": "string", "pattern": "^[a-z<]+$", "maxLength": 20_000 })),
                true,
            ),
            (list_of(&json!({ "type": "string", "format": "uri" })), true),
            (list_of(&json!({ "description": "anything" })), true),
            (json!({ "type": ["object", "array"] }), true),
            (json!({ "type": "array", "prefixItems": [{ "type": "string" }, true] }), true),
        ] {
            let parameters = json!({
                "type": "object",
                "properties": { "x": schema },
                "required": ["x"],
                "$defs": {
                    "Marked": { "const": text },
                    "Free": { "type": "object", "properties": { "next": { "$ref": "#/$defs/Free" } } },
                },
            });
            let tools = [CallableTool { name: "f".to_owned(), parameters }];
            let forced = compiler.calls(Some(format), &tools, false).unwrap();
            // Some formats have a pattern with a JSON object too.
            let pairs = std::ptr::eq(forced.format, format)
                && forced.grammar.contains(&lark::quoted(close));
            assert!(pairs == native || format.calls.len() > 1, "{}: {schema}", format.name());
            let rule = OutputRule::Calls(forced);
            let outcome = compiler.compile(&rule, ReasoningPrefix::Absent, Some(format));
            outcome.unwrap_or_else(|why| panic!("{}: {schema}: {why}", format.name()));
        }
    }
    assert!(formats > 10, "{formats} formats");
}

fn list_of(items: &Value) -> Value {
    json!({ "type": "array", "items": items })
}

#[test]
fn json_without_marks_has_all_other_texts() {
    let compiler = compiler(&vocabulary(&[], false));
    let strings = json!({ "type": "array", "items": { "type": "string" } });
    let any = json!({});
    let close = ["</parameter>"];
    let all = ["</parameter>", "<parameter=", "</function>"];
    let twice = ["<|close|>argument<|sep|>"];
    for (marks, texts, free) in [
        (
            &close[..],
            &["", "<", "<<", "</", "</param", "</parameter", "<b>a</b></p", "\\n</a>"][..],
            true,
        ),
        (&close, &["</parameter>", "a<</parameter>b", "</parameter</parameter>"], false),
        (&all, &["<p", "</f", "</parameter=", "<parameter>", "</function <function>"], true),
        (&all, &["</parameter>", "<parameter=", "<<</function>"], false),
        // The part before the mark could begin anew is excluded.
        (&twice, &["<|close|>", "<|close|>argumen<|sep|>"], true),
        (&twice, &["<|close|>argument<|sep|>", "<|close|>argument"], false),
        (&["<"], &["a>"], true),
        (&["<"], &["a<"], false),
    ] {
        for text in texts {
            for (schema, whole) in [
                (&strings, format!("[\"{text}\"]")),
                (&any, format!("[{{\"a\":\"{text}\"}}]")),
                (&any, format!("{{\"x{text}\":[1.5,{{}}]}}")),
            ] {
                assert_eq!(
                    allows_without_marks(&compiler, schema, marks, &whole),
                    free,
                    "{schema} {marks:?} {whole}"
                );
            }
        }
    }
    for marks in [&["\"x"][..], &["x"], &["<a\\"], &["<a", "[b"], &["}<"], &[""], &[]] {
        assert!(marks::without_marks(&strings, marks).is_err(), "{marks:?}");
    }
}

fn allows_without_marks(
    compiler: &ConstraintCompiler,
    schema: &Value,
    marks: &[&str],
    text: &str,
) -> bool {
    let narrowed = marks::without_marks(schema, marks).unwrap();
    let rule = OutputRule::Schema(narrowed, JsonLayout::Compact);
    let mut constraint = compiler.compile(&rule, ReasoningPrefix::Absent, None).unwrap();
    text.bytes().all(|byte| constraint.accept(u32::from(byte)).is_ok()) && constraint.accepts_end()
}

#[test]
fn texts_before_special_marks_do_not_spell_them() {
    for format in Format::all().iter().filter(|format| format.has_calls()) {
        let Some(close) = close_of_pairs(format) else { continue };
        let vocabulary = vocabulary(&[close], true);
        let parameters = json!({ "type": "object", "properties": { "x": { "type": "string" } }, "required": ["x"] });
        let compiler = compiler(&vocabulary);
        let tools = [CallableTool { name: "f".to_owned(), parameters }];
        let rule = OutputRule::Calls(compiler.calls(Some(format), &tools, false).unwrap());
        let begun = compiler.compile(&rule, ReasoningPrefix::Absent, Some(format)).unwrap();
        // A vocabulary of bytes has one token for each text before the value.
        let mut constraint = begun;
        while !constraint.allows(vocabulary.len() as u32 - 1) {
            let id = (1..=255).rev().find(|id| constraint.allows(*id)).unwrap();
            constraint.accept(id).unwrap();
        }
        let spelled = close.bytes().all(|byte| constraint.accept(u32::from(byte)).is_ok());
        assert!(!spelled, "{}", format.name());
    }
}

/// Tells whether an output follows a rule.
type RuleCheck<'c> = Box<dyn Fn(&str) -> bool + 'c>;

#[test]
fn rules_of_all_kinds_hold() {
    let vocabulary = vocabulary(&["<think>", "</think>", "{\"", "\":"], false);
    let compiler = compiler(&vocabulary);
    let schema = json!({
        "type": "object",
        "properties": {
            "z": { "type": "integer" }, "a": { "type": "array", "items": { "type": "boolean" }, "maxItems": 3 },
        },
        "required": ["z", "a"],
        "additionalProperties": false,
    });
    let texts = ["yes", "no", "\"ja\"", "größer"];
    let rules: [(OutputRule, RuleCheck<'_>); 5] = [
        (
            OutputRule::Schema(schema.clone(), JsonLayout::Spaced),
            Box::new(|text| {
                // Keys come in the order of the schema.
                let order = text.find("\"z\"") < text.find("\"a\"");
                order && json_of(text).is_some_and(|value| fits(&value, &schema, &schema))
            }),
        ),
        (
            OutputRule::JsonObject(JsonLayout::Spaced),
            Box::new(|text| json_of(text).is_some_and(|value| value.is_object())),
        ),
        (
            OutputRule::Regex("[a-c]{2,4}/x".to_owned()),
            Box::new(|text| text.strip_suffix("/x").is_some_and(|t| (2..5).contains(&t.len()))),
        ),
        (
            OutputRule::Choice(texts.iter().map(|text| (*text).to_owned()).collect()),
            Box::new(|text| texts.contains(&text)),
        ),
        (
            OutputRule::Grammar("start: \"a\" start \"b\" | \"x\"".to_owned()),
            Box::new(|text| {
                let half = text.len() / 2;
                text == format!("{}x{}", "a".repeat(half), "b".repeat(half))
            }),
        ),
    ];
    let format = Format::named("think").unwrap();
    for (rule, check) in &rules {
        for prefix in [ReasoningPrefix::Absent, ReasoningPrefix::Optional, ReasoningPrefix::Open] {
            let begun = compiler.compile(rule, prefix, Some(format)).unwrap();
            let mut ended = 0;
            let mut thought = 0;
            for seed in 0..40 {
                let Some(text) = written(begun.clone(), &vocabulary, seed) else { continue };
                let body = text.split_once("</think>");
                let inside = text.starts_with("<think>");
                let answer = match (prefix, body) {
                    (ReasoningPrefix::Optional, Some((_, tail))) if inside => tail.trim_start(),
                    (ReasoningPrefix::Open, halves) => halves.unwrap().1.trim_start(),
                    (ReasoningPrefix::Absent | ReasoningPrefix::Optional, _) => text.as_str(),
                };
                thought += usize::from(answer.len() < text.len());
                assert!(check(answer), "{rule:?} {prefix:?}: {text:?}");
                ended += 1;
            }
            assert!(ended > 15, "{rule:?}: {ended}");
            assert_eq!(thought > 0, prefix != ReasoningPrefix::Absent, "{rule:?} {prefix:?}");
        }
    }
}

#[test]
fn an_output_does_not_depend_on_others() {
    let vocabulary = vocabulary(&[], false);
    let compiler = compiler(&vocabulary);
    let begun = compiler
        .compile(&OutputRule::JsonObject(JsonLayout::Spaced), ReasoningPrefix::Absent, None)
        .unwrap();
    let alone: Vec<_> = (0..8).map(|seed| written(begun.clone(), &vocabulary, seed)).collect();
    let again: Vec<_> =
        (0..8).rev().map(|seed| written(begun.clone(), &vocabulary, seed)).collect();
    assert!(alone.iter().eq(again.iter().rev()));
    let mut other = begun.clone();
    assert_eq!(other.accept(u32::from(b'x')), Err(ConstraintError::NoToken));
    assert!(!other.allows(END) && !other.allows(u32::MAX));
}

/// Rules that a client could send to stop a server: each has an answer in time.
#[test]
fn hostile_rules_have_a_reason() {
    let vocabulary = vocabulary(&[], false);
    let compiler = compiler(&vocabulary);
    assert_refused(
        &compiler,
        json!({ "$ref": "http://example.com/schema" }),
        "nothing else is read",
    );
    assert_refused(&compiler, json!({ "$ref": "file:///etc/passwd" }), "nothing else is read");
    assert_refused(&compiler, json!({ "$ref": "#/$defs/missing" }), "not found");
    assert_refused(
        &compiler,
        json!({ "type": "string", "minLength": 5, "maxLength": 2 }),
        "nsatisfiable",
    );
    assert_refused(
        &compiler,
        json!({ "allOf": [{ "type": "string" }, { "type": "integer" }] }),
        "nsatisfiable",
    );
    assert_refused(&compiler, json!(false), "contradicts");
    assert_refused(&compiler, json!([1]), "a list");
    assert_refused(&compiler, json!({ "type": "object", "not": { "type": "null" } }), "not");
    assert_refused(&compiler, json!({ "type": "array", "uniqueItems": true }), "uniqueItems");
    assert_refused(&compiler, json!({ "enum": vec!["x".repeat(20); 20_000] }), "at most 262144");
    assert_refused(&compiler, json!({ "type": "string", "pattern": "(" }), "");
    assert_refused(&compiler, json!({ "type": 7 }), "");
    assert_refused(&compiler, json!({ "properties": 7, "type": "object" }), "");
    assert_refused(&compiler, json!({ "type": "é".repeat(60), "enum": 7 }), "");
    let mut deep = json!({});
    for _ in 0..80 {
        deep = json!({ "properties": { "a": deep } });
    }
    assert_refused(&compiler, deep, "levels");
    // A chain of references, and references without an end.
    compile_rule(&compiler, &OutputRule::Schema(reference_chain(1_900), JsonLayout::Spaced))
        .unwrap();
    assert_refused(&compiler, reference_chain(2_100), "references");
    assert_refused(&compiler, json!({ "$ref": "#" }), "");
    assert_refused(
        &compiler,
        json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
        "",
    );
    // A recursive type is sound.
    let list = json!({
        "$ref": "#/$defs/node",
        "$defs": { "node": {
            "type": "object",
            "properties": { "next": { "anyOf": [{ "$ref": "#/$defs/node" }, { "type": "null" }] } },
            "required": ["next"],
            "additionalProperties": false,
        } },
    });
    assert!(compile_rule(&compiler, &OutputRule::Schema(list, JsonLayout::Spaced)).is_ok());
    // Every alternative doubles the work of the ones before.
    let mut wide = json!({ "type": "integer" });
    for _ in 0..30 {
        wide = json!({ "allOf": [{ "anyOf": [wide.clone(), { "type": "string" }] }, { "anyOf": [{ "type": "integer" }, { "type": "null" }] }] });
    }
    compile_rule(&compiler, &OutputRule::Schema(wide, JsonLayout::Spaced)).ok();
    for regex in [
        "(a{1000}){1000}".to_owned(),
        "((((a{200}){200}){200}){200})".to_owned(),
        "(a|aa)+$".to_owned(),
        "(?:a?){3000}a{3000}".to_owned(),
        "(".repeat(4_000),
        format!("{}a{}", "(".repeat(2_000), ")".repeat(2_000)),
        "(x+x+)+y".to_owned(),
        ".{0,100000}b".to_owned(),
        "(.*a.{20}){20}".to_owned(),
        "(a|b)".repeat(1_600),
        "\\p{L}{1,5000}".repeat(100),
        "(?R)".to_owned(),
        "x".repeat(9_000),
    ] {
        let Ok(mut constraint) = compile_rule(&compiler, &OutputRule::Regex(regex.clone())) else {
            continue;
        };
        let mut row = vec![0.0; vocabulary.len()];
        constraint.restrict(&mut row, &[END]);
        for _ in 0..40 {
            let Some(id) = (1..vocabulary.len() as u32).find(|id| constraint.allows(*id)) else {
                break;
            };
            if constraint.accept(id).is_err() {
                break;
            }
        }
    }
    for grammar in [
        "",
        "start: start",
        "start: a",
        "start: \"a\" start",
        "start: @other",
        "start: <missing>",
        "%import x.y",
        "start: %json {\"$ref\": \"http://x\"}",
    ] {
        compile_rule(&compiler, &OutputRule::Grammar(grammar.to_owned())).ok();
    }
    assert_eq!(
        compile_rule(&compiler, &OutputRule::Choice(Vec::new())).unwrap_err(),
        ConstraintError::Choices
    );
    // The compiler still works.
    assert!(compile_rule(&compiler, &OutputRule::JsonObject(JsonLayout::Spaced)).is_ok());
}

/// A schema of so many references, each to the next one.
fn reference_chain(count: usize) -> Value {
    let definitions =
        (0..count).map(|n| (format!("d{n}"), json!({ "$ref": format!("#/$defs/d{}", n + 1) })));
    let mut definitions: serde_json::Map<String, Value> = definitions.collect();
    definitions.insert(format!("d{count}"), json!({ "type": "integer" }));
    json!({ "$ref": "#/$defs/d0", "$defs": definitions })
}

fn compile_rule(
    compiler: &ConstraintCompiler,
    rule: &OutputRule,
) -> Result<OutputConstraint, ConstraintError> {
    compiler.compile(rule, ReasoningPrefix::Absent, None)
}

fn assert_refused(compiler: &ConstraintCompiler, schema: Value, words: &str) {
    let text: String = schema.to_string().chars().take(80).collect();
    let error = compile_rule(compiler, &OutputRule::Schema(schema, JsonLayout::Spaced))
        .unwrap_err()
        .to_string();
    assert!(error.contains(words), "{text}: {error}");
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

/// Schemas of any keywords with any values, sound or not.
fn any_schema() -> impl Strategy<Value = Value> {
    const NAMES: &[&str] = &[
        "type",
        "properties",
        "required",
        "items",
        "enum",
        "const",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "$ref",
        "$defs",
        "pattern",
        "format",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "multipleOf",
        "minItems",
        "maxItems",
        "additionalProperties",
        "patternProperties",
        "prefixItems",
        "minProperties",
        "x-guidance",
        "$id",
        "if",
    ];
    const WORDS: &[&str] = &[
        "string",
        "integer",
        "number",
        "object",
        "array",
        "null",
        "boolean",
        "#",
        "#/",
        "#/$defs/a",
        "a",
        "(",
        "a{9999}",
        "date-time",
        "[",
        "é",
        "\u{0}",
        "^a+$",
        "~1",
        "",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0..10_u64).prop_map(Value::from),
        prop::sample::select(WORDS).prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 5, |inner| {
        let key = prop_oneof![
            4 => prop::sample::select(NAMES).prop_map(str::to_owned),
            1 => prop::sample::select(WORDS).prop_map(str::to_owned),
        ];
        prop_oneof![
            1 => prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            4 => prop::collection::vec((key, inner), 0..6)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// A rule is compiled or refused with a reason, and each step has an answer.
    #[test]
    fn any_rule_has_an_answer(schema in any_schema(), text in "[a-c\"'{}\\[\\]()*+?|/:&~<>%@#\\\\\n ]{0,40}", seed in any::<u64>()) {
        let vocabulary = vocabulary(&[], false);
        let compiler = compiler(&vocabulary);
        let tool = CallableTool { name: "f".to_owned(), parameters: schema.clone() };
        let mut rules = vec![
            OutputRule::Schema(schema, JsonLayout::Spaced),
            OutputRule::Regex(text.clone()),
            OutputRule::Grammar(format!("start: {text}")),
            OutputRule::Choice(vec![text.clone()]),
        ];
        for format in Format::all() {
            if let Ok(forced) = compiler.calls(Some(format), std::slice::from_ref(&tool), true) {
                rules.push(OutputRule::Calls(forced));
            }
        }
        for rule in rules {
            match compiler.compile(&rule, ReasoningPrefix::Absent, None) {
                Err(error) => prop_assert!(!error.to_string().is_empty() && error != ConstraintError::Busy),
                Ok(mut constraint) => {
                    let mut draw = Draw(seed);
                    for _ in 0..30 {
                        let allowed: Vec<u32> =
                            (1..vocabulary.len() as u32).filter(|id| constraint.allows(*id)).collect();
                        if allowed.is_empty() || constraint.accept(allowed[draw.below(allowed.len())]).is_err() {
                            break;
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn limits_have_a_plain_reason() {
    let compiler = compiler(&vocabulary(&[], false));
    let names = (0..2_500).map(|n| (format!("p{n}"), json!({ "type": "null" })));
    let properties: Value = names.collect::<serde_json::Map<_, _>>().into();
    let schema =
        json!({ "type": "object", "properties": properties, "additionalProperties": false });
    let rule = OutputRule::Schema(schema, JsonLayout::Compact);
    let mut outcome = compiler.compile(&rule, ReasoningPrefix::Absent, None);
    let error = match &mut outcome {
        Err(error) => error.clone(),
        Ok(constraint) => constraint.accept(u32::from(b'{')).unwrap_err(),
    };
    assert_eq!(error, ConstraintError::Complex);
    let quoted = error::refused("no rule `Current`\n<non-verbose/>");
    assert_eq!(quoted, ConstraintError::Rejected { why: "no rule `Current`".to_owned() });
}

#[test]
fn rules_that_take_long_at_each_token_end() {
    let vocabulary = vocabulary(&[], false);
    let compiler = compiler(&vocabulary);
    let rule = OutputRule::Grammar("start: e\ne: e e e | e e | /./ ".to_owned());
    let mut constraint = compiler.compile(&rule, ReasoningPrefix::Absent, None).unwrap();
    let errors = (0..10_000).find_map(|_| constraint.accept(u32::from(b'a')).err());
    let error = errors.expect("the rule ends");
    assert!(matches!(error, ConstraintError::Costly { .. } | ConstraintError::Complex), "{error}");
}
