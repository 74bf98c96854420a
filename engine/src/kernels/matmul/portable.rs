//! The tile kernel for any CPU: plain arrays, which the compiler vectorizes as it can.
#![expect(unsafe_code, reason = "reads through the pointers of the tile kernel")]
#![expect(
    clippy::inline_always,
    reason = "intrinsics are fast only inside a function with features"
)]

use super::lanes::{Bf16Weights, F16Weights, F32Weights, Lanes, WeightFormat};
use super::pack::PackLayout;
use super::register_tile::Sweep;
use super::sweep::sweep;
use super::tile::{self, RowBlock};
use registry::dtype::Dtype;

#[derive(Clone, Copy)]
struct PortableLanes([f32; 16]);

impl Lanes for PortableLanes {
    const ROWS: usize = 2;
    const IN_TURN: bool = false;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0.0; 16])
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller lets 64 bytes be read.
        let bits: [[u8; 4]; 16] = unsafe { from.cast::<[[u8; 4]; 16]>().read_unaligned() };
        Self(bits.map(f32::from_le_bytes))
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: the caller lets 32 bytes be read.
        let bits: [[u8; 2]; 16] = unsafe { from.cast::<[[u8; 2]; 16]>().read_unaligned() };
        Self(bits.map(|b| half::f16::from_le_bytes(b).to_f32()))
    }
    #[inline(always)]
    unsafe fn load_odd(from: *const u8) -> Self {
        // SAFETY: the caller lets 64 bytes be read.
        let bits: [[u8; 4]; 16] = unsafe { from.cast::<[[u8; 4]; 16]>().read_unaligned() };
        Self(bits.map(|b| f32::from_bits(u32::from_le_bytes(b) & 0xffff_0000)))
    }
    #[inline(always)]
    unsafe fn load_even(from: *const u8) -> Self {
        // SAFETY: the caller lets 64 bytes be read.
        let bits: [[u8; 4]; 16] = unsafe { from.cast::<[[u8; 4]; 16]>().read_unaligned() };
        Self(bits.map(|b| f32::from_bits(u32::from_le_bytes(b) << 16)))
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|l| a.0[l].mul_add(b.0[l], self.0[l])))
    }
    #[inline(always)]
    unsafe fn sums<const N: usize>(of: [Self; N]) -> [f32; N] {
        of.map(|Self(lanes)| super::reference::sum(lanes))
    }
    unsafe fn sweep<F, const R: usize, const N: usize, const FETCH: usize>(tile: &Sweep<Self, N>)
    where
        F: WeightFormat<Lanes = Self>,
    {
        // SAFETY: the caller's promise.
        unsafe { sweep::<F, R, N, FETCH>(tile) }
    }
}

/// Computes one block.
///
/// # Safety
/// As [`tile::block`].
pub(super) unsafe fn block(kind: PackLayout, block: &RowBlock<'_>) {
    debug_assert!(kind != PackLayout::PairBf16);
    // SAFETY: the caller's promise; no CPU feature is needed.
    unsafe {
        match block.dtype {
            Dtype::F32 if block.blocks.is_some() => {
                tile::decoded_block::<PortableLanes, 2, 2>(block);
            }
            Dtype::F32 => tile::block::<F32Weights<PortableLanes>, 2>(block),
            Dtype::F16 => tile::block::<F16Weights<PortableLanes>, 2>(block),
            Dtype::Bf16 => tile::block::<Bf16Weights<PortableLanes>, 2>(block),
        }
    }
}
