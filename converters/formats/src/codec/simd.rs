//! Vectorized encoders that process several groups at once and produce the same bytes.
//!
//! A search adds up a group's terms in order, so splitting a group over lanes would change the rounding.
//! Groups are independent, so each lane has a group of its own and performs the operations of the scalar
//! code in their order. No operation is fused.
//!
//! The reasons are in [decision 60](../../../../docs/decisions/0060-quantizers-in-lanes.md).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod descent;
mod ladder;
mod lanes;
mod signed;
mod sums;

use super::{EncodeFn, LaneCount};
pub(super) use descent::descend;
pub(super) use ladder::{AffineLanes, climb};
use lanes::Width;
pub(super) use lanes::{Simd, SimdEncoder};
pub(super) use signed::{SignedLanes, signed};
pub use sums::{ErrorSums, sums};

/// Returns the encoder compiled for a number of lanes; none for one lane, or if the CPU lacks them.
///
/// Decoders have a mechanism of their own ([`super::decoder`]).
pub(super) fn encoder<W: SimdEncoder>(lanes: LaneCount) -> Option<EncodeFn> {
    match lanes {
        LaneCount::One => None,
        #[cfg(target_arch = "x86_64")]
        LaneCount::Eight => avx2::HasAvx2::encoder::<W>(),
        #[cfg(target_arch = "x86_64")]
        LaneCount::Sixteen => avx512::HasAvx512::encoder::<W>(),
        #[cfg(not(target_arch = "x86_64"))]
        _ => None,
    }
}
