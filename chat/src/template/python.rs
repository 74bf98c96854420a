//! Python's forms of values: `str`, `repr` and `json.dumps`.

use std::fmt::Write as _;

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::charge::spend;

/// Deepest nesting of lists and dicts that is printed.
const DEPTH: usize = 200;

/// Returns a tuple.
pub(super) fn tuple(values: Vec<Value>) -> Value {
    Value::from(Tuple::new(values))
}

/// Returns a value as `str` prints it.
pub(super) fn str_of(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    match value.as_str() {
        Some(text) => out.push_str(text),
        None if value.is_undefined() => {}
        None => write_repr(state, &mut out, value, 0)?,
    }
    Ok(out)
}

/// Returns a value as `repr` prints it.
pub(super) fn repr_of(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_repr(state, &mut out, value, 0)?;
    Ok(out)
}

/// Writes a text as `repr` prints it: in single quotes, unless it has some and no double quotes.
fn write_text_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Returns true for characters that Python prints as they are. The standard library escapes the same
/// categories, but also combining characters at the start of a text.
pub(super) fn is_printable(c: char) -> bool {
    c.is_ascii_graphic()
        || c == ' '
        || !format!("a{c}").escape_debug().skip(1).eq(c.escape_unicode())
}

/// Writes a value as `repr` prints it.
fn write_repr(
    state: &State<'_, '_>,
    out: &mut String,
    value: &Value,
    depth: usize,
) -> Result<(), Error> {
    // Lists that were added to themselves are longer than their memory.
    spend(state, 1 + value.as_str().map_or(0, str::len) as u64 / 64)?;
    if depth > DEPTH {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::String => write_text_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => {
            out.push_str(&float(f64::try_from(value.clone())?));
        }
        ValueKind::Seq => {
            let tuple = value.downcast_object_ref::<Tuple>().is_some();
            out.push(if tuple { '(' } else { '[' });
            let mut count = 0;
            for item in value.try_iter()? {
                if count > 0 {
                    out.push_str(", ");
                }
                write_repr(state, out, &item, depth + 1)?;
                count += 1;
            }
            if tuple && count == 1 {
                out.push(',');
            }
            out.push(if tuple { ')' } else { ']' });
        }
        ValueKind::Map => {
            out.push('{');
            for (n, key) in value.try_iter()?.enumerate() {
                if n > 0 {
                    out.push_str(", ");
                }
                write_repr(state, out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(state, out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        // Texts, integers, booleans and None have Python's form already.
        _ => write!(out, "{value:?}").map_err(|_| too_deep())?,
    }
    Ok(())
}

/// Returns a float as Python prints it: the shortest digits, with an exponent below 1e-4 and from 1e16.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = number.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Settings of `json.dumps`.
#[derive(Debug, Default)]
pub(super) struct DumpOptions {
    pub(super) ascii: bool,
    /// Text of one level of indentation.
    pub(super) indent: Option<String>,
    /// Separators of items, and of keys and values.
    pub(super) separators: Option<(String, String)>,
    pub(super) sort_keys: bool,
}

/// Returns a value as `json.dumps` writes it.
pub(super) fn dumps(
    state: &State<'_, '_>,
    value: &Value,
    options: &DumpOptions,
) -> Result<String, Error> {
    let mut out = String::new();
    let item = if options.indent.is_some() { "," } else { ", " };
    let (item, key) =
        options.separators.clone().unwrap_or_else(|| (item.to_owned(), ": ".to_owned()));
    Dumper { state, options, item, key }.write(&mut out, value, 0)?;
    Ok(out)
}

struct Dumper<'a> {
    state: &'a State<'a, 'a>,
    options: &'a DumpOptions,
    item: String,
    key: String,
}

impl Dumper<'_> {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        let indented = self.options.indent.as_ref().map_or(0, |indent| indent.len() * depth);
        let bytes = value.as_str().map_or(0, str::len) + indented + self.item.len();
        spend(self.state, 1 + bytes as u64 / 16)?;
        if depth > DEPTH {
            return Err(too_deep());
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => {
                write!(out, "{value}").map_err(|_| too_deep())?;
            }
            ValueKind::Number => out.push_str(&json_float(f64::try_from(value.clone())?)),
            ValueKind::String => self.text(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq => {
                let mut items = value.try_iter()?.peekable();
                if items.peek().is_none() {
                    out.push_str("[]");
                    return Ok(());
                }
                out.push('[');
                for (n, item) in items.enumerate() {
                    self.between(out, n, depth + 1);
                    self.write(out, &item, depth + 1)?;
                }
                self.line(out, depth);
                out.push(']');
            }
            ValueKind::Map => {
                let mut keys = Vec::new();
                for key in value.try_iter()? {
                    spend(self.state, 1)?;
                    keys.push(key);
                }
                if keys.is_empty() {
                    out.push_str("{}");
                    return Ok(());
                }
                if self.options.sort_keys {
                    keys.sort();
                }
                out.push('{');
                for (n, key) in keys.iter().enumerate() {
                    self.between(out, n, depth + 1);
                    self.name(out, key)?;
                    out.push_str(&self.key);
                    self.write(out, &value.get_item(key)?, depth + 1)?;
                }
                self.line(out, depth);
                out.push('}');
            }
            kind => {
                let why = format!("a value of kind {kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::BadSerialization, why));
            }
        }
        Ok(())
    }

    fn between(&self, out: &mut String, n: usize, depth: usize) {
        if n > 0 {
            out.push_str(&self.item);
        }
        self.line(out, depth);
    }

    fn line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.options.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn name(&self, out: &mut String, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.text(out, key.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                out.push('"');
                self.write(out, key, 0)?;
                out.push('"');
            }
            kind => {
                let why = format!("keys must be texts, numbers, booleans or none, not {kind}");
                return Err(Error::new(ErrorKind::BadSerialization, why));
            }
        }
        Ok(())
    }

    fn text(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.options.ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn json_float(number: f64) -> String {
    match float(number).as_str() {
        "nan" => "NaN".to_owned(),
        "inf" => "Infinity".to_owned(),
        "-inf" => "-Infinity".to_owned(),
        plain => plain.to_owned(),
    }
}

fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value is nested deeper than {DEPTH} levels"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values and their forms in Python 3.11.
    #[test]
    fn floats_are_printed_as_python_prints_them() {
        for (number, text) in [
            (0.1, "0.1"),
            (2.0, "2.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (-1.25e-7, "-1.25e-07"),
            (123_456_789.125, "123456789.125"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(float(number), text);
        }
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        let env = minijinja::Environment::new();
        let state = env.empty_state();
        let map: indexmap::IndexMap<Value, Value> = [
            (Value::from("z"), Value::from("é\"\u{1}\u{7f}😀")),
            (
                Value::from("a"),
                Value::from(vec![Value::from(1.0), Value::from(()), Value::from(true)]),
            ),
        ]
        .into();
        let map = Value::from(map);
        let plain = dumps(&state, &map, &DumpOptions::default()).unwrap();
        assert_eq!(plain, "{\"z\": \"é\\\"\\u0001\u{7f}😀\", \"a\": [1.0, null, true]}");
        let ascii = DumpOptions { ascii: true, sort_keys: true, ..DumpOptions::default() };
        let text = dumps(&state, &map, &ascii).unwrap();
        assert_eq!(
            text,
            "{\"a\": [1.0, null, true], \"z\": \"\\u00e9\\\"\\u0001\\u007f\\ud83d\\ude00\"}"
        );
        let indented = DumpOptions { indent: Some("  ".to_owned()), ..DumpOptions::default() };
        let list = Value::from(vec![Value::from(1), Value::from(Vec::<Value>::new())]);
        assert_eq!(dumps(&state, &list, &indented).unwrap(), "[\n  1,\n  []\n]");
        assert!(dumps(&state, &Value::UNDEFINED, &DumpOptions::default()).is_err());
    }
}
