//! Validation of block data (the rules of `ggml_validate_row_data`).

use super::BlockType;
use super::layout::get_f16;

/// Reason why blocks cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum BadBlock {
    #[error("{found} bytes are not whole blocks of {ty}, which take {} each", ty.bytes())]
    Length { ty: BlockType, found: usize },
    #[error("block {block} of {ty} has a scale of {value}; expected a finite number")]
    Scale { ty: BlockType, block: usize, value: String },
    #[error("block {block} of {ty} has the exponent 255, which stands for NaN")]
    Exponent { ty: BlockType, block: usize },
    #[error("{ty} is not a format that is written; it exists only while a model runs")]
    NotWritten { ty: BlockType },
}

/// Checks that every scale is finite; in formats without blocks, every value.
pub fn validate(ty: BlockType, bytes: &[u8]) -> Result<(), BadBlock> {
    if !bytes.len().is_multiple_of(ty.bytes()) {
        return Err(BadBlock::Length { ty, found: bytes.len() });
    }
    let bad = |value: &dyn Fn(&[u8]) -> f64| {
        let blocks = bytes.chunks_exact(ty.bytes()).map(value);
        match blocks.enumerate().find(|(_, value)| !value.is_finite()) {
            Some((block, value)) => Err(BadBlock::Scale { ty, block, value: value.to_string() }),
            None => Ok(()),
        }
    };
    let f16s = |places: &[usize]| {
        // The sum is finite only if both are: finite f16 values do not add up to infinity in f32.
        bad(&|block| places.iter().map(|&at| get_f16(block, at)).sum::<f32>().into())
    };
    match ty {
        BlockType::I8 | BlockType::I16 | BlockType::I32 | BlockType::I64 | BlockType::Nvfp4 => {
            Ok(())
        }
        BlockType::Q81 | BlockType::Q8K => Err(BadBlock::NotWritten { ty }),
        BlockType::F32 => bad(&|bytes| first::<4>(bytes).map_or(0.0, f32::from_le_bytes).into()),
        BlockType::F64 => bad(&|bytes| first::<8>(bytes).map_or(0.0, f64::from_le_bytes)),
        BlockType::Bf16 => {
            bad(&|bytes| f32::from_bits((bytes[1] as u32) << 24 | (bytes[0] as u32) << 16).into())
        }
        BlockType::Mxfp4 => match bytes.chunks_exact(17).position(|block| block[0] == 255) {
            Some(block) => Err(BadBlock::Exponent { ty, block }),
            None => Ok(()),
        },
        BlockType::Iq1M => bad(&|block| {
            // The scale is stored in the upper four bits of the last four u16.
            let nibble = |n: usize| block[48 + 2 * n + 1] >> 4;
            let bytes = [nibble(0) | nibble(1) << 4, nibble(2) | nibble(3) << 4];
            get_f16(&bytes, 0).into()
        }),
        BlockType::Q41 | BlockType::Q51 | BlockType::Q4K | BlockType::Q5K => f16s(&[0, 2]),
        BlockType::Q2K => f16s(&[80, 82]),
        BlockType::Q3K => f16s(&[108]),
        BlockType::Q6K => f16s(&[208]),
        BlockType::Tq10 => f16s(&[52]),
        BlockType::Tq20 => f16s(&[64]),
        BlockType::F16
        | BlockType::Q40
        | BlockType::Q50
        | BlockType::Q80
        | BlockType::Q10
        | BlockType::Q20
        | BlockType::Iq4Nl
        | BlockType::Iq4Xs
        | BlockType::Iq1S
        | BlockType::Iq2Xxs
        | BlockType::Iq2Xs
        | BlockType::Iq2S
        | BlockType::Iq3Xxs
        | BlockType::Iq3S => f16s(&[0]),
    }
}

fn first<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.first_chunk().copied()
}
