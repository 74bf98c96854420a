//! Target of a command: a checkpoint's folder, and the spec that describes it.

pub(crate) mod gguf;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use checkpoints::Checkpoint;
use checkpoints::weights::flows;
use clap::Args;
use registry::diag::Finding;
use registry::dtype::Dtype;
use registry::model::Model;

use crate::coverage::Coverage;
pub(crate) use crate::specs::SpecId;
use crate::specs::{Config, Specs, tell};
use crate::term;

/// The model that a command works on.
#[derive(Debug, Clone, Args)]
pub(crate) struct Which {
    /// A checkpoint (its folder or its .safetensors file), a GGUF file, or owner/name on a hub
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// The branch, tag or commit of a model on a hub
    #[arg(long, value_name = "REVISION", default_value = MAIN)]
    pub revision: String,
}

/// Default branch of a hub.
const MAIN: &str = "main";

impl Which {
    /// Returns a model at a local path, or on a hub at its main branch.
    pub(crate) fn at(model: PathBuf) -> Self {
        Self { model, revision: MAIN.to_owned() }
    }
}

/// The checkpoint that a command works on, where a GGUF file will not do.
#[derive(Debug, Clone, Args)]
pub(crate) struct Weights {
    /// A checkpoint (its folder or its .safetensors file), or owner/name on a hub
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// The branch, tag or commit of a model on a hub
    #[arg(long, value_name = "REVISION", default_value = MAIN)]
    pub revision: String,
}

impl Weights {
    /// Returns an error for a GGUF file, with a reason.
    pub(crate) fn which(&self, refused: &str) -> Result<Which> {
        let Self { model, revision } = self.clone();
        ensure!(
            !gguf::is_gguf(&model),
            "`{}` is a GGUF file, and {refused}; give the checkpoint that it was made from",
            model.display()
        );
        Ok(Which { model, revision })
    }
}

/// Options that choose the spec.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Choice {
    /// Use this spec (a file, or the name of a known one), whatever architecture it matches
    #[arg(long, value_name = "SPEC")]
    pub spec: Option<PathBuf>,
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

/// Checkpoint with the model that a spec makes of it.
#[derive(Debug)]
pub(crate) struct Target {
    /// Path of the folder, or of the GGUF file.
    pub dir: PathBuf,
    /// Name of the model: the last part of the folder or id.
    pub name: String,
    /// Resolved model.
    pub model: Arc<Model>,
    /// Config of the model.
    pub config: Config,
    /// Name, file and hash of the spec.
    pub spec: SpecId,
}

/// The folder that `which` names, fetched if it is on a hub, and what it is called.
pub(crate) fn folder(which: &Which) -> Result<(PathBuf, String)> {
    let path = which.model.as_path();
    if path.is_dir() {
        let full = fs_err::canonicalize(path)?;
        let name = full
            .file_name()
            .map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned());
        return Ok((path.to_owned(), name));
    }
    let (shown, end) = (path.display(), path.extension());
    if path.is_file() {
        ensure!(
            end.is_some_and(|end| end == "safetensors"),
            "`{shown}` is a file of a kind that is not read; expected a .safetensors file, a .gguf file, or a folder"
        );
        return folder(&Which { model: home_of(path)?, revision: which.revision.clone() });
    }
    ensure!(
        end.is_none_or(|end| end != "gguf" && end != "safetensors"),
        "there is no file `{shown}`"
    );
    let id = path.to_str().filter(|word| looks_like_id(word)).with_context(|| {
        format!(
            "there is no folder `{shown}`, and it is no hub id either (those look like owner/name)"
        )
    })?;
    let name = id.rsplit('/').next().unwrap_or("model").to_owned();
    let fetched = fetch(id, &which.revision);
    Ok((fetched.with_context(|| format!("there is no folder `{id}` here"))?, name))
}

/// Returns the folder of a safetensors file, if the file is its checkpoint or a part that an index names.
fn home_of(file: &Path) -> Result<PathBuf> {
    let folder = parent(file);
    let shown = file.display();
    ensure!(
        folder.join("config.json").is_file(),
        "`{shown}` has no config.json beside it, which says what model its weights are of; put it there"
    );
    let single = file.file_name().is_some_and(|name| name == "model.safetensors");
    ensure!(
        single || folder.join("model.safetensors.index.json").is_file(),
        "`{shown}` is neither model.safetensors nor a part that an index beside it names; \
         if it is the whole checkpoint, call it model.safetensors"
    );
    Ok(folder.to_owned())
}

/// Returns the folder of a file; `.` for a bare name.
fn parent(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(feature = "hub")]
fn looks_like_id(word: &str) -> bool {
    crate::hub::is_id(word)
}

#[cfg(feature = "hub")]
fn fetch(id: &str, revision: &str) -> Result<PathBuf> {
    crate::hub::Settings::from_env().checkpoint(id, revision)
}

#[cfg(not(feature = "hub"))]
fn looks_like_id(word: &str) -> bool {
    word.split('/').count() == 2 && !word.starts_with(['.', '/'])
}

