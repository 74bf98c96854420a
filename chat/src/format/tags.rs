//! Arguments as nested tags: `<city>Paris</city><tags><item>a</item></tags>`, each tag behind a mark.

use indexmap::IndexMap;
use serde_json::Value;

use super::json::{MAX_DEPTH, quoted};
use super::value::{ValueType, coerced, types};

/// Name of the tags of a list's items.
const ITEM: &str = "item";

/// Value inside a tag.
enum TagValue {
    Text(String),
    Tags(Vec<(String, Self)>),
}

/// Returns the JSON object of a call's tags; none if they are malformed.
///
/// Each tag stands behind `mark`. `schema` is that of the tool's parameters.
pub(super) fn arguments(body: &str, mark: &str, schema: Option<&Value>) -> Option<String> {
    let mut pieces = body.split(mark);
    if !pieces.next()?.trim().is_empty() {
        return None;
    }
    let mut open: Vec<(String, TagValue)> = vec![(String::new(), TagValue::Tags(Vec::new()))];
    for piece in pieces {
        let (tag, text) = piece.trim_start().strip_prefix('<')?.split_once('>')?;
        if let Some(name) = tag.strip_prefix('/') {
            let (opened, value) = open.pop()?;
            let (_, TagValue::Tags(outer)) = open.last_mut()? else { return None };
            if opened != name.trim() || !text.trim().is_empty() {
                return None;
            }
            outer.push((opened, value));
            continue;
        }
        let name = tag.trim();
        if name.is_empty() || open.len() > MAX_DEPTH {
            return None;
        }
        let (_, outer) = open.last_mut()?;
        match outer {
            TagValue::Tags(_) => {}
            TagValue::Text(before) if before.trim().is_empty() => {
                *outer = TagValue::Tags(Vec::new());
            }
            TagValue::Text(_) => return None,
        }
        open.push((name.to_owned(), TagValue::Text(text.to_owned())));
    }
    let (_, TagValue::Tags(root)) = open.pop()? else { return None };
    let root_schema = schema.unwrap_or(&Value::Null);
    open.is_empty().then(|| object(&root, schema, root_schema))
}

/// Returns tags as a JSON object; tags of the same name are a list.
fn object(tags: &[(String, TagValue)], schema: Option<&Value>, root: &Value) -> String {
    let mut fields: IndexMap<&str, Vec<String>> = IndexMap::new();
    for (name, value) in tags {
        let inner = schema.and_then(|schema| {
            let named = schema.get("properties").and_then(|fields| fields.get(name));
            named.or_else(|| schema.get("additionalProperties").filter(|other| other.is_object()))
        });
        fields.entry(name).or_default().push(json(value, inner, root));
    }
    let fields = fields.iter().map(|(name, values)| match values.as_slice() {
        [value] => format!("{}: {value}", quoted(name)),
        values => format!("{}: [{}]", quoted(name), values.join(", ")),
    });
    format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
}

/// Returns the value of a tag as JSON.
fn json(value: &TagValue, schema: Option<&Value>, root: &Value) -> String {
    let types = schema.map(|schema| types(schema, root)).unwrap_or_default();
    let tags = match value {
        TagValue::Text(text) if text.trim().is_empty() && types.contains(&"array") => &[][..],
        TagValue::Text(text) if text.trim().is_empty() && types.contains(&"object") => {
            return "{}".to_owned();
        }
        TagValue::Text(text) => return leaf(text, schema, root),
        TagValue::Tags(tags) => tags,
    };
    let items = !tags.is_empty() && tags.iter().all(|(name, _)| name == ITEM);
    if types.contains(&"array") || items && !types.contains(&"object") {
        let inner = schema.and_then(|schema| schema.get("items"));
        let items: Vec<String> = tags.iter().map(|(_, value)| json(value, inner, root)).collect();
        return format!("[{}]", items.join(", "));
    }
    object(tags, schema, root)
}

/// Returns the text of a tag as JSON. Without a type in the schema, only `true`, `false` and `null` are no strings.
fn leaf(text: &str, schema: Option<&Value>, root: &Value) -> String {
    let word = text.trim();
    let untyped = schema.is_none_or(|schema| types(schema, root).is_empty());
    if untyped && matches!(word, "true" | "false" | "null") {
        return word.to_owned();
    }
    coerced(text, schema, root, ValueType::Text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: &str) -> Option<String> {
        let schema = json!({"properties": {
            "n": {"type": "integer"},
            "l": {"type": "array", "items": {"type": "integer"}},
            "o": {"type": "object", "properties": {"b": {"type": "boolean"}}},
        }});
        arguments(body, "@", Some(&schema))
    }

    #[test]
    fn tags_are_objects_and_lists() {
        for (body, expected) in [
            ("", "{}"),
            ("\n@<n>7@</n>\n@<s> a < b\n@</s>\n", r#"{"n": 7, "s": " a < b\n"}"#),
            ("@<l>@<item>1@</item>@<item>2@</item>@</l>", r#"{"l": [1, 2]}"#),
            ("@<l>@</l>@<o>@</o>@<s>@</s>", r#"{"l": [], "o": {}, "s": ""}"#),
            ("@<o>\n@<b>true@</b>\n@<c>12@</c>@</o>", r#"{"o": {"b": true, "c": "12"}}"#),
            ("@<x>@<item>a@</item>@</x>@<y>null@</y>", r#"{"x": ["a"], "y": null}"#),
            ("@<x>1@</x>@<x>2@</x>", r#"{"x": ["1", "2"]}"#),
        ] {
            assert_eq!(read(body).as_deref(), Some(expected), "{body}");
        }
    }

    #[test]
    fn malformed_tags_are_no_arguments() {
        let deep = "@<a>".repeat(MAX_DEPTH + 1);
        for body in [
            "x",
            "@<a>1",
            "@<a>1@</b>",
            "@</a>",
            "@<a>1@<b>2@</b>@</a>",
            "@a",
            "@<>1@</>",
            "@<a",
            &deep,
        ] {
            assert_eq!(read(body), None, "{body}");
        }
    }
}
