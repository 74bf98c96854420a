//! Implements `parity matrix`: models by engines by dtypes, each pair checked in a child process.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Args;
use parity::matrix::plan::{self, MatrixPlan, PlanEngine, PlanModel};
use parity::matrix::{Board, Cell, CellKey, CellOutcome, cells, html, junit, text};
use registry::diag::SourceText;
use registry::dtype::Dtype;
use registry::file;

use crate::engines::parse_seconds;
use crate::findings::reported_error;
use crate::{CommandOutcome, annotate, term, write};

/// Checks models on engines in dtypes, with one exit code
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  parity matrix parity.yaml
  parity matrix parity.yaml --junit parity.xml --html parity.html
  parity matrix parity.yaml --write scoreboard.json      keep the outcomes, to be committed
  parity matrix parity.yaml --against scoreboard.json    fail only where something became worse

The plan, with paths from its own folder:
  models:
    - models/tiny                          # its dump beside it, in models/tiny/reference
    - {name: big, path: owner/name, reference: dumps/big, dtypes: [bf16], engines: [native]}
  engines:
    - native
    - {name: eager, engine: transformers, options: {attention: eager}}
    - {engine: ./my_engine.py, flags: [--no-schedules]}
  dtypes: [f32, bf16]
  known:                                   # cells that need not pass, and why
    - {model: tiny, engine: eager, dtype: bf16, because: the window is not read}

Each pair of a model and an engine is a `parity check` in a process of its own, so that an engine that crashes ends its
own cells alone.

Exit codes: 0 all pass or are known, 1 something differs, 2 something could not run.")]
pub(crate) struct MatrixArgs {
    /// The plan, a YAML file
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// Run only models whose name holds this text (repeatable)
    #[arg(long, value_name = "TEXT")]
    model: Vec<String>,
    /// Run only engines whose name holds this text (repeatable)
    #[arg(long, value_name = "TEXT")]
    engine: Vec<String>,
    /// A scoreboard: what did not pass there need not pass now
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Write the outcomes as a scoreboard
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Write JUnit XML, a test case for each cell
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write a page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Checks at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// Seconds that one check may take
    #[arg(long, value_name = "SECONDS", default_value = "3600", value_parser = parse_seconds)]
    timeout: Duration,
}

/// Limit on the bytes of a check's standard error that are kept.
const SAID: usize = 1 << 16;

/// True if a name holds one of these texts, or there are none.
fn is_chosen(name: &str, only: &[String]) -> bool {
    only.is_empty() || only.iter().any(|text| name.contains(text.as_str()))
}

impl MatrixArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let shown = self.plan.display().to_string();
        let source = Arc::new(SourceText {
            path: shown.clone(),
            text: file::read_text(&self.plan, file::SPEC)?,
        });
        let plan = plan::read(&source).map_err(|findings| {
            let count = findings.len();
            let s = if count == 1 { "" } else { "s" };
            reported_error(&findings, &format!("the plan `{shown}` has {count} finding{s}"))
        })?;
        let before = self.against.as_ref().map(|path| board(path)).transpose()?;
        let pairs: Vec<(&PlanModel, &PlanEngine)> = plan
            .pairs()
            .into_iter()
            .filter(|(m, e)| is_chosen(&m.name, &self.model) && is_chosen(&e.name, &self.engine))
            .collect();
        ensure!(
            !pairs.is_empty(),
            "nothing of the plan `{shown}` is left to run; see --model and --engine"
        );
        let board = Board::new(self.check_all(&plan, &pairs)?);
        let changes = board.changes(before.as_ref());
        let gone = match &before {
            Some(before) if self.model.is_empty() && self.engine.is_empty() => {
                board.removed_cells(before)
            }
            _ => Vec::new(),
        };
        for (path, bytes) in [
            (&self.write, serde_json::to_string_pretty(&board)? + "\n"),
            (&self.junit, junit(&board, &changes)),
            (&self.html, html(&board, &changes)),
        ] {
            if let Some(path) = path {
                write::atomic(path, bytes.as_bytes())?;
                term::note(&format!("wrote {}", path.display()));
            }
        }
        term::print(&text(&board, &changes, &gone))?;
        let worst = board.worst(&changes);
        if worst != CellOutcome::Pass {
            annotate::error(&format!("`{shown}`: not every cell passes"));
        }
        Ok(match worst {
            CellOutcome::Pass => CommandOutcome::Ok,
            CellOutcome::Differ => CommandOutcome::Differs,
            CellOutcome::Error => CommandOutcome::CouldNotRun,
        })
    }

    /// Runs all pairs; cells are in the order of the plan.
    fn check_all(
        &self,
        plan: &MatrixPlan,
        pairs: &[(&PlanModel, &PlanEngine)],
    ) -> Result<Vec<Cell>> {
        let folder = tempfile::Builder::new().prefix("onboard-matrix-").tempdir()?;
        let _watched = crate::interrupt::watch_whole(folder.path());
        let home = self.plan.parent().filter(|p| !p.as_os_str().is_empty());
        let home = home.unwrap_or(Path::new("."));
        let next = AtomicUsize::new(0);
        let done = AtomicUsize::new(0);
        let work = || {
            let mut outcomes_by_pair = Vec::new();
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let Some((model, engine)) = pairs.get(n) else { return outcomes_by_pair };
                let dtypes = plan.dtypes(model, engine);
                let json = folder.path().join(format!("{n}.json"));
                let check = MatrixCheck { plan, model, engine, dtypes: &dtypes, home, json: &json };
                let cells = check.run(self.timeout);
                fs_err::remove_file(&json).ok();
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                let outcomes: Vec<String> =
                    cells.iter().map(|c| format!("{} {}", c.key.dtype, c.outcome)).collect();
                term::note(&format!(
                    "[{done}/{}] {} on {}: {}",
                    pairs.len(),
                    model.name,
                    engine.name,
                    outcomes.join(", ")
                ));
                outcomes_by_pair.push((n, cells));
            }
        };
        let mut all: Vec<(usize, Vec<Cell>)> = std::thread::scope(|scope| {
            let jobs: Vec<_> = (0..self.jobs).map(|_| scope.spawn(work)).collect();
            jobs.into_iter().flat_map(|job| job.join().unwrap_or_default()).collect()
        });
        ensure!(all.len() == pairs.len(), "a check of the matrix ended without an outcome");
        all.sort_by_key(|(n, _)| *n);
        Ok(all.into_iter().flat_map(|(_, cells)| cells).collect())
    }
}

