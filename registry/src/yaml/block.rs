//! Maps and lists by indentation.

use super::{YamlEntry, YamlMap, YamlNode, YamlParser, YamlValue};
use crate::text::MappedText;

impl YamlParser<'_> {
    /// Reads the value whose first character is here, at `column`. `parent` is the column of the map or list
    /// that contains it; its content is indented deeper.
    pub(super) fn block(&mut self, column: usize, parent: Option<usize>) -> YamlNode {
        if self.at_dash() {
            return self.nested(|reader| reader.block_list(column));
        }
        if self.at_key() {
            return self.nested(|reader| reader.block_map(column));
        }
        self.inline(parent)
    }

    /// True at `- ` or a dash at the end of its line.
    fn at_dash(&self) -> bool {
        let remaining = self.rest();
        remaining.starts_with('-')
            && (remaining.len() == 1 || remaining[1..].starts_with([' ', '\n', '\r', '\t']))
    }

    /// True if the text here is a key: a `:` follows before the line ends.
    fn at_key(&self) -> bool {
        let line = self.rest().lines().next().unwrap_or("");
        let from = match line.chars().next() {
            Some(quote @ ('\'' | '"')) => match line[1..].find(quote) {
                Some(end) => return line[end + 2..].trim_start().starts_with(':'),
                None => return false,
            },
            Some('[' | '{' | '#') | None => return false,
            Some(_) => line,
        };
        colon(from).is_some()
    }

    fn block_map(&mut self, column: usize) -> YamlNode {
        let start = self.pos;
        let mut end = start;
        let mut map = YamlMap::new();
        loop {
            if let Some(entry) = self.block_entry(column) {
                end = end.max(entry.value.at.end).max(entry.key.span().end);
                self.insert(&mut map, entry);
            }
            if !self.same_column(column, "the keys above it") {
                break;
            }
        }
        self.node(YamlValue::Map(map), start, end)
    }

    /// Moves to the next line of a map or list at `column`; false when it is over.
    fn same_column(&mut self, column: usize, what: &str) -> bool {
        let mut reported = false;
        while let Some(indent) = self.next_content() {
            if indent < column || !self.going() {
                self.unread(Some(indent));
                return false;
            }
            if indent == column {
                return true;
            }
            let start = self.pos;
            self.skip_line();
            if !reported {
                let end = start + self.text[start..self.pos].trim_end().len();
                let message = "this line is indented further than its neighbours";
                let help = format!("start it in column {}, as {what}", column + 1);
                self.fail_help(start, end, message, &help);
                reported = true;
            }
        }
        false
    }

    fn block_entry(&mut self, column: usize) -> Option<YamlEntry> {
        let start = self.pos;
        if !self.at_key() {
            self.skip_line();
            let line = self.text[start..self.pos].trim_end();
            let (message, help) = match line.chars().next() {
                Some('-') => ("a list item among the keys of a map", "indent it under a key"),
                Some('%') => ("YAML directives are not read", "remove this line"),
                _ => ("this line has no key", "write `key: value`, with a space after the colon"),
            };
            self.fail_help(start, start + line.len(), message, help);
            return None;
        }
        let key = if self.rest().starts_with(['\'', '"']) {
            self.quoted()
        } else {
            let line = self.rest().lines().next().unwrap_or("");
            let len = colon(line).expect("at_key found it");
            self.pos += len;
            let name = line[..len].trim_end();
            self.refuse_marks(start, name, true);
            MappedText::of(&self.span(start, start + name.len()))
        };
        self.blanks();
        // An unfinished quote may have taken the colon.
        self.pos += usize::from(self.peek() == Some(':'));
        let value = self.entry_value(column);
        Some(YamlEntry { key, value })
    }

    /// Parses the value that follows `key:` on its line or below it.
    fn entry_value(&mut self, column: usize) -> YamlNode {
        let here = self.pos;
        self.blanks();
        self.skip_marks();
        if !self.at_line_end() {
            if self.at_dash() {
                let start = self.pos;
                self.skip_line();
                let help = "start the list on the next line, or write `[a, b]`";
                self.fail_help(start, start + 1, "a list item on the line of its key", help);
                return self.null(start, start);
            }
            return self.inline(Some(column));
        }
        match self.next_content() {
            Some(indent) if indent > column || (indent == column && self.at_dash()) => {
                self.block(indent, Some(column))
            }
            indent => {
                self.unread(indent);
                self.null(here, here)
            }
        }
    }

    fn block_list(&mut self, column: usize) -> YamlNode {
        let start = self.pos;
        let mut items: Vec<YamlNode> = Vec::new();
        loop {
            let dash = self.pos;
            self.pos += 1;
            self.blanks();
            self.skip_marks();
            let item = if self.at_line_end() {
                match self.next_content() {
                    Some(indent) if indent > column => self.block(indent, Some(column)),
                    indent => {
                        self.unread(indent);
                        self.null(dash, dash + 1)
                    }
                }
            } else {
                self.block(self.column(), Some(column))
            };
            items.push(item);
            if !self.same_column(column, "the items above it") {
                break;
            }
            if !self.at_dash() {
                self.unread(Some(column));
                break;
            }
        }
        let end = items.last().map_or(start, |item| item.at.end);
        self.node(YamlValue::List(items), start, end)
    }
}

/// Reads the colon that ends a plain key: one before a blank or the line's end, and
/// not in a comment.
pub(super) fn colon(line: &str) -> Option<usize> {
    let line = line.strip_suffix('\r').unwrap_or(line);
    let line = line.find(" #").map_or(line, |comment| &line[..comment]);
    line.match_indices(':')
        .find(|(at, _)| line[at + 1..].is_empty() || line[at + 1..].starts_with([' ', '\t']))
        .map(|(at, _)| at)
}
