//! What holds for every tensor, read or written.

use std::path::Path;

use super::{Error, MAX_DIMS, MAX_NAME};
use crate::codec::BlockType;
use crate::shown;

/// The bytes of a tensor, if its name and shape are allowed.
pub(super) fn tensor_bytes(
    file: &Path,
    name: &str,
    shape: &[usize],
    ty: BlockType,
) -> Result<u64, Error> {
    name_fits(file, name)?;
    let tensor = || shown(name);
    if shape.len() > MAX_DIMS {
        return Err(Error::TooManyDims {
            file: file.into(),
            tensor: tensor(),
            found: shape.len() as u64,
        });
    }
    // Innermost first and zero not looked ahead for, as the loader multiplies.
    let mut elements = 1_i64;
    for &dim in shape.iter().rev() {
        let product = i64::try_from(dim).ok().and_then(|dim| elements.checked_mul(dim));
        elements = product.ok_or_else(|| Error::ShapeOverflow {
            file: file.into(),
            tensor: tensor(),
            shape: shape.to_vec(),
            ty,
        })?;
    }
    let row = shape.last().copied().unwrap_or(1);
    if !row.is_multiple_of(ty.elements()) {
        return Err(Error::Row { file: file.into(), tensor: tensor(), row, ty });
    }
    let blocks = elements as u64 / ty.elements() as u64;
    blocks.checked_mul(ty.bytes() as u64).ok_or_else(|| Error::ShapeOverflow {
        file: file.into(),
        tensor: tensor(),
        shape: shape.to_vec(),
        ty,
    })
}

/// Whether a name is short enough.
pub(super) fn name_fits(file: &Path, name: &str) -> Result<(), Error> {
    if name.len() < MAX_NAME {
        return Ok(());
    }
    Err(Error::NameTooLong { file: file.into(), tensor: shown(name), found: name.len() as u64 })
}

/// `at` moved up to a multiple of `alignment`, a power of two.
pub(super) fn pad(at: u64, alignment: u64) -> Option<u64> {
    at.checked_next_multiple_of(alignment)
}

/// Where each tensor's bytes begin, counted from the beginning of the data: every tensor padded,
/// the last one too, without gaps. Asked tensor by tensor.
#[derive(Debug)]
pub(super) struct Offsets {
    next: u64,
    alignment: u64,
}

impl Offsets {
    pub(super) fn new(alignment: u64) -> Self {
        Self { next: 0, alignment }
    }

    /// Where a tensor of this many bytes begins. None if no file can hold it.
    pub(super) fn place(&mut self, bytes: u64) -> Option<u64> {
        let at = self.next;
        let end = at.checked_add(pad(bytes, self.alignment)?)?;
        // Positions in files are signed.
        i64::try_from(end).ok()?;
        self.next = end;
        Some(at)
    }

    /// Where the data ends.
    pub(super) fn end(&self) -> u64 {
        self.next
    }
}
