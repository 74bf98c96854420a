//! The Python that runs the reference script.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, anyhow, ensure};
use registry::file;

use crate::term;

/// Refuses files to import that are no Python files.
pub(crate) fn refuse_other_files(files: &[PathBuf]) -> Result<()> {
    for file in files {
        ensure!(
            file.is_file() && file.extension().is_some_and(|end| end == "py"),
            "--import {}: expected a Python file",
            file.display()
        );
    }
    Ok(())
}

/// Notes that a checkpoint brings code, unless it is to be run.
pub(crate) fn note_own_code(model: &Path, runs_it: bool) {
    let brings = auto_map(&model.join("config.json"));
    if !brings.is_empty() && !runs_it {
        term::note(&format!(
            "note: the checkpoint brings code of its own ({}), which is not run; \
             --trust-remote-code runs it",
            brings.join(", ")
        ));
    }
}

/// Lists the Python files that a config's `auto_map` names: `{"AutoConfig": "file.Class", ...}`.
fn auto_map(config: &Path) -> Vec<String> {
    // The script reports a config that cannot be read.
    let Ok(bytes) = file::read(config, file::CONFIG) else { return Vec::new() };
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let classes = json.get("auto_map").and_then(|map| map.as_object()).into_iter().flatten();
    let mut files: Vec<String> = classes
        .filter_map(|(_, class)| Some(format!("{}.py", class.as_str()?.rsplit_once('.')?.0)))
        .collect();
    files.sort();
    files.dedup();
    files
}

/// Python interpreter, by its origin.
#[derive(Debug)]
pub(crate) enum PythonInterpreter {
    /// Interpreter named by the user, or of the active environment.
    Path(PathBuf),
    /// `uv run`, which builds an environment from the script's own header.
    Uv,
}

/// Returns an environment variable that is not empty.
fn set_variable(key: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(key).filter(|value| !value.is_empty())
}

impl PythonInterpreter {
    /// Finds the interpreter: the given one, that of the environment, or one that has the packages.
    pub(crate) fn find(given: Option<&Path>) -> Self {
        if let Some(path) =
            given.map(Path::to_owned).or_else(|| set_variable("ONBOARD_PYTHON").map(Into::into))
        {
            return Self::Path(path);
        }
        let inside = if cfg!(windows) { "python.exe" } else { "bin/python" };
        let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(set_variable);
        let active = active.map(|folder| Path::new(&folder).join(inside));
        let candidates = active.chain(["python3".into(), "python".into()]);
        let interpreter = candidates.into_iter().find(|path| imports(Command::new(path)));
        match interpreter {
            Some(path) => Self::Path(path),
            None if runs("uv", "--version") => Self::Uv,
            None => Self::Path("python3".into()),
        }
    }

    /// Returns the name in messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Path(path) => format!("`{}`", path.display()),
            Self::Uv => "`uv run`".to_owned(),
        }
    }

    /// Returns a command that runs a script.
    pub(crate) fn command(&self) -> Command {
        match self {
            Self::Path(path) => Command::new(path),
            Self::Uv => {
                let mut command = Command::new("uv");
                command.args(["run", "--script"]);
                command
            }
        }
    }

    /// Returns true if the interpreter has torch and transformers without an installation.
    pub(crate) fn has_packages(&self) -> bool {
        match self {
            Self::Uv => false,
            Self::Path(path) => imports(Command::new(path)),
        }
    }

    /// Explains the failure of the script: most often transformers is not installed.
    pub(crate) fn explain(&self, status: std::process::ExitStatus) -> anyhow::Error {
        let has = match self {
            Self::Uv => true,
            Self::Path(path) => imports(Command::new(path)),
        };
        if has {
            anyhow!(
                "the reference script failed ({status}) under {}; what it said stands above",
                self.name()
            )
        } else {
            anyhow!(
                "{} cannot import transformers and torch; install them there (pip install torch transformers \
                 safetensors), name another python with --python or ONBOARD_PYTHON, or install uv",
                self.name()
            )
        }
    }
}

fn imports(mut python: Command) -> bool {
    python.args(["-c", "import importlib.util as u, sys; sys.exit(not (u.find_spec('transformers') and u.find_spec('torch')))"]);
    succeeds(python)
}

fn runs(program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(argument);
    succeeds(command)
}

fn succeeds(mut command: Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
