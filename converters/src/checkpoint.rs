//! A checkpoint: the weights of a model, in one file or in shards with an index.

mod error;
mod fingerprint;
mod index;
mod nonfinite;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use error::Error;
pub use nonfinite::NonFinite;

use crate::safetensors::{File, FileDtype};
use crate::shown;

/// The name of an unsharded checkpoint.
pub const SINGLE: &str = "model.safetensors";
/// The name of a sharded checkpoint's index.
pub const INDEX: &str = "model.safetensors.index.json";

/// One tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// What its numbers are kept in.
    pub dtype: FileDtype,
    /// Its shape, row-major.
    pub shape: Vec<usize>,
    /// Its file: an index into [`Checkpoint::files`].
    pub file: usize,
    /// Its bytes in that file, `begin..end`.
    pub range: (u64, u64),
}

impl TensorInfo {
    /// How many numbers it has.
    pub fn elements(&self) -> usize {
        // Cannot overflow: the header's reader has counted the bytes.
        self.shape.iter().product()
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        self.range.1 - self.range.0
    }
}

/// An open checkpoint: headers read and checked, bytes mapped when first asked for.
#[derive(Debug)]
pub struct Checkpoint {
    root: PathBuf,
    paths: Vec<PathBuf>,
    files: Vec<File>,
    tensors: BTreeMap<String, TensorInfo>,
}

impl Checkpoint {
    /// Opens a folder with `model.safetensors` or `model.safetensors.index.json` (the first wins, as
    /// it does where such folders come from), or a single safetensors file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if !fs_err::metadata(path)?.is_dir() {
            return Self::single(path, path);
        }
        let (single, index) = (path.join(SINGLE), path.join(INDEX));
        if single.try_exists()? {
            Self::single(path, &single)
        } else if index.try_exists()? {
            Self::sharded(path, &index)
        } else {
            Err(Error::NoWeights { folder: path.into(), found: candidates(path) })
        }
    }

    /// Every tensor by name.
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// One tensor, without its bytes.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// A tensor's bytes, straight from the map.
    pub fn bytes(&self, name: &str) -> Result<&[u8], Error> {
        let info = self.tensors.get(name).ok_or_else(|| Error::NoTensor {
            root: self.root.clone(),
            tensor: shown(name),
            have: self.tensors.len(),
        })?;
        self.slice(info.file, info.range)
    }

    /// Bytes of a file that lie in one of its tensors.
    pub(crate) fn slice(&self, file: usize, range: (u64, u64)) -> Result<&[u8], Error> {
        Ok(self.files[file].slice(range)?)
    }

    /// The files, in the order of their names.
    pub fn files(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The folder or file that was opened.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Bytes of all tensors.
    pub fn total_bytes(&self) -> u64 {
        // Sums of ranges that lie in files cannot overflow.
        self.tensors.values().map(TensorInfo::bytes).sum()
    }

    /// A SHA-256 over names, dtypes, shapes and (samples of) bytes: `weights_sha256` of a dump.
    pub fn fingerprint(&self) -> Result<String, Error> {
        fingerprint::fingerprint(self)
    }

    /// Where a tensor has NaN or infinite numbers; `None` if every number is finite.
    pub fn scan_nonfinite(&self, name: &str) -> Result<Option<NonFinite>, Error> {
        let bytes = self.bytes(name)?;
        // Present: `bytes` would have failed.
        Ok(self.info(name).and_then(|info| nonfinite::scan(info.dtype, &info.shape, bytes)))
    }

    fn single(root: &Path, path: &Path) -> Result<Self, Error> {
        let mut checkpoint = Self::empty(root);
        checkpoint.add(path)?;
        Ok(checkpoint)
    }

    fn sharded(folder: &Path, path: &Path) -> Result<Self, Error> {
        let index = index::read(folder, path)?;
        let mut checkpoint = Self::empty(folder);
        for shard in index.shards.values() {
            checkpoint.add(shard)?;
        }
        for (tensor, shard) in &index.weight_map {
            let expected = &index.shards[shard];
            let actual = checkpoint.tensors.get(tensor).map(|info| &checkpoint.paths[info.file]);
            if actual != Some(expected) {
                return Err(Error::NotInShard {
                    index: path.into(),
                    tensor: shown(tensor),
                    shard: shown(shard),
                    actual: actual.cloned(),
                });
            }
        }
        Ok(checkpoint)
    }

    fn empty(root: &Path) -> Self {
        Self { root: root.into(), paths: vec![], files: vec![], tensors: BTreeMap::new() }
    }

    /// Reads a file's header and takes in its tensors.
    fn add(&mut self, path: &Path) -> Result<(), Error> {
        let file = File::open(path)?;
        for (name, entry) in &file.header().tensors {
            if let Some(first) = self.tensors.get(name) {
                return Err(Error::TensorTwice {
                    tensor: shown(name),
                    first: self.paths[first.file].clone(),
                    second: path.into(),
                });
            }
            let info = TensorInfo {
                dtype: entry.dtype,
                shape: entry.shape.clone(),
                file: self.files.len(),
                range: entry.range,
            };
            self.tensors.insert(name.clone(), info);
        }
        self.paths.push(path.into());
        self.files.push(file);
        Ok(())
    }
}

/// What a folder has instead of the weights we look for, for the message.
fn candidates(folder: &Path) -> String {
    let Ok(entries) = fs_err::read_dir(folder) else { return "nothing readable".into() };
    let mut names: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|name| {
            let lower = name.to_lowercase();
            ["safetensors", "bin", "pt", "pth", "gguf", "part", "incomplete"]
                .iter()
                .any(|end| lower.ends_with(&format!(".{end}")))
        })
        .collect();
    names.sort();
    let more = names.len().saturating_sub(4);
    names.truncate(4);
    match (names.is_empty(), more) {
        (true, _) => "no weights at all".into(),
        (false, 0) => shown(&names.join(", ")),
        (false, more) => format!("{} and {more} more", shown(&names.join(", "))),
    }
}
