//! Objects with bare keys, whose strings stand between markers: `{city:<escape>Paris<escape>,days:3}`.

use super::json::{MAX_DEPTH, Scan, escape, is_json, is_space, quoted};
use super::parts::CallParts;

/// Position in the object.
#[derive(Debug, Clone)]
enum MarkedState {
    Open,
    /// Behind `{`: a key or `}`.
    FirstKey,
    /// Behind `,` of an object.
    Key,
    InKey,
    /// Before a value; true behind `[`, where the list may end.
    Value(bool),
    /// In a string.
    Text,
    /// In a value without marks.
    Bare,
    Next,
}

/// Reads one object and writes it as JSON.
#[derive(Debug, Clone)]
pub(super) struct MarkedObject {
    /// Open containers; true for objects.
    open: Vec<bool>,
    state: MarkedState,
    /// Text of the key, the bare value, or the start of a mark.
    text: String,
}

impl MarkedObject {
    pub(super) fn new() -> Self {
        Self { open: Vec::new(), state: MarkedState::Open, text: String::new() }
    }

    /// Reads one character. `mark` stands before and after strings.
    pub(super) fn push(&mut self, c: char, mark: &str, parts: &mut CallParts) -> Scan {
        match self.state {
            MarkedState::Open if c == '{' => self.nest(true, parts),
            MarkedState::FirstKey | MarkedState::Value(true)
                if self.text.is_empty() && self.closes(c) =>
            {
                self.close(parts)
            }
            MarkedState::FirstKey | MarkedState::Key if !is_space(c) => {
                if matches!(c, ':' | ',' | '{' | '}' | '[' | ']') {
                    return Scan::Bad;
                }
                self.text.push(c);
                self.to(MarkedState::InKey)
            }
            MarkedState::InKey => match c {
                ':' => {
                    let key = std::mem::take(&mut self.text);
                    let key = key.trim();
                    let bare = key.strip_prefix(mark).and_then(|key| key.strip_suffix(mark));
                    parts.text(&quoted(bare.unwrap_or(key)));
                    parts.text(":");
                    self.to(MarkedState::Value(false))
                }
                '{' | '}' | '[' | ']' | ',' => Scan::Bad,
                c => {
                    self.text.push(c);
                    Scan::More
                }
            },
            MarkedState::Value(first) => self.value(c, first, mark, parts),
            MarkedState::Text => {
                self.text.push(c);
                if self.text == mark {
                    self.text.clear();
                    parts.text("\"");
                    return self.to(MarkedState::Next);
                }
                while !mark.starts_with(self.text.as_str()) {
                    escape(self.text.remove(0), parts.piece());
                }
                Scan::More
            }
            MarkedState::Bare => match c {
                ',' | '}' | ']' => {
                    let text = std::mem::take(&mut self.text);
                    parts.text(&bare(text.trim()));
                    self.state = MarkedState::Next;
                    self.push(c, mark, parts)
                }
                c => {
                    self.text.push(c);
                    Scan::More
                }
            },
            MarkedState::Next => match (c, self.open.last()) {
                (',', Some(object)) => {
                    let object = *object;
                    parts.text(",");
                    self.to(if object { MarkedState::Key } else { MarkedState::Value(false) })
                }
                (c, Some(_)) if self.closes(c) => self.close(parts),
                (c, _) if is_space(c) => Scan::More,
                _ => Scan::Bad,
            },
            _ if is_space(c) => Scan::More,
            _ => Scan::Bad,
        }
    }

    fn value(&mut self, c: char, first: bool, mark: &str, parts: &mut CallParts) -> Scan {
        if self.text.is_empty() {
            match c {
                c if is_space(c) => return Scan::More,
                '{' => return self.nest(true, parts),
                '[' => return self.nest(false, parts),
                ',' | '}' | ']' => return Scan::Bad,
                _ => {}
            }
        }
        self.text.push(c);
        if self.text == mark {
            self.text.clear();
            parts.text("\"");
            return self.to(MarkedState::Text);
        }
        if mark.starts_with(self.text.as_str()) {
            return self.to(MarkedState::Value(first));
        }
        // The text before this character was no mark, so it may hold the end of the value.
        self.text.pop();
        self.state = MarkedState::Bare;
        self.push(c, mark, parts)
    }

    fn to(&mut self, state: MarkedState) -> Scan {
        self.state = state;
        Scan::More
    }

    fn nest(&mut self, object: bool, parts: &mut CallParts) -> Scan {
        if self.open.len() == MAX_DEPTH {
            return Scan::Bad;
        }
        self.open.push(object);
        parts.text(if object { "{" } else { "[" });
        self.to(if object { MarkedState::FirstKey } else { MarkedState::Value(true) })
    }

    /// True for the character that closes the innermost container.
    fn closes(&self, c: char) -> bool {
        self.open.last().is_some_and(|object| c == if *object { '}' } else { ']' })
    }

    fn close(&mut self, parts: &mut CallParts) -> Scan {
        let object = self.open.pop().unwrap_or_default();
        parts.text(if object { "}" } else { "]" });
        self.state = MarkedState::Next;
        if self.open.is_empty() { Scan::Done } else { Scan::More }
    }
}

/// Returns a value without marks as JSON: a number or a word of JSON as written, all else as a string.
fn bare(text: &str) -> String {
    if is_json(text) && !text.starts_with(['"', '{', '[']) { text.to_owned() } else { quoted(text) }
}
