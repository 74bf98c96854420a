//! Opens a place as a model: chooses the spec, resolves it, and corrects declared ties by the weights.

use std::path::Path;
use std::sync::Arc;

use checkpoints::Checkpoint;
use checkpoints::weights::flows;
use registry::model::Model;

use crate::config::ConfigFile;
use crate::error::Error;
use crate::folder::{CheckpointFolder, folder, is_gguf};
use crate::gguf;
use crate::local_model::LocalModel;
pub use crate::opened::{OpenOptions, OpenRemark, OpenedModel};
use crate::specs::Specs;

/// Opens a folder, a safetensors file or a GGUF file with the chosen spec, or with the one that matches its
/// architecture.
pub fn open(path: &Path, specs: &mut Specs, options: &OpenOptions) -> Result<OpenedModel, Error> {
    if is_gguf(path) {
        return gguf::open(path, specs, options);
    }
    let Some(checkpoint) = folder(path)? else {
        return Err(Error::NoFolder { path: path.to_owned() });
    };
    let config = ConfigFile::of_folder(&checkpoint.dir)?;
    let spec = match &options.spec {
        Some(spec) => specs.named(spec)?,
        None if options.encoder => specs.encoder_of(&config)?.ok_or_else(|| Error::NoEncoder {
            architecture: config.architecture(),
            place: checkpoint.dir.clone(),
        })?,
        None => specs.matching(&config)?.ok_or_else(|| Error::NoSpec {
            architecture: config.architecture(),
            inner: config.inner().map(str::to_owned),
            place: checkpoint.dir.clone(),
        })?,
    };
    resolve(&checkpoint, config, specs, &spec, &options.set)
}

/// Resolves a spec with the config of a folder, and corrects the tie of the output matrix by the weights.
pub fn resolve(
    folder: &CheckpointFolder,
    mut config: ConfigFile,
    specs: &Specs,
    spec: &str,
    set: &[String],
) -> Result<OpenedModel, Error> {
    let CheckpointFolder { dir, name } = folder.clone();
    let (mut model, mut warnings) = specs.resolve(spec, &config, set)?;
    let mut remarks = Vec::new();
    let tied = config.flag("tie_word_embeddings") != Some(false);
    if let Some((weight, owner)) = untied_weight(&model, &dir).filter(|_| tied) {
        remarks.push(OpenRemark::Untied { weight, owner });
        // Files written from this config must not be tied.
        config = config.with_flag("tie_word_embeddings", false)?;
        let set: Vec<String> = set.iter().cloned().chain(["dims.tied=false".to_owned()]).collect();
        (model, warnings) = specs.resolve(spec, &config, &set)?;
    }
    // The outer config may declare an output matrix, and the inner one none.
    if !tied && config.ties_inside() && !has_all_weights(&model, &dir) {
        config = config.with_flag("tie_word_embeddings", true)?;
        (model, warnings) = specs.resolve(spec, &config, set)?;
    }
    let target = LocalModel { dir, name, model: Arc::new(model), spec: specs.id(spec), config };
    Ok(OpenedModel { target, warnings, remarks })
}

/// True if the checkpoint contains every weight of the model.
fn has_all_weights(model: &Model, dir: &Path) -> bool {
    // Unreadable data is reported by the code that needs it.
    let Ok(checkpoint) = Checkpoint::open(dir) else { return true };
    flows(&checkpoint, &model.graph.weights, &model.rules).is_ok()
}

/// Finds a weight that the config ties to another and that the checkpoint stores with different values. The
/// reference then does not tie it. Large weights are compared in samples.
fn untied_weight(model: &Model, dir: &Path) -> Option<(String, String)> {
    if !model.dims.contains_key("tied") || model.graph.tied.is_empty() {
        return None;
    }
    // Unreadable data is reported by the code that needs it.
    let checkpoint = Checkpoint::open(dir).ok()?;
    let mut ties = model.graph.tied.iter();
    ties.find_map(|(name, owner)| differing_pair(model, &checkpoint, name, owner))
}

/// Returns a weight and its owner if the checkpoint stores both, with different values.
fn differing_pair(
    model: &Model,
    checkpoint: &Checkpoint,
    name: &str,
    owner: &str,
) -> Option<(String, String)> {
    // Both weights may have other names on disk.
    let owner_tensor = &source_tensor(model, checkpoint, owner)?;
    let elsewhere = model.rules.iter().filter_map(|rule| rule.on_disk(name));
    let mut names = std::iter::once(name.to_owned()).chain(elsewhere);
    let tensor = &names.find(|name| checkpoint.info(name).is_some())?;
    let a = checkpoint.info(tensor)?;
    let b = checkpoint.info(owner_tensor)?;
    let like = a.dtype == b.dtype && a.shape == b.shape;
    let a = checkpoint.bytes(tensor).ok()?;
    let b = checkpoint.bytes(owner_tensor).ok()?;
    (like && differ(a, b)).then(|| (name.to_owned(), owner_tensor.clone()))
}

/// Returns the first tensor that a weight is read from.
fn source_tensor(model: &Model, checkpoint: &Checkpoint, name: &str) -> Option<String> {
    let weight = model.graph.weights.iter().find(|weight| weight.name == *name)?;
    let flows = flows(checkpoint, std::slice::from_ref(weight), &model.rules).ok()?.0;
    flows.into_iter().next()?.tensors.into_iter().next()
}

/// True if two tensors of equal length differ in a sample of their bytes.
fn differ(a: &[u8], b: &[u8]) -> bool {
    const PARTS: usize = 64;
    const PART: usize = 4096;
    let step = (a.len() / PARTS).max(PART);
    a.len() == b.len()
        && (0..a.len()).step_by(step).any(|from| {
            let part = from..(from + PART).min(a.len());
            a[part.clone()] != b[part]
        })
}
