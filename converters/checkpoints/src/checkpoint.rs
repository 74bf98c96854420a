//! Checkpoint folders: the weights of a model, in one file or in shards with an index.

mod disk_layout;
mod error;
mod fingerprint;
mod gguf_source;
mod index;
mod nonfinite;
pub mod pickled;
mod quantized;
mod stamp;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub use error::Error;
pub use fingerprint::sample;
pub use index::outside;
pub use nonfinite::NonFinite;
pub use quantized::{BlockEncoding, CodeType, Rounding, ScaleSharing};
pub use stamp::Stamp;

use crate::flow::{FileValues, Flow};
use formats::gguf::split::SET_KEY;
use formats::numbers;
use formats::safetensors::{FileDtype, SafetensorsFile};
use formats::shown;
use registry::layer_choice::LayerChoice;

/// File name of an unsharded checkpoint.
pub const SINGLE: &str = "model.safetensors";
/// File name of a sharded checkpoint's index.
pub const INDEX: &str = "model.safetensors.index.json";

/// Tensor of a checkpoint, without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Dtype of the tensor.
    pub dtype: FileDtype,
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// Index of the tensor's file in [`Checkpoint::files`].
    pub file: usize,
    /// Byte range of the tensor in that file, `begin..end`.
    pub range: (u64, u64),
}

impl TensorInfo {
    /// Returns the number of values.
    pub fn elements(&self) -> usize {
        // Cannot overflow: the header reader has checked the byte count.
        self.shape.iter().product()
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.range.1 - self.range.0
    }
}

/// Open checkpoint, with checked headers; its bytes are mapped on first use.
#[derive(Debug)]
pub struct Checkpoint {
    root: PathBuf,
    paths: Vec<PathBuf>,
    /// Stamps of the files, taken when they were opened.
    stamps: Vec<Stamp>,
    files: Vec<SafetensorsFile>,
    /// Tensors as the files store them.
    stored: BTreeMap<String, TensorInfo>,
    /// Weights: stored tensors, with each group of codes and scales replaced by the weight it encodes.
    tensors: BTreeMap<String, TensorInfo>,
    quantized: BTreeMap<String, quantized::QuantizedWeight>,
    /// File that the tensors are read from, in place of files of safetensors.
    gguf: Option<gguf_source::GgufSource>,
    /// Computed on first use, because it reads a part of every tensor.
    fingerprint: OnceLock<String>,
}

/// Names of the scales that were calibrated on a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredScales<'a> {
    /// Scales of matrix inputs.
    pub inputs: Vec<&'a str>,
    /// Scales of keys and values.
    pub caches: Vec<&'a str>,
}

