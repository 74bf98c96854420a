//! The filters that operators become: sums, products, remainders, concatenations and slices, as in Python.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use crate::template::charge::{spend, whole};
use crate::template::filters::escaped;
use crate::template::generator::Generator;
use crate::template::methods::conversions;
use crate::template::python::{str_of, tuple};

/// Adds the filters that [`rewrite`](super::rewrite) names.
pub(in crate::template) fn add_filters(env: &mut Environment<'static>) {
    env.add_filter("_add", add);
    env.add_filter("_mul", mul);
    env.add_filter("_rem", rem);
    env.add_filter("_slice", slice);
    env.add_filter("_whole", |state: &State<'_, '_>, value: &Value| -> Result<Value, Error> {
        whole(state, value, 1)?;
        Ok(value.clone())
    });
    env.add_filter(
        "_concat",
        |state: &State<'_, '_>, a: &Value, b: &Value| -> Result<Value, Error> {
            let text = str_of(state, a)? + &str_of(state, b)?;
            spend(state, text.len() as u64 / 64)?;
            Ok(Value::from(text))
        },
    );
}

fn wrong(operator: &str, a: &Value, b: &Value) -> Error {
    let a = kind_name(a);
    let b = kind_name(b);
    let why = format!("`{operator}` of a value of kind {a} and one of kind {b}");
    Error::new(ErrorKind::InvalidOperation, why)
}

/// Returns the name of a value's kind.
fn kind_name(value: &Value) -> String {
    if value.is_tuple() { "tuple".to_owned() } else { value.kind().to_string() }
}

/// Numbers as integers, if both are.
fn integers(a: &Value, b: &Value) -> Option<(i128, i128)> {
    Some((integer(a)?, integer(b)?))
}

fn integer(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

fn floats(a: &Value, b: &Value) -> Option<(f64, f64)> {
    Some((float(a)?, float(b)?))
}

/// Returns a number or a boolean as a float.
fn float(value: &Value) -> Option<f64> {
    match value.kind() {
        ValueKind::Number => {
            f64::try_from(value.clone()).ok().or_else(|| Some(integer(value)? as f64))
        }
        _ => integer(value).map(|number| number as f64),
    }
}

/// Returns the items of a list, charged.
fn items(state: &State<'_, '_>, value: &Value, list: &mut Vec<Value>) -> Result<(), Error> {
    for item in value.try_iter()? {
        spend(state, 1)?;
        list.push(item);
    }
    Ok(())
}

/// True for lists and tuples, and for slices of them, which the engine makes as it reads them.
pub(in crate::template) fn is_list(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Seq => true,
        ValueKind::Iterable => value.downcast_object_ref::<Generator>().is_none(),
        _ => false,
    }
}

fn add(state: &State<'_, '_>, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(first), Some(second)) = (a.as_str(), b.as_str()) {
        spend(state, (first.len() + second.len()) as u64 / 64)?;
        if !a.is_safe() && !b.is_safe() {
            return Ok(Value::from([first, second].concat()));
        }
        // A marked text escapes the text that it is added to.
        let marked = str_of(state, &marked(state, a)?)? + &str_of(state, &marked(state, b)?)?;
        return Ok(Value::from_safe_string(marked));
    }
    if is_list(a) && is_list(b) && a.is_tuple() == b.is_tuple() {
        let mut list = Vec::new();
        items(state, a, &mut list)?;
        items(state, b, &mut list)?;
        return Ok(if a.is_tuple() { tuple(list) } else { Value::from(list) });
    }
    match (integers(a, b), floats(a, b)) {
        (Some((a, b)), _) if a.checked_add(b).is_some() => Ok(Value::from(a + b)),
        (_, Some((a, b))) => Ok(Value::from(a + b)),
        _ => Err(wrong("+", a, b)),
    }
}

/// Returns a marked text as it is, and escapes another one.
fn marked(state: &State<'_, '_>, value: &Value) -> Result<Value, Error> {
    if value.is_safe() { Ok(value.clone()) } else { escaped(state, value) }
}

