//! The parser of a model's output: marks, text, reasoning and calls in one pass.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;

use super::data::Format;
use super::machine::{CallMachine, CallScan};
use super::parts::{CallContext, CallPart, CallParts};
use super::pattern::CallPattern;
use crate::OutputEvent;

/// White space that is kept back, at most; beyond this length it is text.
const MAX_SPACE: usize = 4096;

/// Settings of a parser.
#[derive(Debug, Clone)]
pub struct ParserOptions {
    /// JSON schemas of the tools' parameters, by the tool's name. They give the types of values that a format writes as
    /// text.
    pub tools: BTreeMap<String, Value>,
    /// Handling of reasoning.
    pub reasoning: ReasoningMode,
    /// True to look for tool calls; otherwise they are text.
    pub calls: bool,
    /// True to return a call only when it is whole. A malformed call is then text as a whole. Otherwise the pieces of
    /// its arguments are returned as they come, and a malformed call ends early.
    pub whole_calls: bool,
    /// Bytes that are kept back, at most. A longer call is malformed.
    pub max_call: usize,
}

/// Handling of reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReasoningMode {
    /// The output may begin with a mark of reasoning.
    #[default]
    Marked,
    /// The prompt ended with the mark of reasoning, so the output begins inside it.
    Inside,
    /// Marks of reasoning are text.
    Text,
}

impl Default for ParserOptions {
    fn default() -> Self {
        Self {
            tools: BTreeMap::new(),
            reasoning: ReasoningMode::default(),
            calls: true,
            whole_calls: false,
            max_call: 1 << 20,
        }
    }
}

/// Bytes of an output by their use. Their sum is the length of the output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputBytes {
    /// Text for the user.
    pub content: usize,
    /// Text of the reasoning.
    pub reasoning: usize,
    /// Marks, and white space beside them.
    pub marks: usize,
    /// Tool calls.
    pub calls: usize,
}

impl OutputBytes {
    /// Returns the sum.
    pub fn sum(&self) -> usize {
        self.content + self.reasoning + self.marks + self.calls
    }
}

/// Place of the parser in the output.
#[derive(Debug)]
enum OutputMode {
    Text,
    Reasoning,
    Call(Vec<CallMachine>),
}

/// Part of the output directly before the parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastPart {
    /// Text, or nothing.
    Text,
    /// A call.
    Call,
    /// Reasoning or a mark, where white space is layout.
    Mark,
}

/// Place of the parser, seen from the section of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SectionPlace {
    Outside,
    /// Inside a section without a call so far.
    Inside,
    /// Inside a section with a call.
    Called,
}

/// Meaning of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MarkRole {
    Reason,
    EndReason,
    Section,
    EndSection,
    Call,
    Drop,
}

/// Splits a model's output into text, reasoning and tool calls.
///
/// The result does not depend on how the output is cut into pieces.
#[derive(Debug)]
pub struct OutputParser {
    format: &'static Format,
    options: ParserOptions,
    mode: OutputMode,
    /// Marks that may come now, and the mode they were made for.
    marks: Vec<(&'static str, MarkRole)>,
    /// Start of a mark.
    pending: String,
    /// White space of which the use is not known yet.
    space: String,
    /// Mark of a section in which nothing was found yet.
    section: Option<String>,
    in_section: SectionPlace,
    after: LastPart,
    /// True behind text.
    started: bool,
    /// Text of the call under way that is not among the events.
    raw: String,
    /// Bytes of the call under way that are among the events.
    streamed: usize,
    /// True if parts of the call under way are among the events.
    streaming: bool,
    next_index: usize,
    /// Characters to read.
    queue: VecDeque<char>,
    bytes: OutputBytes,
    /// Start of a character that was cut.
    cut: Vec<u8>,
    events: Vec<OutputEvent>,
}

impl OutputParser {
    pub(super) fn new(format: &'static Format, options: &ParserOptions) -> Self {
        let inside = options.reasoning == ReasoningMode::Inside && format.reasoning.is_some();
        let mut parser = Self {
            format,
            options: options.clone(),
            mode: if inside { OutputMode::Reasoning } else { OutputMode::Text },
            marks: Vec::new(),
            pending: String::new(),
            space: String::new(),
            section: None,
            in_section: SectionPlace::Outside,
            after: if inside { LastPart::Mark } else { LastPart::Text },
            started: false,
            raw: String::new(),
            streamed: 0,
            streaming: false,
            next_index: 0,
            queue: VecDeque::new(),
            bytes: OutputBytes::default(),
            cut: Vec::new(),
            events: Vec::new(),
        };
        parser.set_marks();
        parser
    }

