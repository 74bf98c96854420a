//! JSON as Python reads it: `NaN` and `Infinity` are numbers, the last of equal keys wins.
//!
//! Config files are written by Python's `json`, which emits `Infinity` (open
//! ended limits do), and the order of keys is kept for messages.

use std::sync::Arc;

use crate::diag::{Finding, SourceText, Span};
use crate::scalar::Scalar;

/// The deepest nesting; config files use three or four levels.
const MAX_DEPTH: usize = 64;

pub(super) fn parse(path: &str, text: &str) -> Result<Scalar, Finding> {
    let mut reader = JsonParser { path, text, at: 0 };
    let value = reader.value(0)?;
    reader.space();
    if reader.at < text.len() {
        return Err(reader.fail("the file goes on after its value", "expected the end of the file"));
    }
    Ok(value)
}

/// Returns the bytes of the value of a dotted key, or of an item inside of its lists.
pub(super) fn place(source: &SourceText, key: &str, items: &[usize]) -> Option<(usize, usize)> {
    let mut reader = JsonParser { path: &source.path, text: &source.text, at: 0 };
    reader.space();
    reader.find_key(key)?;
    items.iter().try_for_each(|n| reader.find_item(*n))?;
    let start = reader.at;
    reader.value(0).ok()?;
    Some((start, reader.at))
}

struct JsonParser<'a> {
    path: &'a str,
    text: &'a str,
    at: usize,
}

