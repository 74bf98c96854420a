//! The innermost loop: one register tile along a stretch of a row.
//!
//! Each instruction set compiles it as a function of its own (`Lanes::sweep`), so that nothing
//! around the loop competes for the registers that hold the sums.
#![expect(unsafe_code, reason = "hot loops over raw bytes, without bounds checks")]
#![expect(
    clippy::inline_always,
    reason = "intrinsics are fast only inside a function with features"
)]

use super::lanes::{Lanes, WeightFormat};
use super::pack::CacheLine;
use super::register_tile::Sweep;
use crate::kernels::prefetch::prefetch;
use std::sync::atomic::{Ordering, compiler_fence};

/// Adds steps `start..end` to the sums, which start at zero with the row; at its end adds the
/// rest and stores the results.
///
/// Every step asks for `FETCH` cache lines at `next`, or, if that is 0, for the same place of
/// the rows that follow: the CPU's own prefetches end with each page of 4 KiB.
///
/// # Safety
/// The CPU has the features of `F`. Readable: `steps` steps and `rest` bytes at each of
/// `weights`, as many packed steps of `R` rows at `x`. Writable, by nobody else: `R * N` sums
/// at `spilled`, and `columns` numbers at `y` in `R` rows. Unless `start` is 0, the sums at
/// `spilled` were written by the stretch before.
#[inline(always)]
pub(super) unsafe fn sweep<F: WeightFormat, const R: usize, const N: usize, const FETCH: usize>(
    tile: &Sweep<F::Lanes, N>,
) {
    let x_step = R * F::PHASES * size_of::<CacheLine>();
    let ahead = N * (tile.steps * F::BYTES + tile.rest);
    // SAFETY: the caller's promise; every offset is inside what it names.
    unsafe {
        let mut sums = [[F::Lanes::zero(); N]; R];
        if tile.start > 0 {
            sums = tile.spilled.cast::<[[F::Lanes; N]; R]>().read();
        }
        let mut x = tile.x.add(tile.start * x_step);
        let mut next = tile.next;
        let mut offset = tile.start * F::BYTES;
        for _ in tile.start..tile.end {
            let mut weights = tile.weights;
            for weight in &mut weights {
                *weight = weight.add(offset);
                if FETCH == 0 {
                    for line in (0..F::BYTES).step_by(64) {
                        prefetch(weight.wrapping_add(ahead + line));
                    }
                }
            }
            for line in 0..FETCH {
                prefetch(next.wrapping_add(64 * line));
            }
            step::<F, R, N>(&mut sums, weights, x);
            offset += F::BYTES;
            x = x.add(x_step);
            next = next.wrapping_add(tile.pace);
        }
        if tile.end < tile.steps {
            tile.spilled.cast::<[[F::Lanes; N]; R]>().write(sums);
            return;
        }
        if tile.rest > 0 {
            let mut padded = [[0_u8; 128]; N];
            let mut weights = tile.weights;
            for (padded, weight) in padded.iter_mut().zip(&mut weights) {
                padded.as_mut_ptr().copy_from_nonoverlapping(weight.add(offset), tile.rest);
                *weight = padded.as_ptr();
            }
            step::<F, R, N>(&mut sums, weights, x);
        }
        for r in 0..R {
            let sums = F::Lanes::sums(sums[r]);
            let y = tile.y.add(r * tile.y_stride);
            if tile.columns == N {
                y.cast::<[f32; N]>().write_unaligned(sums);
            } else {
                y.copy_from_nonoverlapping(sums.as_ptr(), tile.columns);
            }
        }
    }
}

/// Computes one step of a tile.
///
/// # Safety
/// As [`sweep`]; reads `F::BYTES` bytes at each of `weights`, and a packed step at `x`.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "these unroll before the sums become registers")]
unsafe fn step<F: WeightFormat, const R: usize, const N: usize>(
    sums: &mut [[F::Lanes; N]; R],
    weights: [*const u8; N],
    x: *const u8,
) {
    for phase in 0..F::PHASES {
        // SAFETY: the caller's promise.
        unsafe {
            let mut widened = [F::Lanes::zero(); N];
            for n in 0..N {
                widened[n] = F::weight(weights[n], phase);
            }
            for r in 0..R {
                let x = F::Lanes::load(x.add((phase * R + r) * size_of::<CacheLine>()));
                for n in 0..N {
                    sums[r][n] = F::fma(sums[r][n], widened[n], x);
                }
                if F::Lanes::IN_TURN || r == R - 1 {
                    // No instruction comes of it.
                    compiler_fence(Ordering::SeqCst);
                }
            }
        }
    }
}
