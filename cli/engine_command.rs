//! Implements `onboard engine`: list of engines, conformance test, and the module that plugins import.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use engine::child::{ConformanceResult, conformance};
use registry::dtype::Dtype;
use registry::table::TextTable;
use serde_json::json;

use crate::engines::{EngineArgs, ResolvedEngine, catalog, python};
use crate::findings::model_error;
use crate::target::parse_dtype;
use crate::{CommandOutcome, interrupt, term};

/// Lists engines, tests an engine plugin, prints the file that plugins import
#[derive(Debug, Subcommand)]
pub(crate) enum EngineCommand {
    List(EngineListArgs),
    Test(EngineTestArgs),
    Python(EnginePythonArgs),
}

impl EngineCommand {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        match self {
            Self::List(args) => args.run(),
            Self::Test(args) => args.run(),
            Self::Python(_) => {
                let file = registry::engines::plugins().iter().find(|p| p.0 == "onboard_engine.py");
                term::print(file.context("the file is part of the program")?.1.trim_end())?;
                Ok(CommandOutcome::Ok)
            }
        }
    }
}

/// Lists the engines: name, kind, versions, what they show, and whether they can start here
#[derive(Debug, Args)]
#[command(after_help = "\
Engines are sheets of this program, sheets of yours (*.yaml in ONBOARD_ENGINES or ~/.config/onboard/engines),
programs on the PATH called onboard-engine-NAME, and servers (`onboard help endpoints`). `onboard help engine-protocol` says how to write one.")]
pub(crate) struct EngineListArgs {
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl EngineListArgs {
    fn run(self) -> Result<CommandOutcome> {
        let mut rows = Vec::new();
        let mut table = TextTable::new(&[]);
        table.row(["engine", "kind", "versions", "shows", "starts here"]);
        for entry in catalog()? {
            let sheet = entry.sheet.as_ref();
            let kind = sheet.map_or("child", |sheet| sheet.kind.name());
            let versions = sheet.map(|sheet| sheet.ran_with.clone());
            let versions = versions.filter(|text| !text.is_empty());
            let evidence = sheet.map(|sheet| sheet.shows.join(", "));
            let evidence = evidence.filter(|text| !text.is_empty());
            let obstacle = entry.obstacle(&python());
            table.row([
                entry.name.clone(),
                kind.to_owned(),
                versions.clone().unwrap_or_else(|| "unknown".to_owned()),
                evidence.unwrap_or_else(|| "unknown".to_owned()),
                obstacle.clone().map_or_else(|| "yes".to_owned(), |why| format!("no: {why}")),
            ]);
            rows.push(json!({
                "engine": entry.name, "kind": kind, "versions": versions,
                "shows": sheet.map(|sheet| &sheet.shows), "about": sheet.map(|sheet| &sheet.about),
                "place": entry.place, "obstacle": obstacle,
            }));
        }
        for driver in endpoints::drivers::DRIVERS {
            let ran = server_versions(driver.sheet);
            table.row([
                driver.name.to_owned(),
                "server".to_owned(),
                ran.clone().unwrap_or_else(|| "any".to_owned()),
                driver.shows.join(", "),
                "where it runs: --engine http://HOST:PORT".to_owned(),
            ]);
            rows.push(json!({
                "engine": driver.name, "kind": "server", "versions": ran, "shows": driver.shows,
                "about": driver.about, "place": null, "obstacle": null,
            }));
        }
        if self.json {
            term::print(&serde_json::to_string_pretty(&rows)?)?;
        } else {
            term::print(table.plain("").trim_end())?;
        }
        Ok(CommandOutcome::Ok)
    }
}

/// Returns the server versions that its sheet is verified for.
fn server_versions(sheet: Option<&str>) -> Option<String> {
    let sheet_name = sheet?;
    let (_, source) = registry::sheet::builtin().find(|(name, _)| *name == sheet_name)?;
    registry::sheet::Sheet::read(&source).ok()?.versions.map(|versions| versions.to_string())
}

/// Prints onboard_engine.py, which makes a Python file an engine
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  onboard engine python > onboard_engine.py")]
pub(crate) struct EnginePythonArgs {}

/// Tests that an engine keeps the protocol: every verb it claims, held to its meaning
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard engine test ./my_engine.py
  onboard engine test ./my_engine.py MODEL --dtype bf16

Without MODEL a tiny random checkpoint is used. Exit codes: 0 the protocol is kept, 1 it is not, 2 could not run.")]
pub(crate) struct EngineTestArgs {
    /// The engine: a name, or a path with a slash to a Python file or a program
    engine: String,
    /// A checkpoint's folder
    model: Option<PathBuf>,
    /// The dtype to run in
    #[arg(long, default_value = "f32", value_parser = parse_dtype)]
    dtype: Dtype,
    /// A setting of the engine (repeatable)
    #[arg(long = "engine-option", value_name = "KEY=VALUE")]
    options: Vec<String>,
    /// Seconds that the engine may take for one answer
    #[arg(long = "engine-timeout", value_name = "SECONDS", default_value = "600", value_parser = crate::engines::parse_seconds)]
    timeout: std::time::Duration,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl EngineTestArgs {
    fn run(self) -> Result<CommandOutcome> {
        let options = self.options.clone();
        let timeout = self.timeout;
        let args =
            EngineArgs { engine: self.engine.clone(), options, timeout, ..EngineArgs::default() };
        let child = match args.find()? {
            ResolvedEngine::Child(child) => child,
            ResolvedEngine::InProcess(driver) => bail!(
                "engine `{}` runs in this process and speaks no protocol; `parity check` and `parity schedules` test it",
                driver.name
            ),
            ResolvedEngine::Server(url) => {
                bail!("`{url}` is a server and speaks no engine protocol; `parity check` tests it")
            }
        };
        let files = tempfile::Builder::new().prefix("onboard-model-").tempdir()?;
        let _watched = interrupt::watch_whole(files.path());
        let model = if let Some(model) = &self.model {
            model.clone()
        } else {
            models::tiny::write(files.path()).map_err(model_error)?;
            files.path().to_owned()
        };
        let (hello, findings) = conformance(&child.launch, &model, self.dtype)?;
        let failed = findings.iter().filter(|finding| finding.holds == Some(false)).count();
        if self.json {
            let report = json!({ "hello": hello, "findings": findings });
            term::print(&serde_json::to_string_pretty(&report)?)?;
        } else {
            show(&findings, failed)?;
        }
        Ok(if failed > 0 { CommandOutcome::Differs } else { CommandOutcome::Ok })
    }
}

fn show(findings: &[ConformanceResult], failed: usize) -> Result<()> {
    let mut table = TextTable::new(&[]);
    for finding in findings {
        let verdict = match finding.holds {
            Some(true) => "ok",
            Some(false) => "FAIL",
            None => "-",
        };
        let words = finding.words.lines().next().unwrap_or_default();
        table.row([verdict, finding.verb, finding.check, words]);
    }
    term::print(table.plain("").trim_end())?;
    // The last output of an engine is shown on lines of its own.
    for finding in findings.iter().filter(|finding| finding.words.contains('\n')) {
        term::note(&finding.words);
    }
    let checks = findings.iter().filter(|finding| finding.holds.is_some()).count();
    term::print(&match failed {
        0 => format!("the protocol is kept in {checks} checks"),
        failed => format!("the protocol is broken in {failed} of {checks} checks"),
    })?;
    Ok(())
}
