//! Python's methods of texts, lists and dicts, beyond those of `minijinja-contrib`.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::charge::{spend, whole};
use super::python::{is_printable, str_of, tuple};

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

fn of_text(
    state: &mut State<'_, '_>,
    text: &str,
    method: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<Value>,) = from_args(args)?;
            let set: Option<Vec<char>> = match chars {
                Some(chars) if !chars.is_none() => Some(need(&chars, method)?.chars().collect()),
                _ => None,
            };
            let set = set.as_deref();
            let mut text = text;
            if method != "rstrip" {
                text = text.trim_start_matches(|c: char| is_stripped(c, set));
            }
            if method != "lstrip" {
                text = text.trim_end_matches(|c: char| is_stripped(c, set));
            }
            Value::from(text)
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(empty_separator());
            }
            let last = method == "rpartition";
            let at = if last { text.rfind(separator) } else { text.find(separator) };
            tuple(match at {
                Some(at) => vec![
                    Value::from(&text[..at]),
                    Value::from(separator),
                    Value::from(&text[at + separator.len()..]),
                ],
                None if last => vec![Value::from(""), Value::from(""), Value::from(text)],
                None => vec![Value::from(text), Value::from(""), Value::from("")],
            })
        }
        "split" | "rsplit" => {
            let (separator, limit, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = match separator {
                Some(separator) => Some(separator),
                None => kwargs.get("sep")?,
            };
            let limit = match limit {
                Some(limit) => limit,
                None => kwargs.get::<Option<i64>>("maxsplit")?.unwrap_or(-1),
            };
            kwargs.assert_all_used()?;
            // Each piece takes the room of a value.
            spend(state, text.len() as u64 / 4)?;
            let limit = usize::try_from(limit).ok();
            let pieces = match separator.filter(|separator| !separator.is_none()) {
                Some(separator) => {
                    let separator = need(&separator, method)?;
                    if separator.is_empty() {
                        return Err(empty_separator());
                    }
                    split(text, separator, limit, method == "rsplit")
                }
                None => split_blanks(text, limit, method == "rsplit"),
            };
            pieces.into_iter().map(Value::from).collect()
        }
        "splitlines" => {
            let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = match keep {
                Some(keep) => keep,
                None => kwargs.get::<Option<bool>>("keepends")?.unwrap_or(false),
            };
            kwargs.assert_all_used()?;
            spend(state, text.len() as u64 / 4)?;
            lines(text, keep).into_iter().map(Value::from).collect()
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            let (from, inner) = window(text, start, end);
            if method == "count" {
                // An empty text is found between all characters.
                let empty = inner.chars().count() + 1;
                return Ok(Some(Value::from(match what {
                    "" => empty,
                    what => inner.matches(what).count(),
                })));
            }
            let at = if method.starts_with('r') { inner.rfind(what) } else { inner.find(what) };
            match at {
                Some(at) => Value::from(from + inner[..at].chars().count()),
                None if method.ends_with("find") => Value::from(-1),
                None => {
                    let why = "substring not found";
                    return Err(Error::new(ErrorKind::InvalidOperation, why));
                }
            }
        }
        "startswith" | "endswith" if args.len() > 1 => {
            let (what, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
            let (_, inner) = window(text, start, end);
            return call(state, &Value::from(inner), method, std::slice::from_ref(what)).map(Some);
        }
        "format" => {
            check_widths(text)?;
            return Ok(None);
        }
        "zfill" | "ljust" | "rjust" | "center" => {
            let (width, fill): (i64, Option<&str>) = from_args(args)?;
            if method == "center" {
                return Ok(Some(Value::from(centered(text, width, fill.unwrap_or(" "))?)));
            }
            let missing = missing(text, width)?;
            let fill = if method == "zfill" { "0" } else { fill.unwrap_or(" ") }.repeat(missing);
            Value::from(match (method, text.chars().next()) {
                ("ljust", _) => format!("{text}{fill}"),
                ("zfill", Some(sign @ ('+' | '-'))) => format!("{sign}{fill}{}", &text[1..]),
                _ => format!("{fill}{text}"),
            })
        }
        "join" => {
            let (values,): (&Value,) = from_args(args)?;
            let mut out = String::new();
            for (n, value) in values.try_iter()?.enumerate() {
                if n > 0 {
                    out.push_str(text);
                }
                let item = need(&value, method)?;
                spend(state, 1 + (text.len() + item.len()) as u64 / 64)?;
                out.push_str(item);
            }
            Value::from(out)
        }
        "expandtabs" => {
            let (size, kwargs): (Option<i64>, Kwargs) = from_args(args)?;
            let size = match size {
                Some(size) => size,
                None => kwargs.get::<Option<i64>>("tabsize")?.unwrap_or(8),
            };
            kwargs.assert_all_used()?;
            let size = missing("", size)?;
            let mut out = String::new();
            let mut column = 0;
            for c in text.chars() {
                if c != '\t' {
                    column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
                    out.push(c);
                    continue;
                }
                let blanks = if size == 0 { 0 } else { size - column % size };
                spend(state, 1 + blanks as u64 / 64)?;
                out.extend(std::iter::repeat_n(' ', blanks));
                column += blanks;
            }
            Value::from(out)
        }
        "istitle" => {
            let () = from_args(args)?;
            let mut inside = false;
            let mut any = false;
            for c in text.chars() {
                let upper = c.is_uppercase();
                let lower = c.is_lowercase();
                if (upper && inside) || (lower && !inside) {
                    return Ok(Some(Value::from(false)));
                }
                inside = upper || lower;
                any |= inside;
            }
            Value::from(any)
        }
        "isidentifier" => {
            let () = from_args(args)?;
            let first = text.chars().next().is_some_and(begins_identifier);
            Value::from(first && text.chars().all(|c| begins_identifier(c) || c.is_numeric()))
        }
        "isprintable" => {
            let () = from_args(args)?;
            Value::from(text.chars().all(|c| !c.is_control() && is_printable(c)))
        }
        "swapcase" => {
            let () = from_args(args)?;
            Value::from(text.chars().map(with_other_case).collect::<String>())
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase().replace('ß', "ss"))
        }
        "title" => {
            let () = from_args(args)?;
            Value::from(title(text))
        }
        "isdigit" | "isdecimal" => {
            let () = from_args(args)?;
            Value::from(
                !text.is_empty() && text.chars().all(|c| c.is_numeric() && !c.is_alphabetic()),
            )
        }
        _ => return Ok(None),
    }))
}

