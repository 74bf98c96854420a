//! Local places of models: folders, safetensors files and GGUF files.

use std::path::{Path, PathBuf};

use crate::error::Error;

/// Folder of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointFolder {
    /// Path of the folder.
    pub dir: PathBuf,
    /// Last part of the folder's full path, as the name of the model.
    pub name: String,
}

/// True if a path names a GGUF file.
pub fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "gguf") && path.is_file()
}

/// Returns the folder of a checkpoint, given by its path or by one of its safetensors files. Returns nothing
/// if the path does not exist and may be the id of a model on a hub.
pub fn folder(path: &Path) -> Result<Option<CheckpointFolder>, Error> {
    if path.is_dir() {
        let full = fs_err::canonicalize(path)?;
        let name = full
            .file_name()
            .map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned());
        return Ok(Some(CheckpointFolder { dir: path.to_owned(), name }));
    }
    let end = path.extension();
    if path.is_file() {
        if end.is_none_or(|end| end != "safetensors") {
            return Err(Error::FileKind { path: path.to_owned() });
        }
        return folder(home_of(path)?);
    }
    if end.is_some_and(|end| end == "gguf" || end == "safetensors") {
        return Err(Error::NoFile { path: path.to_owned() });
    }
    Ok(None)
}

/// Returns the folder of a safetensors file, if the file is its checkpoint or a part that an index names.
fn home_of(file: &Path) -> Result<&Path, Error> {
    let folder = parent(file);
    if !folder.join("config.json").is_file() {
        return Err(Error::NoConfigBeside { path: file.to_owned() });
    }
    let single = file.file_name().is_some_and(|name| name == "model.safetensors");
    if !single && !folder.join("model.safetensors.index.json").is_file() {
        return Err(Error::NotIndexed { path: file.to_owned() });
    }
    Ok(folder)
}

/// Returns the folder of a file; `.` for a bare name.
pub(crate) fn parent(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Describes a folder without a config, if one of its files identifies it.
pub(crate) fn no_checkpoint(dir: &Path) -> Option<String> {
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
    if entries(dir)?.any(|entry| entry.file_name().to_string_lossy().ends_with(".part.journal")) {
        return Some(
            "an unfinished conversion: run the same `convert` command again with the option `resume`"
                .to_owned(),
        );
    }
    let file = entries(dir)?.map(|entry| entry.path()).find(|path| is_gguf(path))?;
    Some(format!("GGUF files: open one of them, as `{}`", file.display()))
}

/// Returns the entries of a folder, without those that cannot be read.
fn entries(dir: &Path) -> Option<impl Iterator<Item = fs_err::DirEntry>> {
    Some(fs_err::read_dir(dir).ok()?.filter_map(Result::ok))
}