impl Checkpoint {
    /// Opens a folder or a single safetensors file. A folder has `model.safetensors` or
    /// `model.safetensors.index.json`; the first takes precedence, as in transformers.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_part(path, None)
    }

    /// Opens the tensors of a choice of layers, and those of no layer. Files that have only other layers
    /// may be absent.
    pub fn open_part(path: &Path, layers: Option<&LayerChoice>) -> Result<Self, Error> {
        if !fs_err::metadata(path)?.is_dir() {
            return Self::single(path, path, layers);
        }
        let single = path.join(SINGLE);
        let index = path.join(INDEX);
        let checkpoint = if single.try_exists()? {
            Self::single(path, &single, layers)
        } else if index.try_exists()? {
            Self::sharded(path, &index, layers)
        } else if let Some(file) = pickled::find(path) {
            Err(Error::Pickled { folder: path.into(), file: shown(&file) })
        } else {
            Err(Error::NoWeights { folder: path.into(), found: candidates(path) })
        };
        checkpoint?.understood()
    }

    /// Replaces codes and scales by the weights they encode, as described by the config beside them.
    fn understood(mut self) -> Result<Self, Error> {
        let (quantized, parts) = quantized::find(&self)?;
        for part in &parts {
            self.tensors.remove(part);
        }
        for (name, weight) in &quantized {
            let codes = weight.parts.first().and_then(|part| self.stored.get(part));
            if let Some(codes) = codes {
                // Products of codes and scales need the full precision of f32.
                let dtype = FileDtype::F32;
                let shape = weight.shape.clone();
                let info = TensorInfo { dtype, shape, ..codes.clone() };
                self.tensors.insert(name.clone(), info);
            }
        }
        self.quantized = quantized;
        Ok(self)
    }

    /// Reads a scale that is stored as a tensor of one value; none if there is no such tensor.
    pub fn scale(&self, name: &str) -> Result<Option<f32>, Error> {
        let Some(info) = self.stored.get(name) else { return Ok(None) };
        let mut one = [0.0];
        if info.elements() != 1 || !info.dtype.is_float() {
            let actual = format!("{} numbers of {}", info.elements(), info.dtype);
            return Err(self.scale_error(name, actual));
        }
        numbers::to_f32(info.dtype, self.stored_bytes(name)?, &mut one)
            .map_err(|error| self.scale_error(name, error.to_string()))?;
        if one[0].is_finite() && one[0] > 0.0 {
            Ok(Some(one[0]))
        } else {
            Err(self.scale_error(name, one[0].to_string()))
        }
    }

    /// Returns the error for a tensor that is no scale.
    fn scale_error(&self, name: &str, actual: String) -> Error {
        Error::Scale { root: self.root.clone(), tensor: shown(name), found: actual }
    }

    /// Returns the config's quantization method if it is unsupported.
    pub fn foreign_method(&self) -> Option<String> {
        quantized::unsupported_method(&self.root)
    }

    /// Lists the supported quantization methods.
    pub fn methods() -> String {
        quantized::methods().collect::<Vec<_>>().join(", ")
    }

    /// True if a tensor is an all-zero bias beside a quantized weight: some programs write one for every
    /// module.
    pub fn is_idle(&self, name: &str) -> bool {
        let Some(module) = name.strip_suffix("bias") else { return false };
        self.is_quantized(&format!("{module}weight"))
            && self.stored_bytes(name).is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 0))
    }

    /// True if a tensor is stored as codes and scales.
    pub fn is_quantized(&self, name: &str) -> bool {
        self.quantized.contains_key(name)
    }

    /// Returns the dtype of a quantized tensor's codes.
    pub fn coded_dtype(&self, name: &str) -> Option<FileDtype> {
        let codes = self.quantized.get(name)?.parts.first()?;
        self.stored.get(codes).map(|info| info.dtype)
    }

    /// Returns the GGUF block format that holds a quantized tensor's codes unchanged, if there is one.
    pub fn packed(&self, name: &str) -> Option<BlockEncoding> {
        quantized::packed_in(self, self.quantized.get(name)?)
    }

    /// Returns a tensor that is read on demand. [`Flow::numeric`] says if its dtype encodes values.
    pub fn flow(&self, name: &str) -> Result<Flow<'_>, Error> {
        if let Some(weight) = self.quantized.get(name) {
            return quantized::flow(self, weight);
        }
        if let Some(flow) = self.gguf.as_ref().and_then(|source| source.flow(name)) {
            return flow;
        }
        let TensorInfo { dtype, shape, file, range } = self.entry(name)?;
        // The header's reader has compared the range with the dtype and the shape.
        let range = self.files[*file].range(*range)?;
        Ok(Flow::new(shape, Arc::new(FileValues { dtype: *dtype, range })))
    }

    /// Returns every tensor by name.
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// Returns the shapes of all tensors.
    pub fn shapes(&self) -> BTreeMap<String, Vec<usize>> {
        self.tensors().iter().map(|(name, info)| (name.clone(), info.shape.clone())).collect()
    }

    /// Returns the description of a tensor, without its bytes.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// Returns a tensor's bytes from the memory map. A quantized tensor has none: see [`Checkpoint::flow`].
    pub fn bytes(&self, name: &str) -> Result<&[u8], Error> {
        if self.is_quantized(name) {
            return Err(Error::Quantized { root: self.root.clone(), tensor: shown(name) });
        }
        self.stored_bytes(name)
    }

    /// Returns the bytes of a tensor as a file stores it, including codes and scales.
    pub fn stored_bytes(&self, name: &str) -> Result<&[u8], Error> {
        let info = self.entry(name)?;
        self.slice(info.file, info.range)
    }

    fn entry(&self, name: &str) -> Result<&TensorInfo, Error> {
        self.stored.get(name).ok_or_else(|| Error::NoTensor {
            root: self.root.clone(),
            tensor: shown(name),
            have: self.stored.len(),
        })
    }

    /// Returns bytes of a file that lie in one of its tensors.
    pub(crate) fn slice(&self, file: usize, range: (u64, u64)) -> Result<&[u8], Error> {
        Ok(self.files[file].slice(range)?)
    }

    /// Returns a tensor as a file stores it, including codes and scales.
    pub fn stored(&self, name: &str) -> Option<&TensorInfo> {
        self.stored.get(name)
    }

    /// Returns the stored scales that were calibrated on a text rather than computed from weights.
    pub fn measured_scales(&self) -> MeasuredScales<'_> {
        let inputs = [".input_scale", ".activation_scale", ".input_global_scale"];
        let caches = [".k_scale", ".v_scale", ".q_scale", ".kv_scale"];
        MeasuredScales { inputs: self.hidden_names(&inputs), caches: self.hidden_names(&caches) }
    }

    /// Returns the names with one of these ends of stored tensors that are no weights.
    fn hidden_names(&self, ends: &[&str]) -> Vec<&str> {
        let hidden = self.stored.keys().filter(|name| !self.tensors.contains_key(*name));
        hidden
            .filter(|name: &&String| ends.iter().any(|end| name.ends_with(end)))
            .map(String::as_str)
            .collect()
    }

    /// Returns the invalid scales with their first invalid value: NaN, infinite, negative, or zero for a
    /// whole tensor.
    pub fn senseless_scales(&self) -> Result<Vec<(&str, f32)>, Error> {
        let ends = ["_scale", "_scale_inv", "_scale_2"];
        let hidden = self.stored.iter().filter(|(name, info)| {
            !self.tensors.contains_key(*name)
                && matches!(info.dtype, FileDtype::F32 | FileDtype::F16 | FileDtype::Bf16)
                && ends.iter().any(|end| name.ends_with(end))
        });
        let mut senseless = Vec::new();
        for (name, info) in hidden {
            let mut numbers = vec![0.0; info.elements()];
            if numbers::to_f32(info.dtype, self.stored_bytes(name)?, &mut numbers).is_err() {
                continue;
            }
            let alone = numbers.len() == 1;
            senseless.extend(
                numbers
                    .iter()
                    .find(|x: &&f32| !x.is_finite() || **x < 0.0 || (alone && **x == 0.0))
                    .map(|x| (name.as_str(), *x)),
            );
        }
        Ok(senseless)
    }

    /// Returns the number of tensors that the files store.
    pub fn stored_len(&self) -> usize {
        self.stored.len()
    }

    /// Returns the files, sorted by name.
    pub fn files(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Returns the folder or file that was opened.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the size of all tensors in bytes.
    pub fn total_bytes(&self) -> u64 {
        // Sums of ranges that lie in files cannot overflow.
        self.stored.values().map(TensorInfo::bytes).sum()
    }

    /// Returns a SHA-256 over names, dtypes, shapes and (samples of) bytes: `weights_sha256` of a dump.
    pub fn fingerprint(&self) -> Result<String, Error> {
        if let Some(known) = self.fingerprint.get() {
            return Ok(known.clone());
        }
        let hash = match &self.gguf {
            Some(source) => source.fingerprint(),
            None => fingerprint::fingerprint(self)?,
        };
        Ok(self.fingerprint.get_or_init(|| hash).clone())
    }

    /// Returns the first 16 digits of a SHA-256 over dtype, shape and (samples of) bytes of each stored tensor, by name:
    /// `checkpoint.tensors` of a dump.
    pub fn tensor_hashes(&self) -> Result<BTreeMap<String, String>, Error> {
        fingerprint::tensor_hashes(self)
    }

    /// Returns a SHA-256 over one window of each file. Beside the stamps, it tells checkpoints apart whose files
    /// have one length and time.
    pub fn file_samples(&self) -> Result<String, Error> {
        match &self.gguf {
            Some(source) => Ok(source.fingerprint()),
            None => fingerprint::file_samples(self),
        }
    }

    /// Returns the stamps of the files, taken when they were opened.
    pub fn stamps(&self) -> &[Stamp] {
        &self.stamps
    }

    /// Counts and locates NaN and infinite values of a tensor; `None` if every value is finite.
    pub fn scan_nonfinite(&self, name: &str) -> Result<Option<NonFinite>, Error> {
        if let Some(weight) = self.quantized.get(name) {
            // A non-finite value comes from a non-finite code or scale.
            let mut parts = weight.parts.iter();
            return parts.find_map(|part| self.scan_stored(part).transpose()).transpose();
        }
        self.scan_stored(name)
    }

    fn scan_stored(&self, name: &str) -> Result<Option<NonFinite>, Error> {
        let bytes = self.stored_bytes(name)?;
        // The entry exists, or `bytes` would have failed.
        Ok(self.stored(name).and_then(|info| nonfinite::scan(info.dtype, &info.shape, bytes)))
    }

    fn single(root: &Path, path: &Path, layers: Option<&LayerChoice>) -> Result<Self, Error> {
        let mut checkpoint = Self::empty(root);
        checkpoint.add(path, layers)?;
        Ok(checkpoint)
    }

    fn sharded(folder: &Path, path: &Path, layers: Option<&LayerChoice>) -> Result<Self, Error> {
        let index = index::read(folder, path, layers)?;
        let mut checkpoint = Self::empty(folder);
        for shard in index.shards.values() {
            checkpoint.add(shard, layers)?;
        }
        checkpoint.one_set()?;
        for (tensor, shard) in &index.weight_map {
            let expected = &index.shards[shard];
            let actual = checkpoint.stored.get(tensor).map(|info| &checkpoint.paths[info.file]);
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

    /// Returns an error if shards come from several conversions: names and shapes may match and weights may
    /// not.
    fn one_set(&self) -> Result<(), Error> {
        let keys = self.files.iter().map(|file| file.header().metadata.get(SET_KEY));
        let mut keys = keys.zip(&self.paths);
        let Some((first, path)) = keys.next() else { return Ok(()) };
        match keys.find(|(key, _)| *key != first) {
            None => Ok(()),
            Some((_, other)) => Err(Error::Sets { first: path.clone(), second: other.clone() }),
        }
    }

    fn empty(root: &Path) -> Self {
        Self {
            root: root.into(),
            paths: vec![],
            stamps: vec![],
            files: vec![],
            stored: BTreeMap::new(),
            tensors: BTreeMap::new(),
            quantized: BTreeMap::new(),
            gguf: None,
            fingerprint: OnceLock::new(),
        }
    }

    /// Reads a file's header and adds its tensors.
    fn add(&mut self, path: &Path, layers: Option<&LayerChoice>) -> Result<(), Error> {
        let stamp = Stamp::of(path)?;
        let file = SafetensorsFile::open(path)?;
        for (name, entry) in &file.header().tensors {
            if layers.is_some_and(|choice| !choice.includes(name)) {
                continue;
            }
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
            self.stored.insert(name.clone(), info.clone());
            self.tensors.insert(name.clone(), info);
        }
        self.paths.push(path.into());
        self.stamps.push(stamp);
        self.files.push(file);
        Ok(())
    }
}

/// Lists other weight files of a folder, for the error message.
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
