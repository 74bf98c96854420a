//! Schemas: layouts of JSON, alternatives, numbers, references and formats.

use serde_json::json;

use super::*;

/// Compiles a schema without white space.
fn compact(
    compiler: &ConstraintCompiler,
    schema: &Value,
) -> Result<OutputConstraint, ConstraintError> {
    let rule = OutputRule::Schema(schema.clone(), JsonLayout::Compact);
    compiler.compile(&rule, ReasoningPrefix::Absent, None)
}

/// Returns the longest run of white space that a rule allows between two tokens of JSON.
fn longest_space(layout: JsonLayout, schema: &Value) -> usize {
    let vocabulary = vocabulary(&["  ", "\n    "], false);
    let compiler = compiler(&vocabulary);
    let rule = OutputRule::Schema(schema.clone(), layout);
    let mut constraint = compiler.compile(&rule, ReasoningPrefix::Absent, None).unwrap();
    let mut longest = 0;
    let mut run = 0;
    while !constraint.is_complete() {
        let ids = 1..vocabulary.len() as u32;
        let Some(id) =
            ids.filter(|id| constraint.allows(*id)).min_by_key(|id| token_order(&vocabulary, *id))
        else {
            break;
        };
        let bytes = &vocabulary[id as usize].bytes;
        let space = bytes.iter().all(u8::is_ascii_whitespace);
        run = if space { run + bytes.len() } else { 0 };
        longest = longest.max(run);
        constraint.accept(id).unwrap();
    }
    longest
}

/// Line ends come first, and what is no white space only where nothing else may come.
fn token_order(vocabulary: &[TokenBytes], id: u32) -> (bool, bool, usize, u32) {
    let bytes = &vocabulary[id as usize].bytes;
    let space = bytes.iter().all(u8::is_ascii_whitespace);
    (!space, bytes[0] != b'\n', bytes.len(), id)
}

#[test]
fn white_space_of_json_is_bounded() {
    let schema = json!({
        "type": "object",
        "properties": { "a": { "const": 1 }, "b": { "type": "array", "items": { "const": true }, "minItems": 2, "maxItems": 2 } },
        "required": ["a", "b"],
        "additionalProperties": false,
    });
    assert_eq!(longest_space(JsonLayout::Spaced, &schema), 22);
    assert_eq!(longest_space(JsonLayout::Compact, &schema), 0);
}

#[test]
fn usual_layouts_of_json_are_allowed() {
    let vocabulary = vocabulary(&[], false);
    let compiler = compiler(&vocabulary);
    let schema = json!({ "type": "object" });
    for (layout, text, allowed) in [
        (JsonLayout::Spaced, "{\"a\":[1,2],\"b\":{}}", true),
        (JsonLayout::Spaced, "{\"a\": [1, 2], \"b\": {}}", true),
        (JsonLayout::Spaced, "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {\n  }\n}", true),
        (JsonLayout::Spaced, "{\n\n\t\t\"a\": 1 }", true),
        (JsonLayout::Spaced, "{  \"a\": 1}", false),
        (JsonLayout::Spaced, "{\n\n\n\"a\": 1}", false),
        (JsonLayout::Compact, "{\"a\":[1,2],\"b\":{}}", true),
        (JsonLayout::Compact, "{\"a\": 1}", false),
    ] {
        let rule = OutputRule::Schema(schema.clone(), layout);
        let mut constraint = compiler.compile(&rule, ReasoningPrefix::Absent, None).unwrap();
        let written = text.bytes().all(|byte| constraint.accept(u32::from(byte)).is_ok());
        assert_eq!(written && constraint.accepts_end(), allowed, "{layout:?} {text:?}");
    }
}

#[test]
fn one_of_is_kept_or_refused() {
    let vocabulary = vocabulary(&[], false);
    let compiler = compiler(&vocabulary);
    let apart = json!({
        "oneOf": [{ "$ref": "#/$defs/A" }, { "$ref": "#/$defs/B" }],
        "discriminator": { "propertyName": "kind" },
        "$defs": { "A": tagged("a"), "B": tagged("b") },
    });
    let begun = compact(&compiler, &apart).unwrap();
    for (text, allowed) in [("{\"kind\":\"a\"}", true), ("{\"kind\":\"b\"}", true), ("{}", false)] {
        let mut constraint = begun.clone();
        let written = text.bytes().all(|byte| constraint.accept(u32::from(byte)).is_ok());
        assert_eq!(written && constraint.accepts_end(), allowed, "{text}");
    }
    let overlap = json!({ "oneOf": [{ "type": "number" }, { "type": "integer" }] });
    let error = compact(&compiler, &overlap).unwrap_err().to_string();
    assert!(error.contains("`oneOf` at `#/oneOf`") && error.contains("`anyOf`"), "{error}");
    // Arguments of calls are held to the same.
    for (schema, sound) in [(&apart, true), (&overlap, false)] {
        let parameters = json!({
            "type": "object", "properties": { "x": schema["oneOf"][0], "y": { "oneOf": schema["oneOf"] } },
            "$defs": schema.get("$defs").cloned().unwrap_or_else(|| json!({})), "required": ["y"],
        });
        let mut parameters = parameters;
        if let Some(named) = schema.get("discriminator") {
            parameters["properties"]["y"]["discriminator"] = named.clone();
        }
        let tools = [CallableTool { name: "f".to_owned(), parameters }];
        for format in Format::all() {
            let outcome = compiler.calls(Some(format), &tools, true);
            assert_eq!(outcome.is_ok(), sound, "{}: {outcome:?}", format.name());
        }
    }
}

