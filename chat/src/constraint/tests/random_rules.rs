//! Random rules: each is compiled or refused with a reason, and each step has an answer.

use proptest::prelude::*;
use serde_json::Value;

use super::{Draw, compiler, vocabulary};
use crate::Format;
use crate::constraint::{CallableTool, ConstraintError, JsonLayout, OutputRule, ReasoningPrefix};

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