fn board(path: &Path) -> Result<Board> {
    let bytes = file::read(path, file::MANIFEST)?;
    Board::read(&bytes).map_err(|why| anyhow!("the scoreboard `{}`: {why}", path.display()))
}

/// Check of one model on one engine.
struct MatrixCheck<'a> {
    plan: &'a MatrixPlan,
    model: &'a PlanModel,
    engine: &'a PlanEngine,
    dtypes: &'a [Dtype],
    /// Folder of the plan.
    home: &'a Path,
    /// File of the report.
    json: &'a Path,
}

impl MatrixCheck<'_> {
    /// Runs the check. A server runs in one dtype, so each server is a check of its own.
    fn run(&self, timeout: Duration) -> Vec<Cell> {
        let url = ["http://", "https://"].iter().any(|s| self.engine.engine.starts_with(s));
        if url && self.dtypes.len() > 1 {
            return self
                .dtypes
                .chunks(1)
                .flat_map(|dtypes| MatrixCheck { dtypes, ..*self }.run(timeout))
                .collect();
        }
        let names: Vec<String> = self.dtypes.iter().map(|d| d.name().to_owned()).collect();
        let mut outcomes = match self.outcome(timeout) {
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
                    message: format!("{error:#}"),
                    known: None,
                });
                failed.collect()
            }
        };
        for cell in &mut outcomes {
            let CellKey { model, engine, dtype } = &cell.key;
            cell.known = self.plan.known(model, engine, dtype).map(str::to_owned);
        }
        outcomes
    }

    fn outcome(&self, timeout: Duration) -> Result<serde_json::Value> {
        let mut child = self.command()?.spawn().context("cannot start a check")?;
        let stderr = child.stderr.take();
        let reader = std::thread::spawn(move || {
            let mut tail = Vec::new();
            let mut piece = [0; 4096];
            let Some(mut stderr) = stderr else { return tail };
            while let Ok(count @ 1..) = stderr.read(&mut piece) {
                tail.extend_from_slice(&piece[..count]);
                let over = tail.len().saturating_sub(SAID);
                tail.drain(..over);
            }
            tail
        });
        let deadline = Instant::now() + timeout;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                terminate(&mut child);
                return Err(anyhow!("no outcome within {} seconds (--timeout)", timeout.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let messages = reader.join().unwrap_or_default();
        if !matches!(status.code(), Some(0 | 1)) {
            return Err(anyhow!("{}", last_error(&String::from_utf8_lossy(&messages), status)));
        }
        let bytes = file::read(self.json, file::REPORT).context("the check wrote no report")?;
        serde_json::from_slice(&bytes).context("the report of the check is not JSON")
    }

    fn command(&self) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["parity", "check"]).arg(self.place(&self.model.path));
        let engine = &self.engine.engine;
        let file = self.home.join(engine);
        command.arg("--engine");
        if engine.contains('/') && file.is_file() {
            command.arg(fs_err::canonicalize(file)?);
        } else {
            command.arg(engine);
        }
        for option in &self.engine.options {
            command.args(["--engine-option", option]);
        }
        for (flag, value) in [
            ("--reference", &self.model.reference),
            ("--spec", &self.model.spec),
            ("--source", &self.model.source),
        ] {
            if let Some(value) = value {
                let path = self.place(value);
                // No folder is a spec: one that is named like a known spec does not hide it.
                let named = flag == "--spec" && path.is_dir();
                command.arg(flag).arg(if named { PathBuf::from(value) } else { path });
            }
        }
        let dtypes: Vec<&str> = self.dtypes.iter().map(|dtype| dtype.name()).collect();
        command.args(["--dtype", &dtypes.join(","), "--json"]).arg(self.json);
        command.args(&self.plan.flags).args(&self.engine.flags);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Ok(command)
    }

    /// Returns the path of a model. An existing path is a file; anything else is the name of a model on a hub.
    fn place(&self, text: &str) -> PathBuf {
        let path = self.home.join(text);
        if path.exists() { path } else { PathBuf::from(text) }
    }
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
