//! One call under way: a pattern, matched one character at a time.

use std::collections::BTreeSet;

use super::data::{Format, ValueTrim};
use super::json::{JsonScanner, Scan, quoted};
use super::json_call::{CallList, CallObject};
use super::object::MarkedObject;
use super::parts::{CallContext, CallParts};
use super::pattern::{CallPattern, Hole, PatternStep};
use super::python::PythonCalls;
use super::tags::arguments;
use super::value::coerced;

/// Longest name, key or other word in a pattern.
const MAX_WORD: usize = 1024;

/// Most pairs of one call: their keys are kept, to find one that stands twice.
const MAX_PAIRS: usize = 10_000;

/// Result of a character for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallScan {
    /// The call goes on.
    More,
    /// The character is the last one of the call.
    Done,
    /// The text is no call. So many bytes before the character may be the start of another mark.
    Bad(usize),
}

/// Reader of a hole's content.
#[derive(Debug, Clone)]
enum Payload {
    Json(JsonScanner),
    Call(CallObject),
    Calls(CallList),
    Python(Box<PythonCalls>),
    Object(MarkedObject),
}

/// Position in a pattern.
#[derive(Debug, Clone, Default)]
struct PatternPlace {
    step: usize,
    /// Bytes of the literal that were read.
    read: usize,
}

/// Matches one pattern.
#[derive(Debug, Clone)]
pub(super) struct CallMachine {
    pattern: &'static CallPattern,
    place: PatternPlace,
    /// Place in the pattern of a pair, inside one.
    pair: Option<PatternPlace>,
    payload: Option<Payload>,
    /// Word or value that is being read.
    text: String,
    name: String,
    key: String,
    kind: String,
    /// Keys of the pairs so far.
    keys: BTreeSet<String>,
    /// True if the arguments were begun.
    begun: bool,
    /// Parts that were not taken yet.
    pub(super) parts: CallParts,
}

impl CallMachine {
    /// Begins behind the pattern's opening text.
    pub(super) fn new(pattern: &'static CallPattern) -> Self {
        let step = usize::from(!pattern.opener().is_empty());
        Self {
            pattern,
            place: PatternPlace { step, read: 0 },
            pair: None,
            payload: None,
            text: String::new(),
            name: String::new(),
            key: String::new(),
            kind: String::new(),
            keys: BTreeSet::new(),
            begun: false,
            parts: CallParts::default(),
        }
    }

    /// True if no text opens the call.
    pub(super) fn is_unmarked(&self) -> bool {
        self.pattern.opener().is_empty()
    }

    /// True if all of the call was read but for the marks behind it.
    pub(super) fn is_complete(&self) -> bool {
        let remaining = self.pattern.steps.get(self.place.step..).unwrap_or_default();
        self.pair.is_none() && !remaining.iter().any(|step| matches!(step, PatternStep::Hole(_)))
    }

    /// Reads one character.
    pub(super) fn push(
        &mut self,
        c: char,
        format: &'static Format,
        context: &CallContext<'_>,
    ) -> CallScan {
        loop {
            if self.pair.is_some() {
                if let Some(scan) = self.push_pair(c, format, context) {
                    return scan;
                }
                continue;
            }
            let Some(step) = self.pattern.steps.get(self.place.step) else {
                return CallScan::Bad(0);
            };
            match step {
                PatternStep::Literal(text) => match literal(text, &mut self.place, c) {
                    Scan::More => return CallScan::More,
                    Scan::Done => return self.ended(),
                    _ => return CallScan::Bad(self.place.read),
                },
                PatternStep::Space if c.is_whitespace() => return CallScan::More,
                PatternStep::Space => self.place.step += 1,
                PatternStep::Hole(Hole::Name) => {
                    let (space, stop) = stops(&self.pattern.steps[self.place.step + 1..], format);
                    if Some(c) == stop || space && c.is_whitespace() && !self.text.is_empty() {
                        let name = std::mem::take(&mut self.text);
                        let name = name.trim();
                        let plain = name.strip_prefix(format.name_prefix.as_str()).unwrap_or(name);
                        if !context.accepts(plain) {
                            return CallScan::Bad(0);
                        }
                        plain.clone_into(&mut self.name);
                        self.place.step += 1;
                    } else {
                        return self.word(c);
                    }
                }
                PatternStep::Hole(Hole::Pairs) => return self.pairs(c, format),
                PatternStep::Hole(Hole::Tags) => return self.tags(c, format, context),
                PatternStep::Hole(Hole::Key | Hole::Value | Hole::Type | Hole::Id) => {
                    let (space, stop) = stops(&self.pattern.steps[self.place.step + 1..], format);
                    if Some(c) == stop || space && c.is_whitespace() && !self.text.is_empty() {
                        self.text.clear();
                        self.place.step += 1;
                    } else {
                        return self.word(c);
                    }
                }
                PatternStep::Hole(hole) => match self.fill(*hole, c, format, context) {
                    Scan::More => return CallScan::More,
                    Scan::Done => {
                        self.payload = None;
                        self.place.step += 1;
                        return self.ended();
                    }
                    Scan::Before => {
                        self.payload = None;
                        self.place.step += 1;
                    }
                    Scan::Bad => return CallScan::Bad(0),
                },
            }
        }
    }

