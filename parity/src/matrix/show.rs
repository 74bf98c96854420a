//! Formats a matrix as text, JUnit XML and a page.

use std::fmt::Write as _;

use super::{Board, Cell, CellChange, CellKey, CellOutcome};
use crate::junit::escape;

/// Maximum length of a reason in the text table; JUnit and the page show all of it.
const LONG: usize = 320;

fn short(text: &str) -> String {
    match text.char_indices().nth(LONG) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

/// Returns the engines in order of appearance.
fn engines(board: &Board) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for cell in &board.cells {
        if !names.contains(&cell.key.engine.as_str()) {
            names.push(&cell.key.engine);
        }
    }
    names
}

/// Rows of the table: a model in a dtype, and its cells by engine.
type TableRows<'a> = Vec<((&'a str, &'a str), Vec<Option<(&'a Cell, CellChange)>>)>;

fn rows<'a>(board: &'a Board, changes: &[CellChange]) -> TableRows<'a> {
    let engines = engines(board);
    let mut rows: TableRows<'a> = Vec::new();
    for (cell, change) in board.cells.iter().zip(changes) {
        let key = (cell.key.model.as_str(), cell.key.dtype.as_str());
        let known = rows.iter().position(|(known, _)| *known == key);
        let at = known.unwrap_or_else(|| {
            rows.push((key, vec![None; engines.len()]));
            rows.len() - 1
        });
        if let Some(column) = engines.iter().position(|name| *name == cell.key.engine) {
            rows[at].1[column] = Some((cell, *change));
        }
    }
    rows
}

/// Returns the word for a cell.
fn word(cell: &Cell, change: CellChange) -> String {
    match change {
        CellChange::Fine => {
            cell.share.map_or("pass".to_owned(), |share| format!("pass {share:.2}"))
        }
        CellChange::Fixed => "FIXED".to_owned(),
        CellChange::Accepted => format!("known: {}", cell.outcome.to_string().to_lowercase()),
        CellChange::Fails => cell.outcome.to_string(),
    }
}

/// Formats a matrix as a table, with the reasons of cells that do not pass.
pub fn text(board: &Board, changes: &[CellChange], gone: &[&CellKey]) -> String {
    let engines = engines(board);
    let mut table =
        vec![["model", "dtype"].iter().chain(&engines).map(|s| (*s).to_owned()).collect()];
    for ((model, dtype), cells) in rows(board, changes) {
        let words = cells.iter().map(|c| c.map_or("-".to_owned(), |(c, change)| word(c, change)));
        table.push(
            [model.to_owned(), dtype.to_owned()].into_iter().chain(words).collect::<Vec<_>>(),
        );
    }
    let columns = engines.len() + 2;
    let widths: Vec<usize> = (0..columns)
        .map(|n| table.iter().map(|row| row[n].chars().count()).max().unwrap_or(0))
        .collect();
    let mut out = String::new();
    for row in &table {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(out, "{}", cells.join("  ").trim_end());
    }
    out.push_str("\nNumbers are the measure of a cell as a share of its limit.\n");
    for (cell, change) in board.cells.iter().zip(changes) {
        match change {
            CellChange::Fine => {}
            CellChange::Fixed => {
                let _ = writeln!(out, "{}: passes now; renew the scoreboard or the plan", cell.key);
            }
            CellChange::Accepted => {
                let why = cell.known.as_deref().unwrap_or("as in the scoreboard");
                let _ = writeln!(
                    out,
                    "{}: {} ({why}): {}",
                    cell.key,
                    cell.outcome,
                    short(&cell.message)
                );
            }
            CellChange::Fails => {
                let _ = writeln!(out, "{}: {}: {}", cell.key, cell.outcome, short(&cell.message));
            }
        }
    }
    for key in gone {
        let _ = writeln!(out, "{key}: in the scoreboard, and not run");
    }
    let _ = writeln!(
        out,
        "\n{}: {} pass, {} known, {} fail",
        if changes.len() == 1 { "1 cell".to_owned() } else { format!("{} cells", changes.len()) },
        count(changes, CellChange::Fine) + count(changes, CellChange::Fixed),
        count(changes, CellChange::Accepted),
        count(changes, CellChange::Fails)
    );
    out
}

