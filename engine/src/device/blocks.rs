//! Types of blocks that kernels decode where they use them. Weights in other types are decoded at upload.

use formats::codec::BlockType;

/// The types by the number that `block.cu` gives them.
const TYPES: [(BlockType, u32); 7] = [
    (BlockType::Q80, 16),
    (BlockType::Q40, 17),
    (BlockType::Q4K, 18),
    (BlockType::Q6K, 19),
    (BlockType::Mxfp4, 20),
    (BlockType::Q50, 21),
    (BlockType::Q5K, 22),
];

/// Returns the number of a type in kernels; none if kernels do not decode it.
pub(crate) fn number(ty: BlockType) -> Option<u32> {
    TYPES.iter().find(|(known, _)| *known == ty).map(|(_, number)| *number)
}
