//! Header of a GGUF file: keys and tensor descriptions.

use std::path::Path;

use super::reader::ByteReader;
use super::rules::{self, Offsets};
use super::{Error, GgufTensor, MAX_DIMS, Metadata, VERSION};
use crate::codec::BlockType;
use crate::shown;

/// Header of one file, checked against the loader's rules and the file's length.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufHeader {
    /// Version of the format: 2 or 3.
    pub version: u32,
    /// Keys of the file.
    pub metadata: Metadata,
    /// Tensors in file order, with offsets from the beginning of the file.
    pub tensors: Vec<GgufTensor>,
    /// Number of bytes before the padding of the header.
    pub unpadded: u64,
    /// Offset of the data.
    pub data_start: u64,
    /// Alignment of every tensor.
    pub alignment: u64,
}

/// Tensor as described in the header, its offset still to be checked.
struct HeaderTensor {
    name: String,
    shape: Vec<usize>,
    ty: BlockType,
    bytes: u64,
    offset: u64,
}

/// Maximum bytes of a key, as the format specifies.
const MOST_KEY: usize = (1 << 16) - 1;

impl GgufHeader {
    /// Reads the header of a whole file. `file` is only for error messages.
    pub fn parse(file: &Path, bytes: &[u8]) -> Result<Self, Error> {
        let mut from = ByteReader::new(file, bytes);
        let version = version(file, &mut from)?;
        let tensors = from.u64(format_args!("the number of tensors"))?;
        let keys = from.u64(format_args!("the number of keys"))?;
        // A key takes its length, a byte, its kind, and a byte; a tensor its length, the number
        // of its dimensions, its type, and its offset.
        from.count(keys, "keys", 8 + 1 + 4 + 1)?;
        from.count(tensors, "tensors", 8 + 4 + 4 + 8)?;
        let mut metadata = Metadata::new();
        for n in 0..keys {
            let key = from.text(format_args!("key {n}"))?;
            if key.is_empty() {
                return Err(Error::EmptyKey { file: file.into(), n });
            }
            if key.len() > MOST_KEY {
                return Err(Error::LongKey { file: file.into(), n, len: key.len() });
            }
            let value = from.value(key)?;
            if !metadata.push(key.into(), value) {
                return Err(Error::DuplicateKey { file: file.into(), key: shown(key) });
            }
        }
        let alignment = metadata
            .alignment()
            .map_err(|value| Error::Alignment { file: file.into(), found: value })?;
        from.count(tensors, "tensors", 8 + 4 + 4 + 8)?;
        let mut claimed = Vec::with_capacity(tensors as usize);
        for n in 0..tensors {
            claimed.push(tensor(file, &mut from, n)?);
        }
        let end = from.at();
        // Without tensors there is no data, so missing padding before it is accepted.
        let data_start =
            if tensors == 0 { Some(end) } else { rules::pad(end, alignment) }.unwrap_or(u64::MAX);
        let tensors = place(file, bytes.len() as u64, data_start, alignment, claimed)?;
        Ok(Self { version, metadata, tensors, unpadded: end, data_start, alignment })
    }
}

fn version(file: &Path, from: &mut ByteReader<'_>) -> Result<u32, Error> {
    let magic = from.magic()?;
    if magic != *b"GGUF" {
        let beginning = shown(&String::from_utf8_lossy(&magic));
        return Err(Error::NotGguf { file: file.into(), found: beginning });
    }
    let version = from.u32(format_args!("its version"))?;
    match version {
        2 | VERSION => Ok(version),
        // Files of the other byte order keep the first four bytes and swap everything after.
        _ if matches!(version.swap_bytes(), 1..=0xffff) => {
            Err(Error::BigEndian { file: file.into(), found: version })
        }
        _ => Err(Error::Version { file: file.into(), found: version }),
    }
}

fn tensor(file: &Path, from: &mut ByteReader<'_>, n: u64) -> Result<HeaderTensor, Error> {
    let name = from.text(format_args!("the name of tensor {n}"))?;
    if name.is_empty() {
        return Err(Error::EmptyName { file: file.into(), n });
    }
    rules::name_fits(file, name)?;
    let text = shown(name);
    let part = format_args!("the entry of tensor `{text}`");
    let dims = from.u32(part)?;
    if dims as usize > MAX_DIMS {
        return Err(Error::TooManyDims { file: file.into(), tensor: text, found: dims.into() });
    }
    let mut shape = Vec::with_capacity(dims as usize);
    for _ in 0..dims {
        let size = from.u64(part)? as i64;
        let dim = usize::try_from(size);
        shape.push(dim.map_err(|_| Error::NegativeDim {
            file: file.into(),
            tensor: text.clone(),
            found: size,
        })?);
    }
    // The file stores the innermost dimension first.
    shape.reverse();
    let id = from.i32(part)?;
    let ty = u32::try_from(id).ok().and_then(BlockType::from_id);
    let ty = ty.ok_or_else(|| Error::UnknownType {
        file: file.into(),
        tensor: text.clone(),
        found: id,
    })?;
    let offset = from.u64(part)?;
    let bytes = rules::tensor_bytes(file, name, &shape, ty)?;
    Ok(HeaderTensor { name: name.into(), shape, ty, bytes, offset })
}

/// Checks the offsets against the sizes, and the data against the file's length.
fn place(
    file: &Path,
    length: u64,
    data_start: u64,
    alignment: u64,
    claimed: Vec<HeaderTensor>,
) -> Result<Vec<GgufTensor>, Error> {
    let mut offsets = Offsets::new(alignment);
    let mut tensors = Vec::with_capacity(claimed.len());
    for HeaderTensor { name, shape, ty, bytes, offset: declared } in claimed {
        let expected = offsets.place(bytes).ok_or_else(|| rules::too_large(file, &name))?;
        if declared != expected {
            return Err(Error::Offset {
                file: file.into(),
                tensor: shown(&name),
                found: declared,
                expected,
            });
        }
        let offset =
            data_start.checked_add(expected).ok_or_else(|| rules::too_large(file, &name))?;
        let end = offset.checked_add(bytes).ok_or_else(|| rules::too_large(file, &name))?;
        if end > length {
            return Err(Error::Truncated {
                file: file.into(),
                tensor: shown(&name),
                found: length,
                expected: end,
            });
        }
        tensors.push(GgufTensor { name, shape, ty, file: 0, offset, bytes });
    }
    Ok(tensors)
}
