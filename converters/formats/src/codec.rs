//! Block formats: encoding of rows of values into the bytes of a GGUF tensor, and decoding.
//!
//! Every quantizer produces the bytes of ggml's reference code on x86-64 (no fused multiply-add), so files
//! can be compared by hash. A codec works on whole rows: some formats weight a block by its row.

#![expect(
    clippy::inline_always,
    reason = "vectorized code is fast only inside a function with the CPU features"
)]

#[macro_use]
mod block;
#[macro_use]
mod decoder;
mod by_peak;
mod crumbs;
mod declaration;
mod fp4;
mod halves;
mod iq;
mod iq4;
mod layout;
mod levels;
mod low_bits;
mod nibbles;
mod nvfp4;
mod plain;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q6_k;
mod q8_0;
mod q8_k;
mod rounding;
mod search;
mod simd;
mod ternary;
mod validate;

use lanes::Isa;

use crate::numbers::first_not_finite;

pub use declaration::{FileType, ImportanceNeed};
pub use decoder::{BlockReader, LaneSums};
pub use levels::{Levels, levels};
pub use simd::{ErrorSums, sums};
pub use validate::{BadBlock, validate};

// From the most bits to the fewest, which is the order in which targets are listed; then those that
// no target is of. Each has its declaration beside its codec.
block_types! {
    F32: plain::F32,
    F16: plain::F16,
    Bf16: plain::BF16,
    Q80: q8_0::Q8_0,
    Q6K: q6_k::Q6_K,
    Q5K: q4_k::Q5_K,
    Q51: q4_1::Q5_1,
    Q50: q4_0::Q5_0,
    Q4K: q4_k::Q4_K,
    Q41: q4_1::Q4_1,
    Q40: q4_0::Q4_0,
    Iq4Nl: iq4::IQ4_NL,
    Iq4Xs: iq4::IQ4_XS,
    Mxfp4: fp4::MXFP4,
    Q3K: q3_k::Q3_K,
    Iq3S: iq::IQ3_S,
    Iq3Xxs: iq::IQ3_XXS,
    Q2K: q2_k::Q2_K,
    Iq2S: iq::IQ2_S,
    Iq2Xs: iq::IQ2_XS,
    Iq2Xxs: iq::IQ2_XXS,
    Iq1M: iq::IQ1_M,
    Iq1S: iq::IQ1_S,
    Tq20: ternary::TQ2_0,
    Tq10: ternary::TQ1_0,
    Q20: low_bits::Q2_0,
    Q10: low_bits::Q1_0,
    Nvfp4: fp4::NVFP4,
    Q81: q8_0::Q8_1,
    Q8K: q8_k::Q8_K,
    I8: plain::I8,
    I16: plain::I16,
    I32: plain::I32,
    I64: plain::I64,
    F64: plain::F64,
    #[cfg(test)]
    MadeUp: made_up::MADE_UP,
}

/// `(numbers, row, importance of one row, out)`. Lengths are checked before.
pub(crate) type EncodeFn = fn(&[f32], usize, Option<&[f32]>, &mut [u8]);
/// [`EncodeFn`] with the vectors of an instruction set.
pub(crate) type EncodeLanesFn = fn(Isa, &[f32], usize, Option<&[f32]>, &mut [u8]);

/// Reason why values cannot be encoded or decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    #[error("rows of {row} numbers do not divide into {ty} blocks of {}", ty.elements())]
    Row { ty: BlockType, row: usize },
    #[error("{found} bytes do not hold {numbers} numbers as {ty}; expected {expected}")]
    Length { ty: BlockType, found: usize, numbers: usize, expected: usize },
    #[error("{ty} cannot be made without an importance matrix; give one with the option `imatrix`")]
    NeedsImportance { ty: BlockType },
    #[error("an importance matrix of {found} numbers does not fit rows of {row}")]
    Importance { found: usize, row: usize },
    #[error("{ty} is not a format that is written; it exists only while a model runs")]
    NotWritten { ty: BlockType },
    #[error("{ty} has no factor beside its blocks")]
    NoFactor { ty: BlockType },
    #[error("number {at} is {value}, which {ty} cannot hold")]
    NotFinite { ty: BlockType, at: usize, value: String },
    #[error("importance {at} is {value}; expected a finite number")]
    ImportanceNotFinite { at: usize, value: String },
}

