//! Keywords of schemas, by what their values are.

use std::convert::Infallible;

use serde_json::{Map, Value};

/// Keywords whose values are maps of schemas.
pub(super) const MAPS: [&str; 5] =
    ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];
/// Keywords whose values are schemas, or lists of them.
pub(super) const SCHEMAS: [&str; 9] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "items",
    "oneOf",
    "prefixItems",
    "propertyNames",
];

/// Keys of a schema that allow and forbid nothing.
pub(super) const ANNOTATIONS: [&str; 16] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "discriminator",
    "examples",
    "nullable",
    "readOnly",
    "strict",
    "title",
    "writeOnly",
];

/// Returns a key of a schema that is neither one of these nor an annotation.
pub(super) fn other_key<'a>(map: &'a Map<String, Value>, known: &[&str]) -> Option<&'a String> {
    map.keys().find(|key| !known.contains(&key.as_str()) && !ANNOTATIONS.contains(&key.as_str()))
}

/// Returns the value of a keyword with the schemas directly inside of it changed.
pub(super) fn changed(key: &str, value: &Value, each: &mut dyn FnMut(&Value) -> Value) -> Value {
    let output: Result<Value, Infallible> = with_inner(key, value, &mut |schema| Ok(each(schema)));
    output.unwrap_or_else(|never| match never {})
}

/// Returns the value of a keyword with the schemas directly inside of it changed, unless one cannot be.
pub(super) fn with_inner<E>(
    key: &str,
    value: &Value,
    each: &mut dyn FnMut(&Value) -> Result<Value, E>,
) -> Result<Value, E> {
    let maps = MAPS.contains(&key);
    let schemas = SCHEMAS.contains(&key);
    Ok(match value {
        Value::Object(map) if maps => {
            let each = map.iter().map(|(name, schema)| Ok((name.clone(), each(schema)?)));
            Value::Object(each.collect::<Result<_, E>>()?)
        }
        Value::Array(list) if schemas => {
            Value::Array(list.iter().map(each).collect::<Result<_, E>>()?)
        }
        value if schemas => each(value)?,
        value => value.clone(),
    })
}
