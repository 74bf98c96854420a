//! `reference.safetensors`: names, shapes and numbers.

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use registry::dtype::Dtype;
use safetensors::{Dtype as Format, SafeTensors};

use super::{Error, Tensor};

/// The opened file. The reader has checked that its header is sound: sizes follow from
/// shapes, and tensors fill the file without holes or overlaps.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) path: PathBuf,
    bytes: Vec<u8>,
    entries: std::collections::BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    format: Format,
    shape: Vec<usize>,
    range: std::ops::Range<usize>,
}

impl Store {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let bytes = fs_err::read(path)?;
        let start = bytes.as_ptr() as usize;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|e| Error::Tensors {
            path: path.to_owned(),
            message: format!("not a sound safetensors file: {e}"),
        })?;
        let entries = tensors
            .iter()
            .map(|(name, view)| {
                let from = view.data().as_ptr() as usize - start;
                let range = from..from + view.data().len();
                (
                    name.to_owned(),
                    Entry { format: view.dtype(), shape: view.shape().to_vec(), range },
                )
            })
            .collect();
        Ok(Self { path: path.to_owned(), bytes, entries })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub(super) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entries.get(name).map(|e| e.shape.as_slice())
    }

    fn entry(&self, name: &str) -> Result<&Entry, Error> {
        self.entries
            .get(name)
            .ok_or_else(|| Error::Missing { path: self.path.clone(), name: name.to_owned() })
    }

    /// An error that says what a tensor is and what it should be.
    pub(super) fn unexpected(&self, name: &str, want: impl Into<String>) -> Error {
        let got = self
            .entries
            .get(name)
            .map_or_else(|| "absent".to_owned(), |e| format!("{:?} {:?}", e.format, e.shape));
        Error::Tensor { path: self.path.clone(), name: name.to_owned(), got, want: want.into() }
    }

    /// Refuses a tensor of another shape; of ids, or of numbers.
    pub(super) fn expect(&self, name: &str, shape: &[usize], ids: bool) -> Result<(), Error> {
        let entry = self.entry(name)?;
        let fits = if ids { entry.format == Format::I32 } else { widened(entry.format).is_some() };
        if fits && entry.shape == shape {
            return Ok(());
        }
        let format = if ids { "I32" } else { "F32" };
        Err(self.unexpected(name, format!("{format} {shape:?}")))
    }

    /// Refuses a tensor without a first axis of `rows`, or with nothing in a row.
    pub(super) fn expect_rows(&self, name: &str, rows: usize) -> Result<(), Error> {
        let entry = self.entry(name)?;
        let row: usize = entry.shape.iter().skip(1).product();
        if entry.shape.first() != Some(&rows) || row == 0 {
            return Err(self.unexpected(name, format!("[{rows}, ..]")));
        }
        self.number(name).map(|_| ())
    }

    /// The dtype of a tensor of numbers.
    pub(super) fn number(&self, name: &str) -> Result<Dtype, Error> {
        widened(self.entry(name)?.format)
            .ok_or_else(|| self.unexpected(name, "of F32, BF16 or F16"))
    }

    pub(super) fn read(&self, name: &str) -> Result<Tensor, Error> {
        let dtype = self.number(name)?;
        let entry = self.entry(name)?;
        let bytes = &self.bytes[entry.range.clone()];
        let data = match dtype {
            Dtype::F32 => words(bytes).map(f32::from_le_bytes).collect(),
            Dtype::Bf16 => words(bytes).map(|w| bf16::from_le_bytes(w).to_f32()).collect(),
            Dtype::F16 => words(bytes).map(|w| f16::from_le_bytes(w).to_f32()).collect(),
        };
        Ok(Tensor { dtype, shape: entry.shape.clone(), data })
    }

    /// Token ids; each is below `vocab`.
    pub(super) fn read_ids(&self, name: &str, vocab: usize) -> Result<Vec<u32>, Error> {
        let entry = self.entry(name)?;
        words(&self.bytes[entry.range.clone()])
            .map(i32::from_le_bytes)
            .map(|id| u32::try_from(id).ok().filter(|id| (*id as usize) < vocab))
            .collect::<Option<Vec<u32>>>()
            .ok_or_else(|| self.unexpected(name, format!("of ids from 0 to {}", vocab - 1)))
    }
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks::<N>().0.iter().copied()
}

fn widened(format: Format) -> Option<Dtype> {
    match format {
        Format::F32 => Some(Dtype::F32),
        Format::BF16 => Some(Dtype::Bf16),
        Format::F16 => Some(Dtype::F16),
        _ => None,
    }
}
