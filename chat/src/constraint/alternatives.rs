//! `oneOf` of schemas, which becomes `anyOf` where no value fits two of its alternatives.
//!
//! A grammar cannot count the alternatives that an answer fits. Alternatives that overlap are refused.
//!
//! The reasons are in [decision 92](../../../docs/decisions/0092-alternatives-that-exclude-each-other.md).

use serde_json::{Map, Value, json};

use super::ConstraintError;
use super::keywords::{MAPS, SCHEMAS};

/// Deepest comparison of two alternatives.
const DEPTH: usize = 24;
/// Most comparisons of schemas and values for one rule.
const COMPARISONS: usize = 200_000;

/// Returns a schema without `oneOf` that allows the same values.
///
/// Alternatives have to contain the property that their `discriminator` names.
pub(super) fn exclusive(schema: &Value) -> Result<Value, ConstraintError> {
    if !schema.to_string().contains("\"oneOf\"") {
        return Ok(schema.clone());
    }
    let mut tagged = schema.clone();
    let mut tags = Vec::new();
    discriminators(schema, schema, &mut String::new(), &mut tags);
    for (place, tag) in tags {
        let Some(Value::Object(map)) = tagged.pointer_mut(&place) else { continue };
        let known = map.get("properties").is_some_and(|known| known.get(&tag).is_some());
        let required = map.entry("required").or_insert_with(|| json!([]));
        if let Value::Array(names) = required
            && known
            && !names.contains(&json!(tag))
        {
            names.push(json!(tag));
        }
    }
    let mut check = AlternativeCheck { root: &tagged, left: COMPARISONS };
    check.rewritten(&tagged, &mut String::new())
}

/// Runs work with a longer place.
fn within<T>(place: &mut String, key: &str, work: impl FnOnce(&mut String) -> T) -> T {
    let length = place.len();
    place.push('/');
    place.push_str(&key.replace('~', "~0").replace('/', "~1"));
    let done = work(place);
    place.truncate(length);
    done
}

/// Calls a function for each schema directly inside of another one, with its place.
fn inner(map: &Map<String, Value>, place: &mut String, each: &mut dyn FnMut(&Value, &mut String)) {
    for (key, value) in map {
        let maps = MAPS.contains(&key.as_str());
        let schemas = SCHEMAS.contains(&key.as_str());
        within(place, key, |place| match value {
            Value::Object(map) if maps => {
                for (key, schema) in map {
                    within(place, key, |place| each(schema, place));
                }
            }
            Value::Array(list) if schemas => {
                for (n, schema) in list.iter().enumerate() {
                    within(place, &n.to_string(), |place| each(schema, place));
                }
            }
            Value::Object(_) if schemas => each(value, place),
            _ => {}
        });
    }
}

/// Collects the places of alternatives with the property that their `discriminator` names.
fn discriminators(
    schema: &Value,
    root: &Value,
    place: &mut String,
    places: &mut Vec<(String, String)>,
) {
    let Value::Object(map) = schema else { return };
    let tag = map.get("discriminator").and_then(|named| named.get("propertyName")?.as_str());
    if let (Some(tag), Some(Value::Array(list))) = (tag, map.get("oneOf")) {
        for (n, alternative) in list.iter().enumerate() {
            let reference = alternative.get("$ref").and_then(Value::as_str);
            let target = match reference.and_then(|at| at.strip_prefix('#')) {
                Some(at) if root.pointer(at).is_some() => at.to_owned(),
                _ => format!("{place}/oneOf/{n}"),
            };
            places.push((target, tag.to_owned()));
        }
    }
    inner(map, place, &mut |schema, place| discriminators(schema, root, place, places));
}

/// Comparison of the alternatives of a schema.
struct AlternativeCheck<'a> {
    root: &'a Value,
    /// Comparisons that are left.
    left: usize,
}

