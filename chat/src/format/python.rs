//! Calls as Python writes them: `[f(a=1, b="x"), g()]`.

use super::json::{MAX_DEPTH, Scan, escape, quoted};
use super::parts::{CallContext, CallParts};

/// Longest word or number of Python text.
const MAX_WORD: usize = 4096;

/// Position in Python text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PyState {
    /// Before the list of calls.
    Open,
    /// Before a call of the list; true if the list may end.
    Item(bool),
    /// In the name of a function.
    Function,
    /// Behind the name of a function.
    Paren,
    /// Before an argument or `)`.
    Argument,
    /// In the name of an argument.
    ArgumentName,
    /// Behind the name of an argument.
    Equals,
    /// Before a value.
    Value,
    /// In a word or a number.
    Word,
    /// Behind the first quote of a string, with the number of quotes seen.
    Quotes(u8),
    /// In a string.
    Text,
    /// Behind a backslash.
    Escape,
    /// In an escape by number: digits that are missing, the base, the value so far.
    Code(u8, u8, u32),
    /// In a string with three quotes: quotes seen in a row.
    Closing(u8),
    /// Behind a string, which another string may continue.
    AfterText,
    /// Behind a value.
    Next,
    /// Behind a call of the list.
    NextCall,
}

/// Open brackets of Python text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PyOpen {
    List,
    Tuple,
    /// `{`, of which the first value will show the kind.
    Brace,
    Set,
    /// A dict, before the colon of an entry.
    DictKey,
    /// A dict, behind the colon of an entry.
    DictValue,
    Call,
}

/// Quotes of a string.
#[derive(Debug, Clone, Copy)]
struct PyQuotes {
    mark: char,
    triple: bool,
    /// True for a string without escapes.
    raw: bool,
}

/// Reads calls and writes their arguments as JSON.
#[derive(Debug, Clone)]
pub(super) struct PythonCalls {
    state: PyState,
    open: Vec<PyOpen>,
    /// Word, number or name that is being read.
    text: String,
    /// Value that is a key of a dict, or may be one.
    key: Option<String>,
    quotes: PyQuotes,
    /// Number of arguments of the call.
    count: usize,
    /// True if a comma was read and not written yet.
    comma: bool,
    /// First half of a character that two escapes write.
    high: Option<u32>,
    /// True if no brackets stand around the call.
    bare: bool,
    /// True if the state machine reads one value instead of calls.
    value_only: bool,
}

impl PythonCalls {
    pub(super) fn new() -> Self {
        Self {
            state: PyState::Open,
            open: Vec::new(),
            text: String::new(),
            key: None,
            quotes: PyQuotes { mark: '"', triple: false, raw: false },
            count: 0,
            comma: false,
            high: None,
            bare: false,
            value_only: false,
        }
    }

    /// Reads one character.
    pub(super) fn push(
        &mut self,
        c: char,
        context: &CallContext<'_>,
        parts: &mut CallParts,
    ) -> Scan {
        match self.state {
            PyState::Open => match c {
                '[' => self.to(PyState::Item(true)),
                c if c.is_whitespace() => Scan::More,
                c if is_name(c, true) && !context.strict => {
                    self.bare = true;
                    self.word(c, PyState::Function)
                }
                _ => Scan::Bad,
            },
            PyState::Item(may_end) => match c {
                ']' if may_end && !self.bare && !context.strict => Scan::Done,
                c if c.is_whitespace() => Scan::More,
                c if is_name(c, true) => self.word(c, PyState::Function),
                _ => Scan::Bad,
            },
            PyState::Function => match c {
                c if is_name(c, false) || matches!(c, '.' | '-') => self.word(c, PyState::Function),
                c => {
                    self.state = PyState::Paren;
                    self.push(c, context, parts)
                }
            },
            PyState::Paren => match c {
                '(' => {
                    let name = std::mem::take(&mut self.text);
                    if !context.accepts(&name) {
                        return Scan::Bad;
                    }
                    parts.name(name);
                    parts.text("{");
                    self.count = 0;
                    self.open.push(PyOpen::Call);
                    self.to(PyState::Argument)
                }
                c if c.is_whitespace() => Scan::More,
                _ => Scan::Bad,
            },
            PyState::Argument => match c {
                ')' => self.close_call(parts),
                c if c.is_whitespace() => Scan::More,
                c if is_name(c, true) => self.word(c, PyState::ArgumentName),
                _ => Scan::Bad,
            },
            PyState::ArgumentName => match c {
                c if is_name(c, false) => self.word(c, PyState::ArgumentName),
                c => {
                    self.state = PyState::Equals;
                    self.push(c, context, parts)
                }
            },
            PyState::Equals => match c {
                '=' => {
                    let name = std::mem::take(&mut self.text);
                    if self.count > 0 {
                        parts.text(", ");
                    }
                    self.count += 1;
                    parts.text(&quoted(&name));
                    parts.text(": ");
                    self.to(PyState::Value)
                }
                c if c.is_whitespace() => Scan::More,
                _ => Scan::Bad,
            },
            PyState::NextCall => match c {
                ',' => self.to(PyState::Item(true)),
                ']' => Scan::Done,
                c if c.is_whitespace() => Scan::More,
                _ => Scan::Bad,
            },
            _ => self.value(c, parts),
        }
    }

