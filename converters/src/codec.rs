//! Block formats: how rows of numbers become the bytes of a GGUF tensor, and back.
//!
//! Every quantizer gives the bytes that ggml's reference gives on x86-64 (multiplications and
//! additions apart, never fused), so files can be compared by hash. A codec works on whole rows:
//! some formats weigh a block by its row.

mod block;
mod plain;

pub use block::BlockType;

/// Why numbers cannot be encoded or decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    #[error("rows of {row} numbers do not divide into {ty} blocks of {}", ty.elements())]
    Row { ty: BlockType, row: usize },
    #[error("{found} bytes do not hold {numbers} numbers as {ty}; expected {expected}")]
    Length { ty: BlockType, found: usize, numbers: usize, expected: usize },
    #[error("{ty} cannot be made without an importance matrix; give one with --imatrix")]
    NeedsImportance { ty: BlockType },
    #[error("an importance matrix of {found} numbers does not fit rows of {row}")]
    Importance { found: usize, row: usize },
    #[error("{ty} is not a format that is written; it exists only while a model runs")]
    NotWritten { ty: BlockType },
    #[error("number {at} is {value}, which {ty} cannot hold")]
    NotFinite { ty: BlockType, at: usize, value: String },
}

/// `(numbers, row, importance of one row, out)`.
type Encode = fn(&[f32], usize, Option<&[f32]>, &mut [u8]);

/// One format's functions. Lengths are checked before they are called.
#[derive(Clone, Copy)]
pub(crate) struct Codec {
    /// Encodes whole rows of `row` numbers.
    pub(crate) encode: Encode,
    /// Decodes whole blocks.
    pub(crate) decode: fn(&[u8], &mut [f32]),
}

impl BlockType {
    fn codec(self) -> Option<Codec> {
        Some(match self {
            Self::F32 => plain::F32,
            Self::F16 => plain::F16,
            Self::Bf16 => plain::BF16,
            _ => return None,
        })
    }
}

/// Encodes rows of `row` numbers. `importance`, if any, weighs the numbers of each row.
pub fn encode(
    ty: BlockType,
    numbers: &[f32],
    row: usize,
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), Error> {
    if row == 0 || !row.is_multiple_of(ty.elements()) || !numbers.len().is_multiple_of(row) {
        return Err(Error::Row { ty, row });
    }
    lengths(ty, numbers.len(), out.len())?;
    if let Some(found) = importance.map(<[f32]>::len).filter(|&found| found != row) {
        return Err(Error::Importance { found, row });
    }
    if importance.is_none() && ty.needs_importance() {
        return Err(Error::NeedsImportance { ty });
    }
    let codec = ty.codec().ok_or(Error::NotWritten { ty })?;
    (codec.encode)(numbers, row, importance, out);
    Ok(())
}

/// Decodes whole blocks.
pub fn decode(ty: BlockType, bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
    lengths(ty, out.len(), bytes.len())?;
    let codec = ty.codec().ok_or(Error::NotWritten { ty })?;
    (codec.decode)(bytes, out);
    Ok(())
}

fn lengths(ty: BlockType, numbers: usize, found: usize) -> Result<(), Error> {
    let expected = numbers / ty.elements() * ty.bytes();
    if numbers.is_multiple_of(ty.elements()) && found == expected {
        Ok(())
    } else {
        Err(Error::Length { ty, found, numbers, expected })
    }
}
