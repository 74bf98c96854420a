//! Rules for every tensor, read or written.

use std::path::Path;

use super::{Error, MAX_DIMS, MAX_NAME};
use crate::codec::BlockType;
use crate::shown;

/// Returns the bytes of a tensor, if its name and shape are allowed.
pub(super) fn tensor_bytes(
    file: &Path,
    name: &str,
    shape: &[usize],
    ty: BlockType,
) -> Result<u64, Error> {
    name_fits(file, name)?;
    if shape.len() > MAX_DIMS {
        return Err(Error::TooManyDims {
            file: file.into(),
            tensor: shown(name),
            found: shape.len() as u64,
        });
    }
    // Innermost first, with no check for a zero further out, as the loader multiplies.
    let mut elements = 1_i64;
    for &dim in shape.iter().rev() {
        let product = i64::try_from(dim).ok().and_then(|dim| elements.checked_mul(dim));
        elements = product.ok_or_else(|| Error::ShapeOverflow {
            file: file.into(),
            tensor: shown(name),
            shape: shape.to_vec(),
            ty,
        })?;
    }
    let row = shape.last().copied().unwrap_or(1);
    if !row.is_multiple_of(ty.elements()) {
        return Err(Error::Row { file: file.into(), tensor: shown(name), row, ty });
    }
    let blocks = elements as u64 / ty.elements() as u64;
    blocks.checked_mul(ty.bytes() as u64).ok_or_else(|| Error::ShapeOverflow {
        file: file.into(),
        tensor: shown(name),
        shape: shape.to_vec(),
        ty,
    })
}

/// Checks that a name is short enough.
pub(super) fn name_fits(file: &Path, name: &str) -> Result<(), Error> {
    if name.len() < MAX_NAME {
        return Ok(());
    }
    Err(Error::NameTooLong { file: file.into(), tensor: shown(name), found: name.len() as u64 })
}

/// Returns the error for a tensor whose bytes no file can hold.
pub(super) fn too_large(file: &Path, tensor: &str) -> Error {
    Error::TooLarge { file: file.into(), tensor: shown(tensor) }
}

/// Returns `at` rounded up to a multiple of `alignment`, a power of two.
pub(super) fn pad(at: u64, alignment: u64) -> Option<u64> {
    at.checked_next_multiple_of(alignment)
}

/// Computes the offset of each tensor's bytes, counted from the beginning of the data. Every tensor is
/// padded, including the last one, without gaps.
#[derive(Debug)]
pub(super) struct Offsets {
    next: u64,
    alignment: u64,
}

impl Offsets {
    pub(super) fn new(alignment: u64) -> Self {
        Self { next: 0, alignment }
    }

    /// Returns the offset of a tensor of this many bytes; none if no file can hold it.
    pub(super) fn place(&mut self, bytes: u64) -> Option<u64> {
        let at = self.next;
        let end = at.checked_add(pad(bytes, self.alignment)?)?;
        // File offsets are signed.
        i64::try_from(end).ok()?;
        self.next = end;
        Some(at)
    }

    /// Returns the end of the data.
    pub(super) fn end(&self) -> u64 {
        self.next
    }
}
