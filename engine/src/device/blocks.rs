//! Types of blocks that kernels decode where they use them. Weights in other types are decoded at upload.

use formats::codec::BlockType;

use super::source::constant;

/// Returns the number that kernels give a name.
const fn defined(name: &str) -> u32 {
    constant(include_str!("kernels/block.cu"), name)
}

/// Bit of a matrix's dtype in kernels, whose 16-bit numbers are added in the order of f32.
pub(crate) const PLAIN_ORDER: u32 = defined("PLAIN_ORDER");

/// The first number of a type of blocks in kernels.
pub(crate) const FIRST: u32 = defined("Q8_0");

/// The types by the number that kernels give them.
const TYPES: [(BlockType, u32); 7] = [
    (BlockType::Q80, defined("Q8_0")),
    (BlockType::Q40, defined("Q4_0")),
    (BlockType::Q4K, defined("Q4_K")),
    (BlockType::Q6K, defined("Q6_K")),
    (BlockType::Mxfp4, defined("MXFP4")),
    (BlockType::Q50, defined("Q5_0")),
    (BlockType::Q5K, defined("Q5_K")),
];

/// Returns the types that kernels decode.
pub fn decoded() -> impl Iterator<Item = BlockType> {
    TYPES.iter().map(|(ty, _)| *ty)
}

/// Returns the number of a type in kernels; none if kernels do not decode it.
pub(crate) fn number(ty: BlockType) -> Option<u32> {
    TYPES.iter().find(|(known, _)| *known == ty).map(|(_, number)| *number)
}
