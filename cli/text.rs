//! Formats tables and numbers for people.

use std::fmt::Write as _;

pub(crate) use conversion::size as bytes;

/// Table with aligned columns, two spaces apart.
#[derive(Debug, Default)]
pub(crate) struct TextTable {
    rows: Vec<Vec<String>>,
    right: Vec<usize>,
}

impl TextTable {
    /// Returns an empty table; columns listed in `right` are right-aligned.
    pub(crate) fn new(right: &[usize]) -> Self {
        Self { rows: Vec::new(), right: right.to_vec() }
    }

    /// Adds a row.
    pub(crate) fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
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
    pub(crate) fn plain(&self, indent: &str) -> String {
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
    pub(crate) fn markdown(&self) -> String {
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

/// Formats a count with a unit: `742.49 M`.
pub(crate) fn count(n: u64) -> String {
    match n {
        0..10_000 => n.to_string(),
        10_000..1_000_000 => format!("{:.2} K", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} M", n as f64 / 1e6),
        _ => format!("{:.2} B", n as f64 / 1e9),
    }
}

/// Formats a rate for people, with three digits: `50.3 M weights/s`.
pub(crate) fn rate(per_second: f64, noun: &str) -> String {
    let per_second = if per_second.is_finite() { per_second.max(0.0) } else { 0.0 };
    let units = [(1e9, " B"), (1e6, " M"), (1e3, " K"), (1.0, "")];
    // Numbers that round up to the next unit belong to that unit.
    let unit = units.into_iter().find(|(size, _)| per_second >= 0.9995 * size);
    let (size, letter) = unit.unwrap_or((1.0, ""));
    let number = per_second / size;
    let decimals = match number {
        0.0..9.995 => 2,
        9.995..99.95 => 1,
        _ => 0,
    };
    format!("{number:.decimals$}{letter} {noun}/s")
}

/// Formats a count with its noun: `1 layer`, `2 layers`.
pub(crate) fn plural(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
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
    fn colour_codes_have_no_width() {
        assert_eq!(width("\x1b[32mok\x1b[0m"), 2);
    }

    #[test]
    fn numbers_carry_units() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_490_000_000), "1.49 GB");
        assert_eq!(count(742_489_344), "742.49 M");
        assert_eq!(plural(1, "layer"), "1 layer");
        for (per_second, expected) in [
            (50_331_648.2, "50.3 M weights/s"),
            (999_600.0, "1.00 M weights/s"),
            (123.4, "123 weights/s"),
            (0.25, "0.25 weights/s"),
            (12_345.0, "12.3 K weights/s"),
            (2.5e12, "2500 B weights/s"),
            (f64::NAN, "0.00 weights/s"),
        ] {
            assert_eq!(rate(per_second, "weights"), expected);
        }
    }
}
