//! Config of a checkpoint: its keys, and the file that a converted copy gets.

use std::path::Path;

use formats::python_json::{texts_as_words, words_as_texts};
use registry::config::INNER;
use registry::dtype::Dtype;
use registry::model::Model;
use registry::scalar::Scalar;
use sha2::{Digest as _, Sha256};

use crate::error::{Error, FindingSubject};
use crate::folder::no_checkpoint;

/// Parsed `config.json`.
#[derive(Debug, Clone)]
pub struct ConfigFile {
    parsed: registry::config::Config,
    bytes: Vec<u8>,
    /// SHA-256 of the original file, before any changes.
    sha256: String,
}

/// Returns the number of a key if it is above 0.
fn positive_number(json: &serde_json::Value, key: &str) -> Option<usize> {
    let number = json.get(key).and_then(serde_json::Value::as_u64);
    number.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0)
}

impl ConfigFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let parsed = registry::config::Config::read(path)
            .map_err(|finding| FindingSubject::Config.of(vec![finding]))?;
        let bytes = registry::file::read(path, registry::file::CONFIG)?;
        Ok(Self { parsed, sha256: sha256(&bytes), bytes })
    }

    /// Reads the `config.json` of a checkpoint's folder. The error for a folder of another kind names the kind.
    pub fn of_folder(folder: &Path) -> Result<Self, Error> {
        if let Some(contents) = no_checkpoint(folder) {
            return Err(Error::NoCheckpoint { folder: folder.to_owned(), contents });
        }
        Self::read(&folder.join("config.json"))
    }

    /// Parses a text that came from `place`.
    pub fn of_text(place: &str, text: &str) -> Result<Self, Error> {
        let parsed = registry::config::Config::parse(place, text)
            .map_err(|finding| FindingSubject::Config.of(vec![finding]))?;
        let bytes = text.as_bytes().to_vec();
        Ok(Self { parsed, sha256: sha256(&bytes), bytes })
    }

    /// Returns the keys and values.
    pub fn parsed(&self) -> &registry::config::Config {
        &self.parsed
    }

    /// Returns `architectures[0]`, or a placeholder if it is absent.
    pub fn architecture(&self) -> String {
        self.parsed.architecture().unwrap_or("(none)").to_owned()
    }

    /// Returns a string of the config.
    pub fn text(&self, key: &str) -> Option<String> {
        match self.parsed.peek(key) {
            Some(Scalar::Str(text)) => Some(text.clone()),
            _ => None,
        }
    }

    /// Returns the first of several keys that is a count.
    pub fn count(&self, keys: &[&str]) -> Option<usize> {
        keys.iter().find_map(|key| self.parsed.peek(key)?.as_usize())
    }

    /// Returns the type of the inner text model, if the config is of a multimodal model.
    pub fn inner(&self) -> Option<&str> {
        self.parsed.inner_kind()
    }

    /// Returns a boolean of the config.
    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.parsed.peek(key) {
            Some(Scalar::Bool(flag)) => Some(*flag),
            _ => None,
        }
    }

    /// Returns the dtype in which the weights are meant to run.
    pub fn dtype(&self) -> Option<Dtype> {
        let word = self.text("dtype").or_else(|| self.text("torch_dtype"))?;
        Dtype::parse(word.strip_prefix("torch.").unwrap_or(&word))
    }

    /// Returns the file as compact JSON.
    pub fn json(&self) -> Result<String, Error> {
        Ok(texts_as_words(self.value()?.to_string()))
    }

    /// Returns the file as a value; numbers that JSON cannot express are marked strings.
    pub fn value(&self) -> Result<serde_json::Value, Error> {
        serde_json::from_slice(&words_as_texts(&self.bytes)).map_err(Error::ConfigNotJson)
    }

    /// True if the inner text model's config ties the output matrix to the embedding.
    pub fn ties_inside(&self) -> bool {
        self.parsed.inner_flag("tie_word_embeddings") == Some(true)
    }

    /// Returns a copy with a boolean set, overriding the file.
    pub fn with_flag(&self, key: &str, value: bool) -> Result<Self, Error> {
        let mut json = self.value()?;
        let places = INNER.map(|place| format!("/{}", place.replace('.', "/")));
        let inner = places
            .iter()
            .find(|place| json.pointer(place).is_some_and(serde_json::Value::is_object));
        if let Some(inner) = inner.and_then(|place| json.pointer_mut(place)) {
            inner[key] = value.into();
        }
        json[key] = value.into();
        let changed = Self::of_text(self.parsed.path(), &texts_as_words(json.to_string()))?;
        Ok(Self { sha256: self.sha256.clone(), ..changed })
    }

    /// Returns the SHA-256 of the file.
    pub fn sha256(&self) -> String {
        self.sha256.clone()
    }

    /// Returns a model without weights and states, for an engine that builds its own graph. `vocab` takes
    /// precedence over the config's `vocab_size`; without either there is no model.
    pub fn opaque(&self, vocab: Option<usize>) -> Result<Option<Model>, Error> {
        let value = self.value()?;
        let context = positive_number(&value, "max_position_embeddings");
        let vocab = vocab.or_else(|| positive_number(&value, "vocab_size"));
        Ok(vocab
            .map(|vocab| Model::opaque(self.architecture(), self.architecture(), vocab, context)))
    }

    /// Returns the file with `dtype` as the declared dtype of the weights.
    pub fn with_dtype(&self, dtype: Dtype) -> Result<Vec<u8>, Error> {
        if self.dtype() == Some(dtype) {
            return Ok(self.bytes.clone());
        }
        let mut json = self.value()?;
        let key = if json.get("torch_dtype").is_some() { "torch_dtype" } else { "dtype" };
        json[key] = long_name(dtype).into();
        Ok(texts_as_words(format!("{json:#}\n")).into_bytes())
    }
}

/// Returns the name of a dtype in configs.
pub fn long_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "float32",
        Dtype::Bf16 => "bfloat16",
        Dtype::F16 => "float16",
    }
}

fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}