/// True if `strip` removes a character: one of the set, or white space without a set.
fn is_stripped(c: char, set: Option<&[char]>) -> bool {
    set.map_or_else(|| is_space(c), |set| set.contains(&c))
}

/// True if a name of Python may begin with a character.
fn begins_identifier(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

/// Returns a capital as a small letter, and other characters as capitals.
fn with_other_case(c: char) -> String {
    if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
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

fn empty_separator() -> Error {
    Error::new(ErrorKind::InvalidOperation, "an empty separator")
}

/// Returns the text of a value that has to be a text.
fn need<'a>(value: &'a Value, method: &str) -> Result<&'a str, Error> {
    value.as_str().ok_or_else(|| {
        let why = format!("`{method}` expects texts, not a value of kind {}", value.kind());
        Error::new(ErrorKind::InvalidOperation, why)
    })
}

/// Returns the characters from `start` to `end`, as slices count, and the number of those before.
fn window(text: &str, start: Option<i64>, end: Option<i64>) -> (usize, &str) {
    if start.is_none() && end.is_none() {
        return (0, text);
    }
    let length = text.chars().count();
    let from = place_of(start.unwrap_or(0), length);
    let to = place_of(end.unwrap_or(i64::MAX), length).max(from);
    (from, &text[byte_of(text, from)..byte_of(text, to)])
}

/// Returns the place of an index in a text of so many characters; a negative index counts from the end.
fn place_of(index: i64, length: usize) -> usize {
    match usize::try_from(index) {
        Ok(at) => at.min(length),
        Err(_) => {
            length.saturating_sub(usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX))
        }
    }
}

/// Returns the byte at which a character of a text begins.
fn byte_of(text: &str, place: usize) -> usize {
    text.char_indices().nth(place).map_or(text.len(), |(at, _)| at)
}

fn split<'a>(text: &'a str, separator: &str, limit: Option<usize>, right: bool) -> Vec<&'a str> {
    match (limit, right) {
        (None, _) => text.split(separator).collect(),
        (Some(limit), false) => text.splitn(limit.saturating_add(1), separator).collect(),
        (Some(limit), true) => {
            let mut pieces: Vec<&str> = text.rsplitn(limit.saturating_add(1), separator).collect();
            pieces.reverse();
            pieces
        }
    }
}

fn split_blanks(text: &str, limit: Option<usize>, right: bool) -> Vec<&str> {
    let mut pieces = Vec::new();
    // The last piece keeps the blanks of its outer end if no further split is allowed.
    let mut remaining =
        if right { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) };
    while !remaining.is_empty() {
        let full = limit.is_some_and(|limit| pieces.len() >= limit);
        let at = if right { remaining.rfind(is_space) } else { remaining.find(is_space) };
        let Some(at) = at.filter(|_| !full) else {
            pieces.push(remaining);
            break;
        };
        if right {
            let blank = remaining[at..].chars().next().map_or(1, char::len_utf8);
            pieces.push(&remaining[at + blank..]);
            remaining = remaining[..at].trim_end_matches(is_space);
        } else {
            pieces.push(&remaining[..at]);
            remaining = remaining[at..].trim_start_matches(is_space);
        }
    }
    if right {
        pieces.reverse();
    }
    pieces
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

fn title(text: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        inside = c.is_alphabetic();
    }
    out
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