#[cfg(not(feature = "hub"))]
fn fetch(id: &str, _revision: &str) -> Result<PathBuf> {
    bail!("there is no folder `{id}`; this build has no hub client (feature `hub`)")
}

/// Describes a folder without a config, if one of its files identifies it.
fn no_checkpoint(dir: &Path) -> Option<String> {
    if dir.join("config.json").exists() {
        return None;
    }
    if dir.join("adapter_config.json").is_file() {
        return Some(
            "an adapter (LoRA): merge it into the model it was trained on, and open that"
                .to_owned(),
        );
    }
    if dir.join("params.json").is_file() {
        return Some(
            "a model in its maker's own format (params.json): take its transformers version, \
             which has config.json"
                .to_owned(),
        );
    }
    let entries = || Some(fs_err::read_dir(dir).ok()?.filter_map(Result::ok));
    let journal = |name: std::ffi::OsString| name.to_string_lossy().ends_with(".part.journal");
    if entries()?.any(|entry| journal(entry.file_name())) {
        return Some(
            "an unfinished conversion: run the same `convert` command again with --resume"
                .to_owned(),
        );
    }
    let entries = entries()?;
    let file = entries.map(|entry| entry.path()).find(|path| gguf::is_gguf(path))?;
    Some(format!("GGUF files: open one of them, as `{}`", file.display()))
}

/// Opens a checkpoint with the chosen spec, or the one that matches its architecture.
pub(crate) fn open(which: &Which, choice: &Choice) -> Result<Target> {
    if gguf::is_gguf(&which.model) {
        return gguf::open(&which.model, choice);
    }
    let (dir, name) = folder(which)?;
    let mut specs = Specs::open(choice.specs.as_deref())?;
    if let Some(kind) = no_checkpoint(&dir) {
        bail!("`{}` has no config.json: it holds {kind}", dir.display());
    }
    let mut config = Config::read(&dir.join("config.json"))?;
    let spec = match &choice.spec {
        Some(spec) => specs.named(spec)?,
        None => match specs.matching(&config)? {
            Some(spec) => spec,
            None => bail!(
                "no spec matches the architecture `{}` of `{}`{}; `onboard add-model {}` drafts one, \
                 `onboard list` shows what is known, --spec SPEC names one",
                config.architecture(),
                dir.display(),
                config.inner().map(|kind| format!(" with `{kind}` inside")).unwrap_or_default(),
                which.model.display()
            ),
        },
    };
    let mut model = specs.resolve(&spec, &config, &choice.set)?;
    let tied = config.flag("tie_word_embeddings") != Some(false);
    if let Some((name, owner)) = apart(&model, &dir).filter(|_| tied) {
        term::note(&format!(
            "note: the config ties `{name}` to `{owner}`, but the checkpoint has both with other \
             numbers: they are not tied"
        ));
        // Files written from this config must not be tied.
        config = config.with_flag("tie_word_embeddings", false)?;
        let set: Vec<String> =
            choice.set.iter().cloned().chain(["dims.tied=false".to_owned()]).collect();
        model = specs.resolve(&spec, &config, &set)?;
    }
    // The outer config may declare an output matrix, and the inner one none.
    if !tied && config.ties_inside() && !stored(&model, &dir) {
        config = config.with_flag("tie_word_embeddings", true)?;
        model = specs.resolve(&spec, &config, &choice.set)?;
    }
    Ok(Target { dir, name, model: Arc::new(model), spec: specs.id(&spec), config })
}

/// True if the checkpoint contains every weight of the model.
fn stored(model: &Model, dir: &Path) -> bool {
    // Unreadable data is reported by the code that needs it.
    let Ok(checkpoint) = Checkpoint::open(dir) else { return true };
    flows(&checkpoint, &model.graph.weights, &model.rules).is_ok()
}

/// Finds a weight that the config ties to another and that the checkpoint stores with different values. The
/// reference then does not tie it. Large weights are compared in samples.
fn apart(model: &Model, dir: &Path) -> Option<(String, String)> {
    const PARTS: usize = 64;
    const PART: usize = 4096;
    if !model.dims.contains_key("tied") || model.graph.tied.is_empty() {
        return None;
    }
    // Unreadable data is reported by the code that needs it.
    let checkpoint = Checkpoint::open(dir).ok()?;
    let differ = |a: &[u8], b: &[u8]| {
        let step = (a.len() / PARTS).max(PART);
        let part = |from: usize| from..(from + PART).min(a.len());
        a.len() == b.len() && (0..a.len()).step_by(step).any(|from| a[part(from)] != b[part(from)])
    };
    // Both weights may have other names on disk.
    let find = |name: &String| {
        let weight = model.graph.weights.iter().find(|weight| weight.name == *name)?;
        let found = flows(&checkpoint, std::slice::from_ref(weight), &model.rules).ok()?.0;
        found.into_iter().next()?.tensors.into_iter().next()
    };
    let both = |(name, owner): (&String, &String)| {
        let owner = &find(owner)?;
        let elsewhere = model.rules.iter().filter_map(|rule| rule.on_disk(name));
        let mut names = std::iter::once(name.clone()).chain(elsewhere);
        let own = &names.find(|name| checkpoint.info(name).is_some())?;
        let (a, b) = (checkpoint.info(own)?, checkpoint.info(owner)?);
        let like = a.dtype == b.dtype && a.shape == b.shape;
        let (a, b) = (checkpoint.bytes(own).ok()?, checkpoint.bytes(owner).ok()?);
        (like && differ(a, b)).then(|| (name.clone(), owner.clone()))
    };
    model.graph.tied.iter().find_map(both)
}

