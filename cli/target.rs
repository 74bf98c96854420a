//! Target of a command: finds its files, opens it, and shows what is to be said about it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use models::coverage::TensorCoverage;
use models::local_model::LocalModel;
use models::open::{OpenOptions, OpenRemark, OpenedModel};
use models::{CheckpointFolder, Error, is_gguf};
use registry::dtype::Dtype;

use crate::findings::{model_error, warn};
use crate::{specs, term};

/// The model that a command works on.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModelArgs {
    /// A checkpoint (its folder or its .safetensors file), a GGUF file, or owner/name on a hub
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// The branch, tag or commit of a model on a hub
    #[arg(long, value_name = "REVISION", default_value = MAIN)]
    pub revision: String,
}

/// Default branch of a hub.
const MAIN: &str = "main";

impl ModelArgs {
    /// Returns a model at a local path, or on a hub at its main branch.
    pub(crate) fn at(model: PathBuf) -> Self {
        Self { model, revision: MAIN.to_owned() }
    }
}

/// The checkpoint that a command works on, where a GGUF file will not do.
#[derive(Debug, Clone, Args)]
pub(crate) struct CheckpointArgs {
    /// A checkpoint (its folder or its .safetensors file), or owner/name on a hub
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// The branch, tag or commit of a model on a hub
    #[arg(long, value_name = "REVISION", default_value = MAIN)]
    pub revision: String,
}

impl CheckpointArgs {
    /// Returns an error for a GGUF file, with a reason.
    pub(crate) fn which(&self, refused: &str) -> Result<ModelArgs> {
        let Self { model, revision } = self.clone();
        ensure!(
            !is_gguf(&model),
            "`{}` is a GGUF file, and {refused}; give the checkpoint that it was made from",
            model.display()
        );
        Ok(ModelArgs { model, revision })
    }
}

/// Options that choose the spec.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SpecArgs {
    /// Use this spec (a file, or the name of a known one), whatever architecture it matches
    #[arg(long, value_name = "SPEC")]
    pub spec: Option<PathBuf>,
    /// Open the encoder of images that the checkpoint holds, in place of its text model
    #[arg(long)]
    pub encoder: bool,
    /// Look for specs in this folder too; they win over the built-in ones of the same name. Default: ONBOARD_SPECS
    #[arg(long, value_name = "DIR")]
    pub specs: Option<PathBuf>,
    /// Override a part of the spec: states.conv.dtype=bf16, dims.eps=1e-6 (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The config.json of a GGUF file that carries none, or its folder
    #[arg(long, value_name = "DIR")]
    pub model_config: Option<PathBuf>,
}

impl SpecArgs {
    /// Returns the options that a model is opened with.
    pub(crate) fn options(&self) -> OpenOptions {
        let Self { spec, set, model_config, encoder, .. } = self.clone();
        OpenOptions { spec, encoder, set, model_config }
    }
}

/// Returns the folder that `which` names, fetched if it is on a hub.
pub(crate) fn folder(which: &ModelArgs) -> Result<CheckpointFolder> {
    let path = which.model.as_path();
    if let Some(folder) = models::folder(path)? {
        return Ok(folder);
    }
    let id = path.to_str().filter(|word| looks_like_id(word)).with_context(|| {
        format!(
            "there is no folder `{}`, and it is no hub id either (those look like owner/name)",
            path.display()
        )
    })?;
    let dir =
        fetch(id, &which.revision).with_context(|| format!("there is no folder `{id}` here"))?;
    Ok(CheckpointFolder { dir, name: id.rsplit('/').next().unwrap_or("model").to_owned() })
}

#[cfg(feature = "hub")]
fn looks_like_id(word: &str) -> bool {
    crate::hub::is_id(word)
}

#[cfg(feature = "hub")]
fn fetch(id: &str, revision: &str) -> Result<PathBuf> {
    crate::hub::checkpoint(id, revision)
}

