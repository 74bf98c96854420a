//! Validation of block data (the rules of `ggml_validate_row_data`).

use super::BlockType;
use super::declaration::ScaleRule;
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
    #[error("block {block} of {ty} has the exponent 255, which means NaN")]
    Exponent { ty: BlockType, block: usize },
    #[error("{ty} is not a format that is written; it exists only while a model runs")]
    NotWritten { ty: BlockType },
}

/// Checks that every scale is finite; in formats without blocks, every value.
pub fn validate(ty: BlockType, bytes: &[u8]) -> Result<(), BadBlock> {
    if !bytes.len().is_multiple_of(ty.bytes()) {
        return Err(BadBlock::Length { ty, found: bytes.len() });
    }
    let declared = ty.declaration();
    if declared.decode.is_none() {
        return Err(BadBlock::NotWritten { ty });
    }
    match declared.scales {
        ScaleRule::Free => Ok(()),
        // The sum is finite only if all are: finite f16 values do not add up to infinity in f32.
        ScaleRule::F16(places) => finite_scales(ty, bytes, |block| {
            places.iter().map(|&at| get_f16(block, at)).sum::<f32>().into()
        }),
        ScaleRule::Number(value) => finite_scales(ty, bytes, value),
        ScaleRule::Exponent(at) => {
            match bytes.chunks_exact(ty.bytes()).position(|block| block[at] == 255) {
                Some(block) => Err(BadBlock::Exponent { ty, block }),
                None => Ok(()),
            }
        }
    }
}

/// Checks that every block has a finite scale, as `scale` computes it.
fn finite_scales(
    ty: BlockType,
    bytes: &[u8],
    scale: impl Fn(&[u8]) -> f64,
) -> Result<(), BadBlock> {
    let scales = bytes.chunks_exact(ty.bytes()).map(scale);
    match scales.enumerate().find(|(_, scale)| !scale.is_finite()) {
        Some((block, scale)) => Err(BadBlock::Scale { ty, block, value: scale.to_string() }),
        None => Ok(()),
    }
}
