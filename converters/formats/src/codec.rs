//! Block formats: encoding of rows of values into the bytes of a GGUF tensor, and decoding.
//!
//! Every quantizer produces the bytes of ggml's reference code on x86-64 (no fused multiply-add), so files
//! can be compared by hash. A codec works on whole rows: some formats weight a block by its row.

mod band;
mod block;
mod crumbs;
mod fp4;
mod iq;
mod iq4;
mod layout;
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
mod rounding;
mod search;
mod simd;
mod ternary;
mod validate;

use crate::numbers::first_not_finite;

pub use band::expected_error;
pub use block::BlockType;
pub use nvfp4::{encode_nvfp4, nvfp4_factor};
pub use simd::LaneCount;
pub use simd::{ErrorSums, sums};
pub use validate::{BadBlock, validate};

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
    #[error("number {at} is {value}, which {ty} cannot hold")]
    NotFinite { ty: BlockType, at: usize, value: String },
    #[error("importance {at} is {value}; expected a finite number")]
    ImportanceNotFinite { at: usize, value: String },
}

/// `(numbers, row, importance of one row, out)`.
type EncodeFn = fn(&[f32], usize, Option<&[f32]>, &mut [u8]);

/// `(bytes, out)`.
type DecodeFn = fn(&[u8], &mut [f32]);

/// Functions of one format. Lengths are checked before they are called.
#[derive(Clone, Copy)]
pub(crate) struct Codec {
    /// Encodes whole rows of `row` values.
    pub(crate) encode: EncodeFn,
    /// Decodes whole blocks.
    pub(crate) decode: DecodeFn,
}

impl BlockType {
    fn codec(self) -> Option<Codec> {
        Some(match self {
            Self::F32 => plain::F32,
            Self::F16 => plain::F16,
            Self::Bf16 => plain::BF16,
            Self::Iq1M => iq::IQ1_M,
            Self::Iq1S => iq::IQ1_S,
            Self::Iq2S => iq::IQ2_S,
            Self::Iq2Xs => iq::IQ2_XS,
            Self::Iq2Xxs => iq::IQ2_XXS,
            Self::Iq3S => iq::IQ3_S,
            Self::Iq3Xxs => iq::IQ3_XXS,
            Self::Iq4Nl => iq4::IQ4_NL,
            Self::Iq4Xs => iq4::IQ4_XS,
            Self::Mxfp4 => fp4::MXFP4,
            Self::Nvfp4 => fp4::NVFP4,
            Self::Q10 => low_bits::Q1_0,
            Self::Q20 => low_bits::Q2_0,
            Self::Q2K => q2_k::Q2_K,
            Self::Q3K => q3_k::Q3_K,
            Self::Q40 => q4_0::Q4_0,
            Self::Q41 => q4_1::Q4_1,
            Self::Q4K => q4_k::Q4_K,
            Self::Q50 => q4_0::Q5_0,
            Self::Q51 => q4_1::Q5_1,
            Self::Q5K => q4_k::Q5_K,
            Self::Q6K => q6_k::Q6_K,
            Self::Q80 => q8_0::Q8_0,
            Self::Tq10 => ternary::TQ1_0,
            Self::Tq20 => ternary::TQ2_0,
            _ => return None,
        })
    }
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
    encode_in(LaneCount::widest(), ty, numbers, row, importance, out)
}

/// Encodes like [`encode`] with a given number of lanes; with one lane if the CPU lacks them.
pub fn encode_in(
    lanes: LaneCount,
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
    if ty.is_quantized() {
        if let Some(at) = first_not_finite(numbers) {
            return Err(Error::NotFinite { ty, at, value: numbers[at].to_string() });
        }
        let weights = importance.unwrap_or_default();
        if let Some(at) = first_not_finite(weights) {
            return Err(Error::ImportanceNotFinite { at, value: weights[at].to_string() });
        }
    }
    let encode = simd::encoder(ty, lanes).unwrap_or(codec.encode);
    encode(numbers, row, importance, out);
    Ok(())
}

/// Decodes whole blocks.
pub fn decode(ty: BlockType, bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
    lengths(ty, out.len(), bytes.len())?;
    let decode = match ty.codec() {
        Some(codec) => codec.decode,
        None => plain::decoder(ty).ok_or(Error::NotWritten { ty })?,
    };
    decode(bytes, out);
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
