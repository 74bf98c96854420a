//! JSON, one character at a time.

use std::fmt::Write as _;

/// Nesting of payloads beyond which a call counts as malformed.
pub(super) const MAX_DEPTH: usize = 200;

/// Result of one character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scan {
    /// The character belongs to the value, which goes on.
    More,
    /// The character is the last one of the value.
    Done,
    /// The value ended before the character.
    Before,
    /// The character cannot stand here.
    Bad,
}

/// Position inside a JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonState {
    /// Before a value.
    Value,
    /// Behind `[`: a value or `]`.
    First,
    /// Behind `{`: a key or `}`.
    FirstKey,
    /// Behind `,` of an object.
    Key,
    /// Behind a key.
    Colon,
    /// Behind a value of a container.
    Next,
    /// In a string; true for a key.
    Text(bool),
    /// Behind a backslash of a string.
    Escape(bool),
    /// In `\uXXXX`, with the number of digits that are missing.
    Hex(bool, u8),
    /// In `true`, `false` or `null`, with the rest of the word.
    Word(&'static str),
    /// In a number.
    Number(NumberState),
}

/// Position inside a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NumberState {
    Minus,
    Zero,
    Int,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

/// Checks one JSON value. The text itself is kept by the caller, so numbers stay as written.
#[derive(Debug, Clone)]
pub(super) struct JsonScanner {
    /// Open containers; true for objects.
    open: Vec<bool>,
    state: JsonState,
}

impl JsonScanner {
    pub(super) fn new() -> Self {
        Self { open: Vec::new(), state: JsonState::Value }
    }

    /// Reads one character.
    pub(super) fn push(&mut self, c: char) -> Scan {
        match self.state {
            JsonState::First if c == ']' => self.close(),
            JsonState::Value | JsonState::First => self.value(c),
            JsonState::FirstKey if c == '}' => self.close(),
            JsonState::FirstKey | JsonState::Key => match c {
                '"' => self.to(JsonState::Text(true)),
                c if is_space(c) => Scan::More,
                _ => Scan::Bad,
            },
            JsonState::Colon => match c {
                ':' => self.to(JsonState::Value),
                c if is_space(c) => Scan::More,
                _ => Scan::Bad,
            },
            JsonState::Next => match (c, self.open.last()) {
                (',', Some(true)) => self.to(JsonState::Key),
                (',', Some(false)) => self.to(JsonState::Value),
                ('}', Some(true)) | (']', Some(false)) => self.close(),
                (c, _) if is_space(c) => Scan::More,
                _ => Scan::Bad,
            },
            JsonState::Text(key) => match c {
                '"' if key => self.to(JsonState::Colon),
                '"' => self.end(),
                '\\' => self.to(JsonState::Escape(key)),
                c if c < ' ' => Scan::Bad,
                _ => Scan::More,
            },
            JsonState::Escape(key) => match c {
                'u' => self.to(JsonState::Hex(key, 4)),
                '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => self.to(JsonState::Text(key)),
                _ => Scan::Bad,
            },
            JsonState::Hex(key, left) if c.is_ascii_hexdigit() => self.to(if left == 1 {
                JsonState::Text(key)
            } else {
                JsonState::Hex(key, left - 1)
            }),
            JsonState::Hex(..) => Scan::Bad,
            JsonState::Word(word) => match word.strip_prefix(c) {
                Some("") => self.end(),
                Some(word) => self.to(JsonState::Word(word)),
                None => Scan::Bad,
            },
            JsonState::Number(state) => self.number(state, c),
        }
    }

    /// True if the text read so far is a value that needs no further character: a number at the end of the text.
    pub(super) fn may_end(&self) -> bool {
        use NumberState::{Fraction, Int, Power, Zero};
        self.open.is_empty()
            && matches!(self.state, JsonState::Number(Zero | Int | Fraction | Power))
    }

    fn to(&mut self, state: JsonState) -> Scan {
        self.state = state;
        Scan::More
    }

