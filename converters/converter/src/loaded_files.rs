//! Files of a checkpoint folder that loaders read by their names.

use std::path::{Path, PathBuf};

use crate::error::Result;

/// Folder of the named chat templates.
pub(crate) const TEMPLATES: &str = "additional_chat_templates";

pub(crate) fn is_template(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|end| end == "jinja")
}

/// Returns the paths in a folder, in order.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs_err::read_dir(folder)? {
        paths.push(entry?.path());
    }
    paths.sort();
    Ok(paths)
}

/// Returns the chat templates of a folder that have names.
pub(crate) fn templates(folder: &Path) -> Result<Vec<PathBuf>> {
    let templates = folder.join(TEMPLATES);
    if !templates.is_dir() {
        return Ok(Vec::new());
    }
    let paths = entries(&templates)?.into_iter();
    Ok(paths.filter(|path| is_template(&path.to_string_lossy())).collect())
}

/// Lists the files of a folder that loaders of checkpoints read: weights, and optional files with known names.
pub(crate) fn loaded_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = entries(folder)?;
    paths.retain(|path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        is_shard(&name) || is_foreign(&name) || is_side_file(&name)
    });
    paths.extend(templates(folder)?);
    Ok(paths)
}

/// True for names of weights that this program never writes. They belong to the user, and loaders that read
/// every such file would mix them with the new ones.
pub(crate) fn is_foreign(name: &str) -> bool {
    let begins = ["pytorch_model", "consolidated"].iter().any(|begin| name.starts_with(begin));
    let pickled = [".bin", ".pth", ".pt"].iter().any(|end| name.ends_with(end));
    (begins && pickled) || (name.ends_with(".safetensors") && !is_shard(name))
}

/// True for the names of checkpoint shards.
pub(crate) fn is_shard(name: &str) -> bool {
    let inner = name.strip_prefix("model").and_then(|suffix| suffix.strip_suffix(".safetensors"));
    inner.is_some_and(|inner| inner.chars().all(|c| c.is_ascii_digit() || "-of".contains(c)))
}

/// Optional files that transformers and serving engines read beside weights.
const SIDE_FILES: [&str; 24] = [
    "adapter_config.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "hf_quant_config.json",
    "image_processor_config.json",
    "merges.txt",
    "preprocessor_config.json",
    "processor_config.json",
    "quant_config.json",
    "quantize_config.json",
    "special_tokens_map.json",
    "spiece.model",
    "tekken.json",
    "tiktoken.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "video_preprocessor_config.json",
    "vocab.json",
    "vocab.txt",
    "params.json",
    "sentencepiece.bpe.model",
];

/// True for the names of optional files beside weights, and of indices of weights.
pub(crate) fn is_side_file(name: &str) -> bool {
    SIDE_FILES.contains(&name)
        || name.starts_with("tokenizer.model.v")
        || name.ends_with(".index.json")
}