impl JsonParser<'_> {
    fn fail(&self, message: &str, label: &str) -> Finding {
        let source =
            Arc::new(SourceText { path: self.path.to_owned(), text: self.text.to_owned() });
        let end = self.rest().chars().next().map_or(self.at, |c| self.at + c.len_utf8());
        Finding::error(&Span { source, start: self.at, end }, message).label(label)
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        let remaining = self.rest();
        self.at += remaining.len() - remaining.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    fn eat(&mut self, word: &str) -> bool {
        let is_next = self.rest().starts_with(word);
        if is_next {
            self.at += word.len();
        }
        is_next
    }

    fn value(&mut self, depth: usize) -> Result<Scalar, Finding> {
        if depth > MAX_DEPTH {
            return Err(self
                .fail("the file is nested too deeply", &format!("more than {MAX_DEPTH} levels")));
        }
        self.space();
        match self.rest().bytes().next() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => Ok(Scalar::Str(self.string()?)),
            _ => self.word(),
        }
    }

    fn word(&mut self) -> Result<Scalar, Finding> {
        for (word, value) in [
            ("null", Scalar::Null),
            ("true", Scalar::Bool(true)),
            ("false", Scalar::Bool(false)),
            ("NaN", Scalar::Float(f64::NAN)),
            ("Infinity", Scalar::Float(f64::INFINITY)),
            ("-Infinity", Scalar::Float(f64::NEG_INFINITY)),
        ] {
            if self.eat(word) {
                return Ok(value);
            }
        }
        let remaining = self.rest();
        let end = remaining
            .find(|c: char| !(c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E')))
            .unwrap_or(remaining.len());
        let digits = &remaining[..end];
        let number = digits.parse().map(Scalar::Int).or_else(|_| digits.parse().map(Scalar::Float));
        match number {
            Ok(number) if !digits.starts_with('+') => {
                self.at += end;
                Ok(number)
            }
            _ => Err(self.fail("the file is not JSON", "expected a value")),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Scalar, Finding> {
        let mut entries: Vec<(String, Scalar)> = Vec::new();
        let mut places = std::collections::BTreeMap::new();
        self.at += 1;
        self.space();
        if self.eat("}") {
            return Ok(Scalar::Map(entries));
        }
        loop {
            self.space();
            if !self.rest().starts_with('"') {
                return Err(self.fail("the file is not JSON", "expected a key in double quotes"));
            }
            let key = self.string()?;
            self.space();
            if !self.eat(":") {
                return Err(self.fail("the file is not JSON", "expected `:`"));
            }
            let value = self.value(depth + 1)?;
            if let Some(&place) = places.get(&key) {
                let entry: &mut (String, Scalar) = &mut entries[place];
                entry.1 = value;
            } else {
                places.insert(key.clone(), entries.len());
                entries.push((key, value));
            }
            self.space();
            if self.eat("}") {
                return Ok(number(&entries).unwrap_or(Scalar::Map(entries)));
            }
            if !self.eat(",") {
                return Err(self.fail("the file is not JSON", "expected `,` or `}`"));
            }
        }
    }

    /// Goes on to the value of a dotted key of the object at hand.
    fn find_key(&mut self, key: &str) -> Option<()> {
        let mut value_at = None;
        let mut holder = None;
        self.eat("{").then_some(())?;
        loop {
            self.space();
            let Ok(name) = self.string() else { break };
            self.space();
            self.eat(":").then_some(())?;
            self.space();
            if name == key {
                value_at = Some(self.at);
            } else if let Some(suffix) = key.strip_prefix(&name)
                && let Some(suffix) = suffix.strip_prefix('.')
            {
                holder = Some((self.at, suffix));
            }
            self.value(0).ok()?;
            self.space();
            if !self.eat(",") {
                break;
            }
        }
        if let Some(at) = value_at {
            self.at = at;
            return Some(());
        }
        let (at, suffix) = holder?;
        self.at = at;
        self.find_key(suffix)
    }

    /// Goes on to an item of the list at hand.
    fn find_item(&mut self, n: usize) -> Option<()> {
        self.eat("[").then_some(())?;
        for _ in 0..n {
            self.value(0).ok()?;
            self.space();
            self.eat(",").then_some(())?;
        }
        self.space();
        Some(())
    }

    fn array(&mut self, depth: usize) -> Result<Scalar, Finding> {
        let mut items = Vec::new();
        self.at += 1;
        self.space();
        if self.eat("]") {
            return Ok(Scalar::List(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.space();
            if self.eat("]") {
                return Ok(Scalar::List(items));
            }
            if !self.eat(",") {
                return Err(self.fail("the file is not JSON", "expected `,` or `]`"));
            }
        }
    }

    fn string(&mut self) -> Result<String, Finding> {
        let bytes = self.text.as_bytes();
        let mut end = self.at + 1;
        while end < bytes.len() && bytes[end] != b'"' {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        // An escape may have jumped past the end, or into the middle of a character.
        let quoted = self.text.get(self.at..end + 1);
        match quoted.map(serde_json::from_str) {
            Some(Ok(text)) => {
                self.at = end + 1;
                Ok(text)
            }
            _ => {
                Err(self
                    .fail("the file is not JSON", "this text does not end, or has a bad escape"))
            }
        }
    }
}

/// Reads a number that JSON has no form for, as transformers 5 writes it: `{"__float__": "Infinity"}`.
fn number(entries: &[(String, Scalar)]) -> Option<Scalar> {
    let [(key, Scalar::Str(word))] = entries else { return None };
    let number = match word.as_str() {
        "Infinity" => f64::INFINITY,
        "-Infinity" => f64::NEG_INFINITY,
        "NaN" => f64::NAN,
        _ => return None,
    };
    (key == "__float__").then_some(Scalar::Float(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_are_read_as_python_reads_them() {
        for (text, shown) in [
            ("{\"b\": 1, \"a\": [1, 2.5, -3e2], \"b\": null}", "{b: null, a: [1, 2.5, -300.0]}"),
            ("[Infinity, -Infinity]", "[inf, -inf]"),
            ("[{\"__float__\": \"Infinity\"}, {\"__float__\": \"x\"}]", "[inf, {__float__: 'x'}]"),
            ("99999999999999999999", "1e20"),
            ("\"a\\u00e9\\n\"", "'aé\n'"),
            (" { } ", "{}"),
        ] {
            assert_eq!(parse("c", text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn faults_have_a_place() {
        for (text, start, label) in [
            ("{\"a\" 1}", 5, "expected `:`"),
            ("{a: 1}", 1, "expected a key"),
            ("[1 2]", 3, "expected `,`"),
            ("{\"a\": }", 6, "expected a value"),
            ("1 1", 2, "expected the end"),
            ("\"abc", 0, "does not end"),
            ("\"abc\\", 0, "does not end"),
            ("", 0, "expected a value"),
        ] {
            let finding = parse("c", text).unwrap_err();
            assert_eq!(finding.at.unwrap().start, start, "{text}");
            assert!(finding.label.contains(label), "{text}: {}", finding.label);
        }
        assert!(parse("c", &"[".repeat(100_000)).unwrap_err().message.contains("deeply"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*", jsonish in "[\\[\\]{}\",:0-9.eE+\\-a-z\\\\é ]{0,40}") {
            let _unused = parse("c", &text);
            let _unused = parse("c", &jsonish);
        }
    }
}
