//! Runs many checks: models by engines by dtypes, compared with a committed scoreboard.
//!
//! [`plan`] parses the plan, a [`MatrixRun`] runs it, and a [`Board`] stores the outcomes.

use std::collections::BTreeMap;
use std::fmt;

use formats::shown;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub mod plan;
mod run;
mod show;

pub use run::{MatrixError, MatrixRun};
pub use show::{html, junit, text};

/// Version of the scoreboard format.
pub const SCHEMA: &str = "onboard-scoreboard/1";

/// Outcome of one cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CellOutcome {
    /// The engine agrees with the reference.
    Pass,
    /// The engine differs from the reference.
    Differ,
    /// The check could not run.
    Error,
}

impl fmt::Display for CellOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pass => "pass",
            Self::Differ => "DIFFER",
            Self::Error => "ERROR",
        })
    }
}

/// One model on one engine in one dtype.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CellKey {
    /// The model's name in the plan.
    pub model: String,
    /// The engine's name in the plan.
    pub engine: String,
    /// The dtype.
    pub dtype: String,
}

impl fmt::Display for CellKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {} in {}", self.model, self.engine, self.dtype)
    }
}

/// Cell that was run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Position in the matrix.
    #[serde(flatten)]
    pub key: CellKey,
    /// The outcome.
    pub outcome: CellOutcome,
    /// Measure behind the outcome, as a share of its limit; none if nothing was compared.
    #[serde(default)]
    pub share: Option<f64>,
    /// First difference, or the reason why the check could not run.
    #[serde(default)]
    pub message: String,
    /// Reason for which the plan expects no pass here.
    #[serde(default)]
    pub known: Option<String>,
}

/// All cells of a matrix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Board {
    /// [`SCHEMA`].
    pub schema: String,
    /// Cells in the order of the plan.
    pub cells: Vec<Cell>,
}

/// Reason that bytes are not a scoreboard. Texts from the file are escaped and shortened, ready to print.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum BoardError {
    #[error("it is no scoreboard ({why}); write one with the option `write`")]
    Json { why: String },
    #[error("`schema` is \"{found}\"; expected {SCHEMA:?}")]
    Schema { found: String },
}

/// Change of a cell from an earlier board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellChange {
    /// The cell passes, as before or for the first time.
    Fine,
    /// The cell does not pass, as before or as the plan expects.
    Accepted,
    /// The cell passes, unlike before or unlike the plan expects.
    Fixed,
    /// The cell does not pass, and neither the earlier board nor the plan allows that.
    Fails,
}

impl Board {
    /// Returns a board of cells.
    pub fn new(cells: Vec<Cell>) -> Self {
        Self { schema: SCHEMA.to_owned(), cells }
    }

    /// Parses a board.
    pub fn read(bytes: &[u8]) -> Result<Self, BoardError> {
        let board: Self = serde_json::from_slice(bytes)
            .map_err(|e| BoardError::Json { why: shown(&e.to_string()) })?;
        if board.schema == SCHEMA {
            return Ok(board);
        }
        Err(BoardError::Schema { found: shown(&board.schema) })
    }

    /// Compares each cell with an earlier board.
    pub fn changes(&self, before: Option<&Self>) -> Vec<CellChange> {
        let earlier: BTreeMap<&CellKey, CellOutcome> =
            before.iter().flat_map(|b| &b.cells).map(|c| (&c.key, c.outcome)).collect();
        let cells = self.cells.iter();
        cells.map(|cell| change_of(cell, earlier.get(&cell.key).copied())).collect()
    }

    /// Names the cells of an earlier board that this one lacks.
    pub fn removed_cells<'a>(&self, before: &'a Self) -> Vec<&'a CellKey> {
        let keys = before.cells.iter().map(|cell| &cell.key);
        keys.filter(|key| !self.cells.iter().any(|cell| cell.key == **key)).collect()
    }

    /// Returns the worst outcome that is not accepted; [`CellOutcome::Pass`] if there is none.
    pub fn worst(&self, changes: &[CellChange]) -> CellOutcome {
        let failing = self.cells.iter().zip(changes).filter(|(_, c)| **c == CellChange::Fails);
        failing.map(|(cell, _)| cell.outcome).max().unwrap_or(CellOutcome::Pass)
    }
}

/// Compares a cell with its earlier outcome.
fn change_of(cell: &Cell, before: Option<CellOutcome>) -> CellChange {
    let allowed = cell.known.is_some() || before.is_some_and(|before| before >= cell.outcome);
    match (cell.outcome, allowed) {
        (CellOutcome::Pass, _) if cell.known.is_some() => CellChange::Fixed,
        (CellOutcome::Pass, _) if before.is_some_and(|before| before != CellOutcome::Pass) => {
            CellChange::Fixed
        }
        (CellOutcome::Pass, _) => CellChange::Fine,
        (_, true) => CellChange::Accepted,
        (_, false) => CellChange::Fails,
    }
}

