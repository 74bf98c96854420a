//! Commands that start engines in child processes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use engine::capability::EngineSheet;
use engine::child::{ChildEngine, EngineLaunch};
use tempfile::TempDir;

use super::EngineArgs;
use super::catalog::{CatalogEntry, is_program};
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
        let shown = path.display();
        ensure!(
            path.is_file(),
            "{} `{shown}`; an engine is a name, a Python file or a program",
            if path.is_dir() { "a folder is no engine:" } else { "there is no file" }
        );
        let full = fs_err::canonicalize(path)?;
        let words = if full.extension().is_some_and(|end| end == "py") {
            vec![python(), full.into_os_string()]
        } else {
            ensure!(
                is_program(&full),
                "`{shown}` is neither a Python file (.py) nor a program; chmod +x it, or give the program that runs it"
            );
            vec![full.into_os_string()]
        };
        Self::new(args.engine.clone(), words, None, args)
    }

    /// Finds an engine that has a sheet, or is on the PATH.
    pub(super) fn of_entry(entry: &CatalogEntry, args: &EngineArgs) -> Result<Self> {
        let name = entry.name.clone();
        let Some(sheet) = &entry.sheet else {
            let program = entry.place.clone().context("a program on the PATH has a place")?;
            return Self::new(name, vec![program.into_os_string()], None, args);
        };
        if let Some(plugin) = &sheet.plugin {
            // The folder is filled in below.
            let words = vec![python(), OsString::from(plugin)];
            return Self::new(name, words, Some(sheet.clone()), args);
        }
        let home = entry.place.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
        let words = sheet.command.iter().enumerate().map(|(n, word)| {
            // File names are relative to the sheet's folder; bare words are programs of the PATH and
            // arguments.
            let path = home.join(word);
            let named = word.contains('/') || n > 0 && path.is_file();
            if named { path.into_os_string() } else { OsString::from(word) }
        });
        let mut words: Vec<OsString> = words.collect();
        if words
            .first()
            .is_some_and(|first| Path::new(first).extension().is_some_and(|e| e == "py"))
        {
            words.insert(0, python());
        }
        Self::new(name, words, Some(sheet.clone()), args)
    }

    fn new(
        name: String,
        words: Vec<OsString>,
        sheet: Option<EngineSheet>,
        args: &EngineArgs,
    ) -> Result<Self> {
        let files = tempfile::Builder::new().prefix("onboard-engine-").tempdir()?;
        let watched = interrupt::watch_whole(files.path());
        for (file, text) in registry::engines::plugins() {
            fs_err::write(files.path().join(file), text)?;
        }
        // Plugins read taps and states as `parity dump` does.
        let package = files.path().join("onboard_dump");
        fs_err::create_dir(&package)?;
        for (file, text) in parity::reference_script::PACKAGE {
            fs_err::write(package.join(file), text)?;
        }
        let mut words = words.into_iter();
        let program = words.next().context("an engine has a command")?;
        let mut arguments: Vec<OsString> = words.collect();
        if let (Some(plugin), [file]) =
            (sheet.as_ref().and_then(|s| s.plugin.as_ref()), &mut arguments[..])
        {
            *file = files.path().join(plugin).into_os_string();
        }
        let mut options = BTreeMap::new();
        for option in &args.options {
            let Some((key, value)) = option.split_once('=') else {
                bail!("--engine-option `{option}`: expected KEY=VALUE");
            };
            options.insert(key.to_owned(), value.to_owned());
        }
        // A module beside the engine takes precedence; this one is for engines without it.
        let before = std::env::var_os("PYTHONPATH").unwrap_or_default();
        let folders = std::env::split_paths(&before).chain([files.path().to_owned()]);
        let folders = std::env::join_paths(folders.filter(|folder| !folder.as_os_str().is_empty()));
        let install =
            sheet.as_ref().map_or_else(|| "PACKAGE".to_owned(), |s| s.install.join("' '"));
        let shown = python();
        let shown = shown.to_string_lossy();
        let advice = (program == python()).then(|| {
            format!(
                "the interpreter is `{shown}` (ONBOARD_PYTHON, or else python3): {shown} -m pip install '{install}', or \
                 set ONBOARD_PYTHON to a python that has it"
            )
        });
        let launch = EngineLaunch {
            name,
            program: PathBuf::from(program),
            arguments,
            variables: vec![("PYTHONPATH".to_owned(), folders.unwrap_or(before))],
            options,
            patience: args.timeout,
            advice,
        };
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

impl CatalogEntry {
    /// Explains why the engine cannot start here, as far as known without starting it.
    pub(crate) fn obstacle(&self) -> Option<String> {
        let sheet = self.sheet.as_ref()?;
        if let Some(driver) = engine::drivers::DRIVERS.iter().find(|d| d.name == self.name) {
            return driver.start.err().map(|lacks| lacks.to_string());
        }
        if sheet.modules.is_empty() {
            return None;
        }
        let words = sheet.modules.join(" ");
        let code = "import importlib.util as u, sys; sys.exit(not all(u.find_spec(m) for m in sys.argv[1:]))";
        let mut command = Command::new(python());
        command.args(["-c", code]).args(&sheet.modules);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let present = command.status().is_ok_and(|status| status.success());
        let shown = python();
        let shown = shown.to_string_lossy();
        (!present).then(|| {
            format!(
                "`{shown}` lacks {words}: {shown} -m pip install '{}'",
                sheet.install.join("' '")
            )
        })
    }
}
