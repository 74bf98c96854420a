//! Header of a safetensors file: its tensors and their byte ranges.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use super::json::{self, HeaderFault, RawTensor};
use super::{Error, FileDtype, MAX_HEADER};
use crate::shown;

/// Description of a tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// Dtype of the tensor.
    pub dtype: FileDtype,
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// Byte range from the beginning of the *file*: `begin..end`.
    pub range: (u64, u64),
}

/// Checked header: every range lies in the file, and together they cover its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SafetensorsHeader {
    /// Tensors by name.
    pub tensors: BTreeMap<String, TensorEntry>,
    /// Texts under `__metadata__`.
    pub metadata: BTreeMap<String, String>,
    /// Offset of the tensors' bytes.
    pub data_start: u64,
    /// Length of the file.
    pub file_len: u64,
}

impl SafetensorsHeader {
    /// Reads only the header of a file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let mut file = registry::file::open(path)?;
        let file_len = file.metadata()?.len();
        let mut length = [0; 8];
        if file_len < 8 {
            return Err(Error::TooShort { file: path.into(), found: file_len });
        }
        file.read_exact(&mut length)?;
        let length = header_len(path, length, file_len)?;
        // `length` is at most `MAX_HEADER` and the file has that many bytes.
        let mut text = vec![0; length as usize];
        file.read_exact(&mut text)?;
        Self::parse(path, &text, file_len)
    }

    /// Reads the header of a file that is in memory; `path` is for messages.
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self, Error> {
        let file_len = bytes.len() as u64;
        let Some((length, remaining)) = bytes.split_first_chunk::<8>() else {
            return Err(Error::TooShort { file: path.into(), found: file_len });
        };
        let length = header_len(path, *length, file_len)?;
        Self::parse(path, &remaining[..length as usize], file_len)
    }

    /// Checks the text of a header against the length of its file.
    pub fn parse(path: &Path, text: &[u8], file_len: u64) -> Result<Self, Error> {
        let data_start = 8 + text.len() as u64;
        let text = std::str::from_utf8(text).map_err(|error| Error::HeaderNotUtf8 {
            file: path.into(),
            at: 8 + error.valid_up_to(),
        })?;
        let raw = json::parse(text).map_err(|fault| match fault {
            HeaderFault::NotJson(why) => Error::HeaderNotJson { file: path.into(), why },
            HeaderFault::DuplicateTensor(tensor) => {
                Error::DuplicateTensor { file: path.into(), tensor }
            }
            HeaderFault::DuplicateField { tensor, field } => {
                Error::DuplicateField { file: path.into(), tensor, field }
            }
            HeaderFault::MissingField { tensor, field } => {
                Error::MissingField { file: path.into(), tensor, field }
            }
            HeaderFault::UnknownField { tensor, field } => {
                Error::UnknownField { file: path.into(), tensor, field }
            }
            HeaderFault::BadField { tensor, field, why } => {
                Error::BadField { file: path.into(), tensor, field, why }
            }
            HeaderFault::BadMetadata(why) => Error::BadMetadata { file: path.into(), why },
        })?;
        // A caller may pass a text longer than the file it claims to be from.
        let data = file_len.checked_sub(data_start).ok_or_else(|| Error::HeaderPastEnd {
            file: path.into(),
            found: text.len() as u64,
            left: file_len.saturating_sub(8),
        })?;
        let mut tensors = BTreeMap::new();
        for (name, raw) in raw.tensors {
            let entry = entry(path, &name, raw)?;
            tensors.insert(name, entry);
        }
        cover(path, &tensors, data_start, data)?;
        for entry in tensors.values_mut() {
            // In range: `cover` has checked that both are at most `data`.
            entry.range = (data_start + entry.range.0, data_start + entry.range.1);
        }
        Ok(Self { tensors, metadata: raw.metadata, data_start, file_len })
    }
}

