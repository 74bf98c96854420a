//! Rules of each kind: outputs follow them, with reasoning and without, and are independent.

use serde_json::json;

use super::values::{fits, json_of};
use super::{END, compiler, vocabulary, written};
use crate::Format;
use crate::constraint::{ConstraintError, JsonLayout, OutputRule, ReasoningPrefix};

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
