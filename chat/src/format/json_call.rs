//! Calls as JSON objects: `{"name": "f", "arguments": {}}`.

use super::json::{JsonScanner, Scan, is_json, is_space, unquoted};
use super::parts::{CallContext, CallParts};

/// Position in the object of a call.
#[derive(Debug, Clone)]
enum ObjectState {
    Open,
    FirstKey,
    Key,
    InKey(JsonScanner),
    Colon,
    Value(JsonScanner),
    Next,
}

/// Meaning of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyRole {
    Name,
    Arguments,
    Other,
}

/// Reads one object.
#[derive(Debug, Clone)]
pub(super) struct CallObject {
    state: ObjectState,
    role: KeyRole,
    /// Text of the key or the value that is being read.
    text: String,
    name: Option<String>,
    /// Arguments that came before the name.
    arguments: Option<String>,
    /// True if the name is among the parts.
    named: bool,
    /// True if the arguments are among the parts.
    given: bool,
}

impl CallObject {
    pub(super) fn new() -> Self {
        Self {
            state: ObjectState::Open,
            role: KeyRole::Other,
            text: String::new(),
            name: None,
            arguments: None,
            named: false,
            given: false,
        }
    }

    /// Reads one character.
    pub(super) fn push(
        &mut self,
        c: char,
        context: &CallContext<'_>,
        parts: &mut CallParts,
    ) -> Scan {
        match &mut self.state {
            ObjectState::Open => match c {
                '{' => self.to(ObjectState::FirstKey),
                c if is_space(c) => Scan::More,
                _ => Scan::Bad,
            },
            ObjectState::FirstKey if c == '}' => Scan::Bad,
            ObjectState::FirstKey | ObjectState::Key => match c {
                '"' => {
                    let mut scanner = JsonScanner::new();
                    scanner.push(c);
                    c.to_string().clone_into(&mut self.text);
                    self.to(ObjectState::InKey(scanner))
                }
                c if is_space(c) => Scan::More,
                _ => Scan::Bad,
            },
            ObjectState::InKey(scanner) => {
                let scan = scanner.push(c);
                self.text.push(c);
                match scan {
                    Scan::Done => {
                        let Some(key) = unquoted(&self.text) else { return Scan::Bad };
                        if context.keys.by_name {
                            if self.name.is_some() || !context.accepts(&key) {
                                return Scan::Bad;
                            }
                            self.name = Some(key);
                            self.role = KeyRole::Arguments;
                        } else {
                            self.role = role(&key, context);
                        }
                        self.to(ObjectState::Colon)
                    }
                    scan => scan,
                }
            }
            ObjectState::Colon => match c {
                ':' => {
                    self.text.clear();
                    self.to(ObjectState::Value(JsonScanner::new()))
                }
                c if is_space(c) => Scan::More,
                _ => Scan::Bad,
            },
            ObjectState::Value(scanner) => match scanner.push(c) {
                Scan::More => {
                    if !self.text.is_empty() || self.streams() || !is_space(c) {
                        self.keep(c, parts)
                    } else {
                        Scan::More
                    }
                }
                Scan::Done => {
                    if self.keep(c, parts) == Scan::Bad || !self.value(context, parts) {
                        return Scan::Bad;
                    }
                    self.to(ObjectState::Next)
                }
                Scan::Before => {
                    if !self.value(context, parts) {
                        return Scan::Bad;
                    }
                    self.state = ObjectState::Next;
                    self.push(c, context, parts)
                }
                Scan::Bad => Scan::Bad,
            },
            ObjectState::Next => match c {
                ',' => self.to(ObjectState::Key),
                '}' => self.end(context, parts),
                c if is_space(c) => Scan::More,
                _ => Scan::Bad,
            },
        }
    }

    fn to(&mut self, state: ObjectState) -> Scan {
        self.state = state;
        Scan::More
    }

    /// True while the value goes straight into the parts.
    fn streams(&self) -> bool {
        self.role == KeyRole::Arguments && self.given
    }

