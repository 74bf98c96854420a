//! Commands that start engines in child processes.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;
use engine::capability::EngineSheet;
use engine::catalog::CatalogEntry;
use engine::child::{
    ChildEngine, CommandSettings, EngineCommandError, EngineLaunch, write_modules,
};
use tempfile::TempDir;

use super::EngineArgs;
use crate::interrupt::{self, RemovalGuard};

/// Engine in a child process, ready to be started.
pub(crate) struct ChildCommand {
    /// Command that starts the engine.
    pub launch: EngineLaunch,
    /// Sheet with the supported dtypes; without one, all are supported.
    sheet: Option<EngineSheet>,
    /// Temporary folder of Python files, kept for as long as the engine may run and dropped last.
    _watched: RemovalGuard,
    _files: TempDir,
}

impl ChildCommand {
    /// Finds an engine at a path: a Python file, or a program.
    pub(super) fn at_path(path: &Path, args: &EngineArgs) -> Result<Self> {
        Self::new(args, None, |settings| EngineLaunch::at_path(&args.engine, path, settings))
    }

    /// Finds an engine that has a sheet, or is on the PATH.
    pub(super) fn of_entry(entry: &CatalogEntry, args: &EngineArgs) -> Result<Self> {
        let sheet = entry.sheet.clone();
        Self::new(args, sheet, |settings| EngineLaunch::of_entry(entry, settings))
    }

    fn new(
        args: &EngineArgs,
        sheet: Option<EngineSheet>,
        launch: impl FnOnce(CommandSettings<'_>) -> Result<EngineLaunch, EngineCommandError>,
    ) -> Result<Self> {
        let files = tempfile::Builder::new().prefix("onboard-engine-").tempdir()?;
        let watched = interrupt::watch_whole(files.path());
        let settings = CommandSettings {
            python: &python(),
            python_path: &std::env::var_os("PYTHONPATH").unwrap_or_default(),
            files: files.path(),
            options: &args.options,
            patience: args.timeout,
        };
        let launch = launch(settings)?;
        write_modules(files.path(), parity::reference_script::PACKAGE)?;
        Ok(Self { launch, sheet, _watched: watched, _files: files })
    }

    /// Returns the engine, with room for a number of positions in a slot.
    pub(crate) fn engine(&self, room: usize) -> ChildEngine {
        ChildEngine::new(self.launch.clone(), room)
    }

    /// Returns the sheet, which limits the dtypes; none if any may be tried.
    pub(crate) fn sheet(&self) -> Option<&EngineSheet> {
        self.sheet.as_ref()
    }
}

/// Returns the interpreter of Python files.
pub(crate) fn python() -> OsString {
    let set = std::env::var_os("ONBOARD_PYTHON").filter(|value| !value.is_empty());
    set.unwrap_or_else(|| "python3".into())
}
