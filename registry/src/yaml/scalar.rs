//! Scalars: plain, quoted, and `|` blocks.

use super::block::colon;
use super::{YamlNode, YamlParser, YamlValue};
use crate::text::MappedText;

impl YamlParser<'_> {
    /// Reads a value that starts on this line of a block.
    pub(super) fn inline(&mut self, parent: Option<usize>) -> YamlNode {
        let start = self.pos;
        match self.peek() {
            Some('|') => self.literal(parent),
            Some('>') => {
                let help = "write `|`, which keeps the lines apart";
                self.refuse(start, start + 1, "folded blocks are not read", help);
                self.literal(parent)
            }
            Some('[' | '{') => {
                let node = self.flow(parent);
                self.end_line("this value");
                node
            }
            Some('\'' | '"') => {
                let text = self.quoted();
                let node = self.node(YamlValue::Quoted(text), start, self.pos);
                self.end_line("this value");
                node
            }
            _ => self.plain(parent),
        }
    }

    /// Reads plain text to the end of the line, and on lines below that are indented further.
    fn plain(&mut self, parent: Option<usize>) -> YamlNode {
        let start = self.pos;
        let mut text = MappedText::empty(self.source, start..start);
        loop {
            let line_start = self.pos;
            self.skip_line();
            let line = &self.text[line_start..self.pos];
            let commented = line.find(" #").or_else(|| line.find("\t#"));
            let line = &line[..commented.unwrap_or(line.len())];
            let line = line.trim_end();
            if text.value().is_empty() {
                self.refuse_marks(start, line, false);
            }
            if let Some(at) = colon(line) {
                let at = line_start + at;
                let help = "quote the value, or start a map on the next line";
                self.fail_help(at, at + 1, "a colon and a blank inside plain text", help);
            }
            text.copy(line_start..line_start + line.len());
            let end = line_start + line.len();
            let newline = self.pos;
            // A comment ends plain text in YAML.
            if commented.is_some() || !self.goes_on_below(parent) || !self.going() {
                self.pos = newline;
                let null = matches!(text.value(), "~" | "null" | "Null" | "NULL");
                let value = if null { YamlValue::Null } else { YamlValue::Plain(text) };
                return self.node(value, start, end);
            }
            text.replace(' ', end..self.pos);
        }
    }

    /// True if the next line with content is indented further than the parent.
    fn goes_on_below(&mut self, parent: Option<usize>) -> bool {
        self.next_content().is_some_and(|column| parent.is_none_or(|parent| column > parent))
    }

    /// Reports a character that YAML gives a meaning that specs do not use.
    pub(super) fn refuse_marks(&mut self, start: usize, text: &str, key: bool) {
        let Some(first) = text.chars().next() else { return };
        let (message, help) = match first {
            '*' if key && text.len() == 1 => return,
            '&' | '*' => ("anchors and aliases are not read", "quote the text if it is meant"),
            '!' => ("tags are not read", "quote the text if it is meant"),
            '@' | '`' | '%' => ("YAML keeps this character for itself", "quote the text"),
            '?' if text.len() == 1 || text.starts_with("? ") => {
                ("keys of several lines are not read", "write `key: value`")
            }
            '<' if key && text == "<<" => ("merge keys are not read", "use `extends:`"),
            _ => return,
        };
        self.refuse(start, start + first.len_utf8(), message, help);
    }

    /// Reports anchors and tags before a value, and goes on to the value.
    pub(super) fn skip_marks(&mut self) {
        while matches!(self.peek(), Some('&' | '!')) {
            let remaining = self.rest();
            let len =
                remaining.find([' ', '\t', '\n', '\r', ',', ']', '}']).unwrap_or(remaining.len());
            self.refuse_marks(self.pos, &remaining[..len], false);
            self.pos += len;
            self.blanks();
        }
    }

    /// Reads quoted text, which ends on its line; `pos` is at the quote.
    pub(super) fn quoted(&mut self) -> MappedText {
        let start = self.pos;
        let quote = self.peek().expect("a quote");
        let mut text = MappedText::empty(self.source, start..start);
        self.pos += 1;
        while let Some(c) = self.peek() {
            let at = self.pos;
            let remaining = &self.rest()[c.len_utf8()..];
            if c == '\n' {
                break;
            }
            self.pos += c.len_utf8();
            if c == quote {
                if quote == '\'' && remaining.starts_with('\'') {
                    self.pos += 1;
                    text.replace('\'', at..self.pos);
                    continue;
                }
                return text;
            }
            if c == '\\' && quote == '"' {
                self.escape(&mut text, at);
            } else {
                text.copy(at..self.pos);
            }
        }
        let end = self.pos;
        let help = "close it, or write a `|` block for several lines";
        self.fail_help(start, end, "this quoted text does not end on its line", help);
        text
    }

    /// Reads an escape of double quotes, after its backslash at `at`.
    fn escape(&mut self, text: &mut MappedText, at: usize) {
        let character = match self.peek() {
            Some(c @ ('"' | '\\' | '/')) => Some(c),
            Some('n') => Some('\n'),
            Some('t') => Some('\t'),
            Some('u') => {
                let digits = self.rest().get(1..5);
                let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
                let c = code.and_then(char::from_u32);
                self.pos += if c.is_some() { 4 } else { 0 };
                c
            }
            _ => None,
        };
        match (character, self.peek()) {
            (Some(c), Some(shown)) => {
                self.pos += shown.len_utf8();
                text.replace(c, at..self.pos);
            }
            _ => self.fail_help(at, at + 1, "an unknown escape", "write it in single quotes"),
        }
    }

    /// Reads a `|` block: the lines below that are indented further than the key.
    fn literal(&mut self, parent: Option<usize>) -> YamlNode {
        let start = self.pos;
        self.pos += 1;
        let marks = self.rest().len() - self.rest().trim_start_matches(['-', '+']).len();
        self.pos += marks.min(1);
        if self.peek().is_some_and(|c| c.is_ascii_digit()) {
            let at = self.pos;
            self.fail_help(at, at + 1, "a block with a set indent", "indent its first line least");
            self.pos += 1;
        }
        let header = self.pos;
        self.end_line("`|`");
        let mut text = MappedText::empty(self.source, start..header);
        let mut indent = None;
        // The length without blank lines at the end.
        let mut trimmed_len = 0;
        while self.pos < self.text.len() {
            let line_start = self.pos + 1;
            let tail = &self.text[line_start..];
            let line = &tail[..tail.find('\n').unwrap_or(tail.len())];
            let spaces = line.len() - line.trim_start_matches(' ').len();
            if line.trim().is_empty() {
                let from = indent.map_or(line.len(), |indent: usize| indent.min(line.len()));
                text.copy(line_start + from..(line_start + line.len() + 1).min(self.text.len()));
                self.pos = line_start + line.len();
                continue;
            }
            let least = *indent.get_or_insert(spaces);
            if parent.is_some_and(|parent| spaces <= parent) || (parent.is_none() && spaces == 0) {
                break;
            }
            if spaces < least {
                let message = "this line is indented less than the first line of its block";
                self.fail(line_start, line_start + line.trim_end().len(), message);
            }
            let end = line_start + line.len();
            text.copy(line_start + least.min(spaces)..end);
            trimmed_len = text.value().trim_end_matches('\r').len();
            if end < self.text.len() {
                text.copy(end..end + 1);
            }
            self.pos = end;
        }
        text.truncate(trimmed_len);
        let at = text.span();
        YamlNode { value: YamlValue::Quoted(text), at }
    }
}
