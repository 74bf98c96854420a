//! Numbers of schemas, which the grammars read as 64-bit floats.
//!
//! An integer beyond 2^53 may have no such float. A bound moves to the next float inside of it, so that every answer
//! still fits the schema; a value that has to be written exactly is refused.

use serde_json::{Map, Number, Value};

use super::ConstraintError;
use super::alternatives::{MAPS, SCHEMAS};

/// Returns a schema whose bounds are floats.
pub(super) fn rounded(schema: &Value) -> Result<Value, ConstraintError> {
    let Value::Object(map) = schema else { return Ok(schema.clone()) };
    let mut made = Map::new();
    for (key, value) in map {
        let (maps, schemas) = (MAPS.contains(&key.as_str()), SCHEMAS.contains(&key.as_str()));
        let value = match (key.as_str(), value) {
            ("const" | "enum", value) => {
                exact(value, key)?;
                value.clone()
            }
            ("minimum" | "exclusiveMinimum", Value::Number(bound)) => not_below(bound),
            ("maximum" | "exclusiveMaximum", Value::Number(bound)) => not_above(bound),
            (_, Value::Object(map)) if maps => {
                let each = map.iter().map(|(name, schema)| Ok((name.clone(), rounded(schema)?)));
                Value::Object(each.collect::<Result<_, _>>()?)
            }
            (_, Value::Array(list)) if schemas => {
                Value::Array(list.iter().map(rounded).collect::<Result<_, _>>()?)
            }
            (_, value) if schemas => rounded(value)?,
            (_, value) => value.clone(),
        };
        made.insert(key.clone(), value);
    }
    Ok(Value::Object(made))
}

/// Fails if a value has an integer without a float.
fn exact(value: &Value, keyword: &str) -> Result<(), ConstraintError> {
    match value {
        Value::Number(number) => match integer(number) {
            Some((integer, float)) if float as i128 != integer => {
                Err(ConstraintError::Integer { keyword: keyword.to_owned(), found: integer })
            }
            _ => Ok(()),
        },
        Value::Array(list) => list.iter().try_for_each(|value| exact(value, keyword)),
        Value::Object(map) => map.values().try_for_each(|value| exact(value, keyword)),
        _ => Ok(()),
    }
}

/// Returns an integer with the float next to it; none for other numbers.
fn integer(number: &Number) -> Option<(i128, f64)> {
    let integer = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))?;
    Some((integer, integer as f64))
}

/// Returns the lowest float that is not below a bound. The grammars have no lowest 64-bit integer.
fn not_below(bound: &Number) -> Value {
    match integer(bound) {
        Some((integer, float)) if (float as i128) < integer || integer == i64::MIN.into() => {
            float.next_up().into()
        }
        _ => bound.clone().into(),
    }
}

/// Returns the highest float that is not above a bound.
fn not_above(bound: &Number) -> Value {
    match integer(bound) {
        Some((integer, float)) if float as i128 > integer => float.next_down().into(),
        _ => bound.clone().into(),
    }
}