/// Checks the header length in the first eight bytes.
fn header_len(path: &Path, length: [u8; 8], file_len: u64) -> Result<u64, Error> {
    // A clone without LFS has `version https://git-lfs...` in place of each large file.
    if length == *b"version " {
        return Err(Error::Pointer { file: path.into() });
    }
    let length = u64::from_le_bytes(length);
    let left = file_len - 8;
    if length > MAX_HEADER {
        return Err(Error::HeaderTooLong { file: path.into(), found: length });
    }
    if length > left {
        return Err(Error::HeaderPastEnd { file: path.into(), found: length, left });
    }
    Ok(length)
}

/// Returns the bytes of a tensor, unless the count overflows.
pub(super) fn byte_len(shape: &[usize], dtype: FileDtype) -> Option<u64> {
    let elements = shape.iter().try_fold(1_usize, |n, &dim| n.checked_mul(dim))?;
    elements.checked_mul(dtype.size())?.try_into().ok()
}

/// Checks one tensor on its own; its range stays relative to the data.
fn entry(path: &Path, name: &str, raw: RawTensor) -> Result<TensorEntry, Error> {
    let RawTensor { dtype, shape, begin, end } = raw;
    let Some(dtype) = FileDtype::parse(&dtype) else {
        return Err(Error::UnknownDtype {
            file: path.into(),
            tensor: shown(name),
            found: shown(&dtype),
        });
    };
    let dims: Option<Vec<usize>> = shape.iter().map(|&dim| dim.try_into().ok()).collect();
    let Some((dims, expected)) = dims.and_then(|dims| {
        let bytes = byte_len(&dims, dtype)?;
        Some((dims, bytes))
    }) else {
        return Err(Error::ShapeOverflow { file: path.into(), tensor: shown(name), shape, dtype });
    };
    let Some(size) = end.checked_sub(begin) else {
        return Err(Error::BackwardRange { file: path.into(), tensor: shown(name), begin, end });
    };
    if size != expected {
        let file = path.into();
        let tensor = shown(name);
        return Err(Error::WrongSize { file, tensor, shape: dims, dtype, found: size, expected });
    }
    Ok(TensorEntry { dtype, shape: dims, range: (begin, end) })
}

/// Checks that the tensors' ranges follow each other and fill the data exactly.
fn cover(
    path: &Path,
    tensors: &BTreeMap<String, TensorEntry>,
    data_start: u64,
    data: u64,
) -> Result<(), Error> {
    let mut order: Vec<(&String, (u64, u64))> =
        tensors.iter().map(|(name, entry)| (name, entry.range)).collect();
    order.sort_by_key(|&(_, range)| range);
    let mut at = 0;
    let gap = order.iter().position(|&(_, (begin, end))| {
        let broken = begin != at;
        at = end;
        broken
    });
    let past = order.iter().find(|(_, (_, end))| *end > data);
    match (gap, past) {
        // The layout is valid, but longer than the file: the end is missing.
        (None, Some((tensor, _))) => Err(Error::Truncated {
            file: path.into(),
            tensor: shown(tensor),
            found: data_start + data,
            expected: data_start.saturating_add(at),
        }),
        (Some(_), Some((tensor, (_, end)))) => {
            Err(Error::PastEnd { file: path.into(), tensor: shown(tensor), end: *end, data })
        }
        (Some(index), None) => {
            let (tensor, (begin, _)) = order[index];
            let before = index.checked_sub(1).map(|before| order[before]);
            let end = before.map_or(0, |(_, (_, end))| end);
            match before {
                Some((first, _)) if begin < end => Err(Error::Overlap {
                    file: path.into(),
                    first: shown(first),
                    second: shown(tensor),
                    begin,
                    end,
                }),
                _ => Err(Error::Hole {
                    file: path.into(),
                    tensor: shown(tensor),
                    from: end,
                    to: begin,
                }),
            }
        }
        (None, None) if at < data => Err(Error::Trailing { file: path.into(), extra: data - at }),
        (None, None) => Ok(()),
    }
}
