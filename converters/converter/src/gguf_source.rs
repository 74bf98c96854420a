//! GGUF files as the source of a conversion: the refusal to quantize twice, and the files of a folder.

use checkpoints::Checkpoint;
use conversion::SideFile;
use formats::gguf::{GgufFile, Metadata, MetadataValue};
use models::local_model::LocalModel;
use serde_json::{Map, Value, json};
use tokenizer::TokenizerFiles;

use crate::error::{Context as _, Result, bail};
use crate::observer::ConversionObserver;

/// Refuses to quantize weights a second time, unless that was asked for.
pub(crate) fn refuse_twice(
    target: &LocalModel,
    checkpoint: &Checkpoint,
    quantizes: bool,
    allowed: bool,
) -> Result<()> {
    let types: Vec<&str> = checkpoint.block_types().into_iter().collect();
    if types.is_empty() || !quantizes || allowed {
        return Ok(());
    }
    bail!(
        "`{}` holds quantized weights ({}): quantizing them again rounds twice, so the result is further from the \
         original weights than one made of them; give the original checkpoint, or allow it with the option \
         `requantize` (the option `to hf:f32` and the option `to gguf:f32` decode without rounding)",
        target.dir.display(),
        types.join(", ")
    );
}

/// Returns the keys of the tokenizer and the texts about the model that a file has beside those of its model, so
/// that a file made of it has them too.
pub(crate) fn carried_keys(
    observer: &dyn ConversionObserver,
    target: &LocalModel,
) -> Result<Metadata> {
    let file = GgufFile::open(&target.dir)?;
    let mut keys = Metadata::new();
    for (key, value) in file.metadata().iter() {
        let about = key.strip_prefix("general.").is_some_and(|name| !OF_FILE.contains(&name));
        if about || key.starts_with("tokenizer.") {
            keys.set(key, value.clone());
        }
    }
    if keys.get("tokenizer.ggml.model").is_none() {
        observer.note("warning: the file has no tokenizer, so the new one has none either");
    }
    Ok(keys)
}

/// Keys below `general.` that a conversion writes itself.
const OF_FILE: [&str; 7] = [
    "architecture",
    "type",
    "name",
    "quantization_version",
    "file_type",
    "alignment",
    "quantized_by",
];

/// Returns the name of the model in a file; the name of the file if it has none.
pub(crate) fn name(target: &LocalModel) -> Result<String> {
    let file = GgufFile::open(&target.dir)?;
    let name = file.metadata().str("general.name")?.filter(|name| !name.is_empty());
    Ok(name.map_or_else(|| target.name.clone(), str::to_owned))
}

/// Returns the files of a folder that a GGUF file has as keys: tokenizer and generation settings.
pub(crate) fn side_files(
    observer: &dyn ConversionObserver,
    target: &LocalModel,
    folder: &std::path::Path,
) -> Result<Vec<SideFile>> {
    let file = GgufFile::open(&target.dir)?;
    let mut files = Vec::new();
    match tokenizer::restore(file.metadata()) {
        Ok(TokenizerFiles { tokenizer, config, ends }) => {
            files.push(json_file(folder.join("tokenizer.json"), tokenizer));
            files.push(json_file(folder.join("tokenizer_config.json"), config));
            let generation = generation(file.metadata(), &ends)?;
            files.push(json_file(folder.join("generation_config.json"), generation));
        }
        Err(why) => observer.note(&format!("warning: the folder gets no tokenizer: {why}")),
    }
    Ok(files)
}

/// Returns a file of JSON with sorted keys.
fn json_file(path: std::path::PathBuf, mut json: Value) -> SideFile {
    json.sort_all_objects();
    SideFile { path, bytes: format!("{json:#}\n").into_bytes() }
}

/// Returns `generation_config.json`: special tokens, and the settings of sampling that the file recommends.
fn generation(keys: &Metadata, ends: &[u32]) -> Result<Value> {
    let mut map = Map::new();
    for (name, key) in [
        ("bos_token_id", "tokenizer.ggml.bos_token_id"),
        ("pad_token_id", "tokenizer.ggml.padding_token_id"),
    ] {
        if let Some(id) = keys.u32(key)? {
            map.insert(name.to_owned(), id.into());
        }
    }
    match ends {
        [] => {}
        [one] => drop(map.insert("eos_token_id".to_owned(), (*one).into())),
        several => drop(map.insert("eos_token_id".to_owned(), several.into())),
    }
    for (name, key) in models::gguf::SAMPLING_KEYS {
        let value = match keys.get(key) {
            Some(MetadataValue::F32(x)) => json!(short(*x)),
            Some(value) => value.integer().map_or(Value::Null, |n| json!(n as i64)),
            None => Value::Null,
        };
        if !value.is_null() {
            map.insert(name.to_owned(), value);
        }
    }
    if map.contains_key("temperature") {
        map.insert("do_sample".to_owned(), true.into());
    }
    Ok(Value::Object(map))
}

/// Returns the shortest decimal number that reads as an f32.
fn short(x: f32) -> f64 {
    x.to_string().parse().unwrap_or_else(|_| x.into())
}

/// Returns the config of a folder made of a file: that of the model, with what transformers needs besides.
pub(crate) fn config(target: &LocalModel) -> Result<Value> {
    let mut json = target.config.value()?;
    let map = json.as_object_mut().context("the config is no object")?;
    let file = GgufFile::open(&target.dir)?;
    if file.metadata().get(models::gguf::CONFIG_KEY).is_some() {
        return Ok(json);
    }
    drop_nulls(map);
    let model = &target.model;
    map.entry("model_type").or_insert(model.name.clone().into());
    map.entry("vocab_size").or_insert(model.input_vocab.into());
    map.entry("tie_word_embeddings").or_insert((!model.graph.tied.is_empty()).into());
    for (name, key) in [
        ("bos_token_id", "tokenizer.ggml.bos_token_id"),
        ("eos_token_id", "tokenizer.ggml.eos_token_id"),
        ("pad_token_id", "tokenizer.ggml.padding_token_id"),
    ] {
        if let Some(id) = file.metadata().u32(key)? {
            map.entry(name).or_insert(id.into());
        }
    }
    Ok(json)
}

/// Removes keys without a value at every depth: they are absent here, and values to transformers.
fn drop_nulls(map: &mut Map<String, Value>) {
    map.retain(|_, value| !value.is_null());
    map.values_mut().filter_map(Value::as_object_mut).for_each(drop_nulls);
}

/// Notes that encoders beside the text model are not in a file.
pub(crate) fn note_encoders(observer: &dyn ConversionObserver, target: &LocalModel) {
    if target.model.wrapped.is_some() {
        observer.note(&format!(
            "warning: `{}` is the text model of a `{}`, whose encoders are not in the file: loaders of the whole class \
             miss them",
            target.dir.display(),
            target.config.architecture(),
        ));
    }
}
