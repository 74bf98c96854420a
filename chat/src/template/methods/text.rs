//! Python's methods of texts.

use minijinja::value::{Kwargs, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::{call, centered, check_widths, is_space, lines, missing};
use crate::template::charge::spend;
use crate::template::python::{is_printable, tuple};

/// Calls a method of a text, or returns nothing where the engine's own method is to be called.
pub(super) fn of_text(
    state: &mut State<'_, '_>,
    text: &str,
    method: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    match method {
        "strip" | "lstrip" | "rstrip" => stripped(text, method, args).map(Some),
        "removeprefix" | "removesuffix" => without_affix(text, method, args).map(Some),
        "partition" | "rpartition" => partition(text, method, args).map(Some),
        "split" | "rsplit" => pieces(state, text, method, args).map(Some),
        "splitlines" => split_lines(state, text, args).map(Some),
        "find" | "rfind" | "index" | "rindex" | "count" => {
            occurrences(text, method, args).map(Some)
        }
        "startswith" | "endswith" if args.len() > 1 => {
            let (what, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
            let (_, inner) = window(text, start, end);
            call(state, &Value::from(inner), method, std::slice::from_ref(what)).map(Some)
        }
        "format" => {
            check_widths(text)?;
            Ok(None)
        }
        "zfill" | "ljust" | "rjust" | "center" => filled(text, method, args).map(Some),
        "join" => join(state, text, args).map(Some),
        "expandtabs" => expand_tabs(state, text, args).map(Some),
        "swapcase" | "casefold" | "title" => in_other_case(text, method, args).map(Some),
        "istitle" | "isidentifier" | "isprintable" | "isdigit" | "isdecimal" => {
            has_property(text, method, args).map(Some)
        }
        _ => Ok(None),
    }
}

/// `strip`, `lstrip` and `rstrip`: returns a text without the characters of a set at its ends.
fn stripped(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
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
    Ok(Value::from(text))
}

/// `removeprefix` and `removesuffix`: returns a text without what it begins or ends with.
fn without_affix(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (affix,): (&str,) = from_args(args)?;
    let inner = match method {
        "removeprefix" => text.strip_prefix(affix),
        _ => text.strip_suffix(affix),
    };
    Ok(Value::from(inner.unwrap_or(text)))
}

/// `partition` and `rpartition`: returns what is before a separator, the separator, and what is behind it.
fn partition(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    if separator.is_empty() {
        return Err(empty_separator());
    }
    let last = method == "rpartition";
    let at = if last { text.rfind(separator) } else { text.find(separator) };
    Ok(tuple(match at {
        Some(at) => vec![
            Value::from(&text[..at]),
            Value::from(separator),
            Value::from(&text[at + separator.len()..]),
        ],
        None if last => vec![Value::from(""), Value::from(""), Value::from(text)],
        None => vec![Value::from(text), Value::from(""), Value::from("")],
    }))
}

/// `split` and `rsplit`: returns the pieces of a text between its separators.
fn pieces(state: &State<'_, '_>, text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
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
    Ok(pieces.into_iter().map(Value::from).collect())
}

/// `splitlines`: returns the lines of a text, with their ends if the template wants them.
fn split_lines(state: &State<'_, '_>, text: &str, args: &[Value]) -> Result<Value, Error> {
    let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
    let keep = match keep {
        Some(keep) => keep,
        None => kwargs.get::<Option<bool>>("keepends")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    spend(state, text.len() as u64 / 4)?;
    Ok(lines(text, keep).into_iter().map(Value::from).collect())
}

/// `find`, `index` and their like return the place of a text in another one, and `count` the number of places.
fn occurrences(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let (from, inner) = window(text, start, end);
    if method == "count" {
        // An empty text is found between all characters.
        let empty = inner.chars().count() + 1;
        return Ok(Value::from(match what {
            "" => empty,
            what => inner.matches(what).count(),
        }));
    }
    let at = if method.starts_with('r') { inner.rfind(what) } else { inner.find(what) };
    match at {
        Some(at) => Ok(Value::from(from + inner[..at].chars().count())),
        None if method.ends_with("find") => Ok(Value::from(-1)),
        None => {
            let why = "substring not found";
            Err(Error::new(ErrorKind::InvalidOperation, why))
        }
    }
}

/// `zfill`, `ljust`, `rjust` and `center`: returns a text filled up to a width.
fn filled(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    if method == "center" {
        return Ok(Value::from(centered(text, width, fill.unwrap_or(" "))?));
    }
    let missing = missing(text, width)?;
    let fill = if method == "zfill" { "0" } else { fill.unwrap_or(" ") }.repeat(missing);
    Ok(Value::from(match (method, text.chars().next()) {
        ("ljust", _) => format!("{text}{fill}"),
        ("zfill", Some(sign @ ('+' | '-'))) => format!("{sign}{fill}{}", &text[1..]),
        _ => format!("{fill}{text}"),
    }))
}

/// `join`: returns the texts of a list with a text between them.
fn join(state: &State<'_, '_>, text: &str, args: &[Value]) -> Result<Value, Error> {
    let (values,): (&Value,) = from_args(args)?;
    let mut out = String::new();
    for (n, value) in values.try_iter()?.enumerate() {
        if n > 0 {
            out.push_str(text);
        }
        let item = need(&value, "join")?;
        spend(state, 1 + (text.len() + item.len()) as u64 / 64)?;
        out.push_str(item);
    }
    Ok(Value::from(out))
}

/// `expandtabs`: returns a text with blanks up to the next stop in place of each tab.
fn expand_tabs(state: &State<'_, '_>, text: &str, args: &[Value]) -> Result<Value, Error> {
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
    Ok(Value::from(out))
}

/// `swapcase`, `casefold` and `title`: returns a text with other capitals.
fn in_other_case(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let () = from_args(args)?;
    Ok(Value::from(match method {
        "swapcase" => text.chars().map(with_other_case).collect(),
        "casefold" => text.to_lowercase().replace('ß', "ss"),
        _ => title(text),
    }))
}

/// `istitle`, `isidentifier`, `isprintable`, `isdigit` and `isdecimal`: returns what is true of a text.
fn has_property(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let () = from_args(args)?;
    Ok(Value::from(match method {
        "istitle" => is_title(text),
        "isidentifier" => {
            let first = text.chars().next().is_some_and(begins_identifier);
            first && text.chars().all(|c| begins_identifier(c) || c.is_numeric())
        }
        "isprintable" => text.chars().all(|c| !c.is_control() && is_printable(c)),
        _ => !text.is_empty() && text.chars().all(|c| c.is_numeric() && !c.is_alphabetic()),
    }))
}

/// True if every word of a text begins with a capital, and has no other.
fn is_title(text: &str) -> bool {
    let mut inside = false;
    let mut any = false;
    for c in text.chars() {
        let upper = c.is_uppercase();
        let lower = c.is_lowercase();
        if (upper && inside) || (lower && !inside) {
            return false;
        }
        inside = upper || lower;
        any |= inside;
    }
    any
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
