//! Opens a GGUF file by the config inside it, by a given config, or by its keys.
//!
//! A file whose config and keys disagree is refused ([decision 23](../../docs/decisions/0023-config-and-keys-agree.md)).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use formats::gguf::{GgufFile, MetadataValue};
use registry::gguf::key_differences;
use registry::gguf_head::of_file;
use registry::gguf_match::{SpecMatch, SpecMismatch as Unexplained};
use registry::model::Model;

use crate::config::ConfigFile;
use crate::error::Error;
use crate::local_model::LocalModel;
use crate::opened::{OpenOptions, OpenRemark, OpenedModel};
use crate::specs::Specs;

/// Key with the `config.json` that a file was made from, so that it can be opened without other files.
pub const CONFIG_KEY: &str = "onboard.config";

/// Sampling settings by their names in `generation_config.json`, and the keys of GGUF files for them.
pub const SAMPLING_KEYS: [(&str, &str); 5] = [
    ("temperature", "general.sampling.temp"),
    ("top_k", "general.sampling.top_k"),
    ("top_p", "general.sampling.top_p"),
    ("min_p", "general.sampling.min_p"),
    ("repetition_penalty", "general.sampling.penalty_repeat"),
];

/// Key with the name of the spec, if the config does not determine it. A spec that is not built in has its
/// hash behind the name.
pub const SPEC_KEY: &str = "onboard.spec";
/// Key with the overrides of the conversion, one per line.
pub const OVERRIDES_KEY: &str = "onboard.overrides";