/// Counts the cells with a change.
fn count(changes: &[CellChange], kind: CellChange) -> usize {
    changes.iter().filter(|change| **change == kind).count()
}

/// Renders a matrix as JUnit XML, a test case for each cell.
pub fn junit(board: &Board, changes: &[CellChange]) -> String {
    let accepted = count(changes, CellChange::Accepted);
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"parity matrix\" tests=\"{}\" failures=\"{}\" \
         errors=\"{}\" skipped=\"{accepted}\">\n",
        changes.len(),
        failing(board, changes, CellOutcome::Differ),
        failing(board, changes, CellOutcome::Error),
    );
    for (cell, change) in board.cells.iter().zip(changes) {
        let CellKey { model, engine, dtype } = &cell.key;
        let _ = write!(
            out,
            "  <testcase classname=\"{}\" name=\"{} {}\"",
            escape(model),
            escape(engine),
            escape(dtype)
        );
        let tag = match (change, cell.outcome) {
            (CellChange::Fine | CellChange::Fixed, _) => {
                out.push_str("/>\n");
                continue;
            }
            (CellChange::Accepted, _) => "skipped",
            (CellChange::Fails, CellOutcome::Error) => "error",
            (CellChange::Fails, _) => "failure",
        };
        let why = cell.known.iter().chain([&cell.message]).cloned().collect::<Vec<_>>().join(": ");
        let _ = writeln!(out, "><{tag} message=\"{}\"/></testcase>", escape(&why));
    }
    out.push_str("</testsuite>\n");
    out
}

/// Counts the cells that fail with an outcome.
fn failing(board: &Board, changes: &[CellChange], outcome: CellOutcome) -> usize {
    let cells = board.cells.iter().zip(changes);
    cells.filter(|(c, change)| **change == CellChange::Fails && c.outcome == outcome).count()
}

/// Renders a matrix as a page.
pub fn html(board: &Board, changes: &[CellChange]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>parity matrix</title>\n<style>\n{}</style></head><body>\n\
         <h1>Parity matrix</h1>\n<table><thead><tr><th>model</th><th>dtype</th>",
        include_str!("../html/style.css")
    );
    for engine in engines(board) {
        let _ = write!(out, "<th>{}</th>", escape(engine));
    }
    out.push_str("</tr></thead><tbody>\n");
    for ((model, dtype), cells) in rows(board, changes) {
        let _ = write!(out, "<tr><td>{}</td><td>{}</td>", escape(model), escape(dtype));
        for cell in cells {
            let Some((cell, change)) = cell else {
                out.push_str("<td></td>");
                continue;
            };
            let class = match change {
                CellChange::Fine | CellChange::Fixed => "pass",
                CellChange::Accepted => "skip",
                CellChange::Fails => "fail",
            };
            let why =
                cell.known.iter().chain([&cell.message]).cloned().collect::<Vec<_>>().join(": ");
            let _ = write!(
                out,
                "<td title=\"{}\"><span class=\"badge {class}\">{}</span></td>",
                escape(&why),
                escape(&word(cell, change))
            );
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table>\n<ul>\n");
    for (cell, change) in board.cells.iter().zip(changes) {
        if *change != CellChange::Fine {
            let why =
                cell.known.iter().chain([&cell.message]).cloned().collect::<Vec<_>>().join(": ");
            let key = cell.key.to_string();
            let word = word(cell, *change);
            let _ = writeln!(out, "<li>{}: {}: {}</li>", escape(&key), escape(&word), escape(&why));
        }
    }
    out.push_str("</ul>\n</body></html>\n");
    out
}