    /// Reads a character of a value.
    fn value(&mut self, c: char, parts: &mut CallParts) -> Scan {
        match self.state {
            PyState::Value => self.start(c, parts),
            PyState::Word => match c {
                // The sign of an exponent.
                '+' | '-' if self.text.ends_with(['e', 'E']) && is_number(&self.text) => {
                    self.word(c, PyState::Word)
                }
                '\'' | '"' if is_prefix(&self.text) => {
                    self.quotes.raw = self.text.contains(['r', 'R']);
                    self.text.clear();
                    self.put("\"", parts);
                    self.begin_text(c)
                }
                c if is_name(c, false) || c == '.' => self.word(c, PyState::Word),
                c => {
                    let word = std::mem::take(&mut self.text);
                    let Some(json) = word_json(&word) else { return Scan::Bad };
                    self.put(&json, parts);
                    self.state = PyState::Next;
                    self.value(c, parts)
                }
            },
            PyState::Quotes(seen) => match c {
                c if c == self.quotes.mark && seen == 1 => self.to(PyState::Quotes(2)),
                c if c == self.quotes.mark => {
                    self.quotes.triple = true;
                    self.to(PyState::Text)
                }
                c if seen == 1 => {
                    self.state = PyState::Text;
                    self.value(c, parts)
                }
                // An empty string.
                c => {
                    self.state = PyState::AfterText;
                    self.value(c, parts)
                }
            },
            PyState::Text => match c {
                '\\' => self.to(PyState::Escape),
                c if c == self.quotes.mark && self.quotes.triple => self.to(PyState::Closing(1)),
                c if c == self.quotes.mark => self.to(PyState::AfterText),
                c => self.char(c, parts),
            },
            PyState::Closing(seen) => match c {
                c if c == self.quotes.mark && seen == 2 => self.to(PyState::AfterText),
                c if c == self.quotes.mark => self.to(PyState::Closing(seen + 1)),
                c => {
                    for _ in 0..seen {
                        self.char(self.quotes.mark, parts);
                    }
                    self.state = PyState::Text;
                    self.value(c, parts)
                }
            },
            PyState::Escape => self.escaped(c, parts),
            PyState::Code(left, base, value) => match c.to_digit(u32::from(base)) {
                Some(digit) => {
                    let value = value * u32::from(base) + digit;
                    if left == 1 {
                        self.code(value, parts)
                    } else {
                        self.to(PyState::Code(left - 1, base, value))
                    }
                }
                // An octal escape may be shorter.
                None if base == 8 => {
                    if self.code(value, parts) == Scan::Bad {
                        return Scan::Bad;
                    }
                    self.value(c, parts)
                }
                None => Scan::Bad,
            },
            PyState::AfterText => match c {
                '\'' | '"' => self.begin_text(c),
                c if c.is_whitespace() => Scan::More,
                c => {
                    if self.high.take().is_some() {
                        return Scan::Bad;
                    }
                    self.put("\"", parts);
                    self.state = PyState::Next;
                    self.value(c, parts)
                }
            },
            PyState::Next => self.next(c, parts),
            _ => Scan::Bad,
        }
    }

