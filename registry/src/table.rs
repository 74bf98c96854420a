//! Tables of text: columns as wide as their widest cell, Markdown, and cells of CSV.

use std::fmt::Write as _;

/// Table with aligned columns, two spaces apart.
///
/// Rows may have different lengths. The width of a cell is its number of characters; colour codes of terminals count as
/// nothing. The same rows give a plain table for terminals and a Markdown table for pages.
///
/// ```
/// use onboard_spec::table::TextTable;
///
/// let mut table = TextTable::new(&[1]);
/// table.row(["name", "n"]);
/// table.row(["a", "1000"]);
/// assert_eq!(table.plain("  "), "  name     n\n  a     1000\n");
/// ```
#[derive(Debug, Default)]
pub struct TextTable {
    rows: Vec<Vec<String>>,
    right: Vec<usize>,
}

impl TextTable {
    /// Returns an empty table; columns listed in `right` are right-aligned.
    pub fn new(right: &[usize]) -> Self {
        Self { rows: Vec::new(), right: right.to_vec() }
    }

    /// Adds a row.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        (0..columns)
            .map(|c| self.rows.iter().filter_map(|row| row.get(c)).map(|s| width(s)).max())
            .map(|widest| widest.unwrap_or(0))
            .collect()
    }

    /// Returns the table as text, each line beginning with `indent`.
    pub fn plain(&self, indent: &str) -> String {
        let widths = self.widths();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = indent.to_owned();
            for (c, cell) in row.iter().enumerate() {
                if c > 0 {
                    line.push_str("  ");
                }
                self.cell(&mut line, cell, widths[c], c);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// Returns the table as Markdown; the first row is the head.
    pub fn markdown(&self) -> String {
        let widths = self.widths();
        let mut text = String::new();
        for (r, row) in self.rows.iter().enumerate() {
            text.push('|');
            for (c, width) in widths.iter().enumerate() {
                text.push(' ');
                self.cell(&mut text, row.get(c).map_or("", String::as_str), *width, c);
                text.push_str(" |");
            }
            text.push('\n');
            if r == 0 {
                text.push('|');
                for (c, width) in widths.iter().enumerate() {
                    let line = "-".repeat((*width).max(3) + 1);
                    let right = self.right.contains(&c);
                    write!(text, "{}|", if right { line + ":" } else { line + "-" }).ok();
                }
                text.push('\n');
            }
        }
        text
    }

    fn cell(&self, line: &mut String, cell: &str, column: usize, c: usize) {
        let blanks = " ".repeat(column.saturating_sub(width(cell)));
        if self.right.contains(&c) {
            line.push_str(&blanks);
            line.push_str(cell);
        } else {
            line.push_str(cell);
            line.push_str(&blanks);
        }
    }
}

/// Quotes a cell of CSV, where it needs that, by the rules of RFC 4180.
pub fn csv_cell(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Returns a text as a cell of Markdown, where `|` would end the cell.
pub fn markdown_cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Returns the width of a cell on a terminal: characters, without colour codes.
fn width(cell: &str) -> usize {
    let mut count = 0;
    let mut code = false;
    for c in cell.chars() {
        match c {
            '\x1b' => code = true,
            'm' if code => code = false,
            _ if code => {}
            _ => count += 1,
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = TextTable::new(&[1]);
        table.row(["name", "n"]);
        table.row(["a", "1000"]);
        assert_eq!(table.plain("  "), "  name     n\n  a     1000\n");
        assert_eq!(table.markdown(), "| name |    n |\n|------|-----:|\n| a    | 1000 |\n");
    }

    #[test]
    fn marks_of_tables_in_cells_are_escaped() {
        assert_eq!(csv_cell("a b"), "a b");
        assert_eq!(csv_cell("a,\"b"), "\"a,\"\"b\"");
        assert_eq!(markdown_cell("a|b"), "a\\|b");
    }

    #[test]
    fn colour_codes_have_no_width() {
        assert_eq!(width("\x1b[32mok\x1b[0m"), 2);
    }
}
