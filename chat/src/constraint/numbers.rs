//! Numbers of schemas, which the grammars read as 64-bit floats.
//!
//! An integer beyond 2^53 may have no such float. A bound moves to the next float inside of it, so that every answer
//! still fits the schema; a value that has to be written exactly is refused. Bounds beyond 2^63 move inward as well, or
//! are refused where no number would be left.

use serde_json::{Map, Number, Value};

use super::ConstraintError;
use super::keywords::with_inner;

/// Bounds that the grammars can read lie between this float and its negative: the highest one below 2^63.
const MOST: f64 = 9_223_372_036_854_774_784.0;
/// Keywords of bounds.
const LOWEST: [&str; 2] = ["minimum", "exclusiveMinimum"];
const HIGHEST: [&str; 2] = ["maximum", "exclusiveMaximum"];
/// From this number on, a bound needs another one on its far side.
const OPEN: f64 = 1e18;
/// From this number on, floats lie more than one apart.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Returns a schema whose bounds are floats that the grammars can read.
pub(super) fn rounded(schema: &Value) -> Result<Value, ConstraintError> {
    let Value::Object(map) = schema else { return Ok(schema.clone()) };
    let mut output = Map::new();
    for (key, value) in map {
        let value = match (key.as_str(), value) {
            ("const" | "enum", value) => {
                exact(value, key)?;
                value.clone()
            }
            ("minimum" | "exclusiveMinimum", Value::Number(bound)) => not_below(bound, key)?,
            ("maximum" | "exclusiveMaximum", Value::Number(bound)) => not_above(bound, key)?,
            (_, value) => with_inner(key, value, &mut rounded)?,
        };
        output.insert(key.clone(), value);
    }
    for (near, far, sign) in [(LOWEST, HIGHEST, 1.0), (HIGHEST, LOWEST, -1.0)] {
        let is_far = near
            .into_iter()
            .any(|key| output.get(key).and_then(Value::as_f64).is_some_and(|n| n * sign >= OPEN));
        if is_far && !far.iter().any(|key| output.contains_key(*key)) {
            output.insert(far[0].to_owned(), (MOST * sign).into());
        }
    }
    Ok(Value::Object(output))
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

/// Returns the lowest float that a lower bound allows, or one above it.
fn not_below(bound: &Number, keyword: &str) -> Result<Value, ConstraintError> {
    let Some(mut float) = bound.as_f64() else { return Ok(bound.clone().into()) };
    if integer(bound).is_some_and(|(integer, float)| (float as i128) < integer) {
        float = float.next_up();
    }
    // The grammars add one to an exclusive bound, which leaves such a float as it is.
    if keyword.starts_with("exclusive") && float.abs() >= EXACT {
        float = float.next_up();
    }
    if float > MOST {
        return Err(ConstraintError::Bound {
            keyword: keyword.to_owned(),
            found: bound.to_string(),
        });
    }
    Ok(kept(bound, float.max(-MOST)))
}

/// Returns the highest float that an upper bound allows, or one below it.
fn not_above(bound: &Number, keyword: &str) -> Result<Value, ConstraintError> {
    let Some(mut float) = bound.as_f64() else { return Ok(bound.clone().into()) };
    if integer(bound).is_some_and(|(integer, float)| float as i128 > integer) {
        float = float.next_down();
    }
    if keyword.starts_with("exclusive") && float.abs() >= EXACT {
        float = float.next_down();
    }
    if float < -MOST {
        return Err(ConstraintError::Bound {
            keyword: keyword.to_owned(),
            found: bound.to_string(),
        });
    }
    Ok(kept(bound, float.min(MOST)))
}

/// Returns a bound as it was written, if it is this float.
fn kept(bound: &Number, float: f64) -> Value {
    if bound.as_f64() == Some(float) { bound.clone().into() } else { float.into() }
}
