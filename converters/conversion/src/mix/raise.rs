//! Raises the type of a tensor whose own type costs too much accuracy.

use super::{MixTensor, fallback};
use formats::codec::BlockType;

/// Number of types from a tensor's assigned type to its unquantized type.
pub const LEVELS: usize = 5;

/// Intermediate types. Types between these are so close to the next one that a sensitive tensor is better
/// served by the next one.
const STEPS: [BlockType; LEVELS - 2] = [BlockType::Q4K, BlockType::Q6K, BlockType::Q80];

/// Smallest size increase of a step, in bits per 256 values: a smaller one does not justify a trial file.
const LEAST: usize = 256;

/// Returns the type of a tensor at each level: `ty` first, its unquantized type last. No level is smaller
/// than the one before. If rows do not divide into the blocks of a type, its substitute is taken.
pub fn levels(tensor: &MixTensor<'_>, ty: BlockType) -> [BlockType; LEVELS] {
    let mut levels = [ty; LEVELS];
    let mut last = ty;
    for (level, step) in levels[1..].iter_mut().zip(STEPS) {
        let stand_in = fallback(tensor, step, String::new()).ok().map(|(ty, _)| ty);
        let finer = bits(last) + LEAST..bits(tensor.base);
        last = stand_in.filter(|ty| finer.contains(&bits(*ty))).unwrap_or(last);
        *level = last;
    }
    if bits(last) < bits(tensor.base) {
        levels[LEVELS - 1] = tensor.base;
    } else {
        levels[LEVELS - 1] = last;
    }
    levels
}

/// Returns the size of 256 values in bits.
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
            // Q8_0 replaces Q6_K where rows do not fit, F16 replaces Q8_0.
            (96, T::Bf16, [T::Q50, T::Q50, T::Q80, T::Q80, T::Bf16]),
            (40, T::F32, [T::F16, T::F16, T::F16, T::F16, T::F32]),
            (40, T::Bf16, [T::F16; LEVELS]),
            (256, T::F32, [T::F32; LEVELS]),
        ] {
            let tensor = MixTensor { name: "blk.0.ffn_up.weight", shape: &[8, row], base };
            assert_eq!(levels(&tensor, levels_of[0]), levels_of, "{row} {base}");
        }
    }
}