fn mul(state: &State<'_, '_>, a: &Value, b: &Value) -> Result<Value, Error> {
    let (what, count) = if integer(a).is_some() { (b, a) } else { (a, b) };
    let times = integer(count)
        .map(|count| usize::try_from(count).unwrap_or(if count > 0 { usize::MAX } else { 0 }));
    if let (Some(text), Some(count)) = (what.as_str(), times) {
        spend(state, text.len().saturating_mul(count) as u64 / 64)?;
        let repeated = text.repeat(if text.is_empty() { 0 } else { count });
        return Ok(if what.is_safe() {
            Value::from_safe_string(repeated)
        } else {
            Value::from(repeated)
        });
    }
    if let (true, Some(count)) = (is_list(what), times) {
        let mut list = Vec::new();
        items(state, what, &mut list)?;
        spend(state, list.len().saturating_mul(count) as u64)?;
        let length = list.len() * if list.is_empty() { 0 } else { count };
        let list: Vec<Value> = list.into_iter().cycle().take(length).collect();
        return Ok(if what.downcast_object_ref::<Tuple>().is_some() {
            tuple(list)
        } else {
            Value::from(list)
        });
    }
    match (integers(a, b), floats(a, b)) {
        (Some((a, b)), _) if a.checked_mul(b).is_some() => Ok(Value::from(a * b)),
        (_, Some((a, b))) => Ok(Value::from(a * b)),
        _ => Err(wrong("*", a, b)),
    }
}

/// Items or characters from a place to another one, in steps, as Python counts them.
fn slice(
    state: &State<'_, '_>,
    value: &Value,
    start: Option<i64>,
    stop: Option<i64>,
    step: Option<i64>,
) -> Result<Value, Error> {
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "a slice with a step of 0"));
    }
    if let Some(text) = value.as_str() {
        let chars: Vec<char> = text.chars().collect();
        spend(state, chars.len() as u64 / 16)?;
        let places = slice_places(chars.len(), start, stop, step);
        return Ok(Value::from(places.map(|at| chars[at]).collect::<String>()));
    }
    if value.is_undefined() || value.is_none() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    if !is_list(value) {
        let why = format!("a slice of a value of kind {}", value.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    }
    let mut list = Vec::new();
    items(state, value, &mut list)?;
    let places = slice_places(list.len(), start, stop, step);
    let slice = places.map(|at| list[at].clone()).collect();
    Ok(if value.is_tuple() { tuple(slice) } else { Value::from(slice) })
}

/// Places of a slice in a list of that length, as `slice.indices` of Python gives them.
fn slice_places(
    length: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let [start, stop] = [start, stop].map(|bound| {
        let at = bound?;
        let from_start = if at < 0 { at.saturating_add(length) } else { at };
        Some(from_start.clamp(low, high))
    });
    let mut at = start.unwrap_or(if step > 0 { low } else { high });
    let stop = stop.unwrap_or(if step > 0 { high } else { low });
    std::iter::from_fn(move || {
        let inside = if step > 0 { at < stop } else { at > stop };
        let place = usize::try_from(at).ok().filter(|_| inside)?;
        at = at.saturating_add(step);
        Some(place)
    })
}

/// Remainder with the sign of the divisor, or formatting of a text.
fn rem(state: &mut State<'_, '_>, a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(text) = a.as_str() {
        whole(state, b, 1)?;
        let mut args = vec![a.clone()];
        match b.downcast_object_ref::<Tuple>() {
            Some(_) => items(state, b, &mut args)?,
            None => args.push(b.clone()),
        }
        // Python refuses arguments that the text does not name, unless they could be read by keys.
        let count = conversions(text);
        let keyed = matches!(b.kind(), ValueKind::Map | ValueKind::Undefined)
            || (b.kind() == ValueKind::Seq && b.downcast_object_ref::<Tuple>().is_none());
        if keyed && count == 0 {
            args.truncate(1);
        }
        if b.kind() != ValueKind::Map && args.len() - 1 > count {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "`%` of a text with more arguments than conversions",
            ));
        }
        return state.apply_filter("format", &args);
    }
    match (integers(a, b), floats(a, b)) {
        (Some((a, b)), _) if b != 0 => Ok(Value::from(
            a.checked_rem_euclid(b).map_or(0, |rem| if b < 0 && rem != 0 { rem + b } else { rem }),
        )),
        (None, Some((a, b))) if b != 0.0 => {
            let rem = a % b;
            Ok(Value::from(if rem == 0.0 {
                rem.copysign(b)
            } else if (rem < 0.0) != (b < 0.0) {
                rem + b
            } else {
                rem
            }))
        }
        _ => Err(wrong("%", a, b)),
    }
}
