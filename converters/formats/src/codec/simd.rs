//! Vectorized encoders that process several groups at once and produce the same bytes.
//!
//! A search adds up a group's terms in order, so splitting a group over lanes would change the rounding.
//! Groups are independent, so each lane has a group of its own and performs the operations of the scalar
//! code in their order. No operation is fused.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod ladder;
mod lanes;
mod q4_k;
mod q6_k;
mod signed;
mod sums;

use super::{BlockType, EncodeFn};
pub use lanes::LaneCount;
use lanes::{Simd, Width};
pub use sums::{ErrorSums, sums};

/// Returns the encoder of a format for a number of lanes, if there is one besides the scalar one.
///
/// Decoders have none: the compiler vectorizes them, and memory bandwidth limits them.
pub(super) fn encoder(ty: BlockType, lanes: LaneCount) -> Option<EncodeFn> {
    match lanes {
        LaneCount::One => None,
        #[cfg(target_arch = "x86_64")]
        LaneCount::Eight => of_width::<avx2::HasAvx2>(ty),
        #[cfg(target_arch = "x86_64")]
        LaneCount::Sixteen => of_width::<avx512::HasAvx512>(ty),
        #[cfg(not(target_arch = "x86_64"))]
        _ => None,
    }
}

fn of_width<W: Width>(ty: BlockType) -> Option<EncodeFn> {
    match ty {
        BlockType::Q4K => W::encoder::<q4_k::Q4K>(),
        BlockType::Q5K => W::encoder::<q4_k::Q5K>(),
        BlockType::Q6K => W::encoder::<q6_k::Q6K>(),
        _ => None,
    }
}
