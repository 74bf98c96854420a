//! Block type that no program has: a scale and four signs, for the test of what a new type takes.

use super::BlockType;
use super::declaration::{BlockDeclaration, FileType, ImportanceNeed, ScaleRule};
use super::layout::{blocks, peak, put_f16};

pub(super) const MADE_UP: BlockDeclaration = BlockDeclaration {
    scales: ScaleRule::F16(&[0]),
    importance: ImportanceNeed::Advised,
    error: Some(0.7),
    fallback: Some(BlockType::F16),
    file_types: &[FileType::new("MU1_0_M", 900)],
    encode: Some(|numbers, _, _, out| {
        for (x, block) in blocks::<4, 3>(numbers, out) {
            put_f16(block, 0, peak(x).abs());
            block[2] = (0..4).fold(0, |bits, n| bits | u8::from(x[n] < 0.0) << n);
        }
    }),
    decode: decoder!(3, 4, |ops, block, out| {
        let d = ops.f16(block, 0);
        *out = std::array::from_fn(|n| if block[2] >> n & 1 == 1 { -d } else { d });
    }),
    ..BlockDeclaration::new("MU1_0", 900, 4, 3)
};