    fn to(&mut self, state: PyState) -> Scan {
        self.state = state;
        Scan::More
    }

    fn word(&mut self, c: char, state: PyState) -> Scan {
        if self.text.len() >= MAX_WORD {
            return Scan::Bad;
        }
        self.text.push(c);
        self.to(state)
    }

    /// Begins a value.
    fn start(&mut self, c: char, parts: &mut CallParts) -> Scan {
        if c.is_whitespace() {
            return Scan::More;
        }
        if matches!(c, ']' | ')' | '}') {
            return self.close(c, true, parts);
        }
        if std::mem::take(&mut self.comma) {
            parts.text(", ");
        }
        match c {
            '\'' | '"' => {
                self.quotes.raw = false;
                self.put("\"", parts);
                self.begin_text(c)
            }
            '[' => self.nest(PyOpen::List, "[", parts),
            '(' => self.nest(PyOpen::Tuple, "[", parts),
            '{' => self.nest(PyOpen::Brace, "", parts),
            '-' | '+' => self.word(c, PyState::Word),
            c if is_name(c, false) || c == '.' => self.word(c, PyState::Word),
            _ => Scan::Bad,
        }
    }

    fn begin_text(&mut self, quote: char) -> Scan {
        self.quotes.mark = quote;
        self.quotes.triple = false;
        self.to(PyState::Quotes(1))
    }

    fn nest(&mut self, open: PyOpen, text: &str, parts: &mut CallParts) -> Scan {
        // A key of a dict is no container; JSON has none either.
        if self.open.len() >= MAX_DEPTH || self.in_key() {
            return Scan::Bad;
        }
        if matches!(self.open.last(), Some(PyOpen::Brace)) {
            self.become_set(parts);
        }
        if !text.is_empty() {
            parts.text(text);
        }
        self.open.push(open);
        self.to(PyState::Value)
    }

    fn in_key(&self) -> bool {
        matches!(self.open.last(), Some(PyOpen::DictKey))
    }

    fn become_set(&mut self, parts: &mut CallParts) {
        if let Some(last) = self.open.last_mut() {
            *last = PyOpen::Set;
        }
        parts.text("[");
    }

    /// Writes text of a value: to the parts, or to the key of a dict.
    fn put(&mut self, text: &str, parts: &mut CallParts) {
        if matches!(self.open.last(), Some(PyOpen::Brace | PyOpen::DictKey)) {
            self.key.get_or_insert_default().push_str(text);
        } else {
            parts.text(text);
        }
    }

    fn char(&mut self, c: char, parts: &mut CallParts) -> Scan {
        if self.high.take().is_some() {
            return Scan::Bad;
        }
        if matches!(self.open.last(), Some(PyOpen::Brace | PyOpen::DictKey)) {
            escape(c, self.key.get_or_insert_default());
        } else {
            escape(c, parts.piece());
        }
        Scan::More
    }

    fn escaped(&mut self, c: char, parts: &mut CallParts) -> Scan {
        self.state = PyState::Text;
        if self.quotes.raw {
            self.char('\\', parts);
            return self.char(c, parts);
        }
        let plain = match c {
            '\n' => return Scan::More,
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'v' => '\u{b}',
            '\\' | '\'' | '"' => c,
            'x' => return self.to(PyState::Code(2, 16, 0)),
            'u' => return self.to(PyState::Code(4, 16, 0)),
            'U' => return self.to(PyState::Code(8, 16, 0)),
            'N' => return Scan::Bad,
            '0'..='7' => return self.to(PyState::Code(2, 8, c.to_digit(8).unwrap_or_default())),
            c => {
                self.char('\\', parts);
                c
            }
        };
        self.char(plain, parts)
    }

