//! `parity dump`: makes a reference with the real Hugging Face code.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::Args;

use crate::{Ended, term};

/// The reference script: one file, so that it can be copied to where the model is.
const SCRIPT: &str = include_str!("../parity/reference/dump.py");
/// What it runs for heads that predict one token more, where this lies beside it as `nextn.py`.
const HEADS: &str = include_str!("../parity/reference/nextn.py");

/// Makes a reference dump with transformers
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  parity dump MODEL -o MODEL/reference            needs python with torch and transformers, or uv
  parity dump MODEL -o DUMP --python venv/bin/python --dtypes f32,bf16
  parity dump --script > dump.py                  to run it on another machine: python dump.py --help

The interpreter is --python, else ONBOARD_PYTHON, else `uv run` (which installs what the script
needs), else python3.")]
pub(crate) struct Dump {
    /// The checkpoint's folder
    #[arg(required_unless_present = "script")]
    model: Option<PathBuf>,
    /// The folder to write
    #[arg(short, long, value_name = "DUMP", required_unless_present = "script")]
    output: Option<PathBuf>,
    /// Print the script instead of running it
    #[arg(long)]
    script: bool,
    /// The dtypes to run, with commas: f32,bf16,f16
    #[arg(long, value_name = "LIST")]
    dtypes: Option<String>,
    /// A JSON file of prompts to run instead of the derived ones
    #[arg(long, value_name = "FILE")]
    prompts: Option<String>,
    /// The python to run it with
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Further arguments for the script, after `--`
    #[arg(last = true, value_name = "ARGS")]
    more: Vec<String>,
}

impl Dump {
    pub(crate) fn run(self) -> Result<Ended> {
        if self.script {
            term::print(SCRIPT)?;
            return Ok(Ended::Well);
        }
        let (Some(model), Some(output)) = (&self.model, &self.output) else {
            bail!("the model's folder and --output are needed; see --help");
        };
        ensure!(
            model.join("config.json").is_file(),
            "`{}` has no config.json; give the folder of a checkpoint",
            model.display()
        );
        let folder = tempfile::Builder::new().prefix("onboard-dump-").tempdir()?;
        let script = folder.path().join("dump.py");
        let mut watched = Vec::new();
        for (name, text) in [("dump.py", SCRIPT), ("nextn.py", HEADS)] {
            let path = folder.path().join(name);
            fs_err::write(&path, text)?;
            watched.push(crate::interrupt::watch(&path));
        }
        let python = Python::find(self.python.as_deref());
        let mut command = python.command();
        command.arg(&script).arg(model).arg("-o").arg(output);
        for (flag, value) in [("--dtypes", &self.dtypes), ("--prompts", &self.prompts)] {
            if let Some(value) = value {
                command.args([flag, value]);
            }
        }
        command.args(&self.more);
        // What the script says is not data: stdout stays empty.
        command.stdin(Stdio::null()).stdout(std::io::stderr());
        let status = command
            .status()
            .with_context(|| format!("cannot start {}; give --python PATH", python.name()))?;
        if !status.success() {
            return Err(python.explain(status));
        }
        term::note(&format!("wrote {}", output.display()));
        Ok(Ended::Well)
    }
}

/// An interpreter, and where it was found.
enum Python {
    /// Named by the person.
    Given(PathBuf),
    /// `uv run`, which makes an environment from the script's own header.
    Uv,
    /// What is on the path.
    Plain,
}

impl Python {
    fn find(given: Option<&Path>) -> Self {
        let env = || std::env::var_os("ONBOARD_PYTHON").filter(|value| !value.is_empty());
        match given.map(Path::to_owned).or_else(|| env().map(PathBuf::from)) {
            Some(path) => Self::Given(path),
            None if runs("uv", "--version") => Self::Uv,
            None => Self::Plain,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Given(path) => format!("`{}`", path.display()),
            Self::Uv => "`uv run`".to_owned(),
            Self::Plain => "`python3`".to_owned(),
        }
    }

    fn command(&self) -> Command {
        match self {
            Self::Given(path) => Command::new(path),
            Self::Uv => {
                let mut command = Command::new("uv");
                command.args(["run", "--script"]);
                command
            }
            Self::Plain => Command::new("python3"),
        }
    }

    /// Says why the script failed: most often there is no transformers to import.
    fn explain(&self, status: std::process::ExitStatus) -> anyhow::Error {
        let has = match self {
            Self::Uv => true,
            Self::Given(path) => imports(Command::new(path)),
            Self::Plain => imports(Command::new("python3")),
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
    quietly(python)
}

fn runs(program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(argument);
    quietly(command)
}

fn quietly(mut command: Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