/// Returns the root mean squared error over the root mean square, for normally distributed values. Weights
/// with outliers lose more. Returns none for formats that are exact or nearly so.
pub fn expected_error(ty: BlockType) -> Option<f64> {
    ty.declaration().error
}

/// Encodes rows of `row` values. `importance`, if any, weights the errors of each row.
///
/// Block formats reject values that are not finite, because one would spoil its whole block. F32, F16 and
/// BF16 keep them, and F16 overflows to infinity, as in ggml; [`validate`] finds both, and scales beyond
/// f16.
pub fn encode(
    ty: BlockType,
    numbers: &[f32],
    row: usize,
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), Error> {
    encode_in(Isa::best(), ty, numbers, row, importance, out)
}

/// Encodes like [`encode`] with the vectors of an instruction set. Plain code encodes one group after the other.
pub fn encode_in(
    isa: Isa,
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
    if let Some(length) = importance.map(<[f32]>::len).filter(|&length| length != row) {
        return Err(Error::Importance { found: length, row });
    }
    if importance.is_none() && ty.needs_importance() {
        return Err(Error::NeedsImportance { ty });
    }
    let declared = ty.declaration();
    let encode = declared.encode.ok_or(Error::NotWritten { ty })?;
    if ty.is_quantized() {
        finite(ty, numbers)?;
        let weights = importance.unwrap_or_default();
        if let Some(at) = first_not_finite(weights) {
            return Err(Error::ImportanceNotFinite { at, value: weights[at].to_string() });
        }
    }
    match declared.wide {
        Some(wide) if isa != Isa::PORTABLE => wide(isa, numbers, row, importance, out),
        _ => encode(numbers, row, importance, out),
    }
    Ok(())
}

/// Encodes values as blocks that are multiplied by `factor` on reading. Values that came from such blocks
/// and that factor are reproduced exactly; others are rounded to the nearest.
pub fn encode_factored(
    ty: BlockType,
    numbers: &[f32],
    factor: f32,
    out: &mut [u8],
) -> Result<(), Error> {
    let functions = ty.declaration().factored.ok_or(Error::NoFactor { ty })?;
    lengths(ty, numbers.len(), out.len())?;
    finite(ty, numbers)?;
    (functions.encode)(numbers, factor, out);
    Ok(())
}

/// Decodes whole blocks.
pub fn decode(ty: BlockType, bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
    decode_in(Isa::best(), ty, bytes, out)
}

/// Decodes like [`decode`] with the vectors of an instruction set.
pub fn decode_in(isa: Isa, ty: BlockType, bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
    lengths(ty, out.len(), bytes.len())?;
    let decoder = ty.declaration().decode.ok_or(Error::NotWritten { ty })?;
    (decoder.decode)(isa, bytes, out);
    Ok(())
}

fn finite(ty: BlockType, numbers: &[f32]) -> Result<(), Error> {
    match first_not_finite(numbers) {
        Some(at) => Err(Error::NotFinite { ty, at, value: numbers[at].to_string() }),
        None => Ok(()),
    }
}

fn lengths(ty: BlockType, numbers: usize, bytes: usize) -> Result<(), Error> {
    let expected = numbers / ty.elements() * ty.bytes();
    if numbers.is_multiple_of(ty.elements()) && bytes == expected {
        Ok(())
    } else {
        Err(Error::Length { ty, found: bytes, numbers, expected })
    }
}

#[cfg(test)]
mod made_up;
#[cfg(test)]
mod tests;
