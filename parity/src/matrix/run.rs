//! Runs the checks of a matrix, each in a process of its own.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use registry::dtype::Dtype;
use registry::file;
use registry::listing::error_chain;
use registry::shell::flag;
use serde_json::Value;

use super::plan::{MatrixPlan, PlanEngine, PlanModel};
use super::{Cell, CellKey, CellOutcome, cells};

/// Limit on the bytes of a check's standard error that are kept.
const SAID: usize = 1 << 16;

/// Reason why a cell of a matrix has no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MatrixError {
    /// The program cannot be started.
    #[error("cannot start a check")]
    Start(#[source] io::Error),
    /// The check took too long.
    #[error("no outcome within {0} seconds; the option `timeout` gives more")]
    Timeout(u64),
    /// The check could not run.
    #[error("{0}")]
    Check(String),
    /// The check ended without a report.
    #[error("the check wrote no report")]
    Report(#[source] io::Error),
    /// The report cannot be read.
    #[error("the report of the check is not JSON")]
    Json(#[source] serde_json::Error),
    /// A process or a file of a check failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A worker ended early.
    #[error("a check of the matrix ended without an outcome")]
    Lost,
}

/// Runs the checks of a plan.
#[derive(Debug)]
pub struct MatrixRun<'a> {
    /// Program that has `parity check`.
    pub program: &'a Path,
    /// Plan of the matrix.
    pub plan: &'a MatrixPlan,
    /// Folder of the plan, which its paths begin in.
    pub home: &'a Path,
    /// Folder for reports, which are removed once they are read.
    pub folder: &'a Path,
    /// Time limit of one check.
    pub timeout: Duration,
    /// Number of checks at a time.
    pub jobs: usize,
}

/// Pair of a model and an engine, each of a plan.
type PlanPair<'a> = (&'a PlanModel, &'a PlanEngine);

/// Pairs that workers take in turn.
struct PairQueue<'a> {
    pairs: &'a [PlanPair<'a>],
    /// The next pair.
    next: AtomicUsize,
    /// Finished pairs.
    done: AtomicUsize,
    note: &'a (dyn Fn(&str) + Sync),
}

impl MatrixRun<'_> {
    /// Runs the pairs; cells are in the order of the plan. `note` takes a line for each finished check.
    pub fn check_all(
        &self,
        pairs: &[PlanPair<'_>],
        note: &(dyn Fn(&str) + Sync),
    ) -> Result<Vec<Cell>, MatrixError> {
        let queue = PairQueue { pairs, next: AtomicUsize::new(0), done: AtomicUsize::new(0), note };
        let queue = &queue;
        let mut all: Vec<(usize, Vec<Cell>)> = std::thread::scope(|scope| {
            let jobs: Vec<_> =
                (0..self.jobs).map(|_| scope.spawn(move || self.check_next(queue))).collect();
            jobs.into_iter().flat_map(|job| job.join().unwrap_or_default()).collect()
        });
        if all.len() != pairs.len() {
            return Err(MatrixError::Lost);
        }
        all.sort_by_key(|(n, _)| *n);
        Ok(all.into_iter().flat_map(|(_, cells)| cells).collect())
    }

    /// Runs pairs until all are taken. Returns the cells of each by its number.
    fn check_next(&self, queue: &PairQueue<'_>) -> Vec<(usize, Vec<Cell>)> {
        let &PairQueue { pairs, ref next, ref done, note } = queue;
        let mut cells_by_pair = Vec::new();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(pair) = pairs.get(n) else { return cells_by_pair };
            let cells = self.check(n, *pair);
            let finished = done.fetch_add(1, Ordering::Relaxed) + 1;
            note(&format!("[{finished}/{}] {}", pairs.len(), outcomes(*pair, &cells)));
            cells_by_pair.push((n, cells));
        }
    }

    /// Runs the pair with a number.
    fn check(&self, number: usize, (model, engine): PlanPair<'_>) -> Vec<Cell> {
        let dtypes = self.plan.dtypes(model, engine);
        let json = self.folder.join(format!("{number}.json"));
        let check = MatrixCheck { run: self, model, engine, dtypes: &dtypes, json: &json };
        let cells = check.cells();
        fs_err::remove_file(&json).ok();
        cells
    }
}

/// Formats the outcomes of a pair on one line.
fn outcomes((model, engine): PlanPair<'_>, cells: &[Cell]) -> String {
    let outcomes: Vec<String> =
        cells.iter().map(|cell| format!("{} {}", cell.key.dtype, cell.outcome)).collect();
    format!("{} on {}: {}", model.name, engine.name, outcomes.join(", "))
}

/// Check of one model on one engine.
struct MatrixCheck<'a> {
    run: &'a MatrixRun<'a>,
    model: &'a PlanModel,
    engine: &'a PlanEngine,
    dtypes: &'a [Dtype],
    /// File of the report.
    json: &'a Path,
}

