//! Schemas of clients: limits, and the layout of the JSON that they allow.

use serde_json::{Map, Value, json};

use super::keywords::changed;
use super::{ConstraintError, MAX_RULE, alternatives, numbers, references};

/// Deepest nesting of a schema.
const DEPTH: usize = 64;
/// Most references in a schema. References can follow each other, and compiling recurses over them.
const REFERENCES: usize = 2_000;

/// White space between the tokens of JSON: a blank, or line ends with an indentation, as in llama.cpp. A model that has
/// lost its way could fill longer white space until the end of the answer.
const SPACE: &str = "( |\\n{1,2}[ \\t]{0,20})";

/// White space in the JSON of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JsonLayout {
    /// A blank, or line ends with an indentation, between any two tokens.
    #[default]
    Spaced,
    /// None.
    Compact,
}

/// Checks a schema and returns it with the layout of its JSON.
pub(super) fn checked(schema: &Value, layout: JsonLayout) -> Result<Value, ConstraintError> {
    let length = schema.to_string().len();
    if length > MAX_RULE {
        return Err(ConstraintError::Size { what: "the schema", found: length, most: MAX_RULE });
    }
    let mut references = 0;
    walk(schema, 0, &mut references)?;
    if references > REFERENCES {
        return Err(ConstraintError::Schema {
            what: "references",
            found: references,
            most: REFERENCES,
        });
    }
    let mut output = match plain(schema)? {
        Value::Object(map) => map,
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(ConstraintError::NoToken),
        other => return Err(ConstraintError::Form { found: kind(&other) }),
    };
    let layout = match layout {
        JsonLayout::Spaced => json!({ "whitespace_pattern": SPACE }),
        JsonLayout::Compact => json!({ "whitespace_flexible": false }),
    };
    output.insert("x-guidance".to_owned(), layout);
    Ok(Value::Object(output))
}

/// Returns a schema in the words that a grammar can keep.
pub(super) fn plain(schema: &Value) -> Result<Value, ConstraintError> {
    let schema = with_known_formats(&references::plain(schema));
    alternatives::exclusive(&numbers::rounded(&schema)?)
}

/// Formats of strings that the grammars know.
pub(super) const FORMATS: [&str; 10] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];

/// Returns a schema without other formats, which are annotations: they allow every string.
fn with_known_formats(schema: &Value) -> Value {
    let Value::Object(map) = schema else { return schema.clone() };
    let mut output = Map::new();
    for (key, value) in map {
        if key == "format" && value.as_str().is_some_and(|name| !FORMATS.contains(&name)) {
            continue;
        }
        output.insert(key.clone(), changed(key, value, &mut with_known_formats));
    }
    Value::Object(output)
}

fn walk(value: &Value, depth: usize, references: &mut usize) -> Result<(), ConstraintError> {
    if depth > DEPTH {
        return Err(ConstraintError::Schema { what: "levels or more", found: depth, most: DEPTH });
    }
    match value {
        Value::Array(list) => list.iter().try_for_each(|value| walk(value, depth + 1, references)),
        Value::Object(map) => map.iter().try_for_each(|(key, value)| {
            if let ("$ref", Value::String(reference)) = (key.as_str(), value) {
                *references += 1;
                if !reference.starts_with('#') {
                    let reference = formats::shown(reference);
                    return Err(ConstraintError::Reference { reference });
                }
            }
            walk(value, depth + 1, references)
        }),
        _ => Ok(()),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
