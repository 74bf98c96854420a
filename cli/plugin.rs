//! Implements `onboard plugin`: a package that runs a model in an engine without support for its
//! architecture.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Args;
use models::plugin::{package_files, package_word, refusal};

use crate::findings::model_error;
use crate::launch::open_sheet;
use crate::specs;
use crate::target::{self, CheckpointArgs, SpecArgs};
use crate::{CommandOutcome, term, write};

/// Writes a package that runs a model in an engine that does not know its architecture
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard plugin MODEL --engine vllm -o PACKAGE
  pip install ./PACKAGE                   in the engine's environment; the engine finds it by itself
  parity check MODEL --engine vllm        whether the class in use computes what the reference computes

The package says that the architecture is another one which the engine knows: config keys and tensors get the other's
names. It is only written where both specs resolve to the same graph. Otherwise the first op in the way is named.

Exit codes: 0 written, 2 not possible.")]
pub(crate) struct PluginArgs {
    #[command(flatten)]
    weights: CheckpointArgs,
    #[command(flatten)]
    choice: SpecArgs,
    /// The engine: the name of a sheet, or a sheet of yours (a .yaml file)
    #[arg(long, value_name = "ENGINE")]
    engine: String,
    /// The folder to write
    #[arg(short, long, value_name = "PACKAGE")]
    output: PathBuf,
    /// The name of the package; default: of the spec
    #[arg(long, value_name = "NAME")]
    package: Option<String>,
    /// Write over files that are there
    #[arg(long)]
    force: bool,
}

impl PluginArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let sheet = open_sheet(&self.engine)?;
        let engine = &sheet.engine;
        ensure!(
            !sheet.alias.is_empty(),
            "the sheet of engine `{engine}` has no package for other models (`alias:`); `onboard launch {} --engine \
             {engine}` says what the engine does with it",
            self.weights.model.display()
        );
        let which = self.weights.which("an engine's package is for a checkpoint")?;
        let target = target::open(&which, &self.choice)?;
        let architecture = &target.model.architecture;
        let known: BTreeSet<&str> =
            sheet.tables.get("architectures").into_iter().flatten().map(String::as_str).collect();
        ensure!(
            !known.contains(architecture.as_str()),
            "engine `{engine}` knows `{architecture}` by itself, so it needs no package; `onboard launch {} --engine \
             {engine}` prints the command",
            self.weights.model.display()
        );
        let mut specs = specs::open(self.choice.specs.as_deref())?;
        if let Some(spec) = &self.choice.spec {
            specs.named(spec).map_err(model_error)?;
        }
        let tensors = target.checkpoint()?.tensors().keys().cloned().collect();
        let alias = specs
            .alias(&target.model, &target.config, &known, &tensors)
            .map_err(|mismatches| anyhow!(refusal(engine, architecture, &mismatches)))?;
        let model_type = target.config.text("model_type").with_context(|| {
            format!(
                "`{}/config.json` has no `model_type`, by which engines find the class of a config",
                target.dir.display()
            )
        })?;
        let package = match &self.package {
            Some(name) => name.clone(),
            None => format!("onboard_{}", package_word(&target.model.name)),
        };
        ensure!(
            package_word(&package) == package && !package.is_empty(),
            "`{package}` is no name of a Python package; use small letters, digits and `_`"
        );
        let files = package_files(&sheet.alias, &alias, architecture, &model_type, &package);
        for path in files.keys() {
            write::allowed(&self.output.join(path), &[], self.force)?;
        }
        for (path, text) in &files {
            write::atomic(&self.output.join(path), text.as_bytes())?;
        }
        term::print(&format!(
            "{architecture} is {} by other names: {} config keys, {} tensors\nwrote {}\n\
             install it in the environment of `{engine}`: pip install {}\n",
            alias.architecture,
            alias.keys.len(),
            alias.renames.len(),
            self.output.display(),
            shown(&self.output)
        ))?;
        Ok(CommandOutcome::Ok)
    }
}

/// Formats a path so that pip recognizes it as a path.
fn shown(path: &Path) -> String {
    if path.is_absolute() { path.display().to_string() } else { format!("./{}", path.display()) }
}