impl<'a> AlternativeCheck<'a> {
    fn rewritten(
        &mut self,
        schema: &'a Value,
        place: &mut String,
    ) -> Result<Value, ConstraintError> {
        let Value::Object(map) = schema else { return Ok(schema.clone()) };
        let mut output = Map::new();
        for (key, value) in map {
            let maps = MAPS.contains(&key.as_str());
            let schemas = SCHEMAS.contains(&key.as_str());
            let value = within(place, key, |place| match value {
                Value::Object(map) if maps => {
                    let each = map.iter().map(|(key, schema)| {
                        let schema = within(place, key, |place| self.rewritten(schema, place))?;
                        Ok((key.clone(), schema))
                    });
                    Ok(Value::Object(each.collect::<Result<_, ConstraintError>>()?))
                }
                Value::Array(list) if schemas => {
                    let each = list.iter().enumerate().map(|(n, schema)| {
                        within(place, &n.to_string(), |place| self.rewritten(schema, place))
                    });
                    Ok(Value::Array(each.collect::<Result<_, _>>()?))
                }
                Value::Object(_) if schemas => self.rewritten(value, place),
                _ => Ok(value.clone()),
            })?;
            if let ("oneOf", Some(Value::Array(list))) = (key.as_str(), map.get("oneOf")) {
                self.compare(list, place)?;
                if map.contains_key("anyOf") {
                    let all = output.entry("allOf").or_insert_with(|| json!([]));
                    if let Value::Array(all) = all {
                        all.push(json!({ "anyOf": value }));
                    }
                } else {
                    output.insert("anyOf".to_owned(), value);
                }
            } else if let ("allOf", Some(Value::Array(more))) = (key.as_str(), output.get("allOf"))
            {
                // An `anyOf` from a `oneOf` before came first.
                let mut all = value.as_array().cloned().unwrap_or_default();
                all.extend(more.iter().cloned());
                output.insert("allOf".to_owned(), Value::Array(all));
            } else {
                output.insert(key.clone(), value);
            }
        }
        Ok(Value::Object(output))
    }

    /// Refuses alternatives that a value may fit together.
    fn compare(&mut self, list: &'a [Value], place: &str) -> Result<(), ConstraintError> {
        for (second, b) in list.iter().enumerate() {
            for (first, a) in list[..second].iter().enumerate() {
                if !self.disjoint(a, b, 0) {
                    let place = formats::shown(&format!("#{place}/oneOf"));
                    return Err(if self.left == 0 {
                        ConstraintError::Alternatives { place }
                    } else {
                        ConstraintError::Overlap { place, first: first + 1, second: second + 1 }
                    });
                }
            }
        }
        Ok(())
    }

    /// True if another comparison may be made.
    fn goes_on(&mut self, depth: usize) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left > 0 && depth <= DEPTH
    }

    /// Follows references.
    fn target(&self, mut schema: &'a Value) -> &'a Value {
        for _ in 0..DEPTH {
            let reference = schema.get("$ref").and_then(|at| at.as_str()?.strip_prefix('#'));
            let Some(target) = reference.and_then(|at| self.root.pointer(at)) else { break };
            schema = target;
        }
        schema
    }

    /// True if no value fits both schemas, as far as that is seen.
    fn disjoint(&mut self, a: &'a Value, b: &'a Value, depth: usize) -> bool {
        if !self.goes_on(depth) {
            return false;
        }
        // Conditions beside a reference only allow less.
        let a = self.target(a);
        let b = self.target(b);
        if [a, b].contains(&&Value::Bool(false)) {
            return true;
        }
        let (Some(left), Some(right)) = (a.as_object(), b.as_object()) else { return false };
        for (map, other) in [(left, b), (right, a)] {
            if let Some(values) = listed(map)
                && values.iter().all(|value| self.rejects(other, value, depth + 1))
            {
                return true;
            }
            for key in ["anyOf", "oneOf"] {
                if let Some(Value::Array(list)) = map.get(key)
                    && list.iter().all(|schema| self.disjoint(schema, other, depth + 1))
                {
                    return true;
                }
            }
            if let Some(Value::Array(list)) = map.get("allOf")
                && list.iter().any(|schema| self.disjoint(schema, other, depth + 1))
            {
                return true;
            }
        }
        match types(left) & types(right) {
            0 => true,
            OBJECT => {
                let mut keys: Vec<&str> = required(left).chain(required(right)).collect();
                keys.sort_unstable();
                keys.dedup();
                keys.iter().any(|key| {
                    let a = property(left, key);
                    let b = property(right, key);
                    self.disjoint(a, b, depth + 1)
                })
            }
            kinds if kinds & !(INTEGER | FRACTION) == 0 => {
                is_below(left, right) || is_below(right, left)
            }
            _ => false,
        }
    }

    /// True if a value does not fit a schema, as far as that is seen.
    fn rejects(&mut self, schema: &'a Value, value: &Value, depth: usize) -> bool {
        if !self.goes_on(depth) {
            return false;
        }
        let map = match self.target(schema) {
            Value::Object(map) => map,
            other => return *other == Value::Bool(false),
        };
        if types(map) & kind(value) == 0 {
            return true;
        }
        if let Some(values) = listed(map) {
            return !values.iter().any(|other| equal(other, value));
        }
        for key in ["anyOf", "oneOf"] {
            let rejections = self.rejections(map, key, value, depth);
            if rejections.is_some_and(|all| all.iter().all(|rejected| *rejected)) {
                return true;
            }
        }
        if self.rejections(map, "allOf", value, depth).is_some_and(|all| all.contains(&true)) {
            return true;
        }
        match value {
            Value::Number(number) => {
                let number = number.as_f64().unwrap_or(f64::NAN);
                bound(map, "minimum").is_some_and(|least| number < least)
                    || bound(map, "maximum").is_some_and(|greatest| number > greatest)
            }
            Value::Object(fields) => {
                required(map).any(|key| !fields.contains_key(key))
                    || fields
                        .iter()
                        .any(|(key, value)| self.rejects(property(map, key), value, depth + 1))
            }
            _ => false,
        }
    }

    /// Tells for each schema in the list under a key whether it rejects a value; none without such a list.
    fn rejections(
        &mut self,
        map: &'a Map<String, Value>,
        key: &str,
        value: &Value,
        depth: usize,
    ) -> Option<Vec<bool>> {
        match map.get(key) {
            Some(Value::Array(list)) => {
                Some(list.iter().map(|schema| self.rejects(schema, value, depth + 1)).collect())
            }
            _ => None,
        }
    }
}