/// Opens a file as its source model: by a given config, by the config inside it, or by its keys.
pub(crate) fn open(
    path: &Path,
    specs: &mut Specs,
    options: &OpenOptions,
) -> Result<OpenedModel, Error> {
    let file = GgufFile::open(path)?;
    let mut spec = options.spec.as_deref().map(|spec| specs.named(spec)).transpose()?;
    let inside = file.metadata().str(CONFIG_KEY)?;
    let is_generated = options.model_config.is_none() && inside.is_none();
    let own_config = options.model_config.is_none();
    if let (Some(stated), true) = (file.metadata().str(SPEC_KEY)?, own_config && spec.is_none()) {
        // Only a name, never a path: the file may be untrusted.
        let (name, sha256) = stated.split_once(' ').unwrap_or((stated, ""));
        let path = path.to_owned();
        let name = name.to_owned();
        if !specs.has(&name) {
            return Err(Error::SpecMissing { path, spec: name });
        }
        if !sha256.is_empty() && specs.id(&name).sha256 != sha256 {
            return Err(Error::SpecDiffers { path, spec: name });
        }
        spec = Some(name);
    }
    // The settings of the conversion, then those of the user.
    let mut set: Vec<String> = match file.metadata().str(OVERRIDES_KEY)? {
        Some(lines) if own_config => lines.lines().map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    set.extend(options.set.iter().cloned());
    if let Some(contents) = no_model(&file, is_generated) {
        return Err(Error::NoModel { path: path.to_owned(), contents });
    }
    let config = if let Some(config) = &options.model_config {
        ConfigFile::read(&config_file(config))?
    } else if let Some(text) = inside {
        ConfigFile::of_text(&format!("{}#{CONFIG_KEY}", path.display()), text)?
    } else {
        let chosen = from_keys(&file, path, specs, spec.as_deref())?;
        spec = Some(chosen.spec);
        ConfigFile::of_text(&path.display().to_string(), &chosen.config.json())?
    };
    let spec = match spec {
        Some(spec) => spec,
        None => specs.matching(&config)?.ok_or_else(|| Error::NoSpecOfFile {
            path: path.to_owned(),
            architecture: config.architecture(),
        })?,
    };
    let (mut model, mut warnings) = specs.resolve(&spec, &config, &set)?;
    if is_generated {
        // A generated config has every key of the file, so unused keys are no mistakes.
        warnings.clear();
    }
    let mut remarks = Vec::new();
    let as_told =
        options.set.is_empty() && options.spec.is_none() && options.model_config.is_none();
    if inside.is_some() && own_config {
        match check_keys(&file, path, &model) {
            // The user's overrides are accepted, with a warning about llama.cpp's behaviour.
            Err(error) if !as_told => remarks.push(OpenRemark::Contradicted(error)),
            held => held?,
        }
    }
    remarks.extend(unused(&file, path, &model));
    if !has_head(&file, &model)? {
        model.nextn = None;
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let dir = path.to_owned();
    let spec = specs.id(&spec);
    let target = LocalModel { dir, name, model: Arc::new(model), spec, config };
    Ok(OpenedModel { target, warnings, remarks })
}

/// Describes a file that holds no model's weights, if it declares so. `foreign` is true if no config
/// describes its names.
fn no_model(file: &GgufFile, foreign: bool) -> Option<String> {
    Some(match file.metadata().str("general.type").ok().flatten() {
        Some("adapter") => "an adapter (LoRA): open the model it was trained on".to_owned(),
        Some("mmproj") => {
            "an encoder of images or sound (mmproj): open the file beside it".to_owned()
        }
        Some("imatrix") => "an importance matrix: give it to `convert` with the option `imatrix`".to_owned(),
        Some(other) if other != "model" => format!("of type `{other}`"),
        _ if file.tensors().is_empty() => "a vocabulary without weights".to_owned(),
        // Every model of another program has its token embedding under this name.
        _ if foreign && file.info("token_embd.weight").is_none() => {
            "a part of one (an encoder, a draft head, a control vector), without `token_embd.weight`"
                .to_owned()
        }
        _ => return None,
    })
}

/// Keys that change the results of other programs, but are not read for the model.
const CHANGING: [&str; 3] =
    ["rope.scaling.factor", "rope.scaling.attn_factor", "rope.scale_linear"];

/// Lists those of the keys that a file has and its model does not.
fn unused(file: &GgufFile, path: &Path, model: &Model) -> Vec<OpenRemark> {
    let Some(gguf) = &model.gguf else { return Vec::new() };
    let keys = CHANGING.map(|key| format!("{}.{key}", gguf.arch));
    keys.into_iter()
        .filter(|key: &String| {
            let used = gguf.metadata.iter().any(|(known, _)| known == key);
            !used && !matches!(file.metadata().get(key), None | Some(MetadataValue::F32(1.0)))
        })
        .map(|key| OpenRemark::UnusedKey { path: path.to_owned(), key })
        .collect()
}

/// Returns an error if the keys that other programs read contradict the config inside the file.
fn check_keys(file: &GgufFile, path: &Path, model: &Model) -> Result<(), Error> {
    let Some(arch) = file.metadata().str("general.architecture")? else { return Ok(()) };
    let expected = model
        .gguf
        .as_ref()
        .map_or_else(|| checkpoints::own_names(model).arch, |gguf| gguf.arch.clone());
    let path = path.to_owned();
    let key = CONFIG_KEY;
    let spec = model.name.clone();
    if arch != expected {
        return Err(Error::Architecture { path, found: arch.to_owned(), expected, key, spec });
    }
    let header = formats::gguf::evidence(file, arch);
    let Some((gguf, _)) = of_file(model, &header) else { return Ok(()) };
    let differences = key_differences(&gguf, &header);
    if differences.is_empty() { Ok(()) } else { Err(Error::Keys { path, key, spec, differences }) }
}

/// True if a file has the `nextn` head that its config counts.
fn has_head(file: &GgufFile, model: &Model) -> Result<bool, Error> {
    let Some(arch) = file.metadata().str("general.architecture")? else { return Ok(false) };
    let gguf_match = of_file(model, &formats::gguf::evidence(file, arch));
    Ok(gguf_match.is_some_and(|(_, weights)| weights.len() > model.graph.weights.len()))
}

/// Returns the spec and config that explain a file made by another program.
fn from_keys(
    file: &GgufFile,
    path: &Path,
    specs: &Specs,
    only: Option<&str>,
) -> Result<SpecMatch, Error> {
    let key = "general.architecture";
    let arch = file.metadata().str(key)?;
    let arch = arch.ok_or_else(|| Error::NoKey { path: path.to_owned(), key })?;
    specs.choose(arch, only, &formats::gguf::evidence(file, arch)).map_err(|refusals| {
        Error::NotExplained {
            path: path.to_owned(),
            architecture: arch.to_owned(),
            faults: refusals.iter().take(2).map(first_faults).collect::<Vec<_>>().concat(),
        }
    })
}

/// Returns a line with the first faults of a spec that does not explain a file.
fn first_faults(refusal: &Unexplained) -> String {
    let first = refusal.faults.len().min(4);
    format!("\n  {}: {}", refusal.spec, refusal.faults[..first].join("; "))
}

fn config_file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("config.json") } else { path.to_owned() }
}
