//! JSON of schemas in a text that ends at the first of some marks, also where the mark stands inside of a string.
//!
//! The schema is narrowed so that no string and no key of its values holds a mark. Every value still fits the schema
//! as it was.

use serde_json::{Map, Value, json};

use super::error::Inexpressible;
use super::keywords::{MAPS, other_key};
use super::lark::escaped;

/// Keywords of definitions.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Narrows a schema so that the JSON of its values holds none of these marks. Only the definitions that it needs are
/// left.
pub(super) fn without_marks(schema: &Value, marks: &[&str]) -> Result<Value, Inexpressible> {
    let text = MarkFreeText::new(marks)?;
    let mut any = "any".to_owned();
    while schema.pointer(&format!("/$defs/{any}")).is_some() {
        any.push('_');
    }
    let any = format!("#/$defs/{any}");
    let mut narrowing = Narrowing { marks, text, any, references: Vec::new() };
    let mut output = match narrowing.schema(schema)? {
        Value::Object(map) => map,
        other => return Ok(other),
    };
    let mut known = DEFINITIONS.map(|key| (key, Map::new()));
    let mut next = 0;
    while let Some(reference) = narrowing.references.get(next).cloned() {
        next += 1;
        let place = reference.strip_prefix("#/").and_then(|place| place.split_once('/'));
        let definition = place.and_then(|(key, name)| {
            if reference == narrowing.any {
                return Some(Ok(Value::Object(narrowing.text_and_parts(Map::new(), &|_| true))));
            }
            Some(narrowing.schema(schema.get(key)?.get(name)?))
        });
        // References lead to definitions alone, since all else may be narrowed twice or not at all.
        let definition = definition.ok_or_else(|| Inexpressible::key("$ref"))??;
        for (key, map) in &mut known {
            if let Some((place, name)) = place
                && *key == place
            {
                map.insert(name.to_owned(), definition.clone());
            }
        }
    }
    for (key, map) in known {
        output.remove(key);
        if !map.is_empty() {
            output.insert(key.to_owned(), Value::Object(map));
        }
    }
    Ok(Value::Object(output))
}

/// Regular expressions of texts without marks.
struct MarkFreeText {
    /// Text without a mark, as a whole.
    free: String,
    /// Any mark.
    mark: String,
}

impl MarkFreeText {
    /// Marks are refused that could begin outside of strings, or inside of an escape.
    fn new(marks: &[&str]) -> Result<Self, Inexpressible> {
        let first = marks.first().and_then(|mark| mark.chars().next()).ok_or_else(unclear)?;
        let is_plain = first.is_alphanumeric() || first.is_whitespace() || first.is_control();
        if is_plain || "\"\\{}[],:+-./".contains(first) {
            return Err(unclear());
        }
        let mut tails = Vec::new();
        for mark in marks {
            let tail = mark.strip_prefix(first).ok_or_else(unclear)?;
            if tail.contains(['"', '\\']) || tail.contains(char::is_control) {
                return Err(unclear());
            }
            // Up to the place where the mark could begin anew, so that the expression stays short.
            tails.push(tail.split(first).next().unwrap_or_default());
        }
        let open = escaped(&first.to_string());
        let mark = tails.iter().map(|tail| format!("{open}{}", escaped(tail)));
        let mark = mark.collect::<Vec<_>>().join("|");
        let free = match tail_without(&tails, &open) {
            Some(tail) => format!("^[^{open}]*(?:{open}{tail})*$"),
            None => format!("^[^{open}]*$"),
        };
        Ok(Self { free, mark })
    }
}

/// Returns the expression of a text without the character `first` that begins with none of these texts; none if no text
/// is left.
fn tail_without(tails: &[&str], first: &str) -> Option<String> {
    if tails.contains(&"") {
        return None;
    }
    let mut heads: Vec<char> = tails.iter().filter_map(|tail| tail.chars().next()).collect();
    heads.sort_unstable();
    heads.dedup();
    let escaped_heads: String = heads.iter().map(|head| escaped(&head.to_string())).collect();
    let mut ways = vec![format!("[^{first}{escaped_heads}][^{first}]*")];
    for head in heads {
        let behind: Vec<&str> = tails.iter().filter_map(|tail| tail.strip_prefix(head)).collect();
        if let Some(tail) = tail_without(&behind, first) {
            ways.push(format!("{}{tail}", escaped(&head.to_string())));
        }
    }
    Some(format!("(?:{})?", ways.join("|")))
}

/// Returns the error of a mark that could begin outside of strings, or inside of an escape.
fn unclear() -> Inexpressible {
    Inexpressible::of("JSON before this mark")
}

/// Rewriting of a schema and of those inside of it.
struct Narrowing<'a> {
    marks: &'a [&'a str],
    text: MarkFreeText,
    /// Reference to the schema of any value without marks.
    any: String,
    /// References that were met, each once.
    references: Vec<String>,
}