    /// Keeps a character of a value.
    fn keep(&mut self, c: char, parts: &mut CallParts) -> Scan {
        let first = self.text.is_empty();
        if first && self.role == KeyRole::Arguments {
            if self.given || self.arguments.is_some() {
                // The key stands twice.
                return Scan::Bad;
            }
            if c == '{' && self.name.is_some() {
                self.announce(parts);
                self.given = true;
            }
        }
        if self.streams() {
            parts.piece().push(c);
            // Marks that the value has begun.
            if first {
                self.text.push(c);
            }
            return Scan::More;
        }
        if first && self.role == KeyRole::Name && (c != '"' || self.name.is_some()) {
            return Scan::Bad;
        }
        if self.role != KeyRole::Other || first {
            self.text.push(c);
        }
        Scan::More
    }

    /// Ends a value; false if the call cannot have it.
    fn value(&mut self, context: &CallContext<'_>, parts: &mut CallParts) -> bool {
        match self.role {
            KeyRole::Other => true,
            KeyRole::Name => {
                let Some(name) = unquoted(&self.text).filter(|name| context.accepts(name)) else {
                    return false;
                };
                self.name = Some(name);
                if !context.strict {
                    self.announce(parts);
                }
                true
            }
            KeyRole::Arguments if self.given => true,
            KeyRole::Arguments => {
                let text = std::mem::take(&mut self.text);
                self.arguments = if text == "null" { Some("{}".to_owned()) } else { object(&text) };
                self.arguments.is_some()
            }
        }
    }

    fn announce(&mut self, parts: &mut CallParts) {
        if let (false, Some(name)) = (self.named, &self.name) {
            parts.name(name.clone());
            self.named = true;
        }
    }

    /// Ends the object.
    fn end(&mut self, context: &CallContext<'_>, parts: &mut CallParts) -> Scan {
        if self.name.is_none() || (context.strict && !self.given && self.arguments.is_none()) {
            return Scan::Bad;
        }
        self.announce(parts);
        if !self.given {
            parts.text(&self.arguments.take().unwrap_or_else(|| "{}".to_owned()));
        }
        Scan::Done
    }
}

/// Returns the JSON object of a value: itself, or the object in a string.
fn object(text: &str) -> Option<String> {
    if text.starts_with('{') {
        return Some(text.to_owned());
    }
    let inner = unquoted(text)?;
    (inner.trim_start().starts_with('{') && is_json(&inner)).then(|| inner.trim().to_owned())
}

fn role(key: &str, context: &CallContext<'_>) -> KeyRole {
    if context.keys.name.iter().any(|name| name == key) {
        KeyRole::Name
    } else if context.keys.arguments.iter().any(|name| name == key) {
        KeyRole::Arguments
    } else {
        KeyRole::Other
    }
}

/// Position in a list of calls.
#[derive(Debug, Clone)]
enum ListState {
    Open,
    First,
    Item,
    Object { object: Box<CallObject>, alone: bool },
    Next,
}

/// Reads a list of objects, or one object without a list.
#[derive(Debug, Clone)]
pub(super) struct CallList {
    state: ListState,
}

impl CallList {
    pub(super) fn new() -> Self {
        Self { state: ListState::Open }
    }

    /// Reads one character.
    pub(super) fn push(
        &mut self,
        c: char,
        context: &CallContext<'_>,
        parts: &mut CallParts,
    ) -> Scan {
        match &mut self.state {
            ListState::Open if c == '[' => self.to(ListState::First),
            ListState::Open | ListState::First | ListState::Item if c == '{' => {
                let alone = matches!(self.state, ListState::Open);
                let mut object = Box::new(CallObject::new());
                object.push(c, context, parts);
                self.to(ListState::Object { object, alone })
            }
            ListState::Object { object, alone } => match object.push(c, context, parts) {
                Scan::Done if *alone => Scan::Done,
                Scan::Done => self.to(ListState::Next),
                scan => scan,
            },
            ListState::Next if c == ',' => self.to(ListState::Item),
            ListState::Next if c == ']' => Scan::Done,
            _ if is_space(c) => Scan::More,
            _ => Scan::Bad,
        }
    }

    fn to(&mut self, state: ListState) -> Scan {
        self.state = state;
        Scan::More
    }
}
