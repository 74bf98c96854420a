//! Opens a GGUF file as the target of a command.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use formats::gguf::{File, Value};
use registry::gguf::key_differences;
use registry::gguf_choice::{Chosen, Refusal};
use registry::gguf_head::of_file;
use registry::model::Model;

use crate::specs::{Config, Specs};
use crate::target::{Choice, Target};
use crate::term;

/// Key with the `config.json` that a file was made from, so that it can be opened without other files.
pub(crate) const CONFIG_KEY: &str = "onboard.config";

/// Key with the name of the spec, if the config does not determine it. A spec that is not built in has its
/// hash behind the name.
pub(crate) const SPEC_KEY: &str = "onboard.spec";
/// Key with the `--set` options of the conversion, one per line.
pub(crate) const OVERRIDES_KEY: &str = "onboard.overrides";

/// True if a path names a GGUF file.
pub(crate) fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "gguf") && path.is_file()
}

/// Opens a file as its source model: by `--model-config`, by the config inside it, or by its keys.
pub(crate) fn open(path: &Path, choice: &Choice) -> Result<Target> {
    let file = File::open(path)?;
    let mut specs = Specs::open(choice.specs.as_deref())?;
    let mut spec = choice.spec.as_deref().map(|spec| specs.named(spec)).transpose()?;
    let inside = file.metadata().str(CONFIG_KEY)?;
    let made = choice.model_config.is_none() && inside.is_none();
    let own_config = choice.model_config.is_none();
    if let (Some(said), true) = (file.metadata().str(SPEC_KEY)?, own_config && spec.is_none()) {
        // Only a name, never a path: the file may be untrusted.
        let (name, sha256) = said.split_once(' ').unwrap_or((said, ""));
        ensure!(
            specs.has(name),
            "`{}` was made with the spec `{name}`, which is not here; give it by --spec FILE, or its folder by --specs",
            path.display()
        );
        ensure!(
            sha256.is_empty() || specs.id(name).sha256 == sha256,
            "`{}` was made with another spec `{name}` than the one that is here; give it by --spec FILE",
            path.display()
        );
        spec = Some(name.to_owned());
    }
    // The settings of the conversion, then those of the user.
    let mut set: Vec<String> = match file.metadata().str(OVERRIDES_KEY)? {
        Some(lines) if own_config => lines.lines().map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    set.extend(choice.set.iter().cloned());
    if let Some(kind) = no_model(&file, made) {
        bail!("`{}` holds no model: it is {kind}", path.display());
    }
    let config = if let Some(config) = &choice.model_config {
        Config::read(&config_file(config))?
    } else if let Some(text) = inside {
        Config::of_text(&format!("{}#{CONFIG_KEY}", path.display()), text)?
    } else {
        let chosen = from_keys(&file, path, &specs, spec.as_deref())?;
        spec = Some(chosen.spec);
        Config::of_text(&path.display().to_string(), &chosen.config.json())?
    };
    let spec = match spec {
        Some(spec) => spec,
        None => specs.matching(&config)?.with_context(|| {
            format!(
                "no spec matches the architecture `{}` of `{}`; give the spec that it was made with by --spec, or \
                 its folder by --specs",
                config.architecture(),
                path.display()
            )
        })?,
    };
    let mut model = if made {
        specs.resolve_made(&spec, &config, &set)?
    } else {
        specs.resolve(&spec, &config, &set)?
    };
    let as_told = choice.set.is_empty() && choice.spec.is_none() && choice.model_config.is_none();
    if inside.is_some() && own_config {
        match held_to_keys(&file, path, &model) {
            // The user's overrides are accepted, with a warning about llama.cpp's behaviour.
            Err(error) if !as_told => term::note(&format!("warning: {error}")),
            held => held?,
        }
    }
    say_unused(&file, path, &model);
    if !has_head(&file, &model)? {
        model.nextn = None;
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Target { dir: path.to_owned(), name, model: Arc::new(model), spec: specs.id(&spec), config })
}

/// Describes a file that holds no model's weights, if it declares so. `foreign` is true if no config
/// describes its names.
fn no_model(file: &File, foreign: bool) -> Option<String> {
    Some(match file.metadata().str("general.type").ok().flatten() {
        Some("adapter") => "an adapter (LoRA): open the model it was trained on".to_owned(),
        Some("mmproj") => {
            "an encoder of images or sound (mmproj): open the file beside it".to_owned()
        }
        Some("imatrix") => "an importance matrix: give it to `convert` with --imatrix".to_owned(),
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

/// Warns about those of the keys that a file has and its model does not.
fn say_unused(file: &File, path: &Path, model: &Model) {
    let Some(gguf) = &model.gguf else { return };
    for key in CHANGING {
        let key = format!("{}.{key}", gguf.arch);
        let value = file.metadata().get(&key);
        let used = gguf.metadata.iter().any(|(known, _)| *known == key);
        let idle = matches!(value, None | Some(Value::F32(1.0)));
        if !used && !idle {
            term::note(&format!(
                "warning: `{}`: nothing uses the key `{key}`, by which llama.cpp changes rotations",
                path.display()
            ));
        }
    }
}

/// Returns an error if the keys that other programs read contradict the config inside the file.
fn held_to_keys(file: &File, path: &Path, model: &Model) -> Result<()> {
    let Some(arch) = file.metadata().str("general.architecture")? else { return Ok(()) };
    let own = || checkpoints::own_names(model).arch;
    let own = model.gguf.as_ref().map_or_else(own, |gguf| gguf.arch.clone());
    ensure!(
        arch == own,
        "`{}` holds a model of the architecture `{arch}`, and its `{CONFIG_KEY}` leads to the spec `{}`, which writes \
         `{own}`; give the spec that it was made with by --spec",
        path.display(),
        model.name
    );
    let told = formats::gguf::evidence(file, arch);
    let Some((gguf, _)) = of_file(model, &told) else { return Ok(()) };
    let faults = key_differences(&gguf, &told);
    ensure!(
        faults.is_empty(),
        "the keys of `{}` describe another model than its `{CONFIG_KEY}` by the spec `{}`\n  {}\n\
         remove `{CONFIG_KEY}` to open it by its keys, or name its config with --model-config DIR",
        path.display(),
        model.name,
        faults.join("\n  ")
    );
    Ok(())
}

/// True if a file has the `nextn` head that its config counts.
fn has_head(file: &File, model: &Model) -> Result<bool> {
    let Some(arch) = file.metadata().str("general.architecture")? else { return Ok(false) };
    let found = of_file(model, &formats::gguf::evidence(file, arch));
    Ok(found.is_some_and(|(_, weights)| weights.len() > model.graph.weights.len()))
}

/// Returns the spec and config that explain a file made by another program.
fn from_keys(file: &File, path: &Path, specs: &Specs, only: Option<&str>) -> Result<Chosen> {
    let key = "general.architecture";
    let arch = file.metadata().str(key)?.with_context(|| {
        format!("`{}` has no key `{key}`; give its config: --model-config DIR", path.display())
    })?;
    specs.choose(arch, only, &formats::gguf::evidence(file, arch)).map_err(|refusals| {
        let faults = |refusal: &Refusal| {
            let first = refusal.faults.len().min(4);
            format!("\n  {}: {}", refusal.spec, refusal.faults[..first].join("; "))
        };
        let faults: String = refusals.iter().take(2).map(faults).collect();
        let why = format!("`{}`: no spec explains a file of `{arch}`{faults}", path.display());
        anyhow::anyhow!("{why}\ngive the config of its checkpoint: --model-config DIR")
    })
}

fn config_file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("config.json") } else { path.to_owned() }
}