const NULL: u8 = 1;
const BOOLEAN: u8 = 2;
const INTEGER: u8 = 4;
/// Number that is no integer.
const FRACTION: u8 = 8;
const STRING: u8 = 16;
const ARRAY: u8 = 32;
const OBJECT: u8 = 64;

/// Returns the types of values that a schema allows.
fn types(map: &Map<String, Value>) -> u8 {
    match map.get("type") {
        Some(Value::Array(words)) => words.iter().fold(0, |all, word| all | types_named(word)),
        Some(word) => types_named(word),
        None => u8::MAX,
    }
}

/// Returns the types of values that a name of `type` allows.
fn types_named(word: &Value) -> u8 {
    match word.as_str() {
        Some("null") => NULL,
        Some("boolean") => BOOLEAN,
        Some("integer") => INTEGER,
        Some("number") => INTEGER | FRACTION,
        Some("string") => STRING,
        Some("array") => ARRAY,
        Some("object") => OBJECT,
        _ => u8::MAX,
    }
}

fn kind(value: &Value) -> u8 {
    match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(number) if number.as_f64().is_none_or(|number| number.fract() == 0.0) => {
            INTEGER
        }
        Value::Number(_) => FRACTION,
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

/// Returns the values that a schema lists.
fn listed(map: &Map<String, Value>) -> Option<&[Value]> {
    match (map.get("const"), map.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (None, Some(Value::Array(values))) => Some(values),
        _ => None,
    }
}

/// Compares values as JSON Schema does: 1 and 1.0 are the same number.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        _ => a == b,
    }
}

fn required(map: &Map<String, Value>) -> impl Iterator<Item = &str> {
    map.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Returns the schema of a property.
fn property<'a>(map: &'a Map<String, Value>, key: &str) -> &'a Value {
    const ANY: &Value = &Value::Bool(true);
    if let Some(schema) = map.get("properties").and_then(|known| known.get(key)) {
        return schema;
    }
    if map.contains_key("patternProperties") {
        return ANY;
    }
    map.get("additionalProperties").unwrap_or(ANY)
}

fn bound(map: &Map<String, Value>, key: &str) -> Option<f64> {
    map.get(key).and_then(Value::as_f64)
}