impl Target {
    /// Returns the source that engines open.
    pub(crate) fn source(&self) -> engine::Source<'_> {
        engine::Source { model: Arc::clone(&self.model), dir: &self.dir }
    }

    /// True if the target is a GGUF file.
    pub(crate) fn is_gguf(&self) -> bool {
        gguf::is_gguf(&self.dir)
    }

    /// Returns the folder of tokenizer and reference.
    pub(crate) fn home(&self) -> &Path {
        if !self.is_gguf() {
            return &self.dir;
        }
        parent(&self.dir)
    }

    /// Returns every input file, and the files that belong to inputs.
    pub(crate) fn inputs(&self) -> Result<Vec<PathBuf>> {
        let mut inputs = vec![PathBuf::from(&self.spec.path)];
        if self.is_gguf() {
            inputs.extend(formats::gguf::File::open(&self.dir)?.files().iter().cloned());
            return Ok(inputs);
        }
        for entry in fs_err::read_dir(&self.dir)? {
            let entry = entry?;
            // Converted files may be in the same folder, and may be overwritten.
            if !entry.file_name().to_string_lossy().contains(".gguf") {
                inputs.push(entry.path());
            }
        }
        Ok(inputs)
    }

    /// Opens the weights on disk.
    pub(crate) fn checkpoint(&self) -> Result<Checkpoint> {
        ensure!(
            !self.is_gguf(),
            "`{}` is a GGUF file; this reads the folder of the checkpoint it was made from",
            self.dir.display()
        );
        Checkpoint::open(&self.dir).context("cannot read the weights")
    }

    /// Returns an error if the model explains only part of the checkpoint: results of half a model are
    /// useless. If `--set` is the cause, perhaps on purpose, the user is warned instead.
    pub(crate) fn explained(&self, choice: &Choice) -> Result<()> {
        if self.is_gguf() {
            // A file is opened only if every tensor is recognized.
            return Ok(());
        }
        let coverage = Coverage::of(&self.model, &self.checkpoint()?);
        if coverage.is_whole() || coverage.foreign.is_some() || choice.set.is_empty() {
            return coverage.refuse(&self.dir);
        }
        term::note(&format!(
            "warning: with --set, {} of {} tensors of `{}` are used",
            coverage.used,
            coverage.tensors,
            self.dir.display()
        ));
        Ok(())
    }

    /// Lists weights with values that are not finite, each with its place.
    pub(crate) fn nonfinite(&self) -> Result<Vec<Finding>> {
        if self.is_gguf() {
            // Blocks are checked when they are decoded.
            return Ok(Vec::new());
        }
        let checkpoint = self.checkpoint()?;
        let mut findings = Vec::new();
        for weight in &self.model.graph.weights {
            if checkpoint.info(&weight.name).is_none() {
                continue;
            }
            if let Some(bad) = checkpoint.scan_nonfinite(&weight.name)? {
                let message = format!(
                    "tensor `{}` has NaN or infinity at {}, the first of them element {}",
                    weight.name,
                    crate::text::plural(bad.count, "place"),
                    bad.first
                );
                findings.push(
                    Finding::unplaced(message)
                        .help("the file is damaged, or the model was saved after it diverged")
                        .warning(),
                );
            }
        }
        Ok(findings)
    }

    /// Returns an error if the dtype of a state differs from the dtype that ops write to it. All of `runs`
    /// are checked.
    pub(crate) fn check_dtypes(&self, runs: &[Dtype]) -> Result<()> {
        let findings: Vec<Finding> =
            runs.iter().flat_map(|&dtype| self.model.check_dtypes(dtype)).collect();
        if findings.is_empty() {
            return Ok(());
        }
        Err(tell(&findings, "the spec keeps a state in another dtype than its op needs"))
    }

    /// Returns the dtype in which the checkpoint is meant to run.
    pub(crate) fn dtype(&self) -> Dtype {
        self.config.dtype().unwrap_or(Dtype::Bf16)
    }
}

/// Parses a dtype as spelled in flags.
pub(crate) fn parse_dtype(text: &str) -> Result<Dtype, String> {
    Dtype::parse(text.trim()).ok_or_else(|| {
        format!("`{text}` is no dtype; there are {}", Dtype::ALL.map(Dtype::name).join(", "))
    })
}
