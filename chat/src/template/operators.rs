//! Operators that differ from Python's, as filters: `+`, `*`, `%` and `~`.
//!
//! The engine's operators add and repeat lists lazily and without a charge, so a short template could
//! make it allocate without bound. They also lack the addition of marked texts, the formatting of texts by `%`,
//! and Python's floats in `~`. [`rewrite`] replaces them by the filters of this module. Comparisons and keys stay, and
//! the filter `_whole` charges what they read.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::charge::{spend, whole};
use super::filters::escaped;
use super::generator::Generator;
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

/// Chain of operands and operators between two boundaries.
#[derive(Debug, Default)]
struct OperandChain {
    operands: Vec<String>,
    operators: Vec<&'static str>,
}

/// Rewrites the operators of a tag's text. Line ends stay where they are.
pub(super) fn rewrite(text: &str) -> String {
    rewrite_in(text, b'(')
}

/// Rewrites the text between brackets of a kind.
fn rewrite_in(text: &str, bracket: u8) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let mut chain = OperandChain::default();
    let mut operand = String::new();
    // Place in the operand where a value begins that brackets and attributes may follow.
    let mut value_start: Option<usize> = None;
    let mut after_is = false;
    let mut names_targets = false;
    let mut at = 0;
    while at < bytes.len() {
        let from = at;
        let remaining = &bytes[at..];
        if operand.is_empty() {
            value_start = None;
        }
        if remaining[0] == b'"' || remaining[0] == b'\'' {
            at = end_of_string(bytes, at);
            value_start = value_start.or(Some(operand.len()));
            push_string(&mut operand, &text[from..at]);
            continue;
        }
        if matches!(remaining[0], b'(' | b'[' | b'{') {
            let end = end_of_bracket(bytes, at);
            // Without its closing bracket the text is not valid, and stays as it is.
            let closed = end <= bytes.len() && end > at + 1;
            let (inner, close) = if closed {
                (at + 1..end - 1, end - 1..end)
            } else {
                (at + 1..bytes.len(), bytes.len()..bytes.len())
            };
            let before = operand.trim_end();
            let bounds = parts(&text[inner.clone()], b':');
            if let (Some(start), true) = (value_start, closed && bounds.len() > 1)
                && remaining[0] == b'['
                && is_value(before)
            {
                let length = before.len();
                operand.truncate(length);
                operand.insert(start, '(');
                operand.push_str(&slice_filter(&bounds));
                at = end;
                continue;
            }
            let rewritten = rewrite_in(&text[inner.clone()], remaining[0]);
            let is_key = remaining[0] == b'['
                && is_value(before)
                && bounds.len() == 1
                && parts(&text[inner.clone()], b',').len() == 1;
            // Behind a name of a test or filter, round brackets are its arguments.
            if value_start.is_none() && !(remaining[0] == b'(' && is_value(before)) {
                value_start = Some(operand.len());
            }
            let compares = remaining[0] == b'(' && before.ends_with(".changed");
            operand.push(char::from(remaining[0]));
            if closed && (is_key || compares) && !is_scalar(&text[inner]) {
                operand.push_str(&as_whole(&rewritten));
            } else {
                operand.push_str(&rewritten);
            }
            operand.push_str(&text[close]);
            at = end.min(bytes.len());
            continue;
        }
        if is_word(remaining[0]) {
            while at < bytes.len() && is_word(bytes[at]) {
                at += 1;
            }
            let word = &text[from..at];
            // `is not none` and `is in (...)` are tests, which belong to their operand.
            let tests = after_is && (word == "not" || word == "in");
            if WORDS.contains(&word) && !tests && !operand.trim_end().ends_with(['.', '|']) {
                let from = out.len();
                flush(&mut out, &mut chain, &mut operand);
                if (word == "in" || word == "not") && !names_targets {
                    charge(&mut out, from);
                }
                names_targets = word == "for" || (names_targets && word == "not");
                out.push_str(word);
            } else {
                let names_call = after_is || word == "is" || operand.trim_end().ends_with('|');
                if names_call {
                    value_start = None;
                } else if !operand.trim_end().ends_with('.') {
                    value_start = Some(operand.len());
                }
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
        if remaining[0] == b'+'
            && operand.trim().is_empty()
            && remaining.get(1).is_some_and(u8::is_ascii_digit)
        {
            // The sign of a number, which the engine does not read.
            at += 1;
            continue;
        }
        let operator = match remaining {
            [b'*', b'*', ..] => {
                operand.push_str("**");
                value_start = None;
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
        if matches!(remaining[0], b',' | b':' | b'=' | b'<' | b'>' | b'!') {
            let from = out.len();
            flush(&mut out, &mut chain, &mut operand);
            let compares = matches!(remaining, [b'<' | b'>', ..] | [b'=' | b'!', b'=', ..]);
            if (compares && !is_scalar(operand_after(&text[at..])))
                || (remaining[0] == b':' && bracket == b'{')
            {
                charge(&mut out, from);
            }
            out.push_str(piece);
        } else {
            if !matches!(remaining[0], b'.' | b' ' | b'\n' | b'\t') {
                value_start = None;
            }
            operand.push_str(piece);
        }
    }
    flush(&mut out, &mut chain, &mut operand);
    out
}

/// True if this ends a value, so that a bracket after it is a key.
fn is_value(text: &str) -> bool {
    text.bytes()
        .last()
        .is_some_and(|last| is_word(last) || matches!(last, b')' | b']' | b'}' | b'"' | b'\''))
}

/// Splits text at a sign outside of brackets and strings.
fn parts(text: &str, sign: u8) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut parts = Vec::new();
    let mut from = 0;
    let mut at = 0;
    while at < bytes.len() {
        at = match bytes[at] {
            byte if byte == sign => {
                parts.push(&text[from..at]);
                from = at + 1;
                from
            }
            b'"' | b'\'' => end_of_string(bytes, at),
            b'(' | b'[' | b'{' => end_of_bracket(bytes, at),
            _ => at + 1,
        };
    }
    parts.push(&text[from..]);
    parts
}

/// Writes the filter of a slice with these bounds, and the bracket that ends its value.
fn slice_filter(bounds: &[&str]) -> String {
    let bounds = bounds.iter().map(|bound| match bound.trim() {
        "" => format!("none{bound}"),
        _ => rewrite_in(bound, b'('),
    });
    format!("|_slice({}))", bounds.collect::<Vec<_>>().join(","))
}

/// Returns what follows a comparison up to the end of a literal.
fn operand_after(text: &str) -> &str {
    let text = text.trim_start_matches(['=', ' ']);
    let bytes = text.as_bytes();
    let end = match bytes.first() {
        Some(b'"' | b'\'') => end_of_string(bytes, 0),
        _ => bytes.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count(),
    };
    &text[..end]
}

/// True if this is a literal of a text or a number, or a name that is none, true or false.
fn is_scalar(text: &str) -> bool {
    let text = text.trim();
    let bytes = text.as_bytes();
    match bytes.first() {
        Some(b'"' | b'\'') => end_of_string(bytes, 0) == bytes.len() && bytes.len() > 1,
        Some(b'0'..=b'9' | b'-') => bytes[1..].iter().all(u8::is_ascii_digit),
        _ => ["none", "None", "true", "True", "false", "False"].contains(&text),
    }
}

/// Returns an expression with the filter that charges its value as a whole.
fn as_whole(text: &str) -> String {
    let body = text.trim();
    if body.is_empty() {
        return text.to_owned();
    }
    let start = text.len() - text.trim_start().len();
    let space = &text[..start];
    let tail = &text[start + body.len()..];
    format!("{space}({body})|_whole{tail}")
}

/// Has the operand that begins there charged as a whole, unless it is a literal.
fn charge(out: &mut String, from: usize) {
    if !is_scalar(&out[from..]) {
        let charged = as_whole(&out[from..]);
        out.truncate(from);
        out.push_str(&charged);
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// Writes a string, with the characters that `\U` and eight digits encode.
fn push_string(out: &mut String, text: &str) {
    let mut remaining = text;
    while let Some(at) = remaining.find('\\') {
        out.push_str(&remaining[..at]);
        let digits =
            remaining.get(at + 2..at + 10).filter(|_| remaining[at + 1..].starts_with('U'));
        let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        if let Some(c) = code.and_then(char::from_u32).filter(|c| !c.is_ascii()) {
            out.push(c);
            remaining = &remaining[at + 10..];
        } else {
            let escape = remaining[at + 1..].chars().next().map_or(1, |c| 1 + c.len_utf8());
            out.push_str(&remaining[at..at + escape]);
            remaining = &remaining[at + escape..];
        }
    }
    out.push_str(remaining);
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
    let mut remaining: (Vec<String>, Vec<&'static str>) = (Vec::new(), Vec::new());
    let mut operands = operands.into_iter();
    let mut left = operands.next().unwrap_or_default();
    // True while `left` ends in a filter of ours, which needs no brackets.
    let mut filtered = false;
    for (operator, right) in operators.into_iter().zip(operands) {
        if !level.contains(&operator) {
            remaining.0.push(std::mem::replace(&mut left, right));
            remaining.1.push(operator);
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
    remaining.0.push(left);
    (remaining.0, remaining.1)
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
pub(super) fn is_list(value: &Value) -> bool {
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
        let part =
            |value: &Value| if value.is_safe() { Ok(value.clone()) } else { escaped(state, value) };
        return Ok(Value::from_safe_string(str_of(state, &part(a)?)? + &str_of(state, &part(b)?)?));
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

#[cfg(test)]
mod tests {
    use super::rewrite;

    #[test]
    fn operators_become_filters() {
        for (source, expected) in [
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
            (
                "if a + 1 == b[c + 1:] and d",
                "if ((a )|_add( 1 ))|_whole== (b|_slice((c )|_add( 1),none)) and d",
            ),
            ("a == 'x' or b != 1 or 'y' in c", "a == 'x' or b != 1 or 'y' in c"),
            ("a <= b < c not in d", "(a)|_whole <= (b)|_whole < (c)|_whole not in d"),
            ("for a, b in c if a in b", "for a, b in c if (a)|_whole in b"),
            ("a is in [b, c] == d", "(a is in [b, c])|_whole == d"),
            ("a[b][0][-1:]['c']", "(a[(b)|_whole][0]|_slice(-1,none))['c']"),
            ("-a.b [1:][ : :2].c", "-((a.b|_slice(1,none))|_slice(none ,none ,2)).c"),
            ("f(x)[:1] + 'a:b'[1:]", "((f(x)|_slice(none,1)) )|_add( ('a:b'|_slice(1,none)))"),
            (
                "a is eq b[1:] or c is in [d][:1]",
                "a is eq (b|_slice(1,none)) or c is in ([(d)|_whole]|_slice(none,1))",
            ),
            ("x|list[1:]", "x|list[1:]"),
            ("a[{'b': c}[d]]", "a[({'b': c}[(d)|_whole])|_whole]"),
            ("[a, b[1:]][0:]", "([a, (b|_slice(1,none))]|_slice(0,none))"),
            ("{a: b, 'c': d}", "{(a)|_whole: b, 'c': d}"),
            ("loop.changed(a, b)", "loop.changed((a, b)|_whole)"),
            ("f(a=b)", "f(a=b)"),
            ("[+1, a + +2, '+3']", "[1, (a )|_add( 2), '+3']"),
            (
                r"'\U0001F600 \\U0001F600 \U0000000a \Uéééééééé'",
                r"'😀 \\U0001F600 \U0000000a \Uéééééééé'",
            ),
            ("'a' + b | tojson + c", "('a' )|_add( b | tojson )|_add( c)"),
            ("a + b is not none", "(a )|_add( b is not none)"),
            ("f(x=a + b, *c)", "f(x=(a )|_add( b), *c)"),
            ("a +", "a +"),
            ("a + (b", "(a )|_add( (b)"),
            ("x.in + 1", "(x.in )|_add( 1)"),
            ("é + 1", "(é )|_add( 1)"),
            ("1e+5 + 1.5e-7", "(1e+5 )|_add( 1.5e-7)"),
        ] {
            assert_eq!(rewrite(source), expected, "of {source}");
        }
    }
}
