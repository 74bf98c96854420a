//! Python's methods of texts, lists and dicts, beyond those of `minijinja-contrib`.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::charge::{spend, whole};
use super::python::str_of;
use text::of_text;

mod text;

/// Most characters that a text is filled up to.
const MOST_WIDTH: usize = 100_000;

/// Calls a method that the engine does not know.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    // Methods compare, hash or format what they are given: a list with each of its items.
    let times = if value.kind() == ValueKind::Seq { value.len().unwrap_or(1).max(1) } else { 1 };
    spend(state, times as u64)?;
    args.iter().try_for_each(|arg| whole(state, arg, times as u64))?;
    let known = match value.kind() {
        ValueKind::String => of_text(state, value.as_str().unwrap_or_default(), method, args),
        ValueKind::Seq => of_list(state, value, method, args),
        ValueKind::Map => of_dict(value, method, args),
        ValueKind::Number | ValueKind::Bool => of_number(value, method, args),
        _ => Ok(None),
    };
    match known? {
        Some(output) => Ok(output),
        None => unknown_method_callback(state, value, method, args),
    }
}

/// Blanks that `str.strip` and `str.split` remove.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn of_list(
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            let mut at = None;
            for (n, item) in value.try_iter()?.enumerate() {
                spend(state, 1)?;
                if item == *what {
                    at = Some(n);
                    break;
                }
            }
            Value::from(at.ok_or_else(|| {
                Error::new(ErrorKind::InvalidOperation, "the list has no such value")
            })?)
        }
        "copy" => {
            let () = from_args(args)?;
            value.clone()
        }
        "append" | "extend" | "insert" | "pop" | "remove" | "clear" | "reverse" | "sort" => {
            return Err(immutable("list", method));
        }
        _ => return Ok(None),
    }))
}

fn of_number(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let output = match (method, i128::try_from(value.clone())) {
        ("is_integer", _) if value.kind() == ValueKind::Number && !value.is_integer() => {
            let number = f64::try_from(value.clone())?;
            Value::from(number.is_finite() && number.fract() == 0.0)
        }
        ("bit_length", Ok(number)) if value.kind() == ValueKind::Bool || value.is_integer() => {
            Value::from(u128::BITS - number.unsigned_abs().leading_zeros())
        }
        _ => return Ok(None),
    };
    let () = from_args(args)?;
    Ok(Some(output))
}

fn of_dict(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "copy" => {
            let () = from_args(args)?;
            value.clone()
        }
        "update" | "pop" | "popitem" | "setdefault" | "clear" => {
            return Err(immutable("dict", method));
        }
        _ => return Ok(None),
    }))
}

/// Error of a method that changes a value, which the sandbox of transformers forbids too.
fn immutable(kind: &str, method: &str) -> Error {
    let why = format!("`{method}` would change a {kind}, which templates must not");
    Error::new(ErrorKind::InvalidOperation, why)
}

/// Splits at all line ends of `str.splitlines`.
pub(super) fn lines(text: &str, keep: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut from = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let ends = matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        );
        if !ends {
            continue;
        }
        let mut end = at + c.len_utf8();
        if c == '\r' && chars.next_if(|(_, next)| *next == '\n').is_some() {
            end += 1;
        }
        lines.push(&text[from..if keep { end } else { at }]);
        from = end;
    }
    if from < text.len() {
        lines.push(&text[from..]);
    }
    lines
}

/// Refuses formats whose widths have more than five digits, or come from arguments: the engine would fill
/// them before it charges for them.
pub(super) fn check_widths(format: &str) -> Result<(), Error> {
    let mut digits = 0;
    let mut inside = false;
    for c in format.chars() {
        let opens = c == '%' || c == '{';
        let nested = inside && c == '*';
        digits = if c.is_ascii_digit() { digits + 1 } else { 0 };
        if inside && (digits > 5 || nested) {
            let why = "a format with a width of more than five digits, or of an argument";
            return Err(Error::new(ErrorKind::InvalidOperation, why));
        }
        // A directive ends at its letter or bracket.
        inside = opens || (inside && !c.is_alphabetic() && c != '}');
    }
    Ok(())
}

fn missing(text: &str, width: i64) -> Result<usize, Error> {
    let width = usize::try_from(width).unwrap_or(0);
    if width > MOST_WIDTH {
        let why = format!("a width of {width} characters; at most {MOST_WIDTH} are allowed");
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    }
    Ok(width.saturating_sub(text.chars().count()))
}

fn centered(text: &str, width: i64, fill: &str) -> Result<String, Error> {
    let missing = missing(text, width)?;
    // The odd blank is on the left if the width is odd, as in CPython.
    let left = missing / 2 + (missing & usize::try_from(width).unwrap_or(0) & 1);
    Ok(format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left)))
}

/// `center` as a filter.
pub(super) fn center(
    state: &State<'_, '_>,
    value: &Value,
    width: Option<i64>,
) -> Result<String, Error> {
    centered(&str_of(state, value)?, width.unwrap_or(80), " ")
}

/// Returns the number of arguments that the conversions of a text take: `%s`, and `*` for a width.
pub(super) fn conversions(text: &str) -> usize {
    let mut count = 0;
    let mut remaining = text;
    while let Some(at) = remaining.find('%') {
        remaining = &remaining[at + 1..];
        if let Some(after) = remaining.strip_prefix('%') {
            remaining = after;
            continue;
        }
        let end = remaining.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(remaining.len());
        count += 1 + remaining[..end].matches('*').count();
        remaining = &remaining[end..];
    }
    count
}

#[cfg(test)]
mod tests {
    use super::conversions;

    #[test]
    fn conversions_take_arguments() {
        for (text, count) in [("a", 0), ("100%%", 0), ("%s-%5.1f", 2), ("%%%s", 1), ("%-*d", 2)] {
            assert_eq!(conversions(text), count, "{text}");
        }
    }
}
