//! The one loop nest: a block of weight rows against every packed row of `x`.
//!
//! A register tile is `R` rows of `x` times `N` rows of the weight, each sum in sixteen lanes
//! along the row, so weights need no packing and an element is summed in the same order in
//! every tile shape. With 6 x 4 a step has ten loads for twenty-four multiply-adds.
#![expect(unsafe_code, reason = "hot loops over raw bytes, without bounds checks")]
#![expect(
    clippy::inline_always,
    reason = "intrinsics are fast only inside a function with features"
)]

use super::BLOCK_ROWS;
use super::finish::finish;
use super::lanes::{Format, Lanes};
use super::pack::{Line, Panels};
use registry::dtype::Dtype;
use std::array::from_fn;
use std::mem::MaybeUninit;

/// The tallest tile.
const MAX_ROWS: usize = 6;
/// Bytes of packed `x` that one pass keeps in the L1 cache.
const PASS_BYTES: usize = 24 << 10;
/// How far ahead of its use a weight is fetched where memory is the limit.
const AHEAD: usize = 4 << 10;

/// Some rows of a weight, times all of `x`.
pub(super) struct Block<'a> {
    /// From the block's first row to the end of the weight.
    pub(super) weight: &'a [u8],
    pub(super) dtype: Dtype,
    /// Weight rows of this block, 1 to [`BLOCK_ROWS`].
    pub(super) count: usize,
    pub(super) row_bytes: usize,
    pub(super) inner: usize,
    pub(super) packed: &'a [Line],
    pub(super) panels: Panels,
    /// Of this block's rows.
    pub(super) bias: Option<&'a [f32]>,
    pub(super) round: Dtype,
    /// The block's first column in row 0 of the result.
    pub(super) y: *mut f32,
    pub(super) y_stride: usize,
}

// SAFETY: `y` is the one field that is not `Send` and `Sync` by itself. A block writes
// `count` columns of `y`, which no other block of the call touches, and the mutable borrow of
// `y` outlives the blocks.
unsafe impl Send for Block<'_> {}
// SAFETY: as above; a block is run once.
unsafe impl Sync for Block<'_> {}

/// Computes one block.
///
/// # Safety
/// The CPU has the features of `F`; `y` is writable at `count` columns of every row, by nobody
/// else; `packed` was packed for `F`; `weight` holds `count` rows.
#[inline(always)]
pub(super) unsafe fn block<F: Format, const N: usize>(block: &Block<'_>) {
    let mut fetch = Fetch::new(block);
    for panel in 0..block.panels.count() {
        let (first, rows) = block.panels.get(panel);
        let lines = block.inner.div_ceil(F::STEP) * F::PHASES;
        let x = block.packed[first * lines..(first + rows) * lines].as_ptr().cast::<u8>();
        // SAFETY: the caller's promise; `x` has the lines of `rows` rows.
        unsafe {
            let y = block.y.add(first * block.y_stride);
            match rows {
                1 => tiles::<F, 1, N>(block, x, y, &mut fetch),
                2 => tiles::<F, 2, N>(block, x, y, &mut fetch),
                3 if F::Lanes::ROWS > 2 => tiles::<F, 3, N>(block, x, y, &mut fetch),
                4 if F::Lanes::ROWS > 3 => tiles::<F, 4, N>(block, x, y, &mut fetch),
                5 if F::Lanes::ROWS > 3 => tiles::<F, 5, N>(block, x, y, &mut fetch),
                6 if F::Lanes::ROWS > 3 => tiles::<F, 6, N>(block, x, y, &mut fetch),
                _ => unreachable!("panels hold at most the rows of a tile"),
            }
        }
    }
}