/// Extracts the cells of one model on one engine from a report (`onboard-parity/1` or `onboard-cost/1`).
pub fn cells(report: &Value, model: &str, engine: &str, dtypes: &[String]) -> Vec<Cell> {
    if report["schema"] == "onboard-cost/1" {
        let kl = report["cost"]["kl"]["mean"].as_f64();
        let bound = report["kl_bound"].as_f64();
        let verdict = report["verdict"].as_str().unwrap_or_default();
        let (well, aside) = match verdict.strip_prefix("within its bands") {
            Some(aside) => (true, aside),
            None => (false, ""),
        };
        let message = format!("mean KL {:.1e}{aside}", kl.unwrap_or(f64::NAN));
        let outcome = if well { CellOutcome::Pass } else { CellOutcome::Differ };
        let share = kl.zip(bound).map(|(kl, bound)| kl / bound);
        let cells = dtypes.iter().map(|dtype| Cell {
            key: cell_key(model, engine, dtype),
            outcome,
            share,
            message: message.clone(),
            known: None,
        });
        return cells.collect();
    }
    dtypes.iter().map(|dtype| parity_cell(report, cell_key(model, engine, dtype))).collect()
}

/// Returns the position of a cell in the matrix.
fn cell_key(model: &str, engine: &str, dtype: &str) -> CellKey {
    CellKey { model: model.into(), engine: engine.into(), dtype: dtype.into() }
}

/// Extracts a cell from a report of `onboard-parity/1`.
fn parity_cell(report: &Value, key: CellKey) -> Cell {
    let runs = rows_of(report, "runs", &key.dtype);
    let schedules = rows_of(report, "schedules", &key.dtype);
    if runs.is_empty() {
        let message = "the report has no such run".into();
        return Cell { key, outcome: CellOutcome::Error, share: None, message, known: None };
    }
    let phases: Vec<&Value> = runs.iter().flat_map(|run| list(&run["phases"])).collect();
    let shares = phases.iter().filter_map(|p| Some(p["max"].as_f64()? / p["limit"].as_f64()?));
    let share = shares.reduce(f64::max);
    let first = runs.iter().map(|run| &run["first"]).find(|first| !first.is_null());
    let message = match (first, schedules.iter().find(|row| fails(row))) {
        (Some(first), _) => {
            let subject = &first["subject"];
            let name = subject["name"].as_str().or(subject["kind"].as_str()).unwrap_or("");
            let text = first["message"].as_str().unwrap_or("differs");
            format!("{}: {name} {text}", first["phase"].as_str().unwrap_or(""))
        }
        (None, Some(row)) => format!("schedule {}", row["name"].as_str().unwrap_or("")),
        (None, None) => String::new(),
    };
    let mut greedy = runs.iter().flat_map(|run| list(&run["greedy"]));
    let failed = phases.iter().any(|row| fails(row))
        || greedy.any(fails)
        || schedules.iter().any(|row| fails(row));
    let outcome = if failed { CellOutcome::Differ } else { CellOutcome::Pass };
    Cell { key, outcome, share, message, known: None }
}

/// Returns the rows of a list of a report that are of a dtype.
fn rows_of<'a>(report: &'a Value, name: &str, dtype: &str) -> Vec<&'a Value> {
    list(&report[name]).iter().filter(|row| row["dtype"] == *dtype).collect()
}

/// Returns the entries of a list; none if it is no list.
fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// True if a row has the verdict `fail`.
fn fails(row: &Value) -> bool {
    row["verdict"] == "fail"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(model: &str, outcome: CellOutcome, known: Option<&str>) -> Cell {
        let key = CellKey { model: model.into(), engine: "e".into(), dtype: "f32".into() };
        let known = known.map(str::to_owned);
        Cell { key, outcome, share: None, message: String::new(), known }
    }

    #[test]
    fn a_board_allows_what_was_so_before() {
        use CellChange::{Accepted, Fails, Fine, Fixed};
        use CellOutcome::{Differ, Error, Pass};
        let before = Board::new(vec![
            cell("a", Pass, None),
            cell("b", Differ, None),
            cell("c", Differ, None),
            cell("d", Error, None),
            cell("gone", Pass, None),
        ]);
        let now = Board::new(vec![
            cell("a", Differ, None),
            cell("b", Differ, None),
            cell("c", Error, None),
            cell("d", Pass, None),
            cell("new", Differ, None),
            cell("known", Error, Some("why")),
            cell("healed", Pass, Some("why")),
            cell("plain", Pass, None),
        ]);
        let changes = now.changes(Some(&before));
        assert_eq!(changes, [Fails, Accepted, Fails, Fixed, Fails, Accepted, Fixed, Fine]);
        assert_eq!(now.worst(&changes), Error);
        assert_eq!(now.removed_cells(&before).len(), 1);
        assert_eq!(now.changes(None)[1], Fails);
    }

    #[test]
    fn a_board_reads_what_it_writes() {
        let board = Board::new(vec![cell("a", CellOutcome::Differ, Some("why"))]);
        let text = serde_json::to_vec(&board).unwrap();
        assert_eq!(Board::read(&text).unwrap(), board);
        assert!(Board::read(b"{}").is_err());
        let other = String::from_utf8(text).unwrap().replace("scoreboard/1", "scoreboard/9");
        let error = Board::read(other.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("onboard-scoreboard/9"), "{error}");
    }
}