    /// Returns the result behind a finished step.
    fn ended(&self) -> CallScan {
        if self.place.step == self.pattern.steps.len() { CallScan::Done } else { CallScan::More }
    }

    fn word(&mut self, c: char) -> CallScan {
        if self.text.len() >= MAX_WORD {
            return CallScan::Bad(0);
        }
        self.text.push(c);
        CallScan::More
    }

    /// Reads a character of a payload.
    fn fill(&mut self, hole: Hole, c: char, format: &Format, context: &CallContext<'_>) -> Scan {
        if self.payload.is_none() {
            if matches!(hole, Hole::Arguments | Hole::Object) {
                if c.is_whitespace() {
                    return Scan::More;
                }
                if c != '{' {
                    return Scan::Bad;
                }
                self.parts.name(self.name.clone());
            }
            self.payload = Some(match hole {
                Hole::Arguments => Payload::Json(JsonScanner::new()),
                Hole::Call => Payload::Call(CallObject::new()),
                Hole::Calls => Payload::Calls(CallList::new()),
                Hole::Python => Payload::Python(Box::new(PythonCalls::new())),
                Hole::Object => Payload::Object(MarkedObject::new()),
                Hole::Name
                | Hole::Id
                | Hole::Pairs
                | Hole::Tags
                | Hole::Key
                | Hole::Value
                | Hole::Type => return Scan::Bad,
            });
        }
        match self.payload.as_mut().expect("it was set above") {
            Payload::Json(scanner) => {
                let scan = scanner.push(c);
                if scan != Scan::Bad {
                    self.parts.piece().push(c);
                }
                scan
            }
            Payload::Call(object) => object.push(c, context, &mut self.parts),
            Payload::Calls(list) => list.push(c, context, &mut self.parts),
            Payload::Python(calls) => calls.push(c, context, &mut self.parts),
            Payload::Object(object) => object.push(c, &format.strings, &mut self.parts),
        }
    }

    /// Reads a character of nested tags, up to the literal behind them.
    fn tags(&mut self, c: char, format: &Format, context: &CallContext<'_>) -> CallScan {
        let Some(PatternStep::Literal(end)) = self.pattern.steps.get(self.place.step + 1) else {
            return CallScan::Bad(0);
        };
        self.text.push(c);
        if !end.ends_with(c) || !self.text.ends_with(end.as_str()) {
            return CallScan::More;
        }
        let text = std::mem::take(&mut self.text);
        let body = &text[..text.len() - end.len()];
        let Some(json) = arguments(body, &format.tags, context.tools.get(&self.name)) else {
            return CallScan::Bad(0);
        };
        self.parts.name(self.name.clone());
        self.parts.text(&json);
        self.place.step += 2;
        self.ended()
    }

    /// Reads a character between pairs: the start of a pair, or of the text behind them.
    fn pairs(&mut self, c: char, format: &'static Format) -> CallScan {
        if self.text.is_empty() && c.is_whitespace() {
            return CallScan::More;
        }
        if !self.begun {
            self.parts.name(self.name.clone());
            self.parts.text("{");
            self.begun = true;
        }
        self.text.push(c);
        let Some(pair) = &format.pair else { return CallScan::Bad(0) };
        let after = self.pattern.steps[self.place.step + 1..].iter().find_map(|step| match step {
            PatternStep::Literal(text) => Some(text.as_str()),
            _ => None,
        });
        if self.text == pair.opener() {
            if self.keys.len() == MAX_PAIRS {
                return CallScan::Bad(0);
            }
            self.text.clear();
            self.pair = Some(PatternPlace { step: 1, read: 0 });
            return CallScan::More;
        }
        if after == Some(self.text.as_str()) {
            self.parts.text("}");
            self.text.clear();
            while !matches!(self.pattern.steps[self.place.step], PatternStep::Literal(_)) {
                self.place.step += 1;
            }
            self.place.step += 1;
            return self.ended();
        }
        if pair.opener().starts_with(&self.text)
            || after.is_some_and(|text| text.starts_with(&self.text))
        {
            return CallScan::More;
        }
        CallScan::Bad(self.text.len() - c.len_utf8())
    }

