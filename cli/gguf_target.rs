//! A GGUF file as what a command works on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use converters::gguf::File;

use crate::specs::{Config, Specs};
use crate::target::{Choice, Target};

/// The key that holds the `config.json` a file was made from, so that it can be opened alone.
pub(crate) const CONFIG_KEY: &str = "onboard.config";

/// Whether a word names a GGUF file.
pub(crate) fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "gguf") && path.is_file()
}

/// Opens a file as the model that it was made from: by `--model-config`, or by the config inside it.
pub(crate) fn open(path: &Path, choice: &Choice) -> Result<Target> {
    let file = File::open(path)?;
    let config = match &choice.model_config {
        Some(config) => Config::read(&config_file(config))?,
        None => match file.metadata().str(CONFIG_KEY)? {
            Some(text) => Config::of_text(&format!("{}#{CONFIG_KEY}", path.display()), text)?,
            None => bail!(
                "`{}` does not carry the config it was made from (key `{CONFIG_KEY}`); \
                 give the one of its checkpoint: --model-config DIR",
                path.display()
            ),
        },
    };
    let mut specs = Specs::open(choice.specs.as_deref())?;
    let spec = match &choice.spec {
        Some(file) => specs.add(file)?,
        None => specs.matching(&config)?.with_context(|| {
            format!(
                "no spec matches the architecture `{}` of `{}`",
                config.architecture(),
                path.display()
            )
        })?,
    };
    let model = specs.resolve(&spec, &config, &choice.set)?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Target { dir: path.to_owned(), name, model: Arc::new(model), spec: specs.id(&spec), config })
}

fn config_file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("config.json") } else { path.to_owned() }
}