#[cfg(not(feature = "hub"))]
fn looks_like_id(word: &str) -> bool {
    word.split('/').count() == 2 && !word.starts_with(['.', '/'])
}

#[cfg(not(feature = "hub"))]
fn fetch(id: &str, _revision: &str) -> Result<PathBuf> {
    anyhow::bail!("there is no folder `{id}`; this build has no hub client (feature `hub`)")
}

/// Opens a checkpoint with the chosen spec, or the one that matches its architecture.
pub(crate) fn open(which: &ModelArgs, choice: &SpecArgs) -> Result<LocalModel> {
    let checkpoint = if is_gguf(&which.model) { None } else { Some(folder(which)?) };
    let path = checkpoint.as_ref().map_or(&which.model, |checkpoint| &checkpoint.dir);
    let mut specs = specs::open(choice.specs.as_deref())?;
    let opened = models::open::open(path, &mut specs, &choice.options());
    let mut target = shown(opened.map_err(|error| match error {
        Error::NoSpec { architecture, inner, place } => anyhow::anyhow!(
            "no spec matches the architecture `{architecture}` of `{}`{}; `onboard add-model {}` drafts one, \
             `onboard list` shows what is known, --spec SPEC names one",
            place.display(),
            inner.map(|kind| format!(" with `{kind}` inside")).unwrap_or_default(),
            which.model.display()
        ),
        other => model_error(other),
    })?);
    if let Some(checkpoint) = checkpoint {
        // The folder of a fetched model has the name of its commit.
        target.name = checkpoint.name;
    }
    Ok(target)
}

/// Shows the warnings and remarks of an opened model.
pub(crate) fn shown(opened: OpenedModel) -> LocalModel {
    warn(&opened.warnings);
    for remark in &opened.remarks {
        let word = if matches!(remark, OpenRemark::Untied { .. }) { "note" } else { "warning" };
        term::note(&format!("{word}: {remark}"));
    }
    opened.target
}

/// Returns the source that engines open.
pub(crate) fn source(target: &LocalModel) -> engine::ModelSource<'_> {
    engine::ModelSource { model: Arc::clone(&target.model), dir: &target.dir }
}

/// Returns an error unless the weights and tensors match; shows warnings.
pub(crate) fn covered(coverage: &TensorCoverage, dir: &Path) -> Result<()> {
    coverage.refuse(dir).map_err(model_error)?;
    warn(&coverage.findings);
    Ok(())
}

/// Returns an error if the model explains only part of the checkpoint: results of half a model are
/// useless. If `--set` is the cause, perhaps on purpose, the user is warned instead.
pub(crate) fn explained(target: &LocalModel, choice: &SpecArgs) -> Result<()> {
    if target.is_gguf() {
        // A file is opened only if every tensor is recognized.
        return Ok(());
    }
    let coverage = TensorCoverage::of(&target.model, &target.checkpoint()?);
    if coverage.is_whole() || coverage.foreign.is_some() || choice.set.is_empty() {
        return covered(&coverage, &target.dir);
    }
    term::note(&format!(
        "warning: with --set, {} of {} tensors of `{}` are used",
        coverage.used,
        coverage.tensors,
        target.dir.display()
    ));
    Ok(())
}

/// Returns an error if the dtype of a state differs from the dtype that ops write to it, in any run.
pub(crate) fn check_dtypes(target: &LocalModel, runs: &[Dtype]) -> Result<()> {
    target.check_dtypes(runs).map_err(model_error)
}

/// Parses a dtype as spelled in flags.
pub(crate) fn parse_dtype(text: &str) -> Result<Dtype, String> {
    Dtype::parse(text.trim()).ok_or_else(|| {
        format!("`{text}` is no dtype; there are {}", Dtype::ALL.map(Dtype::name).join(", "))
    })
}

/// Parses a bound: more than nothing, perhaps without end.
pub(crate) fn parse_bound(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|bound| *bound > 0.0)
        .ok_or_else(|| format!("`{text}` is no bound; expected a number above 0, as 1e-3"))
}
