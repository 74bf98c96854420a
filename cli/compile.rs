//! Implements `onboard compile`: the source code of a model for an engine, from its spec, with a proof.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Args;
use compile::{Code, ConfigTexts, Target, compile};
use models::is_gguf;
use parity::beside::open_dump;
use registry::config::Config;
use registry::dtype::Dtype;
use registry::spec::Spec;

use crate::engines::EngineArgs;
use crate::findings::{model_error, reported_error};
use crate::parity_check::ParityCheckArgs;
use crate::target::{self, ModelArgs, SpecArgs};
use crate::{CommandOutcome, specs, term, write};

/// Writes the source code of a model for an engine, from its spec, and proves it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard compile MODEL --to torch -o DIR --prove MODEL/reference
  onboard compile MODEL --to torch -o DIR --prove DUMP --python venv/bin/python
  onboard compile SPEC --to torch -o DIR --unproven        the family, of which no checkpoint is at hand
  onboard compile MODEL --to ./my_target -o DIR --unproven a target of yours: a folder (onboard help compile)

The code is for the family at any size: functions of the spec are methods, kinds of layers are classes, sizes are read
from config.json. With --prove the code runs the dump's prompts in a Python that has the target's packages, in prefill,
token by token and in other schedules, and is judged by the rule of `parity check`. Code that was not proven, or that
failed, is not written without --unproven.

Exit codes: 0 written, 1 the code differs from the dump, 2 not possible.")]
pub(crate) struct CompileArgs {
    /// A checkpoint (its folder, or owner/name on a hub), or the name of a spec
    #[arg(value_name = "MODEL_OR_SPEC")]
    model: PathBuf,
    /// The branch, tag or commit of a model on a hub
    #[arg(long, value_name = "REVISION", default_value = "main")]
    revision: String,
    #[command(flatten)]
    choice: SpecArgs,
    /// The target: a name, or a folder with a sheet and templates
    #[arg(long, value_name = "TARGET")]
    to: String,
    /// The folder to write; it must not exist
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// The dump to prove the code with
    #[arg(long, value_name = "DUMP")]
    prove: Option<PathBuf>,
    /// The Python that runs the code; default: ONBOARD_PYTHON, then python3
    #[arg(long, value_name = "PATH", requires = "prove")]
    python: Option<PathBuf>,
    /// Write code that was not proven, or that failed
    #[arg(long)]
    unproven: bool,
}

