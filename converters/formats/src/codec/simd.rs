//! Vectorized encoders that process several groups at once and produce the same bytes.
//!
//! A search adds up a group's terms in order, so splitting a group over lanes would change the rounding.
//! Groups are independent, so each lane has a group of its own and performs the operations of the scalar
//! code in their order. No operation is fused.
//!
//! The reasons are in [decision 60](../../../../docs/decisions/0060-quantizers-in-lanes.md).

mod descent;
mod groups;
mod ladder;
mod signed;
mod sums;

use std::marker::PhantomData;

use lanes::{Isa, Simd, SliceTask};

pub(super) use descent::descend;
pub(super) use groups::{Groups, SimdEncoder};
pub(super) use ladder::{AffineLanes, climb};
pub(super) use signed::{SignedLanes, signed};
pub use sums::{ErrorSums, sums};

/// Encoding of rows as a task.
struct RowEncoding<'a, W> {
    row: usize,
    importance: Option<&'a [f32]>,
    encoder: PhantomData<W>,
}

impl<W: SimdEncoder> SliceTask for RowEncoding<'_, W> {
    type From = f32;
    type To = u8;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S, numbers: &[f32], out: &mut [u8]) {
        W::encode(simd, numbers, self.row, self.importance, out);
    }
}

/// Encodes with the vectors of an instruction set: an [`EncodeLanesFn`](super::EncodeLanesFn).
pub(super) fn encoder<W: SimdEncoder>(
    isa: Isa,
    numbers: &[f32],
    row: usize,
    importance: Option<&[f32]>,
    out: &mut [u8],
) {
    isa.run_slices(RowEncoding::<W> { row, importance, encoder: PhantomData }, numbers, out);
}
