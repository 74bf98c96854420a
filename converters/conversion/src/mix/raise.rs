//! Finer types for a tensor whose own costs too much.

use super::table::Table;
use super::{Tensor, fallback};
use formats::codec::BlockType;

/// How many types a tensor goes through from the one that it was given to plain numbers.
pub const LEVELS: usize = 5;

/// The steps between the two. Types between these are so close to the next that a tensor which
/// matters is better served by the next.
const STEPS: [BlockType; LEVELS - 2] = [BlockType::Q4K, BlockType::Q6K, BlockType::Q80];

/// What a step has to add, in bits of 256 numbers: less is not worth a file to try it in.
const LEAST: usize = 256;

/// The type of a tensor at each level: `ty` at the first, what it has unquantized at the last, and
/// between them no type that is smaller than the one before. Where rows do not divide into the blocks
/// of a step, what stands in for it is taken.
pub fn levels(tensor: &Tensor<'_>, ty: BlockType) -> [BlockType; LEVELS] {
    let mut levels = [ty; LEVELS];
    let mut last = ty;
    for (level, step) in levels[1..].iter_mut().zip(STEPS) {
        let stand_in = fallback(Table::get(), tensor, step, String::new());
        let finer = |ty: &BlockType| (bits(last) + LEAST..bits(tensor.base)).contains(&bits(*ty));
        last = stand_in.ok().map(|found| found.0).filter(finer).unwrap_or(last);
        *level = last;
    }
    if bits(last) < bits(tensor.base) {
        levels[LEVELS - 1] = tensor.base;
    } else {
        levels[LEVELS - 1] = last;
    }
    levels
}

/// What 256 numbers take.
fn bits(ty: BlockType) -> usize {
    256 * 8 * ty.bytes() / ty.elements()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_only_become_finer() {
        use BlockType as T;
        for (row, base, levels_of) in [
            (256, T::Bf16, [T::Iq2Xs, T::Q4K, T::Q6K, T::Q80, T::Bf16]),
            (256, T::Bf16, [T::Iq4Xs, T::Iq4Xs, T::Q6K, T::Q80, T::Bf16]),
            (256, T::Bf16, [T::Q4K, T::Q4K, T::Q6K, T::Q80, T::Bf16]),
            (256, T::Bf16, [T::Q6K, T::Q6K, T::Q6K, T::Q80, T::Bf16]),
            (256, T::F32, [T::Q80, T::Q80, T::Q80, T::Q80, T::F32]),
            // Q8_0 stands in for Q6_K where rows do not fit, F16 for Q8_0.
            (96, T::Bf16, [T::Q50, T::Q50, T::Q80, T::Q80, T::Bf16]),
            (40, T::F32, [T::F16, T::F16, T::F16, T::F16, T::F32]),
            (40, T::Bf16, [T::F16; LEVELS]),
            (256, T::F32, [T::F32; LEVELS]),
        ] {
            let tensor = Tensor { name: "blk.0.ffn_up.weight", shape: &[8, row], base };
            assert_eq!(levels(&tensor, levels_of[0]), levels_of, "{row} {base}");
        }
    }
}