impl Narrowing<'_> {
    fn any(&mut self) -> Value {
        let any = self.any.clone();
        self.refer(&any);
        json!({ "$ref": any })
    }

    fn refer(&mut self, reference: &str) {
        if !self.references.iter().any(|known| known == reference) {
            self.references.push(reference.to_owned());
        }
    }

    fn schema(&mut self, schema: &Value) -> Result<Value, Inexpressible> {
        let map = match schema {
            Value::Bool(true) => return Ok(self.any()),
            Value::Object(map) => map,
            other => return Ok(other.clone()),
        };
        let all = map.get("const").into_iter();
        let all = all.chain(map.get("enum").and_then(Value::as_array).into_iter().flatten());
        for value in all {
            if self.in_value(value) || escapes(value) {
                return Err(Inexpressible::key("enum"));
            }
        }
        if map.contains_key("const") || map.contains_key("enum") {
            return Ok(schema.clone());
        }
        let applied =
            ["$ref", "allOf", "anyOf", "oneOf"].into_iter().find(|key| map.contains_key(*key));
        let Some(applied) = applied else {
            return self.plain(map).map(Value::Object);
        };
        // Each value fits one of the inner schemas. Conditions beside them would have to be narrowed together.
        if let Some(key) = other_key(map, &[applied, "type"]) {
            return Err(Inexpressible::key(key));
        }
        let mut narrowed = map.clone();
        match narrowed.get_mut(applied) {
            Some(Value::Array(list)) if applied != "allOf" || list.len() == 1 => {
                for inner in list {
                    *inner = self.schema(inner)?;
                }
            }
            Some(Value::String(reference)) if applied == "$ref" => self.refer(reference),
            _ => return Err(Inexpressible::key(applied)),
        }
        Ok(Value::Object(narrowed))
    }

    /// Narrows a schema without constants and alternatives.
    fn plain(&mut self, map: &Map<String, Value>) -> Result<Map<String, Value>, Inexpressible> {
        let unclear = ["patternProperties", "additionalItems"];
        if let Some(key) = unclear.into_iter().find(|key| map.contains_key(*key)) {
            return Err(Inexpressible::key(key));
        }
        let mut narrowed = map.clone();
        for (key, value) in &mut narrowed {
            match (key.as_str(), value) {
                ("properties", Value::Object(inner)) => {
                    for (name, schema) in inner {
                        if self.in_text(name) {
                            return Err(Inexpressible::name(name));
                        }
                        *schema = self.schema(schema)?;
                    }
                }
                ("required", Value::Array(names))
                    if names.iter().any(|name| self.in_value(name)) =>
                {
                    return Err(Inexpressible::key("required"));
                }
                ("prefixItems", Value::Array(list)) => {
                    for schema in list {
                        *schema = self.schema(schema)?;
                    }
                }
                ("items", Value::Array(_)) => return Err(Inexpressible::key("items")),
                ("items" | "additionalProperties", schema) => *schema = self.schema(schema)?,
                (key, _) if MAPS.contains(&key) && !DEFINITIONS.contains(&key) => {
                    return Err(Inexpressible::key(key));
                }
                _ => {}
            }
        }
        let kinds = map.get("type");
        Ok(self.text_and_parts(narrowed, &|kind| match kinds {
            None => true,
            Some(Value::Array(kinds)) => kinds.iter().any(|name| name == kind),
            Some(name) => name == kind,
        }))
    }

    /// Adds the conditions of strings, keys and parts to a schema that allows these types.
    fn text_and_parts(
        &mut self,
        mut schema: Map<String, Value>,
        allows: &dyn Fn(&str) -> bool,
    ) -> Map<String, Value> {
        if allows("string") {
            if schema.contains_key("pattern") {
                schema.insert("allOf".to_owned(), json!([{ "pattern": self.text.free }]));
            } else {
                schema.insert("pattern".to_owned(), json!(self.text.free));
            }
        }
        if allows("object") && schema.get("additionalProperties") != Some(&json!(false)) {
            if !schema.contains_key("additionalProperties") {
                schema.insert("additionalProperties".to_owned(), self.any());
            }
            schema
                .insert("patternProperties".to_owned(), json!({ self.text.mark.as_str(): false }));
        }
        if allows("array") && !schema.contains_key("items") {
            schema.insert("items".to_owned(), self.any());
        }
        schema
    }

    fn in_text(&self, text: &str) -> bool {
        self.marks.iter().any(|mark| text.contains(mark))
    }

    fn in_value(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.in_text(text),
            Value::Array(list) => list.iter().any(|value| self.in_value(value)),
            Value::Object(map) => {
                map.iter().any(|(key, value)| self.in_text(key) || self.in_value(value))
            }
            _ => false,
        }
    }
}

/// True if JSON needs the escape `\u` for a text of a value, or for a key.
fn escapes(value: &Value) -> bool {
    value.to_string().contains("\\u")
}