impl CompileArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let target = self.target()?;
        ensure!(
            !self.output.exists(),
            "`{}` is there already; name a folder that does not exist",
            self.output.display()
        );
        ensure!(
            self.prove.is_some() || self.unproven,
            "code without a proof is not written; give --prove DUMP (`onboard parity dump` makes one), or --unproven"
        );
        let (spec, texts) = self.spec()?;
        let code = compile(&spec, &registry::ops::OpSet::builtin(), &target, &texts).map_err(|findings| {
            let message = format!(
                "spec `{}` cannot be written for the target `{}`: {} places that it lacks, see above",
                spec.name.name,
                target.name,
                findings.len()
            );
            reported_error(&findings, &message)
        })?;
        let outcome = match &self.prove {
            Some(dump) => self.proven(&target, &code, dump)?,
            None => CommandOutcome::Ok,
        };
        if !matches!(outcome, CommandOutcome::Ok) && !self.unproven {
            term::note(
                "the code is not proven, so nothing was written; --unproven writes it anyway",
            );
            return Ok(outcome);
        }
        self.write(&target, &code, outcome)
    }

    /// Loads the spec, and for a checkpoint the texts of its config.
    fn spec(&self) -> Result<(Spec, ConfigTexts)> {
        let mut specs = specs::open(self.choice.specs.as_deref())?;
        let named = self.model.to_str().filter(|name| specs.has(name) && !self.model.is_dir());
        if let Some(name) = named {
            ensure!(
                self.prove.is_none(),
                "a proof needs weights: give the folder of a checkpoint of `{name}` instead of its name"
            );
            let spec = specs.load(name, &self.choice.set).map_err(model_error)?;
            return Ok((spec, ConfigTexts::default()));
        }
        ensure!(
            !is_gguf(&self.model),
            "code is written for the names of a checkpoint, and `{}` is a GGUF file: give the folder of the checkpoint, or the name of its spec",
            self.model.display()
        );
        let model = target::open(&self.which(), &self.choice)?;
        let config = Config::read(&model.home().join("config.json"))
            .map_err(|finding| reported_error(&[finding], "the config cannot be read"))?;
        if let Some(spec) = &self.choice.spec {
            specs.named(spec).map_err(model_error)?;
        }
        let spec = specs.load(&model.spec.name, &self.choice.set).map_err(model_error)?;
        Ok((spec, ConfigTexts::from_config(&config)))
    }

    fn target(&self) -> Result<Target> {
        let folder = Path::new(&self.to);
        let target = if folder.join("sheet.yaml").is_file() {
            Target::open(folder)
        } else {
            Target::builtin(&self.to)
        };
        target.map_err(|findings| reported_error(&findings, "the target cannot be used"))
    }

    fn which(&self) -> ModelArgs {
        ModelArgs { model: self.model.clone(), revision: self.revision.clone() }
    }

    /// Runs the code from a scratch folder against the dump.
    fn proven(&self, target: &Target, code: &Code, dump: &Path) -> Result<CommandOutcome> {
        let scratch = tempfile::Builder::new().prefix("onboard-compile-").tempdir()?;
        let _watched = crate::interrupt::watch_whole(scratch.path());
        write_all(scratch.path(), code)?;
        let driver = target.files.get(&target.driver).ok_or_else(|| {
            anyhow!(
                "the target `{}` has no driver, so its code cannot be proven; give --unproven",
                target.name
            )
        })?;
        let engine = match &self.python {
            None => {
                let path = scratch.path().join(&target.driver);
                fs_err::write(&path, driver)?;
                path
            }
            Some(python) => {
                let python = fs_err::canonicalize(python.parent().unwrap_or(Path::new(".")))?
                    .join(python.file_name().unwrap_or_default());
                let path = scratch.path().join("engine");
                fs_err::write(&path, format!("#!{}\n{driver}", python.display()))?;
                executable(&path)?;
                path
            }
        };
        let folder = target::folder(&self.which())?.dir;
        let (_, opened) = open_dump(&folder, Some(dump))?;
        let dtypes: Vec<Dtype> =
            opened.runs().into_iter().filter(|dtype| *dtype != Dtype::F16).collect();
        let engine = EngineArgs { engine: engine.display().to_string(), ..EngineArgs::default() };
        ParityCheckArgs::of_engine(self.which(), self.choice.clone(), dump, engine, dtypes).run()
    }

    /// Writes the files into a new folder beside the place of the output, and renames that folder.
    fn write(
        &self,
        target: &Target,
        code: &Code,
        outcome: CommandOutcome,
    ) -> Result<CommandOutcome> {
        let parent = self.output.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        fs_err::create_dir_all(parent)?;
        let unfinished = tempfile::Builder::new().prefix(".onboard-compile-").tempdir_in(parent)?;
        let _watched = crate::interrupt::watch_whole(unfinished.path());
        // Renamed as a whole, so that the temporary folder's own mode of 0700 stays behind.
        let folder = unfinished.path().join("code");
        write_all(&folder, code)?;
        fs_err::rename(&folder, &self.output)
            .with_context(|| format!("cannot write `{}`", self.output.display()))?;
        let proven = match (&self.prove, outcome) {
            (Some(dump), CommandOutcome::Ok) => {
                format!(
                    "proven against `{}` (the report above names the version of the engine)",
                    dump.display()
                )
            }
            (Some(_), _) => "NOT proven: see the report above".to_owned(),
            (None, _) => "not proven".to_owned(),
        };
        term::print(&format!(
            "wrote {} for {}, {} lines, {proven}\n",
            self.output.join(&code.name).display(),
            target.name,
            code.text.lines().count()
        ))?;
        Ok(outcome)
    }
}

/// Writes the file of the model and those beside it below a folder.
fn write_all(folder: &Path, code: &Code) -> Result<()> {
    write::atomic(&folder.join(&code.name), code.text.as_bytes())?;
    for (path, text) in &code.extra_files {
        write::atomic(&folder.join(path), text.as_bytes())?;
    }
    Ok(())
}

#[cfg(unix)]
fn executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(fs_err::set_permissions(path, std::fs::Permissions::from_mode(0o755))?)
}

#[cfg(not(unix))]
fn executable(_path: &Path) -> Result<()> {
    anyhow::bail!(
        "--python starts a script by its first line, which this system does not do; set ONBOARD_PYTHON"
    )
}