    /// Reads a character of a pair; none if the character belongs to the next step.
    fn push_pair(
        &mut self,
        c: char,
        format: &'static Format,
        context: &CallContext<'_>,
    ) -> Option<CallScan> {
        let pair = format.pair.as_ref()?;
        let place = self.pair.as_mut()?;
        let Some(step) = pair.steps.get(place.step) else {
            self.pair = None;
            return None;
        };
        match step {
            PatternStep::Literal(text) => match literal(text, place, c) {
                Scan::More => {}
                Scan::Done => {
                    if place.step == pair.steps.len() {
                        self.pair = None;
                    }
                }
                _ => return Some(CallScan::Bad(place.read)),
            },
            PatternStep::Space if c.is_whitespace() => {}
            PatternStep::Space => {
                place.step += 1;
                return None;
            }
            PatternStep::Hole(Hole::Value) => {
                // Any text up to the literal behind the value.
                let Some(PatternStep::Literal(end)) = pair.steps.get(place.step + 1) else {
                    return Some(CallScan::Bad(0));
                };
                self.text.push(c);
                if end.ends_with(c) && self.text.ends_with(end.as_str()) {
                    place.step += 2;
                    if place.step == pair.steps.len() {
                        self.pair = None;
                    }
                    self.text.truncate(self.text.len() - end.len());
                    self.value(format, context);
                }
            }
            PatternStep::Hole(hole) => {
                let (space, stop) = stops(&pair.steps[place.step + 1..], format);
                if Some(c) == stop || space && c.is_whitespace() && !self.text.is_empty() {
                    place.step += 1;
                    let word = std::mem::take(&mut self.text);
                    let word = word.trim();
                    match hole {
                        Hole::Key if word.is_empty() || self.keys.contains(word) => {
                            return Some(CallScan::Bad(0));
                        }
                        Hole::Key => word.clone_into(&mut self.key),
                        Hole::Type => word.clone_into(&mut self.kind),
                        _ => {}
                    }
                    return None;
                }
                return Some(self.word(c));
            }
        }
        Some(CallScan::More)
    }

    /// Writes the pair that was read.
    fn value(&mut self, format: &Format, context: &CallContext<'_>) {
        let text = std::mem::take(&mut self.text);
        let trimmed = match format.value.trim {
            ValueTrim::Nothing => text.as_str(),
            ValueTrim::Newline => {
                let start = text.strip_prefix('\n').unwrap_or(&text);
                start.strip_suffix('\n').unwrap_or(start)
            }
            ValueTrim::Space => text.trim(),
        };
        let inner = format.value.wrap.as_ref().and_then(|(open, close)| {
            trimmed.trim().strip_prefix(open.as_str())?.strip_suffix(close.as_str())
        });
        let trimmed = inner.unwrap_or(trimmed);
        let typed = format.value.types.get(&self.kind).copied();
        let root = context.tools.get(&self.name).unwrap_or(&serde_json::Value::Null);
        let schema = root.get("properties").and_then(|properties| properties.get(&self.key));
        let json = match typed {
            Some(typed) => coerced(trimmed, None, root, typed),
            None => coerced(trimmed, schema, root, format.value.untyped),
        };
        if !self.keys.is_empty() {
            self.parts.text(", ");
        }
        self.parts.text(&quoted(&self.key));
        self.parts.text(": ");
        self.parts.text(&json);
        self.keys.insert(std::mem::take(&mut self.key));
        self.kind.clear();
    }
}

/// Reads a character of a literal.
fn literal(text: &str, place: &mut PatternPlace, c: char) -> Scan {
    if !text[place.read..].starts_with(c) {
        return Scan::Bad;
    }
    place.read += c.len_utf8();
    if place.read < text.len() {
        return Scan::More;
    }
    *place = PatternPlace { step: place.step + 1, read: 0 };
    Scan::Done
}

/// Returns the ends of a word before these steps: white space if true, and a character.
fn stops(steps: &[PatternStep], format: &Format) -> (bool, Option<char>) {
    let space = matches!(steps.first(), Some(PatternStep::Space | PatternStep::Hole(Hole::Pairs)));
    let next = steps.iter().find_map(|step| match step {
        PatternStep::Space => None,
        PatternStep::Literal(text) => text.chars().next(),
        PatternStep::Hole(Hole::Pairs) => {
            format.pair.as_ref().and_then(|pair| pair.opener().chars().next())
        }
        PatternStep::Hole(_) => Some('{'),
    });
    // A letter behind white space may be part of the word too.
    (space, next.filter(|c| !space || !c.is_alphanumeric()))
}
