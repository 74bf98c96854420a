//! Computes the offset of everything in a file, before any of its data exists.

use std::collections::BTreeSet;
use std::path::Path;

use super::rules::{self, Offsets};
use super::value::write_text;
use super::{Error, GgufTensor, Metadata, VERSION};
use crate::codec::BlockType;
use crate::shown;

/// A tensor that will be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufTensorSpec {
    /// Name of the tensor.
    pub name: String,
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// Type of the tensor.
    pub ty: BlockType,
}

impl From<&GgufTensor> for GgufTensorSpec {
    /// Describes a tensor of a file, to be written again.
    fn from(tensor: &GgufTensor) -> Self {
        Self { name: tensor.name.clone(), shape: tensor.shape.clone(), ty: tensor.ty }
    }
}

/// Number of dimensions that are written for a tensor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DimsStyle {
    /// Without outer dimensions of one, as in ggml's writer.
    #[default]
    Trimmed,
    /// All dimensions of the shape, as in the Python writer.
    AsGiven,
}

/// File without its data: the header's bytes and all offsets.
///
/// A writer puts `header` at the beginning of the file, each tensor's bytes at its offset, and zeros
/// everywhere else up to `file_len`. A file that is first extended to its length has those zeros already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufLayout {
    /// Bytes before the data, including padding.
    pub header: Vec<u8>,
    /// Tensors in file order, with offsets from the beginning of the file.
    pub tensors: Vec<GgufTensor>,
    /// Length of the file, including padding of the last tensor.
    pub file_len: u64,
    /// Alignment of every tensor.
    pub alignment: u64,
}

impl GgufLayout {
    /// Lays out a file. `file` is only for error messages.
    pub fn new(
        file: &Path,
        metadata: &Metadata,
        tensors: &[GgufTensorSpec],
        dims: DimsStyle,
    ) -> Result<Self, Error> {
        let alignment = metadata
            .alignment()
            .map_err(|value| Error::Alignment { file: file.into(), found: value })?;
        let mut header = Vec::new();
        header.extend_from_slice(b"GGUF");
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
        header.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
        write_keys(file, metadata, &mut header)?;
        let mut names = BTreeSet::new();
        let mut offsets = Offsets::new(alignment);
        let mut placed = Vec::with_capacity(tensors.len());
        for GgufTensorSpec { name, shape, ty } in tensors {
            if name.is_empty() {
                return Err(Error::EmptyName { file: file.into(), n: placed.len() as u64 });
            }
            if !names.insert(name) {
                return Err(Error::DuplicateTensor { file: file.into(), tensor: shown(name) });
            }
            let bytes = rules::tensor_bytes(file, name, shape, *ty)?;
            let offset = offsets.place(bytes).ok_or_else(|| rules::too_large(file, name))?;
            let name = name.clone();
            let shape = shape.clone();
            let info = GgufTensor { name, shape, ty: *ty, file: 0, offset, bytes };
            write_tensor(&info, dims, &mut header);
            placed.push(info);
        }
        let last = placed.last().map_or("", |last| last.name.as_str());
        let start = rules::pad(header.len() as u64, alignment)
            .ok_or_else(|| rules::too_large(file, last))?;
        let file_len =
            start.checked_add(offsets.end()).ok_or_else(|| rules::too_large(file, last))?;
        i64::try_from(file_len).map_err(|_| rules::too_large(file, last))?;
        header.resize(usize::try_from(start).map_err(|_| rules::too_large(file, last))?, 0);
        for info in &mut placed {
            info.offset += start;
        }
        Ok(Self { header, tensors: placed, file_len, alignment })
    }

    /// Returns the offset of the data, which is the length of the header.
    pub fn data_start(&self) -> u64 {
        self.header.len() as u64
    }

    /// Returns the number of zeros after the bytes of a tensor.
    pub fn padding(&self, info: &GgufTensor) -> u64 {
        info.bytes.next_multiple_of(self.alignment) - info.bytes
    }
}

fn write_keys(file: &Path, metadata: &Metadata, header: &mut Vec<u8>) -> Result<(), Error> {
    metadata.check().map_err(|(key, length)| Error::Length {
        file: file.into(),
        part: format!("key `{key}`"),
        found: length,
        most: super::MAX_LENGTH,
    })?;
    for (n, (key, value)) in metadata.iter().enumerate() {
        if key.is_empty() {
            return Err(Error::EmptyKey { file: file.into(), n: n as u64 });
        }
        write_text(key, header);
        header.extend_from_slice(&value.kind().id().to_le_bytes());
        value.write(header);
    }
    Ok(())
}

/// Writes a tensor's description. `info.offset` is relative to the beginning of the data, as in the file.
fn write_tensor(info: &GgufTensor, dims: DimsStyle, header: &mut Vec<u8>) {
    let ones = match dims {
        // A single value keeps one dimension.
        DimsStyle::Trimmed => {
            let limit = info.shape.len().saturating_sub(1);
            info.shape.iter().take(limit).take_while(|&&dim| dim == 1).count()
        }
        DimsStyle::AsGiven => 0,
    };
    let mut shape: Vec<u64> = info.shape[ones..].iter().rev().map(|&dim| dim as u64).collect();
    if dims == DimsStyle::Trimmed && shape.is_empty() {
        shape.push(1);
    }
    write_text(&info.name, header);
    header.extend_from_slice(&(shape.len() as u32).to_le_bytes());
    for dim in &shape {
        header.extend_from_slice(&dim.to_le_bytes());
    }
    header.extend_from_slice(&info.ty.id().to_le_bytes());
    header.extend_from_slice(&info.offset.to_le_bytes());
}
