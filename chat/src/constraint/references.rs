//! References of schemas whose places are written with escapes.
//!
//! A place in a schema is a JSON pointer in a URI fragment (RFC 6901): `~1` means `/`, `~0` means `~`, and `%20` means a
//! blank. The grammars compare the parts of a place as they are written, so what such a reference leads to becomes a
//! definition with a plain name.

use serde_json::{Map, Value, json};

use super::keywords::changed;
use crate::format::pointer;

/// Returns a schema whose references have no escapes.
pub(super) fn plain(schema: &Value) -> Value {
    let mut named = NamedPlaces { root: schema, places: Vec::new() };
    let mut output = named.rewritten(schema);
    let mut added = Map::new();
    let mut next = 0;
    while let Some((place, name)) = named.places.get(next).cloned() {
        next += 1;
        if let Some(target) = schema.pointer(&place) {
            added.insert(name, named.rewritten(target));
        }
    }
    if let (Value::Object(map), false) = (&mut output, added.is_empty())
        && let Value::Object(known) = map.entry("$defs").or_insert_with(|| json!({}))
    {
        known.extend(added);
    }
    output
}

/// Places that references with escapes lead to.
struct NamedPlaces<'a> {
    root: &'a Value,
    /// Pointers, each with the name of its definition.
    places: Vec<(String, String)>,
}

impl NamedPlaces<'_> {
    fn rewritten(&mut self, schema: &Value) -> Value {
        let Value::Object(map) = schema else { return schema.clone() };
        let mut output = Map::new();
        for (key, value) in map {
            let value = match (key.as_str(), value) {
                ("$ref", Value::String(reference)) if reference.contains(['~', '%']) => {
                    match self.name(reference) {
                        Some(name) => json!(format!("#/$defs/{name}")),
                        None => value.clone(),
                    }
                }
                _ => changed(key, value, &mut |schema| self.rewritten(schema)),
            };
            output.insert(key.clone(), value);
        }
        Value::Object(output)
    }

    /// Returns the name of the definition for a reference; none if it leads nowhere.
    fn name(&mut self, reference: &str) -> Option<String> {
        let place = pointer(reference)?;
        self.root.pointer(&place)?;
        if let Some((_, name)) = self.places.iter().find(|(known, _)| *known == place) {
            return Some(name.clone());
        }
        let mut name = format!("place{}", self.places.len() + 1);
        while self.root.pointer(&format!("/$defs/{name}")).is_some() {
            name.push('_');
        }
        self.places.push((place, name.clone()));
        Some(name)
    }
}
