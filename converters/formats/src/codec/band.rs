//! Expected quantization error of each format on normally distributed weights.

use super::BlockType;

/// Returns the root mean squared error over the root mean square, for normally distributed values. An
/// importance matrix is used only if the format requires one (`tests/it/bands.rs` of `onboard-conversion`). Weights with outliers lose
/// more. Returns none for formats that are exact or nearly so.
pub fn expected_error(ty: BlockType) -> Option<f64> {
    Some(match ty {
        BlockType::Q40 => 0.0859,
        BlockType::Q41 => 0.0783,
        BlockType::Q50 => 0.0427,
        BlockType::Q51 => 0.0378,
        BlockType::Q80 => 0.0054,
        BlockType::Q2K => 0.297,
        BlockType::Q3K => 0.151,
        BlockType::Q4K => 0.0713,
        BlockType::Q5K => 0.0361,
        BlockType::Q6K => 0.0177,
        BlockType::Iq4Nl => 0.0755,
        BlockType::Iq4Xs => 0.0768,
        BlockType::Mxfp4 => 0.114,
        BlockType::Nvfp4 => 0.0949,
        BlockType::Iq3S => 0.166,
        BlockType::Iq3Xxs => 0.213,
        BlockType::Iq2S => 0.265,
        BlockType::Iq2Xs => 0.299,
        BlockType::Iq2Xxs => 0.343,
        BlockType::Iq1S => 0.486,
        BlockType::Iq1M => 0.584,
        BlockType::Q10 => 0.601,
        BlockType::Q20 => 0.719,
        BlockType::Tq10 | BlockType::Tq20 => 0.809,
        _ => return None,
    })
}