fn tagged(word: &str) -> Value {
    json!({ "type": "object", "properties": { "kind": { "const": word } } })
}

#[test]
fn integers_that_floats_cannot_hold_are_kept_or_refused() {
    let vocabulary = vocabulary(&[], false);
    let compiler = compiler(&vocabulary);
    let odd = (1_i64 << 53) + 1;
    for (schema, sound) in [
        (json!({ "const": odd }), false),
        (json!({ "const": 1_u64 << 60 }), true),
        (json!({ "const": -odd }), false),
        (json!({ "const": u64::MAX }), false),
        (json!({ "enum": ["a", 1, odd] }), false),
        (json!({ "enum": [{ "a": [odd] }] }), false),
        (json!({ "enum": ["9007199254740993", 9_007_199_254_740_992_i64] }), true),
        (json!({ "type": "array", "items": { "anyOf": [{ "const": odd }] } }), false),
        (
            json!({ "type": "object", "properties": { "const": { "type": "integer", "maximum": odd } } }),
            true,
        ),
        (json!({ "type": "integer", "maximum": i64::MAX, "minimum": i64::MIN }), true),
    ] {
        match compact(&compiler, &schema) {
            Ok(_) => assert!(sound, "{schema}"),
            Err(ConstraintError::Integer { .. }) => assert!(!sound, "{schema}"),
            Err(other) => panic!("{schema}: {other}"),
        }
        let parameters =
            json!({ "type": "object", "properties": { "x": schema }, "required": ["x"] });
        let tools = [CallableTool { name: "f".to_owned(), parameters }];
        for format in Format::all() {
            let outcome = compiler.calls(Some(format), &tools, true);
            assert_eq!(outcome.is_ok(), sound, "{}: {schema}: {outcome:?}", format.name());
        }
    }
    // No bound lets in an integer that the schema excludes.
    for (schema, n, allowed) in [
        (json!({ "type": "integer", "minimum": odd }), odd - 1, false),
        (json!({ "type": "integer", "minimum": odd }), odd + 1, true),
        (json!({ "type": "integer", "minimum": odd + 2 }), odd + 1, false),
        (json!({ "type": "integer", "minimum": odd + 2 }), odd + 3, true),
        (json!({ "type": "integer", "maximum": odd }), odd + 1, false),
        (json!({ "type": "integer", "maximum": odd }), odd - 1, true),
        (json!({ "type": "integer", "exclusiveMaximum": odd + 2 }), odd + 3, false),
        (json!({ "type": "integer", "exclusiveMinimum": odd }), odd + 1, false),
        (json!({ "type": "integer", "exclusiveMinimum": odd }), odd + 3, true),
        (json!({ "type": "integer", "maximum": i64::MAX }), i64::MAX - 4095, true),
        (json!({ "type": "integer", "minimum": -odd }), -odd - 1, false),
        (json!({ "type": "integer", "minimum": -odd }), -odd + 1, true),
    ] {
        let mut constraint = compact(&compiler, &schema).unwrap();
        let written = n.to_string().bytes().all(|byte| constraint.accept(u32::from(byte)).is_ok());
        assert_eq!(written && constraint.accepts_end(), allowed, "{schema} {n}");
    }
}

/// Tells whether a schema allows a text.
fn schema_allows(compiler: &ConstraintCompiler, schema: &Value, text: &str) -> bool {
    let rule = OutputRule::Schema(schema.clone(), JsonLayout::Compact);
    let outcome = compiler.compile(&rule, ReasoningPrefix::Absent, None);
    let mut constraint = outcome.unwrap_or_else(|why| panic!("{schema}: {why}"));
    text.bytes().all(|byte| constraint.accept(u32::from(byte)).is_ok()) && constraint.accepts_end()
}

