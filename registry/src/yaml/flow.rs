//! Lists and maps in brackets.

use super::{YamlEntry, YamlMap, YamlNode, YamlParser, YamlValue};
use crate::diag::Finding;
use crate::text::MappedText;

impl YamlParser<'_> {
    /// Reads a `[` or `{` and its contents. They may go on over lines that are indented further than
    /// `parent`.
    pub(super) fn flow(&mut self, parent: Option<usize>) -> YamlNode {
        self.nested(|reader| {
            if reader.peek() == Some('[') {
                reader.flow_list(parent)
            } else {
                reader.flow_map(parent)
            }
        })
    }

    /// Skips blanks, comments and newlines; false where the bracket cannot go on.
    fn flow_space(&mut self, parent: Option<usize>) -> bool {
        self.blanks();
        if !self.at_line_end() {
            return true;
        }
        let newline = self.pos;
        let column = self.next_content();
        let inside = match (column, parent) {
            // The closing bracket may stand below the key, as it is often written.
            (Some(column), Some(parent)) if column == parent => self.rest().starts_with([']', '}']),
            (Some(column), Some(parent)) => column > parent,
            (column, _) => column.is_some(),
        };
        if !inside {
            self.pos = newline;
        }
        inside
    }

    fn unclosed(&mut self, start: usize) {
        let shown = &self.text[start..=start];
        let close = if shown == "[" { "]" } else { "}" };
        let message = format!("this `{shown}` is never closed");
        let finding = Finding::error(&self.span(start, start + 1), message);
        self.broken = true;
        self.findings.push(finding.help(format!("close it with `{close}` before the next key")));
        self.skip_line();
    }

    fn flow_list(&mut self, parent: Option<usize>) -> YamlNode {
        let start = self.pos;
        let mut items = Vec::new();
        self.pos += 1;
        loop {
            if !self.flow_space(parent) {
                self.unclosed(start);
                break;
            }
            if self.peek() == Some(']') {
                self.pos += 1;
                break;
            }
            let item = self.flow_value(parent);
            if self.flow_space(parent) && self.peek() == Some(':') {
                let at = self.pos;
                let help = "write `{ key: value }`, or quote the text";
                self.fail_help(at, at + 1, "a key inside a list", help);
                self.pos += 1;
                continue;
            }
            items.push(item);
            if !self.separator(start, ']', parent) {
                break;
            }
        }
        self.node(YamlValue::List(items), start, self.pos)
    }

    fn flow_map(&mut self, parent: Option<usize>) -> YamlNode {
        let start = self.pos;
        let mut map = YamlMap::new();
        self.pos += 1;
        loop {
            if !self.flow_space(parent) {
                self.unclosed(start);
                break;
            }
            if self.peek() == Some('}') {
                self.pos += 1;
                break;
            }
            let key_start = self.pos;
            let key = match self.flow_value(parent) {
                YamlNode { value: YamlValue::Plain(text) | YamlValue::Quoted(text), .. } => {
                    Some(text)
                }
                YamlNode { at, .. } => {
                    self.fail_help(at.start, at.end, "this cannot be a key", "write `key: value`");
                    None
                }
            };
            let more = self.flow_space(parent);
            let value = if more && self.peek() == Some(':') {
                self.pos += 1;
                let here = self.pos;
                if self.flow_space(parent) && !matches!(self.peek(), Some(',' | '}' | ']')) {
                    self.flow_value(parent)
                } else {
                    self.null(here, here)
                }
            } else {
                if key.is_some() {
                    let end = self.pos.max(key_start);
                    let help = "write `key: value`, with a blank after the colon";
                    self.fail_help(key_start, end, "a key without a value", help);
                }
                self.null(key_start, key_start)
            };
            if let Some(key) = key {
                self.insert(&mut map, YamlEntry { key, value });
            }
            if !self.separator(start, '}', parent) {
                break;
            }
        }
        self.node(YamlValue::Map(map), start, self.pos)
    }

    /// Passes over the comma or the closing bracket; false when the bracket is over.
    fn separator(&mut self, start: usize, close: char, parent: Option<usize>) -> bool {
        if !self.flow_space(parent) || !self.going() {
            self.unclosed(start);
            return false;
        }
        match self.peek() {
            Some(',') => {
                self.pos += 1;
                true
            }
            Some(c) if c == close => {
                self.pos += 1;
                false
            }
            other => {
                let at = self.pos;
                let len = other.map_or(1, char::len_utf8);
                let message = format!("expected `,` or `{close}`");
                self.fail(at, at + len, message);
                self.skip_line();
                false
            }
        }
    }

    fn flow_value(&mut self, parent: Option<usize>) -> YamlNode {
        let mark = self.pos;
        self.skip_marks();
        let start = self.pos;
        if start > mark && matches!(self.peek(), Some(',' | ']' | '}')) {
            return self.null(mark, start);
        }
        match self.peek() {
            Some('[' | '{') => self.flow(parent),
            Some('\'' | '"') => {
                let text = self.quoted();
                self.node(YamlValue::Quoted(text), start, self.pos)
            }
            _ => self.flow_plain(parent),
        }
    }

    /// Reads plain text up to a separator outside the brackets that it opened itself.
    fn flow_plain(&mut self, parent: Option<usize>) -> YamlNode {
        let start = self.pos;
        let computed = self.peek() == Some('=');
        let mut text = MappedText::empty(self.source, start..start);
        let mut open: Vec<(usize, char)> = Vec::new();
        let mut end = start;
        while let Some(c) = self.peek() {
            let at = self.pos;
            let next = self.rest()[c.len_utf8()..].chars().next();
            let over = next.is_none_or(|next| next.is_whitespace() || ",]}".contains(next));
            match c {
                '(' => open.push((at, ')')),
                '[' => open.push((at, ']')),
                '{' => open.push((at, '}')),
                ')' | ']' | '}' if open.last().is_some_and(|(_, close)| *close == c) => {
                    open.pop();
                }
                ',' if open.is_empty() => break,
                ']' | '}' => break,
                ':' if open.is_empty() && over => break,
                '\'' | '"' if computed || !open.is_empty() => {
                    // A string of an expression: its brackets do not count.
                    let remaining = &self.rest()[1..];
                    let stop =
                        remaining.find([c, '\n']).filter(|stop| remaining[*stop..].starts_with(c));
                    let len = stop.map_or(1, |len| len + 2);
                    text.copy(at..at + len);
                    self.pos += len;
                    end = self.pos;
                    continue;
                }
                '\r' if next != Some('\n') => {}
                '\n' | ' ' | '\t' | '\r' => {
                    let going = self.flow_space(parent);
                    let commented = self.text[at..self.pos].contains('#');
                    if !going || (commented && open.is_empty()) {
                        break;
                    }
                    let gap = &self.text[at..self.pos];
                    if gap.contains('\n') {
                        text.replace(' ', at..self.pos);
                    } else {
                        text.copy(at..self.pos);
                    }
                    continue;
                }
                _ => {}
            }
            self.pos += c.len_utf8();
            text.copy(at..self.pos);
            end = self.pos;
        }
        if let Some((at, close)) = open.last() {
            let message = format!("this `{}` is never closed", &self.text[*at..=*at]);
            let finding = Finding::error(&self.span(*at, at + 1), message);
            self.broken = true;
            self.findings.push(finding.label(format!("expected `{close}`")));
        }
        let len = text.value().trim_end().len();
        text.truncate(len);
        self.refuse_marks(start, &self.text[start..end], false);
        if end == start {
            let message = "a value is missing here";
            self.fail(start, start, message);
            // Whatever stops a scalar at once must not stop the caller forever.
            if !matches!(self.peek(), Some(',' | ']' | '}') | None) {
                self.pos += self.peek().map_or(0, char::len_utf8);
            }
        }
        let null = matches!(text.value(), "~" | "null" | "Null" | "NULL");
        self.node(if null { YamlValue::Null } else { YamlValue::Plain(text) }, start, end)
    }
}
