//! Hostile rules: the limits of size, depth and time, and the reasons for a refusal.

use serde_json::{Value, json};

use super::{END, compiler, vocabulary};
use crate::constraint::{
    ConstraintCompiler, ConstraintError, JsonLayout, OutputConstraint, OutputRule, ReasoningPrefix,
    error,
};

/// Schemas that no value fits, or that ask for what is not supported.
#[test]
fn hostile_schemas_have_a_reason() {
    let compiler = compiler(&vocabulary(&[], false));
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
    assert_works(&compiler);
}

/// References and alternatives, each of which a schema could have without end.
#[test]
fn schemas_that_grow_have_an_answer_in_time() {
    let compiler = compiler(&vocabulary(&[], false));
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
    assert_works(&compiler);
}

/// Regular expressions that take long in some engines: each has an answer in time.
fn hostile_regexes() -> [String; 13] {
    [
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
    ]
}

#[test]
fn hostile_regexes_have_an_answer_in_time() {
    let vocabulary = vocabulary(&[], false);
    let compiler = compiler(&vocabulary);
    for regex in hostile_regexes() {
        let Ok(mut constraint) = compile_rule(&compiler, &OutputRule::Regex(regex)) else {
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
    assert_works(&compiler);
}

#[test]
fn hostile_grammars_have_an_answer_in_time() {
    let compiler = compiler(&vocabulary(&[], false));
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
    assert_works(&compiler);
}

/// Asserts that the compiler compiles another rule after all of these.
fn assert_works(compiler: &ConstraintCompiler) {
    assert!(compile_rule(compiler, &OutputRule::JsonObject(JsonLayout::Spaced)).is_ok());
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
