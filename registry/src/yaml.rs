//! The YAML of specs: a tree in which every part knows its bytes in the file.
//!
//! This reads the part of YAML that specs use: maps, lists, plain and quoted
//! scalars, and `|` blocks. Anchors, tags, folded blocks and several documents
//! are refused with a finding. It stands in place of a general YAML crate
//! because it reports every mistake of a file instead of the first, and because
//! of one liberty that expressions need: brackets *inside* a plain scalar
//! balance, so `[layer_types, = [f(i, n) for i in range(layers)]]` is a list of
//! two. A test holds it against such a crate for everything else.
//!
//! The reasons are in [decision 5](../../docs/decisions/0005-own-yaml-tree.md).

use std::sync::Arc;

use indexmap::IndexMap;

use crate::diag::{Finding, SourceText, Span};
use crate::listing::beginning;
use crate::syntax::Ident;
use crate::text::MappedText;

mod block;
mod flow;
mod reader;
mod scalar;

pub use reader::TreeReader;

/// Nesting beyond which a file is refused: readers of the tree recurse.
pub const MAX_DEPTH: usize = 24;
/// Bytes beyond which a file is refused.
pub const MAX_BYTES: usize = 1 << 20;
/// Findings after which a file is given up.
const MAX_FINDINGS: usize = 50;

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct YamlNode {
    /// The value.
    pub value: YamlValue,
    /// The place, with quotes or brackets.
    pub at: Span,
}

/// The kinds of value.
#[derive(Debug, Clone, PartialEq)]
pub enum YamlValue {
    /// `~`, `null`, or nothing at all.
    Null,
    /// Text without quotes around it: `hidden_size`, `3`, `= a + b`.
    Plain(MappedText),
    /// Text in quotes, or a `|` block.
    Quoted(MappedText),
    /// `[a, b]`, or lines with `-`.
    List(Vec<YamlNode>),
    /// `{ a: b }`, or lines with `:`.
    Map(YamlMap),
}

/// Entries by key, in file order.
pub type YamlMap = IndexMap<String, YamlEntry>;

/// A key and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct YamlEntry {
    /// The key, with its place.
    pub key: MappedText,
    /// The value.
    pub value: YamlNode,
}