/// True if the maximum of one schema is below the minimum of another one.
fn is_below(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    let bounds = bound(a, "maximum").zip(bound(b, "minimum"));
    bounds.is_some_and(|(greatest, least)| greatest < least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternatives_that_exclude_each_other_become_any() {
        for list in [
            json!([{ "type": "string" }, { "type": "null" }, { "type": "integer" }]),
            json!([{ "const": "a" }, { "const": "b" }, { "enum": ["c", 1] }]),
            json!([tagged("a"), tagged("b")]),
            json!([{ "type": "integer", "maximum": 3 }, { "type": "number", "minimum": 4 }]),
            json!([
                { "type": "object", "properties": { "a": true }, "required": ["a"] },
                { "type": "object", "properties": { "b": true }, "additionalProperties": false },
            ]),
            json!([{ "anyOf": [{ "type": "string" }, { "type": "null" }] }, { "type": "boolean" }]),
            json!([{ "allOf": [{ "type": "string" }, { "minLength": 1 }] }, { "type": "array" }]),
            json!([{ "const": { "a": 1 } }, { "type": "object", "required": ["b"] }]),
            json!([{ "type": "string" }, false]),
        ] {
            let rewritten = exclusive(&json!({ "items": { "oneOf": list } })).unwrap();
            assert_eq!(rewritten, json!({ "items": { "anyOf": list } }));
        }
    }

    fn tagged(word: &str) -> Value {
        json!({ "type": "object", "properties": { "kind": { "const": word } }, "required": ["kind"] })
    }

    #[test]
    fn alternatives_that_overlap_are_refused_with_their_place() {
        for list in [
            json!([{ "type": "integer" }, { "type": "number" }]),
            json!([{ "type": "string" }, {}]),
            json!([{ "enum": [1, 2] }, { "const": 1.0 }]),
            json!([{ "required": ["a"] }, { "required": ["b"] }]),
            json!([{ "properties": { "a": { "const": 1 } } }, { "properties": { "a": { "const": 2 } } }]),
            json!([{ "type": "integer", "maximum": 3 }, { "type": "integer", "minimum": 3 }]),
            json!([{ "type": "string", "pattern": "^a" }, { "type": "string", "pattern": "^b" }]),
            json!([true, true]),
        ] {
            let schema = json!({ "properties": { "a/b": { "oneOf": list } } });
            let error = exclusive(&schema).unwrap_err();
            let place = "#/properties/a~1b/oneOf".to_owned();
            assert_eq!(error, ConstraintError::Overlap { place, first: 1, second: 2 }, "{list}");
        }
    }

    #[test]
    fn a_discriminator_is_required() {
        let schema = json!({
            "oneOf": [{ "$ref": "#/$defs/A" }, { "$ref": "#/$defs/B" }],
            "$defs": { "A": with_default_kind("a"), "B": with_default_kind("b") },
        });
        assert!(matches!(exclusive(&schema), Err(ConstraintError::Overlap { .. })));
        let mut named = schema;
        named["discriminator"] = json!({ "propertyName": "kind" });
        let rewritten = exclusive(&named).unwrap();
        assert_eq!(rewritten["$defs"]["A"]["required"], json!(["kind"]));
        assert_eq!(rewritten["anyOf"], named["oneOf"]);
    }

    fn with_default_kind(word: &str) -> Value {
        json!({ "type": "object", "properties": { "kind": { "const": word, "default": word } } })
    }

    #[test]
    fn other_keywords_stay() {
        let schema = json!({
            "properties": { "oneOf": { "const": { "oneOf": [1, 1] } } },
            "oneOf": [{ "type": "object" }, { "type": "null" }],
            "anyOf": [{ "type": "object" }, { "type": "array" }],
            "allOf": [{ "required": ["oneOf"] }],
        });
        let rewritten = exclusive(&schema).unwrap();
        assert_eq!(rewritten["properties"], schema["properties"]);
        assert_eq!(rewritten["anyOf"], schema["anyOf"]);
        let both = json!([{ "required": ["oneOf"] }, { "anyOf": schema["oneOf"] }]);
        assert_eq!((&rewritten["allOf"], rewritten.get("oneOf")), (&both, None));
    }

    #[test]
    fn comparisons_have_an_end() {
        let alternatives: Vec<Value> = (0..700).map(|n| json!({ "const": n })).collect();
        let schema = json!({ "oneOf": alternatives });
        assert!(matches!(exclusive(&schema), Err(ConstraintError::Alternatives { .. })));
        let endless = json!({
            "oneOf": [{ "$ref": "#/$defs/A" }, { "$ref": "#/$defs/B" }],
            "$defs": {
                "A": { "oneOf": [{ "$ref": "#/$defs/A" }, { "$ref": "#/$defs/B" }] },
                "B": { "allOf": [{ "$ref": "#/$defs/B" }] },
            },
        });
        assert!(exclusive(&endless).is_err());
        assert!(exclusive(&json!({ "oneOf": [{ "$ref": "#/oneOf/0" }, true] })).is_err());
    }
}