    /// Writes the character of a number, or keeps the first half of a pair.
    fn code(&mut self, value: u32, parts: &mut CallParts) -> Scan {
        self.state = PyState::Text;
        if let Some(high) = self.high {
            if !(0xdc00..0xe000).contains(&value) {
                return Scan::Bad;
            }
            self.high = None;
            let code = 0x10000 + ((high - 0xd800) << 10) + (value - 0xdc00);
            return char::from_u32(code).map_or(Scan::Bad, |c| self.char(c, parts));
        }
        if (0xd800..0xdc00).contains(&value) {
            self.high = Some(value);
            return Scan::More;
        }
        char::from_u32(value).map_or(Scan::Bad, |c| self.char(c, parts))
    }

    /// Reads what follows a value.
    fn next(&mut self, c: char, parts: &mut CallParts) -> Scan {
        if c.is_whitespace() {
            return Scan::More;
        }
        match (c, self.open.last().copied()) {
            (':', Some(PyOpen::Brace | PyOpen::DictKey)) => {
                let first = self.open.last() == Some(&PyOpen::Brace);
                let key = self.key.take().unwrap_or_default();
                // A number or a word as a key is a string in JSON.
                let key = if key.starts_with('"') { key } else { quoted(&key) };
                parts.text(if first { "{" } else { ", " });
                parts.text(&key);
                parts.text(": ");
                if let Some(last) = self.open.last_mut() {
                    *last = PyOpen::DictValue;
                }
                self.to(PyState::Value)
            }
            (',', Some(PyOpen::Brace)) => {
                let value = self.key.take().unwrap_or_default();
                self.become_set(parts);
                parts.text(&value);
                self.comma()
            }
            (',', Some(PyOpen::DictValue)) => {
                if let Some(last) = self.open.last_mut() {
                    *last = PyOpen::DictKey;
                }
                self.to(PyState::Value)
            }
            (',', Some(PyOpen::List | PyOpen::Tuple | PyOpen::Set)) => self.comma(),
            (',', Some(PyOpen::Call)) => self.to(PyState::Argument),
            (')', Some(PyOpen::Call)) => self.close_call(parts),
            (')' | ']' | '}', Some(_)) => self.close(c, false, parts),
            _ => Scan::Bad,
        }
    }

    /// Keeps a comma until a value follows, since Python allows one before a closing bracket.
    fn comma(&mut self) -> Scan {
        self.comma = true;
        self.to(PyState::Value)
    }

    /// Closes a list, tuple, set or dict; `empty` directly behind its bracket or a comma.
    fn close(&mut self, c: char, empty: bool, parts: &mut CallParts) -> Scan {
        let Some(open) = self.open.last().copied() else { return Scan::Bad };
        let text = match (c, open) {
            (']', PyOpen::List) | (')', PyOpen::Tuple) | ('}', PyOpen::Set) => "]",
            ('}', PyOpen::DictKey) if empty => "}",
            ('}', PyOpen::DictValue) if !empty => "}",
            ('}', PyOpen::Brace) if empty => "{}",
            ('}', PyOpen::Brace) => {
                let value = self.key.take().unwrap_or_default();
                self.become_set(parts);
                parts.text(&value);
                "]"
            }
            _ => return Scan::Bad,
        };
        self.open.pop();
        self.comma = false;
        parts.text(text);
        self.state = PyState::Next;
        if self.value_only && self.open.is_empty() { Scan::Done } else { Scan::More }
    }

    fn close_call(&mut self, parts: &mut CallParts) -> Scan {
        self.open.pop();
        parts.text("}");
        if self.bare { Scan::Done } else { self.to(PyState::NextCall) }
    }
}

/// Returns a list or dict of Python literals as JSON; none if the text is none.
pub(super) fn literal(text: &str) -> Option<String> {
    let mut calls = PythonCalls { state: PyState::Value, value_only: true, ..PythonCalls::new() };
    let mut parts = CallParts::default();
    let mut ended = false;
    for c in text.chars() {
        match if ended { Scan::Bad } else { calls.value(c, &mut parts) } {
            Scan::More => {}
            Scan::Done => ended = true,
            Scan::Before | Scan::Bad => return None,
        }
    }
    ended.then(|| std::mem::take(parts.piece()))
}

