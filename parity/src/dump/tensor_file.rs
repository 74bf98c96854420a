//! Reads `reference.safetensors`: names, shapes and values.

use std::path::{Path, PathBuf};

use formats::numbers;
use formats::safetensors::{FileDtype, SafetensorsFile, TensorEntry};
use formats::shown;
use registry::dtype::Dtype;

use super::{DumpTensor, Error};

/// Opened file. Its header is valid: sizes follow from shapes, and tensors fill the file without holes or
/// overlaps.
#[derive(Debug)]
pub(super) struct TensorFile {
    pub(super) path: PathBuf,
    file: SafetensorsFile,
}

impl TensorFile {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self { path: path.to_owned(), file: SafetensorsFile::open(path)? })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.file.header().tensors.keys().map(String::as_str)
    }

    pub(super) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.file.header().tensors.get(name).map(|e| e.shape.as_slice())
    }

    /// Returns an error for a tensor that the file lacks.
    pub(super) fn missing(&self, name: &str) -> Error {
        Error::Missing { path: self.path.clone(), name: shown(name) }
    }

    fn entry(&self, name: &str) -> Result<&TensorEntry, Error> {
        self.file.header().tensors.get(name).ok_or_else(|| self.missing(name))
    }

    fn bytes(&self, name: &str) -> Result<(&TensorEntry, &[u8]), Error> {
        self.file.tensor(name)?.ok_or_else(|| self.missing(name))
    }

    /// Returns an error with the actual and the expected form of a tensor.
    pub(super) fn unexpected(&self, name: &str, want: impl Into<String>) -> Error {
        let got = self
            .file
            .header()
            .tensors
            .get(name)
            .map_or_else(|| "absent".to_owned(), |e| format!("{} {:?}", e.dtype, e.shape));
        Error::Tensor { path: self.path.clone(), name: shown(name), got, want: want.into() }
    }

    /// Returns an error for a tensor of another shape or kind (ids or values).
    pub(super) fn expect(&self, name: &str, shape: &[usize], ids: bool) -> Result<(), Error> {
        let entry = self.entry(name)?;
        let fits = if ids { entry.dtype == FileDtype::I32 } else { entry.dtype.run().is_some() };
        if fits && entry.shape == shape {
            return Ok(());
        }
        let format = if ids { "I32" } else { "F32" };
        Err(self.unexpected(name, format!("{format} {shape:?}")))
    }

    /// Returns an error for a tensor without a first axis of `rows`, or with empty rows.
    pub(super) fn expect_rows(&self, name: &str, rows: usize) -> Result<(), Error> {
        let entry = self.entry(name)?;
        let row: usize = entry.shape.iter().skip(1).product();
        if entry.shape.first() != Some(&rows) || row == 0 {
            return Err(self.unexpected(name, format!("[{rows}, ..]")));
        }
        self.number(name).map(|_| ())
    }

    /// Returns the dtype of a tensor of values.
    pub(super) fn number(&self, name: &str) -> Result<Dtype, Error> {
        let entry = self.entry(name)?;
        entry.dtype.run().ok_or_else(|| self.unexpected(name, "of F32, BF16 or F16"))
    }

    pub(super) fn read(&self, name: &str) -> Result<DumpTensor, Error> {
        let (entry, bytes) = self.bytes(name)?;
        let (dtype, data) = self.widen(name, entry, bytes)?;
        Ok(DumpTensor { dtype, shape: entry.shape.clone(), data })
    }

    fn widen(
        &self,
        name: &str,
        entry: &TensorEntry,
        bytes: &[u8],
    ) -> Result<(Dtype, Vec<f32>), Error> {
        let dtype = self.number(name)?;
        let mut data = vec![0.0; bytes.len() / dtype.size()];
        numbers::to_f32(entry.dtype, bytes, &mut data)
            .map_err(|e| self.unexpected(name, format!("numbers ({e})")))?;
        // f16 may overflow, which is reported; f32 and bf16 do not, unless the model is broken.
        let exact = ["f32/", "bf16/"].iter().any(|run| name.starts_with(run));
        if exact && !name.ends_with("/target_logprobs") && data.iter().any(|x| !x.is_finite()) {
            return Err(self.unexpected(name, "finite numbers: check the checkpoint for NaN"));
        }
        Ok((dtype, data))
    }

    /// Reads token ids; each is below `vocab`.
    pub(super) fn read_ids(&self, name: &str, vocab: usize) -> Result<Vec<u32>, Error> {
        let (_, bytes) = self.bytes(name)?;
        let words = bytes.as_chunks::<4>().0.iter().copied();
        words
            .map(i32::from_le_bytes)
            .map(|id| u32::try_from(id).ok().filter(|id| (*id as usize) < vocab))
            .collect::<Option<Vec<u32>>>()
            .ok_or_else(|| self.unexpected(name, format!("of ids from 0 to {}", vocab - 1)))
    }
}