#[test]
fn references_may_have_escapes() {
    let compiler = compiler(&vocabulary(&[], false));
    let digit = json!({ "type": "integer", "minimum": 0, "maximum": 9 });
    for (name, reference) in [
        ("a/b", "#/$defs/a~1b"),
        ("a~b", "#/$defs/a~0b"),
        ("a~1b", "#/$defs/a~01b"),
        ("a b", "#/$defs/a%20b"),
        ("a b", "#/$defs/a b"),
        ("List[int]", "#/$defs/List%5Bint%5D"),
        ("é/%", "#/$defs/%C3%a9~1%25"),
        ("5%", "#/$defs/5%"),
    ] {
        let list = json!({ "type": "array", "items": { "$ref": reference }, "minItems": 1 });
        let schema = json!({ "$ref": "#/$defs/list", "$defs": { (name): digit, "list": list, "place1": false } });
        assert!(schema_allows(&compiler, &schema, "[7]"), "{reference}");
        assert!(!schema_allows(&compiler, &schema, "[\"a\"]"), "{reference}");
        let parameters = json!({
            "type": "object", "properties": { "x": { "$ref": reference } }, "required": ["x"], "$defs": { (name): digit },
        });
        let tools = [CallableTool { name: "f".to_owned(), parameters }];
        for format in
            Format::all().iter().filter(|format| format.has_calls() && format.tags.is_empty())
        {
            let forced = compiler.calls(Some(format), &tools, false).unwrap();
            assert!(std::ptr::eq(forced.format, format), "{}: {reference}", format.name());
            let outcome =
                compiler.compile(&OutputRule::Calls(forced), ReasoningPrefix::Absent, Some(format));
            assert!(outcome.is_ok(), "{}: {reference}: {outcome:?}", format.name());
        }
    }
    // Places outside of definitions, and definitions that lead to themselves.
    let schema = json!({
        "type": "object",
        "properties": { "a/b": digit, "c": { "$ref": "#/properties/a~1b" }, "d": { "$ref": "#/$defs/e~1" } },
        "required": ["c", "d"],
        "additionalProperties": false,
        "$defs": { "e/": { "type": "array", "items": { "$ref": "#/$defs/e~1" } } },
    });
    assert!(schema_allows(&compiler, &schema, "{\"c\":7,\"d\":[[],[[]]]}"));
    assert!(!schema_allows(&compiler, &schema, "{\"c\":7,\"d\":[7]}"));
    // A value is no reference.
    let schema = json!({ "const": { "$ref": "#/~1" } });
    assert!(schema_allows(&compiler, &schema, "{\"$ref\":\"#/~1\"}"));
}

#[test]
fn bounds_beyond_the_numbers_of_grammars_move_inward() {
    let compiler = compiler(&vocabulary(&[], false));
    for kind in ["number", "integer"] {
        for (bounds, text, allowed) in [
            (json!({ "minimum": 0, "maximum": 1e19 }), "5000000000000000000", true),
            (json!({ "minimum": 0, "maximum": 1e19 }), "-1", false),
            (json!({ "minimum": 0, "maximum": u64::MAX }), "7", true),
            (json!({ "maximum": 1e300 }), "-7", true),
            (json!({ "minimum": -1e300, "exclusiveMaximum": 1e300 }), "-7", true),
            (json!({ "minimum": 1e18 }), "1000000000000000000", true),
            (json!({ "minimum": 1e18 }), "999999999999999999", false),
            (json!({ "maximum": -2e18 }), "-2000000000000000000", true),
            (json!({ "maximum": -2e18 }), "-1", false),
            (json!({ "exclusiveMaximum": 1_i64 << 54, "minimum": 0 }), "18014398509481984", false),
            (json!({ "exclusiveMaximum": 1_i64 << 54, "minimum": 0 }), "18014398509481980", true),
            (json!({ "exclusiveMinimum": 1_i64 << 54 }), "18014398509481984", false),
            (
                json!({ "exclusiveMinimum": -(1_i64 << 54), "maximum": 0 }),
                "-18014398509481984",
                false,
            ),
        ] {
            let mut schema = bounds;
            schema["type"] = json!(kind);
            assert_eq!(schema_allows(&compiler, &schema, text), allowed, "{schema} {text}");
        }
        for (keyword, bound) in [
            ("minimum", 1e19),
            ("exclusiveMinimum", 1e300),
            ("maximum", -1e19),
            ("exclusiveMaximum", -1e300),
        ] {
            let schema = json!({ "type": kind, (keyword): bound });
            let rule = OutputRule::Schema(schema, JsonLayout::Compact);
            let error = compiler.compile(&rule, ReasoningPrefix::Absent, None).unwrap_err();
            assert!(
                matches!(&error, ConstraintError::Bound { keyword: found, .. } if found == keyword),
                "{error}"
            );
        }
    }
}

#[test]
fn formats_that_grammars_lack_are_annotations() {
    let compiler = compiler(&vocabulary(&[], false));
    for name in ["password", "binary", "int32", "iri", "unknown", ""] {
        let schema = json!({ "type": "array", "items": { "type": "string", "format": name } });
        assert!(schema_allows(&compiler, &schema, "[\"~ ~\"]"), "{name}");
        let parameters = json!({ "type": "object", "properties": { "x": { "type": "string", "format": name } } });
        let tools = [CallableTool { name: "f".to_owned(), parameters }];
        let format = Format::all().iter().find(|format| format.pair.is_some()).unwrap();
        let forced = compiler.calls(Some(format), &tools, false).unwrap();
        assert!(std::ptr::eq(forced.format, format), "{name}");
    }
    for name in schema::FORMATS {
        let schema = json!({ "type": "string", "format": name });
        assert!(!schema_allows(&compiler, &schema, "\"~ ~\""), "{name}");
    }
}
