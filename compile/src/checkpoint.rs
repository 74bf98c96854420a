//! Facts of a checkpoint's config that a written file needs besides its spec.

use std::collections::BTreeSet;

use registry::config::Config;
use registry::scalar::Scalar;

/// Texts of the config of a checkpoint; empty for a family of which there is no checkpoint.
#[derive(Debug, Clone, Default)]
pub struct ConfigTexts {
    /// All texts: schemes and activations by name are among them.
    pub words: BTreeSet<String>,
    /// The class of the checkpoint, `architectures[0]`.
    pub architecture: Option<String>,
    /// The value of `model_type`, by which engines find the class of a config.
    pub model_type: Option<String>,
}

impl ConfigTexts {
    /// Reads the texts of a config.
    pub fn from_config(config: &Config) -> Self {
        let mut words = BTreeSet::new();
        collect(config.root(), &mut words);
        // That of the whole checkpoint: a config inside it has one of its own.
        let model_type = match config.root() {
            Scalar::Map(entries) => entries.iter().find_map(|(key, value)| match value {
                Scalar::Str(text) if key == "model_type" => Some(text.clone()),
                _ => None,
            }),
            _ => None,
        };
        Self { words, architecture: config.architecture().map(str::to_owned), model_type }
    }
}

/// Collects the texts of a value.
fn collect(value: &Scalar, words: &mut BTreeSet<String>) {
    match value {
        Scalar::Str(text) => {
            words.insert(text.clone());
        }
        Scalar::List(items) => items.iter().for_each(|item| collect(item, words)),
        Scalar::Map(entries) => {
            for (key, entry) in entries {
                words.insert(key.clone());
                collect(entry, words);
            }
        }
        _ => {}
    }
}
