//! Marks that close the values of calls: no value spells one.

use serde_json::{Value, json};

use super::{compiler, vocabulary};
use crate::constraint::{
    CallableTool, ConstraintCompiler, JsonLayout, OutputRule, ReasoningPrefix, lark, marks,
};
use crate::format::{Format, Hole, PatternStep};

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