/// True for a character of a Python name.
fn is_name(c: char, first: bool) -> bool {
    c == '_' || if first { c.is_alphabetic() } else { c.is_alphanumeric() }
}

/// True for the letters before a string's quote. Byte strings have no JSON, and f-strings may compute.
fn is_prefix(text: &str) -> bool {
    matches!(text, "r" | "R" | "u" | "U")
}

fn is_number(text: &str) -> bool {
    text.trim_start_matches(['-', '+']).starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && !text.contains(['x', 'X'])
}

/// Returns a word or a number as JSON.
fn word_json(word: &str) -> Option<String> {
    match word {
        "True" | "true" => return Some("true".to_owned()),
        "False" | "false" => return Some("false".to_owned()),
        "None" | "null" => return Some("null".to_owned()),
        _ => {}
    }
    let (sign, digits) = match word.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", word.strip_prefix('+').unwrap_or(word)),
    };
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        || digits.contains("__")
        || digits.ends_with('_')
    {
        return None;
    }
    let plain = digits.replace('_', "");
    for (prefix, base) in [("0x", 16), ("0X", 16), ("0o", 8), ("0O", 8), ("0b", 2), ("0B", 2)] {
        if let Some(digits) = plain.strip_prefix(prefix) {
            return u128::from_str_radix(digits, base).ok().map(|value| format!("{sign}{value}"));
        }
    }
    let (mantissa, power) = match plain.find(['e', 'E']) {
        Some(at) => plain.split_at(at),
        None => (plain.as_str(), ""),
    };
    let (integer, fraction) = match mantissa.split_once('.') {
        Some((integer, fraction)) => (integer, Some(fraction)),
        None => (mantissa, None),
    };
    let integer = integer.trim_start_matches('0');
    let integer = if integer.is_empty() { "0" } else { integer };
    let fraction = match fraction {
        Some("") => ".0".to_owned(),
        Some(digits) => format!(".{digits}"),
        None => String::new(),
    };
    let number = format!("{sign}{integer}{fraction}{power}");
    (mantissa != "." && super::json::is_json(&number)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_become_json() {
        let cases = [
            ("[1, -2, +3, 1_000, 0x1f, 0b11, 007]", "[1, -2, 3, 1000, 31, 3, 7]"),
            ("[1., .5, 1e5, 1E-3, 2.50]", "[1.0, 0.5, 1e5, 1E-3, 2.50]"),
            ("[123456789012345678901234567890]", "[123456789012345678901234567890]"),
            (
                "['a\"b', \"c'd\", 'x' 'y', '', \"\"\"t\"r\"\"\"]",
                "[\"a\\\"b\", \"c'd\", \"xy\", \"\", \"t\\\"r\"]",
            ),
            ("['\\n\\x41\\u00e9\\U0001f600\\101\\q', r'\\n']", "[\"\\nAé😀A\\\\q\", \"\\\\n\"]"),
            (
                "{'a': {'b': [None, True]}, 1: (2, 3,), 'e': {}}",
                "{\"a\": {\"b\": [null, true]}, \"1\": [2, 3], \"e\": {}}",
            ),
            ("{'a', 'b'}", "[\"a\", \"b\"]"),
            ("{1}", "[1]"),
            ("[{'a': 1}, (), [],]", "[{\"a\": 1}, [], []]"),
            ("['\\ud83d\\ude00']", "[\"😀\"]"),
        ];
        for (python, json) in cases {
            assert_eq!(literal(python).as_deref(), Some(json), "{python}");
        }
        for bad in [
            "[1 2]",
            "[a]",
            "{1: }",
            "{1: 2, 3}",
            "['a",
            "[1, , 2]",
            "[b'x']",
            "[1j]",
            "[f'{x}']",
            "{[1]: 2}",
            "['\\ud83d']",
        ] {
            assert_eq!(literal(bad), None, "{bad}");
        }
    }
}
