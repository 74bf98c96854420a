//! Implements `parity matrix`: models by engines by dtypes, each pair checked in a child process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use clap::Args;
use parity::matrix::plan::{self, PlanEngine, PlanModel};
use parity::matrix::{Board, CellOutcome, MatrixRun, html, junit, text};
use registry::diag::SourceText;
use registry::file;
use registry::quantity::plural;

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
            let count = plural(findings.len(), "finding");
            reported_error(&findings, &format!("the plan `{shown}` has {count}"))
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
        let folder = tempfile::Builder::new().prefix("onboard-matrix-").tempdir()?;
        let _watched = crate::interrupt::watch_whole(folder.path());
        let home = self.plan.parent().filter(|folder| !folder.as_os_str().is_empty());
        let run = MatrixRun {
            program: &std::env::current_exe()?,
            plan: &plan,
            home: home.unwrap_or(Path::new(".")),
            folder: folder.path(),
            timeout: self.timeout,
            jobs: self.jobs.into(),
        };
        let board = Board::new(run.check_all(&pairs, &term::note)?);
        let changes = board.changes(before.as_ref());
        let gone = match &before {
            Some(before) if self.model.is_empty() && self.engine.is_empty() => {
                board.removed_cells(before)
            }
            _ => Vec::new(),
        };
        for (path, text) in [
            (&self.write, serde_json::to_string_pretty(&board)? + "\n"),
            (&self.junit, junit(&board, &changes)),
            (&self.html, html(&board, &changes)),
        ] {
            if let Some(path) = path {
                write::report(path, &text)?;
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
}

fn board(path: &Path) -> Result<Board> {
    let bytes = file::read(path, file::MANIFEST)?;
    Board::read(&bytes).map_err(|why| anyhow!("the scoreboard `{}`: {why}", path.display()))
}