impl MatrixCheck<'_> {
    /// Runs the check. A server runs in one dtype, so each server is a check of its own.
    fn cells(&self) -> Vec<Cell> {
        let url = ["http://", "https://"].iter().any(|s| self.engine.engine.starts_with(s));
        if url && self.dtypes.len() > 1 {
            return self
                .dtypes
                .chunks(1)
                .flat_map(|dtypes| MatrixCheck { dtypes, ..*self }.cells())
                .collect();
        }
        let names: Vec<String> = self.dtypes.iter().map(|d| d.name().to_owned()).collect();
        let mut outcomes = match self.outcome() {
            Ok(report) => cells(&report, &self.model.name, &self.engine.name, &names),
            Err(error) => {
                let failed = names.iter().map(|dtype| Cell {
                    key: CellKey {
                        model: self.model.name.clone(),
                        engine: self.engine.name.clone(),
                        dtype: dtype.clone(),
                    },
                    outcome: CellOutcome::Error,
                    share: None,
                    message: error_chain(&error),
                    known: None,
                });
                failed.collect()
            }
        };
        for cell in &mut outcomes {
            let CellKey { model, engine, dtype } = &cell.key;
            cell.known = self.run.plan.known(model, engine, dtype).map(str::to_owned);
        }
        outcomes
    }

    fn outcome(&self) -> Result<Value, MatrixError> {
        let mut child = self.command()?.spawn().map_err(MatrixError::Start)?;
        let stderr = child.stderr.take();
        let reader = std::thread::spawn(move || stderr.map(last_bytes).unwrap_or_default());
        let deadline = Instant::now() + self.run.timeout;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                terminate(&mut child);
                return Err(MatrixError::Timeout(self.run.timeout.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let messages = reader.join().unwrap_or_default();
        if !matches!(status.code(), Some(0 | 1)) {
            return Err(MatrixError::Check(last_error(
                &String::from_utf8_lossy(&messages),
                status,
            )));
        }
        let bytes = file::read(self.json, file::REPORT).map_err(MatrixError::Report)?;
        serde_json::from_slice(&bytes).map_err(MatrixError::Json)
    }

    fn command(&self) -> Result<Command, MatrixError> {
        let mut command = Command::new(self.run.program);
        command.args(["parity", "check"]).arg(self.place(&self.model.path));
        let engine = &self.engine.engine;
        let file = self.run.home.join(engine);
        command.arg(flag("engine"));
        if engine.contains('/') && file.is_file() {
            command.arg(fs_err::canonicalize(file)?);
        } else {
            command.arg(engine);
        }
        for option in &self.engine.options {
            command.arg(flag("engine-option")).arg(option);
        }
        for (name, value) in [
            ("reference", &self.model.reference),
            ("spec", &self.model.spec),
            ("source", &self.model.source),
        ] {
            if let Some(value) = value {
                let path = self.place(value);
                // No folder is a spec: one that is named like a known spec does not hide it.
                let named = name == "spec" && path.is_dir();
                command.arg(flag(name)).arg(if named { PathBuf::from(value) } else { path });
            }
        }
        let dtypes: Vec<&str> = self.dtypes.iter().map(|dtype| dtype.name()).collect();
        command.args([flag("dtype"), dtypes.join(","), flag("json")]).arg(self.json);
        command.args(&self.run.plan.flags).args(&self.engine.flags);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Ok(command)
    }

    /// Returns the path of a model. An existing path is a file; anything else is the name of a model on a hub.
    fn place(&self, text: &str) -> PathBuf {
        let path = self.run.home.join(text);
        if path.exists() { path } else { PathBuf::from(text) }
    }
}

/// Reads the last bytes of a stream.
fn last_bytes(mut stream: ChildStderr) -> Vec<u8> {
    let mut tail = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut piece) {
        tail.extend_from_slice(&piece[..count]);
        let over = tail.len().saturating_sub(SAID);
        tail.drain(..over);
    }
    tail
}

/// Asks a check and its engine to end, then kills the check.
fn terminate(child: &mut std::process::Child) {
    #[cfg(unix)]
    if let Some(id) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        rustix::process::kill_process(id, rustix::process::Signal::TERM).ok();
        for _ in 0..250 {
            if child.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    child.kill().ok();
    child.wait().ok();
}

/// Returns the error that a check ended with, on one line.
fn last_error(messages: &str, status: ExitStatus) -> String {
    let lines: Vec<&str> =
        messages.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let from = lines.iter().rposition(|line| line.starts_with("error"));
    let words = lines.get(from.unwrap_or(lines.len().saturating_sub(1))..).unwrap_or_default();
    let words = words.join(" ");
    if status.code().is_none() || words.is_empty() {
        return format!("the check ended with {status}. {words}");
    }
    words.trim_start_matches("error: ").to_owned()
}
