//! Operators that differ from Python's, as filters: `+`, `*`, `%` and `~`.
//!
//! The engine's operators add and repeat lists lazily and without a charge, so a short template could
//! make it allocate without bound. They also lack the addition of marked texts, the formatting of texts by `%`,
//! and Python's floats in `~`. [`rewrite`] replaces them by the filters of this module.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::filters::escaped;
use super::methods::conversions;
use super::python::{str_of, tuple};

/// Words that end an operand.
const WORDS: [&str; 11] =
    ["if", "else", "elif", "and", "or", "not", "in", "recursive", "set", "for", "with"];

/// Adds the filters that [`rewrite`] names.
pub(super) fn add_filters(env: &mut Environment<'static>) {
    env.add_filter("_add", add);
    env.add_filter("_mul", mul);
    env.add_filter("_rem", rem);
    env.add_filter(
        "_concat",
        |state: &State<'_, '_>, a: &Value, b: &Value| -> Result<Value, Error> {
            let text = str_of(state, a)? + &str_of(state, b)?;
            state.consume_fuel(text.len() as u64 / 64)?;
            Ok(Value::from(text))
        },
    );
}

/// Chain of operands and operators between two boundaries.
#[derive(Debug, Default)]
struct OperandChain {
    operands: Vec<String>,
    operators: Vec<&'static str>,
}