    /// Reads the next piece of the output.
    pub fn push(&mut self, text: &str) -> Vec<OutputEvent> {
        for c in text.chars() {
            self.queue.push_back(c);
            self.drain();
        }
        std::mem::take(&mut self.events)
    }

    /// Reads the next bytes of the output, which may end inside a character. Bytes that are no UTF-8 become U+FFFD.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> Vec<OutputEvent> {
        let mut events = Vec::new();
        self.cut.extend_from_slice(bytes);
        let bytes = std::mem::take(&mut self.cut);
        let mut remaining = bytes.as_slice();
        while !remaining.is_empty() {
            match std::str::from_utf8(remaining) {
                Ok(text) => {
                    events.extend(self.push(text));
                    break;
                }
                Err(error) => {
                    let (sound, other) = remaining.split_at(error.valid_up_to());
                    events.extend(self.push(&String::from_utf8_lossy(sound)));
                    let Some(bad) = error.error_len() else {
                        self.cut = other.to_vec();
                        break;
                    };
                    events.extend(self.push("\u{fffd}"));
                    remaining = &other[bad..];
                }
            }
        }
        events
    }

    /// Ends the output.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        let mut events = if self.cut.is_empty() { Vec::new() } else { self.push("\u{fffd}") };
        self.cut.clear();
        loop {
            // A mark that is the start of a longer one counts, and the rest is read again.
            while !self.pending.is_empty() {
                self.settle();
                self.drain();
            }
            let OutputMode::Call(machines) = &mut self.mode else { break };
            let complete = machines.iter().find(|machine| machine.is_complete());
            // Of a list that was cut, the calls before the cut are whole.
            let mut complete_calls = machines.iter().map(|machine| machine.parts.whole());
            let calls = match complete {
                Some(machine) => Some(machine.parts.clone()),
                None if self.streaming => None,
                None => complete_calls.find(|calls| !calls.parts.is_empty()),
            };
            match calls {
                Some(calls) => self.accept(calls),
                None => self.end_call(),
            }
        }
        let space = std::mem::take(&mut self.space);
        if matches!(self.mode, OutputMode::Reasoning) {
            self.reason(&space);
        } else if self.after != LastPart::Text {
            self.bytes.marks += space.len();
        } else {
            self.content(&space);
        }
        if let Some(mark) = self.section.take() {
            self.content(&mark);
        }
        events.append(&mut self.events);
        events
    }

    /// Returns the use of the bytes so far. The sum is complete after [`Self::finish`].
    pub fn bytes(&self) -> OutputBytes {
        self.bytes
    }

    /// Returns the number of calls so far.
    pub fn calls(&self) -> usize {
        self.next_index
    }

    fn drain(&mut self) {
        while let Some(c) = self.queue.pop_front() {
            if matches!(self.mode, OutputMode::Call(_)) { self.in_call(c) } else { self.in_text(c) }
        }
    }

    /// Lists the marks of the mode.
    fn set_marks(&mut self) {
        let format = self.format;
        let mut marks: Vec<(&'static str, MarkRole)> = Vec::new();
        let reasoning =
            format.reasoning.as_ref().filter(|_| self.options.reasoning != ReasoningMode::Text);
        let in_reasoning = matches!(self.mode, OutputMode::Reasoning);
        if let Some(reasoning) = reasoning {
            if in_reasoning {
                marks.push((&reasoning.close, MarkRole::EndReason));
            }
            // A model may repeat the mark at the start.
            if if in_reasoning {
                self.after == LastPart::Mark
            } else {
                reasoning.repeats || !self.started
            } {
                marks.push((&reasoning.open, MarkRole::Reason));
            }
        }
        let calls = self.options.calls
            && (!in_reasoning || reasoning.is_some_and(|reasoning| reasoning.ends_at_calls));
        if calls {
            if let Some(section) = &format.section {
                // A section that was begun by a call may lack its closing mark too.
                let begins = section.optional && self.in_section == SectionPlace::Called;
                if self.in_section == SectionPlace::Outside || begins {
                    marks.push((&section.open, MarkRole::Section));
                }
                if self.in_section != SectionPlace::Outside {
                    marks.push((&section.close, MarkRole::EndSection));
                }
            }
            let optional = format.section.as_ref().is_none_or(|section| {
                section.optional && !in_reasoning && !self.options.tools.is_empty()
            });
            if optional || self.in_section != SectionPlace::Outside {
                let openers = format.calls.iter().map(CallPattern::opener);
                for opener in openers.filter(|opener| !opener.is_empty()) {
                    if !marks.iter().any(|(text, _)| *text == opener) {
                        marks.push((opener, MarkRole::Call));
                    }
                }
            }
        }
        if !in_reasoning {
            marks.extend(format.drop.iter().map(|text| (text.as_str(), MarkRole::Drop)));
        }
        self.marks = marks;
    }

    /// Reads a character of text or reasoning.
    fn in_text(&mut self, c: char) {
        if self.pending.is_empty() {
            if self.begins_call(c) {
                let space = std::mem::take(&mut self.space);
                self.bytes.marks += space.len();
                self.begin_call("");
                self.queue.push_front(c);
                return;
            }
            if !self.marks.iter().any(|(text, _)| text.starts_with(c)) {
                self.plain(c);
                return;
            }
        }
        self.pending.push(c);
        if !self.marks.iter().any(|(text, _): &(&str, MarkRole)| {
            text.len() > self.pending.len() && text.starts_with(&self.pending)
        }) {
            self.settle();
        }
    }

    /// Takes the longest mark at the start of the pending text, or one character of it as text. The rest is read again.
    fn settle(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let matching = self.marks.iter().filter(|(text, _)| pending.starts_with(text));
        let length =
            if let Some((text, mark)) = matching.max_by_key(|(text, _)| text.len()).copied() {
                self.mark(text, mark);
                text.len()
            } else {
                let Some(c) = pending.chars().next() else { return };
                self.plain(c);
                c.len_utf8()
            };
        for c in pending[length..].chars().rev() {
            self.queue.push_front(c);
        }
    }

    /// True if a call without a mark may begin with this character here.
    fn begins_call(&self, c: char) -> bool {
        matches!(self.mode, OutputMode::Text)
            && self.options.calls
            && (!self.started || self.after == LastPart::Call)
            && matches!(c, '{' | '[')
            && self.format.calls.iter().any(|pattern| pattern.opener().is_empty())
    }

    /// Handles a mark.
    fn mark(&mut self, text: &'static str, mark: MarkRole) {
        let before = std::mem::take(&mut self.space);
        let in_reasoning = matches!(self.mode, OutputMode::Reasoning);
        match mark {
            MarkRole::Reason | MarkRole::EndReason => {
                self.bytes.marks += before.len() + text.len();
                self.mode =
                    if mark == MarkRole::Reason { OutputMode::Reasoning } else { OutputMode::Text };
                self.after = LastPart::Mark;
            }
            MarkRole::Drop => {
                self.bytes.marks += text.len();
                // White space before the mark is text, if there is text.
                if self.after != LastPart::Text || before.is_empty() {
                    self.bytes.marks += before.len();
                } else {
                    self.content(&before);
                }
                self.after = LastPart::Mark;
            }
            MarkRole::Section => {
                if in_reasoning {
                    self.mode = OutputMode::Text;
                }
                self.bytes.marks += before.len();
                self.in_section = SectionPlace::Inside;
                self.section = Some(text.to_owned());
            }
            MarkRole::EndSection => {
                let place = std::mem::replace(&mut self.in_section, SectionPlace::Outside);
                if place == SectionPlace::Called {
                    self.bytes.marks += before.len() + text.len();
                    self.after = LastPart::Mark;
                } else {
                    // No call was in it, so it is text.
                    if let Some(open) = self.section.take() {
                        self.content(&open);
                    }
                    self.content(&before);
                    self.content(text);
                }
            }
            MarkRole::Call => {
                // Text about a call has no mark before it either, so its white space is kept until the call is one.
                if self.format.section.is_some() && self.in_section == SectionPlace::Outside {
                    self.raw.push_str(&before);
                } else {
                    self.bytes.marks += before.len();
                }
                self.begin_call(text);
            }
        }
        self.set_marks();
    }

    /// Reads a character that is no part of a mark.
    fn plain(&mut self, c: char) {
        let between = self.after == LastPart::Call && self.format.between.contains(c);
        if (c.is_whitespace() || between) && self.space.len() < MAX_SPACE {
            self.space.push(c);
            return;
        }
        let space = std::mem::take(&mut self.space);
        let mut buffer = [0; 4];
        let text = c.encode_utf8(&mut buffer);
        if matches!(self.mode, OutputMode::Reasoning) {
            if self.after == LastPart::Mark {
                self.bytes.marks += space.len();
                self.after = LastPart::Text;
                self.set_marks();
            } else {
                self.reason(&space);
            }
            self.reason(text);
            return;
        }
        if let Some(mark) = self.section.take() {
            self.content(&mark);
        }
        if self.after == LastPart::Mark && space.trim().is_empty() && !self.started {
            self.bytes.marks += space.len();
        } else {
            self.content(&space);
        }
        self.content(text);
    }

    /// Adds text for the user.
    fn content(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.bytes.content += text.len();
        match self.events.last_mut() {
            Some(OutputEvent::Content(last)) => last.push_str(text),
            _ => self.events.push(OutputEvent::Content(text.to_owned())),
        }
        self.after = LastPart::Text;
        if !self.started {
            self.started = true;
            self.set_marks();
        }
    }

    /// Adds text of the reasoning.
    fn reason(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.bytes.reasoning += text.len();
        match self.events.last_mut() {
            Some(OutputEvent::Reasoning(last)) => last.push_str(text),
            _ => self.events.push(OutputEvent::Reasoning(text.to_owned())),
        }
    }

    /// Begins a call behind its mark, with all patterns that begin so.
    fn begin_call(&mut self, opener: &str) {
        let patterns = self.format.calls.iter().filter(|pattern| pattern.opener() == opener);
        self.mode = OutputMode::Call(patterns.map(CallMachine::new).collect());
        self.raw.push_str(opener);
        self.streamed = 0;
        self.streaming = false;
    }

    /// Reads a character of a call.
    fn in_call(&mut self, c: char) {
        let OutputMode::Call(machines) = &mut self.mode else { return };
        let format = self.format;
        // Without a mark before it, a call needs the name of a given tool.
        let outside = format.section.is_some() && self.in_section == SectionPlace::Outside;
        let strict = outside || machines.first().is_some_and(CallMachine::is_unmarked);
        let context = CallContext { keys: &format.keys, tools: &self.options.tools, strict };
        let mut done = None;
        let mut back = 0;
        machines.retain_mut(|machine| {
            if done.is_some() {
                return true;
            }
            match machine.push(c, format, &context) {
                CallScan::More => true,
                CallScan::Done => {
                    done = Some(std::mem::take(&mut machine.parts));
                    true
                }
                CallScan::Bad(bytes) => {
                    back = back.max(bytes);
                    false
                }
            }
        });
        if let Some(parts) = done {
            self.raw.push(c);
            self.accept(parts);
            return;
        }
        if machines.is_empty() || self.raw.len() + c.len_utf8() > self.options.max_call {
            self.fail(c, back);
            return;
        }
        let parts = match machines.as_mut_slice() {
            [machine] if !self.options.whole_calls && !machine.parts.parts.is_empty() => {
                Some(std::mem::take(&mut machine.parts))
            }
            _ => None,
        };
        self.raw.push(c);
        if let Some(parts) = parts {
            self.emit(parts);
            self.streaming = true;
            self.streamed += self.raw.len();
            self.raw.clear();
        }
    }

    /// Gives parts of calls as events.
    fn emit(&mut self, parts: CallParts) {
        if let Some(mark) = self.section.take() {
            self.bytes.marks += mark.len();
        }
        if self.format.section.is_some() {
            self.in_section = SectionPlace::Called;
        }
        for part in parts.parts {
            match part {
                CallPart::Name(name) => {
                    self.events.push(OutputEvent::Call { index: self.next_index, name });
                    self.next_index += 1;
                }
                CallPart::Arguments(piece) if piece.is_empty() => {}
                CallPart::Arguments(piece) => {
                    let index = self.next_index.saturating_sub(1);
                    match self.events.last_mut() {
                        Some(OutputEvent::Arguments { index: last, piece: text })
                            if *last == index =>
                        {
                            text.push_str(&piece);
                        }
                        _ => self.events.push(OutputEvent::Arguments { index, piece }),
                    }
                }
            }
        }
    }

    /// Ends a whole call.
    fn accept(&mut self, parts: CallParts) {
        if !self.streaming && parts.parts.is_empty() {
            // An empty list of calls is text.
            self.end_call();
            return;
        }
        self.emit(parts);
        self.bytes.calls += self.streamed + self.raw.len();
        self.raw.clear();
        self.mode = OutputMode::Text;
        self.after = LastPart::Call;
        self.set_marks();
    }

    /// Ends a malformed call: its text is content, up to the start of another mark.
    fn fail(&mut self, c: char, back: usize) {
        let keep = self.raw.len().saturating_sub(back);
        self.queue.push_front(c);
        for c in self.raw.split_off(keep).chars().rev() {
            self.queue.push_front(c);
        }
        self.end_call();
    }

    /// Gives the text of a call that is none as content.
    fn end_call(&mut self) {
        self.mode = OutputMode::Text;
        self.bytes.calls += self.streamed;
        self.after = LastPart::Text;
        if let Some(mark) = self.section.take() {
            self.content(&mark);
        }
        let raw = std::mem::take(&mut self.raw);
        self.content(&raw);
        self.started = true;
        self.set_marks();
    }
}