impl YamlNode {
    /// Returns the word for this kind of value in findings.
    pub fn kind(&self) -> &'static str {
        match &self.value {
            YamlValue::Null => "nothing",
            YamlValue::Plain(_) | YamlValue::Quoted(_) => "text",
            YamlValue::List(_) => "a list",
            YamlValue::Map(_) => "a map",
        }
    }

    /// Returns the text of a scalar.
    pub fn text(&self) -> Option<&MappedText> {
        match &self.value {
            YamlValue::Plain(text) | YamlValue::Quoted(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the entries of a map.
    pub fn map(&self) -> Option<&YamlMap> {
        match &self.value {
            YamlValue::Map(map) => Some(map),
            _ => None,
        }
    }
}

impl YamlEntry {
    /// Returns the key as a name.
    pub fn name(&self) -> Ident {
        self.key.ident()
    }
}

/// Reads a file's tree, or returns every fault of its YAML.
pub fn read(source: &Arc<SourceText>) -> Result<YamlNode, Vec<Finding>> {
    match read_whole(source) {
        (Some(node), findings) if findings.is_empty() => Ok(node),
        (_, findings) => Err(findings),
    }
}

/// Reads a file's tree with everything that is wrong with its YAML. There is no tree if brackets,
/// quotes or indentation leave its shape open; anchors, tags and doubled keys do not.
pub(crate) fn read_whole(source: &Arc<SourceText>) -> (Option<YamlNode>, Vec<Finding>) {
    if source.text.len() > MAX_BYTES {
        let at = Span { source: source.clone(), start: 0, end: 0 };
        let message = format!("this file has {} bytes", source.text.len());
        return (None, vec![Finding::error(&at, message).label(format!("at most {MAX_BYTES}"))]);
    }
    let mut reader = YamlParser::new(source, 0);
    let node = reader.document();
    ((!reader.broken).then_some(node), reader.findings)
}

/// Reads one value from `from` to the end of the text.
pub(crate) fn read_value(source: &Arc<SourceText>, from: usize) -> Result<YamlNode, Vec<Finding>> {
    let mut reader = YamlParser::new(source, from);
    reader.blanks();
    let node = if reader.at_line_end() { reader.null(from, from) } else { reader.inline(None) };
    if reader.findings.is_empty() { Ok(node) } else { Err(reader.findings) }
}

/// Reads from `pos` on. Every function leaves `pos` further on or reports why not.
struct YamlParser<'a> {
    source: &'a Arc<SourceText>,
    text: &'a str,
    /// The first byte: after a byte order mark, which has no width.
    start: usize,
    pos: usize,
    depth: usize,
    findings: Vec<Finding>,
    /// True if a finding leaves the shape of the tree open.
    broken: bool,
}

impl<'a> YamlParser<'a> {
    fn new(source: &'a Arc<SourceText>, from: usize) -> Self {
        let text = &source.text;
        Self { source, text, start: from, pos: from, depth: 0, findings: Vec::new(), broken: false }
    }

    fn document(&mut self) -> YamlNode {
        self.start = if self.text.starts_with('\u{feff}') { 3 } else { 0 };
        self.pos = self.start;
        let control = self.text.char_indices().find(|&(at, c): &(usize, char)| match c {
            '\r' => !self.text[at..].starts_with("\r\n"),
            c => c.is_control() && !matches!(c, '\n' | '\t'),
        });
        if let Some((at, c)) = control {
            let shown = c.escape_unicode();
            self.fail(at, at + c.len_utf8(), format!("the control character {shown} in this file"));
        }
        if self.rest().starts_with("---") && self.rest()[3..].starts_with(['\n', '\r', ' ']) {
            self.pos += 3;
        }
        let start = self.pos;
        let node = match self.next_content() {
            Some(column) => self.block(column, None),
            None => self.null(start, start),
        };
        while self.next_content().is_some() && self.going() {
            let line = self.pos;
            self.skip_line();
            self.fail(line, self.pos, "this line belongs to nothing above it");
        }
        node
    }

    /// True while the number of findings is below [`MAX_FINDINGS`].
    fn going(&self) -> bool {
        self.findings.len() < MAX_FINDINGS
    }

    fn rest(&self) -> &'a str {
        &self.text[self.pos..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn column(&self) -> usize {
        let line = self.text[..self.pos].rfind('\n').map_or(self.start, |newline| newline + 1);
        self.pos - line
    }

    fn span(&self, start: usize, end: usize) -> Span {
        Span { source: self.source.clone(), start, end: end.max(start) }
    }

    fn node(&self, value: YamlValue, start: usize, end: usize) -> YamlNode {
        YamlNode { value, at: self.span(start, end) }
    }

    fn null(&self, start: usize, end: usize) -> YamlNode {
        self.node(YamlValue::Null, start, end)
    }

    fn fail(&mut self, start: usize, end: usize, message: impl Into<String>) {
        self.broken = true;
        self.findings.push(Finding::error(&self.span(start, end), message));
    }

    fn fail_help(&mut self, start: usize, end: usize, message: &str, help: &str) {
        self.broken = true;
        self.refuse(start, end, message, help);
    }

    /// Reports what is not read, where the shape of the tree is clear without it.
    fn refuse(&mut self, start: usize, end: usize, message: &str, help: &str) {
        self.findings.push(Finding::error(&self.span(start, end), message).help(help));
    }

    fn blanks(&mut self) {
        self.pos += self.rest().len() - self.rest().trim_start_matches([' ', '\t']).len();
    }

    /// Skips to the newline, or the end of the text.
    fn skip_line(&mut self) {
        self.pos += self.rest().find('\n').unwrap_or(self.rest().len());
    }

    /// True if the line is over, but for a comment.
    fn at_line_end(&self) -> bool {
        let remaining = self.rest();
        remaining.is_empty() || remaining.starts_with(['\n', '#']) || remaining.starts_with("\r\n")
    }

    /// Passes over the rest of a line, which must be blank or a comment.
    fn end_line(&mut self, after: &str) {
        let before = self.pos;
        self.blanks();
        let comment_glued = self.peek() == Some('#') && self.pos == before;
        let start = self.pos;
        let fine = self.at_line_end() && !comment_glued;
        self.skip_line();
        if !fine {
            let end = start + self.text[start..self.pos].trim_end().len();
            self.fail(start, end, format!("unexpected text after {after}"));
        }
    }

    /// Moves to the first character of the next line with content, and returns its column. `pos` must be at
    /// the start or the end of a line.
    fn next_content(&mut self) -> Option<usize> {
        loop {
            let line_start = self.column() == 0;
            let indent = self.rest().len() - self.rest().trim_start_matches(' ').len();
            self.pos += indent;
            let before = self.pos;
            self.blanks();
            if self.at_line_end() {
                self.skip_line();
                if self.rest().is_empty() {
                    return None;
                }
                self.pos += 1;
                continue;
            }
            if line_start && self.pos > before {
                let help = "indent with spaces";
                self.fail_help(before, self.pos, "a tab cannot indent a line", help);
            }
            let word = self.rest();
            if line_start && indent == 0 && (word.starts_with("---") || word.starts_with("...")) {
                let start = self.pos;
                self.fail_help(start, start + 3, "a file is one YAML document", "use two files");
                self.text = &self.text[..start];
                return None;
            }
            return Some(self.column());
        }
    }

    /// Moves back to the start of the line of which `next_content` found the column.
    fn unread(&mut self, column: Option<usize>) {
        self.pos -= column.unwrap_or(0);
    }

    /// Runs `read` one level deeper, or reports that the file is nested too deeply.
    fn nested(&mut self, read: impl FnOnce(&mut Self) -> YamlNode) -> YamlNode {
        if self.depth == MAX_DEPTH {
            let start = self.pos;
            self.fail(start, start + 1, format!("nested more than {MAX_DEPTH} levels deep"));
            self.pos = self.text.len();
            return self.null(start, start);
        }
        self.depth += 1;
        let node = read(self);
        self.depth -= 1;
        node
    }

    fn insert(&mut self, map: &mut YamlMap, entry: YamlEntry) {
        let key = entry.key.value().to_owned();
        if let Some(first) = map.get(&key) {
            let line = first.key.span().line();
            let finding =
                Finding::error(&entry.key.span(), format!("`{}` stands twice", beginning(&key)));
            self.findings.push(finding.label(format!("first on line {line}")));
        } else {
            map.insert(key, entry);
        }
    }
}

#[cfg(test)]
mod tests;