/// Rewrites the operators of a tag's text. Line ends stay where they are.
pub(super) fn rewrite(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let mut chain = OperandChain::default();
    let mut operand = String::new();
    let mut after_is = false;
    let mut at = 0;
    while at < bytes.len() {
        let from = at;
        let rest = &bytes[at..];
        if rest[0] == b'"' || rest[0] == b'\'' {
            at = end_of_string(bytes, at);
            operand.push_str(&text[from..at]);
            continue;
        }
        if matches!(rest[0], b'(' | b'[' | b'{') {
            let end = end_of_bracket(bytes, at);
            // Without its closing bracket the text is not valid, and stays as it is.
            let closed = end <= bytes.len() && end > at + 1;
            let (inner, close) = if closed {
                (at + 1..end - 1, end - 1..end)
            } else {
                (at + 1..bytes.len(), bytes.len()..bytes.len())
            };
            operand.push(char::from(rest[0]));
            operand.push_str(&rewrite(&text[inner]));
            operand.push_str(&text[close]);
            at = end.min(bytes.len());
            continue;
        }
        if is_word(rest[0]) {
            while at < bytes.len() && is_word(bytes[at]) {
                at += 1;
            }
            let word = &text[from..at];
            // `is not none` and `is in (...)` are tests, which belong to their operand.
            let tests = after_is && (word == "not" || word == "in");
            if WORDS.contains(&word) && !tests && !operand.trim_end().ends_with(['.', '|']) {
                flush(&mut out, &mut chain, &mut operand);
                out.push_str(word);
            } else {
                operand.push_str(word);
            }
            after_is = word == "is" || (after_is && word == "not");
            continue;
        }
        // The sign of an exponent belongs to its number: `1e+5`.
        let number = operand
            .rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '.')
            .next()
            .unwrap_or_default();
        let exponent =
            number.starts_with(|c: char| c.is_ascii_digit()) && number.ends_with(['e', 'E']);
        let binary = !operand.trim().is_empty() && !exponent;
        let operator = match rest {
            [b'*', b'*', ..] => {
                operand.push_str("**");
                at += 2;
                continue;
            }
            [b'/', b'/', ..] => Some("//"),
            [b'+', ..] => Some("+"),
            [b'-', ..] => Some("-"),
            [b'*', ..] => Some("*"),
            [b'/', ..] => Some("/"),
            [b'%', ..] => Some("%"),
            [b'~', ..] => Some("~"),
            _ => None,
        };
        if let Some(operator) = operator.filter(|_| binary && !operand.trim_end().ends_with("**")) {
            chain.operands.push(std::mem::take(&mut operand));
            chain.operators.push(operator);
            at += operator.len();
            continue;
        }
        let next = text[at..].chars().next().map_or(1, char::len_utf8);
        at += next;
        let piece = &text[from..at];
        if matches!(rest[0], b',' | b':' | b'=' | b'<' | b'>' | b'!') {
            flush(&mut out, &mut chain, &mut operand);
            out.push_str(piece);
        } else {
            operand.push_str(piece);
        }
    }
    flush(&mut out, &mut chain, &mut operand);
    out
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// Returns the place behind a string.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != bytes[start] {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// Returns the place behind a bracket and its contents, or one beyond the text if it is not closed.
fn end_of_bracket(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0_usize;
    let mut at = start;
    while at < bytes.len() {
        match bytes[at] {
            b'"' | b'\'' => {
                at = end_of_string(bytes, at);
                continue;
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    bytes.len() + 1
}

/// Writes a chain: first the products, then the concatenations, then the sums.
fn flush(out: &mut String, chain: &mut OperandChain, operand: &mut String) {
    chain.operands.push(std::mem::take(operand));
    let OperandChain { operands, operators } = std::mem::take(chain);
    let valid = operands.iter().skip(1).all(|operand| !operand.trim().is_empty());
    if operators.is_empty() || !valid {
        for (n, operand) in operands.iter().enumerate() {
            out.push_str(operand);
            out.push_str(operators.get(n).copied().unwrap_or_default());
        }
        return;
    }
    let (operands, operators) = fold(operands, operators, &["*", "/", "//", "%"]);
    let (operands, operators) = fold(operands, operators, &["~"]);
    let (operands, _) = fold(operands, operators, &["+", "-"]);
    out.push_str(&operands.concat());
}

/// Joins operands from the left at these operators.
fn fold(
    operands: Vec<String>,
    operators: Vec<&'static str>,
    level: &[&str],
) -> (Vec<String>, Vec<&'static str>) {
    let mut kept: (Vec<String>, Vec<&'static str>) = (Vec::new(), Vec::new());
    let mut operands = operands.into_iter();
    let mut left = operands.next().unwrap_or_default();
    // True while `left` ends in a filter of ours, which needs no brackets.
    let mut filtered = false;
    for (operator, right) in operators.into_iter().zip(operands) {
        if !level.contains(&operator) {
            kept.0.push(std::mem::replace(&mut left, right));
            kept.1.push(operator);
            filtered = false;
            continue;
        }
        let filter = match operator {
            "+" => "_add",
            "*" => "_mul",
            "%" => "_rem",
            "~" => "_concat",
            other => {
                left = format!("{left}{other}{right}");
                filtered = false;
                continue;
            }
        };
        let space = left.len() - left.trim_start().len();
        let (space, body) = left.split_at(space);
        left = if filtered {
            format!("{space}{body}|{filter}({right})")
        } else {
            format!("{space}({body})|{filter}({right})")
        };
        filtered = true;
    }
    kept.0.push(left);
    (kept.0, kept.1)
}

fn wrong(operator: &str, a: &Value, b: &Value) -> Error {
    let kind = |value: &Value| {
        if value.is_tuple() { "tuple".to_owned() } else { value.kind().to_string() }
    };
    let why = format!("`{operator}` of a value of kind {} and one of kind {}", kind(a), kind(b));
    Error::new(ErrorKind::InvalidOperation, why)
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
    let float = |value: &Value| match value.kind() {
        ValueKind::Number => {
            f64::try_from(value.clone()).ok().or_else(|| Some(integer(value)? as f64))
        }
        _ => integer(value).map(|number| number as f64),
    };
    Some((float(a)?, float(b)?))
}

/// Returns the items of a list, charged.
fn items(state: &State<'_, '_>, value: &Value, list: &mut Vec<Value>) -> Result<(), Error> {
    for item in value.try_iter()? {
        state.consume_fuel(1)?;
        list.push(item);
    }
    Ok(())
}

fn add(state: &State<'_, '_>, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(first), Some(second)) = (a.as_str(), b.as_str()) {
        state.consume_fuel((first.len() + second.len()) as u64 / 64)?;
        if !a.is_safe() && !b.is_safe() {
            return Ok(Value::from([first, second].concat()));
        }
        // A marked text escapes the text that it is added to.
        let part =
            |value: &Value| if value.is_safe() { Ok(value.clone()) } else { escaped(state, value) };
        return Ok(Value::from_safe_string(str_of(state, &part(a)?)? + &str_of(state, &part(b)?)?));
    }
    if a.kind() == ValueKind::Seq && b.kind() == ValueKind::Seq && a.is_tuple() == b.is_tuple() {
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

fn mul(state: &State<'_, '_>, a: &Value, b: &Value) -> Result<Value, Error> {
    let (what, count) = if integer(a).is_some() { (b, a) } else { (a, b) };
    let times = |count: &Value| {
        integer(count)
            .map(|count| usize::try_from(count).unwrap_or(if count > 0 { usize::MAX } else { 0 }))
    };
    if let (Some(text), Some(count)) = (what.as_str(), times(count)) {
        state.consume_fuel(text.len().saturating_mul(count) as u64 / 64)?;
        let made = text.repeat(if text.is_empty() { 0 } else { count });
        return Ok(if what.is_safe() { Value::from_safe_string(made) } else { Value::from(made) });
    }
    if let (ValueKind::Seq, Some(count)) = (what.kind(), times(count)) {
        let mut list = Vec::new();
        items(state, what, &mut list)?;
        state.consume_fuel(list.len().saturating_mul(count) as u64)?;
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

/// Remainder with the sign of the divisor, or formatting of a text.
fn rem(state: &mut State<'_, '_>, a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(text) = a.as_str() {
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

#[cfg(test)]
mod tests {
    use super::rewrite;

    #[test]
    fn operators_become_filters() {
        for (source, made) in [
            ("{{ a }}", "{{ a }}"),
            (" a + b ", " (a )|_add( b )"),
            ("a + b * c - d", "(a )|_add( (b )|_mul( c ))- d"),
            ("a+b+c", "(a)|_add(b)|_add(c)"),
            ("a - b + c", "(a - b )|_add( c)"),
            ("a ~ b + c ~ 'x + y'", "((a )|_concat( b ))|_add( (c )|_concat( 'x + y'))"),
            ("'#' + n * 2 ~ ':'", "('#' )|_add( ((n )|_mul( 2 ))|_concat( ':'))"),
            ("-a + -b", "(-a )|_add( -b)"),
            ("a ** -b % 2", "(a ** -b )|_rem( 2)"),
            ("set x = [1] + y", "set x = ([1] )|_add( y)"),
            ("if a + 1 == b[c + 1:] and d", "if (a )|_add( 1 )== b[(c )|_add( 1):] and d"),
            ("'a' + b | tojson + c", "('a' )|_add( b | tojson )|_add( c)"),
            ("a + b is not none", "(a )|_add( b is not none)"),
            ("f(x=a + b, *c)", "f(x=(a )|_add( b), *c)"),
            ("a +", "a +"),
            ("a + (b", "(a )|_add( (b)"),
            ("x.in + 1", "(x.in )|_add( 1)"),
            ("é + 1", "(é )|_add( 1)"),
            ("1e+5 + 1.5e-7", "(1e+5 )|_add( 1.5e-7)"),
        ] {
            assert_eq!(rewrite(source), made, "of {source}");
        }
    }
}
