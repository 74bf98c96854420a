//! The innermost loop: one register tile along a stretch of a row.
//!
//! It is compiled as a function of its own ([`Simd::apart`]), so that nothing around the loop competes for the
//! registers that hold the sums.
#![expect(unsafe_code, reason = "hot loops over raw bytes, without bounds checks")]
#![expect(
    clippy::inline_always,
    reason = "intrinsics are fast only inside a function with features"
)]

use std::marker::PhantomData;
use std::sync::atomic::{Ordering, compiler_fence};

use lanes::{Simd, VectorTask, prefetch_to_l2};

use super::pack::CacheLine;
use super::register_tile::Sweep;
use super::weights::WeightFormat;

/// The loop as a task of its own.
struct SweepTask<'a, F, const R: usize, const N: usize, const FETCH: usize> {
    tile: &'a Sweep<N>,
    format: PhantomData<F>,
}

impl<F: WeightFormat, const R: usize, const N: usize, const FETCH: usize> VectorTask
    for SweepTask<'_, F, R, N, FETCH>
{
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: `sweep_apart` makes these tasks, and has this promise of its caller.
        unsafe { sweep::<S, F, R, N, FETCH>(s, self.tile) }
    }
}

/// Computes [`sweep`] in a function of its own.
///
/// # Safety
/// As [`sweep`].
#[inline(always)]
pub(super) unsafe fn sweep_apart<
    S: Simd,
    F: WeightFormat,
    const R: usize,
    const N: usize,
    const FETCH: usize,
>(
    s: S,
    tile: &Sweep<N>,
) {
    s.apart(SweepTask::<F, R, N, FETCH> { tile, format: PhantomData });
}

/// Adds steps `start..end` to the sums, which start at zero with the row; at its end adds the
/// rest and stores the results.
///
/// Every step asks for `FETCH` cache lines at `next`, or, if that is 0, for the same place of
/// the rows that follow: the CPU's own prefetches end with each page of 4 KiB.
///
/// # Safety
/// Readable: `steps` steps and `rest` bytes at each of
/// `weights`, as many packed steps of `R` rows at `x`. Writable, by nobody else: `R * N` vectors of sums
/// at `spilled`, and `columns` numbers at `y` in `R` rows. Unless `start` is 0, the sums at
/// `spilled` were written by the stretch before.
#[inline(always)]
unsafe fn sweep<S: Simd, F: WeightFormat, const R: usize, const N: usize, const FETCH: usize>(
    s: S,
    tile: &Sweep<N>,
) {
    let x_step = R * F::PHASES * size_of::<CacheLine>();
    let ahead = N * (tile.steps * F::BYTES + tile.rest);
    // SAFETY: the caller's promise; every offset is inside what it names.
    unsafe {
        let mut sums = [[s.splat16(0.0); N]; R];
        if tile.start > 0 {
            sums = tile.spilled.cast::<[[S::Wide; N]; R]>().read();
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
                        prefetch_to_l2(weight.wrapping_add(ahead + line));
                    }
                }
            }
            for line in 0..FETCH {
                prefetch_to_l2(next.wrapping_add(64 * line));
            }
            step::<S, F, R, N>(s, &mut sums, weights, x);
            offset += F::BYTES;
            x = x.add(x_step);
            next = next.wrapping_add(tile.pace);
        }
        if tile.end < tile.steps {
            tile.spilled.cast::<[[S::Wide; N]; R]>().write(sums);
            return;
        }
        if tile.rest > 0 {
            let mut padded = [[0_u8; 128]; N];
            let mut weights = tile.weights;
            for (padded, weight) in padded.iter_mut().zip(&mut weights) {
                padded.as_mut_ptr().copy_from_nonoverlapping(weight.add(offset), tile.rest);
                *weight = padded.as_ptr();
            }
            step::<S, F, R, N>(s, &mut sums, weights, x);
        }
        for r in 0..R {
            let sums = s.sums16(sums[r]);
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
unsafe fn step<S: Simd, F: WeightFormat, const R: usize, const N: usize>(
    s: S,
    sums: &mut [[S::Wide; N]; R],
    weights: [*const u8; N],
    x: *const u8,
) {
    for phase in 0..F::PHASES {
        // SAFETY: the caller's promise.
        unsafe {
            let mut widened = [s.splat16(0.0); N];
            for n in 0..N {
                widened[n] = F::weight(s, weights[n], phase);
            }
            for r in 0..R {
                let x = s.read16(x.add((phase * R + r) * size_of::<CacheLine>()));
                for n in 0..N {
                    sums[r][n] = F::add_products(s, sums[r][n], widened[n], x);
                }
                // Rows in turn: with many registers the compiler may load all rows first, and spill sums for it.
                if S::REGISTERS >= 32 || r == R - 1 {
                    // No instruction comes of it.
                    compiler_fence(Ordering::SeqCst);
                }
            }
        }
    }
}
