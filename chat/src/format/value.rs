//! Values of pairs as JSON: their text, read by the type that the tool's schema gives.

use serde_json::Value;

use super::json::{is_json, quoted};
use super::python::literal;

/// Types that a value's text can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueType {
    /// A string.
    Text,
    /// JSON if it is JSON, else a string.
    Json,
}

/// Returns a value as JSON.
///
/// `schema` is that of the parameter, `root` that of all arguments, to which references lead, and `untyped` the
/// reading of a value whose schema gives no type.
pub(crate) fn coerced(
    text: &str,
    schema: Option<&Value>,
    root: &Value,
    untyped: ValueType,
) -> String {
    let types = schema.map(|schema| types(schema, root)).unwrap_or_default();
    let trimmed = text.trim();
    let null = trimmed.eq_ignore_ascii_case("null") || trimmed == "None";
    if types.is_empty() {
        return match untyped {
            ValueType::Json if is_json(trimmed) => trimmed.to_owned(),
            _ => quoted(text),
        };
    }
    if null && (types.contains(&"null") || types != ["string"]) {
        return "null".to_owned();
    }
    types.iter().find_map(|kind| typed(trimmed, kind)).unwrap_or_else(|| quoted(text))
}

/// Returns a text as a value of one type of a schema; none if it is no such value.
fn typed(text: &str, kind: &str) -> Option<String> {
    match kind {
        "integer" | "int" => number(text).filter(|text| !text.contains(['.', 'e', 'E'])),
        "number" | "float" | "double" => number(text),
        "boolean" | "bool" => {
            let lower = text.to_ascii_lowercase();
            matches!(lower.as_str(), "true" | "false").then_some(lower)
        }
        "object" | "array" => {
            let open = if kind == "object" { '{' } else { '[' };
            if text.starts_with(open) && is_json(text) {
                return Some(text.to_owned());
            }
            literal(text).filter(|json| json.starts_with(open))
        }
        _ => None,
    }
}

/// Returns a number as JSON writes it.
fn number(text: &str) -> Option<String> {
    let plain = text.strip_prefix('+').unwrap_or(text);
    (is_json(plain) && plain.starts_with(|c: char| c == '-' || c.is_ascii_digit()))
        .then(|| plain.to_owned())
}

/// Returns the JSON pointer of a reference to a place in the same schema: its fragment, in which `%20` means a blank.
pub(crate) fn pointer(reference: &str) -> Option<String> {
    let place = reference.strip_prefix('#')?;
    let mut bytes = Vec::with_capacity(place.len());
    let mut remaining = place.as_bytes();
    while let Some((&byte, behind)) = remaining.split_first() {
        if let (b'%', Some(high), Some(low)) = (byte, hex_digit(behind, 0), hex_digit(behind, 1)) {
            bytes.push((high * 16 + low) as u8);
            remaining = &behind[2..];
        } else {
            bytes.push(byte);
            remaining = behind;
        }
    }
    String::from_utf8(bytes).ok()
}

/// Returns the value of the hexadecimal digit at a place.
fn hex_digit(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at).and_then(|digit| char::from(*digit).to_digit(16))
}

/// Returns the types that a schema allows.
pub(super) fn types<'a>(schema: &'a Value, root: &'a Value) -> Vec<&'a str> {
    let mut types = Vec::new();
    collect(schema, root, 0, &mut types);
    // From the narrowest type to strings: each text is one.
    let order = ["null", "integer", "number", "boolean", "object", "array"];
    types.sort_by_key(|kind| order.iter().position(|known| known == kind).unwrap_or(order.len()));
    types.dedup();
    types
}

fn collect<'a>(schema: &'a Value, root: &'a Value, depth: usize, types: &mut Vec<&'a str>) {
    // Depth of alternatives in a schema; deeper ones give no type.
    const DEPTH: usize = 8;
    match schema.get("type") {
        Some(Value::String(kind)) => types.push(kind),
        Some(Value::Array(kinds)) => types.extend(kinds.iter().filter_map(Value::as_str)),
        _ => {}
    }
    if let (true, Some(Value::String(reference))) = (depth < DEPTH, schema.get("$ref"))
        && let Some(target) = pointer(reference).and_then(|at| root.pointer(&at))
    {
        collect(target, root, depth + 1, types);
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        if let (true, Some(Value::Array(choices))) = (depth < DEPTH, schema.get(key)) {
            for choice in choices {
                collect(choice, root, depth + 1, types);
            }
        }
    }
    if types.is_empty() {
        let list = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
        let values = list.chain(schema.get("const"));
        types.extend(values.map(|value| match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        }));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_follow_the_schema() {
        let cases = [
            ("3", json!({"type": "integer"}), "3"),
            ("3", json!({"type": "string"}), "\"3\""),
            ("12345678901234567890123", json!({"type": "integer"}), "12345678901234567890123"),
            ("3.5", json!({"type": "number"}), "3.5"),
            ("three", json!({"type": "integer"}), "\"three\""),
            ("True", json!({"type": "boolean"}), "true"),
            ("[1, 2]", json!({"type": "array"}), "[1, 2]"),
            ("['a', True]", json!({"type": "array"}), "[\"a\", true]"),
            ("{'a': None}", json!({"type": "object"}), "{\"a\": null}"),
            ("null", json!({"type": ["string", "null"]}), "null"),
            ("null", json!({"type": "string"}), "\"null\""),
            ("5", json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}), "5"),
            ("b", json!({"enum": ["a", "b"]}), "\"b\""),
            ("7", json!({"const": 7}), "7"),
            ("7", json!({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}), "7"),
            ("7", json!({"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}}), "\"7\""),
            ("7", json!({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}}), "7"),
            (
                "7",
                json!({"$ref": "#/$defs/a%20%5B%c3%a9", "$defs": {"a [é": {"type": "integer"}}}),
                "7",
            ),
            ("7", json!({"$ref": "#/$defs/5%", "$defs": {"5%": {"type": "integer"}}}), "7"),
        ];
        for (text, schema, json) in cases {
            assert_eq!(
                coerced(text, Some(&schema), &schema, ValueType::Text),
                json,
                "{text} {schema}"
            );
        }
        assert_eq!(coerced("5", None, &Value::Null, ValueType::Text), "\"5\"");
        assert_eq!(coerced("5", None, &Value::Null, ValueType::Json), "5");
        assert_eq!(coerced("x", None, &Value::Null, ValueType::Json), "\"x\"");
    }
}