    fn value(&mut self, c: char) -> Scan {
        match c {
            '{' => self.nest(true),
            '[' => self.nest(false),
            '"' => self.to(JsonState::Text(false)),
            't' => self.to(JsonState::Word("rue")),
            'f' => self.to(JsonState::Word("alse")),
            'n' => self.to(JsonState::Word("ull")),
            '-' => self.to(JsonState::Number(NumberState::Minus)),
            '0' => self.to(JsonState::Number(NumberState::Zero)),
            '1'..='9' => self.to(JsonState::Number(NumberState::Int)),
            c if is_space(c) => Scan::More,
            _ => Scan::Bad,
        }
    }

    fn nest(&mut self, object: bool) -> Scan {
        if self.open.len() == MAX_DEPTH {
            return Scan::Bad;
        }
        self.open.push(object);
        self.to(if object { JsonState::FirstKey } else { JsonState::First })
    }

    fn close(&mut self) -> Scan {
        self.open.pop();
        self.end()
    }

    fn end(&mut self) -> Scan {
        self.state = JsonState::Next;
        if self.open.is_empty() { Scan::Done } else { Scan::More }
    }

    fn number(&mut self, state: NumberState, c: char) -> Scan {
        use NumberState::{Exponent, Fraction, Int, Minus, Point, Power, Sign, Zero};
        let next = match (state, c) {
            (Minus, '0') => Zero,
            (Minus, '1'..='9') | (Int, '0'..='9') => Int,
            (Zero | Int, '.') => Point,
            (Point | Fraction, '0'..='9') => Fraction,
            (Zero | Int | Fraction, 'e' | 'E') => Exponent,
            (Exponent, '+' | '-') => Sign,
            (Exponent | Sign | Power, '0'..='9') => Power,
            (Minus | Point | Exponent | Sign, _) => return Scan::Bad,
            // The number ended before this character.
            (Zero | Int | Fraction | Power, _) => {
                self.state = JsonState::Next;
                return if self.open.is_empty() { Scan::Before } else { self.push(c) };
            }
        };
        self.to(JsonState::Number(next))
    }
}

/// True for white space of JSON.
pub(super) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

/// True if a text is one JSON value and nothing else.
pub(super) fn is_json(text: &str) -> bool {
    let mut scanner = JsonScanner::new();
    let mut ended = false;
    for c in text.chars() {
        if ended {
            if !is_space(c) {
                return false;
            }
            continue;
        }
        match scanner.push(c) {
            Scan::More => {}
            Scan::Done => ended = true,
            Scan::Before if is_space(c) => ended = true,
            Scan::Before | Scan::Bad => return false,
        }
    }
    ended || scanner.may_end()
}

/// Returns a text as a JSON string, with quotes.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    text.chars().for_each(|c| escape(c, &mut out));
    out.push('"');
    out
}

/// Appends a character of a JSON string.
pub(super) fn escape(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c < ' ' => write!(out, "\\u{:04x}", u32::from(c)).expect("a string takes all text"),
        c => out.push(c),
    }
}

/// Returns the text of a JSON string.
pub(super) fn unquoted(text: &str) -> Option<String> {
    serde_json::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_told_from_other_text() {
        let sound = [
            "{}",
            "[]",
            " [1, -0.5e+10, \"a\\u00e9\\n\", true, null, {\"k\": [[]]}] ",
            "0",
            "12",
            "-1.5",
            "\"\"",
            "123456789012345678901234567890",
        ];
        let bad = [
            "",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "{a: 1}",
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "nul",
            "nullx",
            "\"\n\"",
            "\"\\x\"",
            "NaN",
            "{} {}",
            "[1 2]",
            "'a'",
            "-",
            "\"\\u12g4\"",
        ];
        for text in sound {
            assert!(is_json(text), "{text}");
        }
        for text in bad {
            assert!(!is_json(text), "{text}");
        }
        assert!(is_json(&("[".repeat(MAX_DEPTH) + &"]".repeat(MAX_DEPTH))));
        assert!(!is_json(&("[".repeat(MAX_DEPTH + 1) + &"]".repeat(MAX_DEPTH + 1))));
    }
}