/// Runs the tiles of one panel, the row cut into passes that fit the L1 cache.
///
/// # Safety
/// As [`block`]; `x` is a packed panel of `R` rows, and `y` the block's place in its first row.
#[inline(always)]
unsafe fn tiles<F: Format, const R: usize, const N: usize>(
    block: &Block<'_>,
    x: *const u8,
    y: *mut f32,
    fetch: &mut Fetch,
) {
    let steps = block.inner / F::STEP;
    let x_step = R * F::PHASES * size_of::<Line>();
    let single = block.panels.count() == 1;
    let pass = if single { steps.max(1) } else { PASS_BYTES / x_step };
    let mut spilled = [const { MaybeUninit::<[[F::Lanes; N]; MAX_ROWS]>::uninit() }; BLOCK_ROWS];
    let mut start = 0;
    loop {
        let end = steps.min(start + pass);
        for (tile, spilled) in (0..block.count).step_by(N).zip(&mut spilled) {
            // Rows past the end are the last row once more, and are not stored.
            let rows: [*const u8; N] = from_fn(|n| {
                let row = (tile + n).min(block.count - 1);
                block.weight.as_ptr().wrapping_add(row * block.row_bytes)
            });
            // SAFETY: reads steps `start..end` of rows of the block and of the panel, and the
            // rest of each row; `spilled` was written by the pass before.
            unsafe {
                let mut sums = [[F::Lanes::zero(); N]; R];
                if start > 0 {
                    sums.copy_from_slice(&spilled.assume_init_ref()[..R]);
                }
                fetch.some(block.panels.count() * steps.div_ceil(pass).max(1), block.count, N);
                for step in start..end {
                    let at = rows.map(|row| row.wrapping_add(step * F::BYTES));
                    if single {
                        for at in at {
                            prefetch(at.wrapping_add(AHEAD));
                        }
                    }
                    sums = self::step::<F, R, N>(sums, at, x.wrapping_add(step * x_step));
                }
                if end < steps {
                    let all: &mut [[F::Lanes; N]; MAX_ROWS] =
                        spilled.write([[F::Lanes::zero(); N]; MAX_ROWS]);
                    all[..R].copy_from_slice(&sums);
                    continue;
                }
                let rest = block.row_bytes - steps * F::BYTES;
                if rest > 0 {
                    let mut padded = [[0_u8; 64]; N];
                    for (padded, row) in padded.iter_mut().zip(rows) {
                        let from = row.add(steps * F::BYTES);
                        padded.as_mut_ptr().copy_from_nonoverlapping(from, rest);
                    }
                    let at = from_fn(|n| padded[n].as_ptr());
                    sums = self::step::<F, R, N>(sums, at, x.wrapping_add(steps * x_step));
                }
                for (r, sums) in sums.into_iter().enumerate() {
                    let sums = F::Lanes::sums(sums);
                    let columns = N.min(block.count - tile);
                    let to = y.add(r * block.y_stride + tile);
                    to.copy_from_nonoverlapping(sums.as_ptr(), columns);
                }
            }
        }
        if end == steps {
            break;
        }
        start = end;
    }
    for r in 0..R {
        // SAFETY: this block's columns of row `r`, just written, and nobody else's.
        let y = unsafe { std::slice::from_raw_parts_mut(y.add(r * block.y_stride), block.count) };
        finish(y, block.bias, block.round);
    }
}

/// One step of a tile.
///
/// # Safety
/// As [`block`]; reads `F::BYTES` bytes at each `weights`, and a step of a packed panel at `x`.
#[inline(always)]
unsafe fn step<F: Format, const R: usize, const N: usize>(
    mut sums: [[F::Lanes; N]; R],
    weights: [*const u8; N],
    x: *const u8,
) -> [[F::Lanes; N]; R] {
    for phase in 0..F::PHASES {
        // SAFETY: the caller's promise.
        unsafe {
            let mut widened = [F::Lanes::zero(); N];
            for (to, from) in widened.iter_mut().zip(weights) {
                *to = F::weight(from, phase);
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = F::Lanes::load(x.add((phase * R + r) * size_of::<Line>()));
                for (sum, weight) in sums.iter_mut().zip(widened) {
                    *sum = F::fma(*sum, weight, x);
                }
            }
        }
    }
    sums
}

/// Fetches the block that follows in memory, a little before each tile, so that reading
/// memory overlaps with arithmetic.
struct Fetch {
    next: *const u8,
    bytes: usize,
    tiles: usize,
}

impl Fetch {
    fn new(block: &Block<'_>) -> Self {
        let here = block.count * block.row_bytes;
        let single = block.panels.count() == 1;
        let bytes = if single { 0 } else { here.min(block.weight.len() - here) };
        Self { next: block.weight.as_ptr().wrapping_add(here), bytes, tiles: 0 }
    }

    /// Fetches one tile's share; the block has `passes` passes over `count` rows by `height`.
    #[inline(always)]
    fn some(&mut self, passes: usize, count: usize, height: usize) {
        if self.bytes > 0 {
            let all = passes * count.div_ceil(height);
            let at = |tile: usize| self.bytes * tile.min(all) / all / 64;
            for line in at(self.tiles)..at(self.tiles + 1) {
                prefetch(self.next.wrapping_add(line * 64));
            }
            self.tiles += 1;
        }
    }
}

/// Asks for a cache line; any address is fine.
#[inline(always)]
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch does not access memory and never faults; SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
