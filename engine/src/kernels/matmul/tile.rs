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

use super::pack::{CacheLine, Panels};
use super::register_tile::Sweep;
use super::strided::Strides;
use super::sweep::sweep_apart;
use super::weights::{Bf16Pairs, Bf16Weights, F16Weights, F32Weights, STEP, WeightFormat};
use super::{BLOCK_ROWS, scale};
use crate::kernels::finish::finish;
use formats::codec::{BlockReader, BlockType, LaneSums};
use lanes::{Simd, VectorTask, prefetch_to_l2};
use registry::dtype::Dtype;
use std::array::from_fn;
use std::mem::MaybeUninit;

/// The tallest tile.
const MAX_ROWS: usize = 6;
/// Tiles of a block, two weight rows each at least.
const MAX_TILES: usize = BLOCK_ROWS / 2;
/// Bytes of packed `x` that one stretch keeps in the L1 cache.
const STRETCH_BYTES: usize = 24 << 10;

/// Numbers of a row that are decoded at once: whole blocks of every format.
const DECODED: usize = 512;

/// Decoded rows of a tile, from the start of a cache line. The first rows alone are used by lower tiles.
#[repr(align(64))]
struct DecodedWeights([f32; LONE_ROW_TILE * DECODED]);

/// Weight rows of the tile for one row of `x`, at most.
const LONE_ROW_TILE: usize = 8;

/// Some rows of a weight, times all of `x`.
pub(super) struct RowBlock<'a> {
    /// From the block's first row to the end of the weight.
    pub(super) weight: &'a [u8],
    pub(super) dtype: Dtype,
    /// The block format of `weight`, if it still is to be decoded.
    pub(super) blocks: Option<BlockType>,
    /// Distances of the numbers in `weight`, if they still are to be gathered.
    pub(super) strides: Option<Strides>,
    /// The factor on decoded numbers.
    pub(super) factor: f32,
    /// Weight rows of this block, 1 to [`BLOCK_ROWS`].
    pub(super) count: usize,
    /// Bytes of a row as the kernel reads it, decoded if it is kept in blocks.
    pub(super) row_bytes: usize,
    /// Bytes of a row in `weight`.
    pub(super) stored: usize,
    pub(super) inner: usize,
    pub(super) packed: &'a [CacheLine],
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
unsafe impl Send for RowBlock<'_> {}
// SAFETY: as above; a block is run once.
unsafe impl Sync for RowBlock<'_> {}

/// Returns the rows of `x` in the largest register tile.
const fn tile_rows<S: Simd>() -> usize {
    match S::REGISTERS {
        0..8 => 2,
        8..32 => 3,
        _ => 6,
    }
}

/// Returns the rows of `x` in the largest register tile of an instruction set.
pub(super) struct TileRows;

impl VectorTask for TileRows {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, _s: S) -> usize {
        tile_rows::<S>()
    }
}

/// Computes one block, whose `x` is packed in f32.
pub(super) struct BlockTask<'a, 'b>(pub(super) &'b RowBlock<'a>);

impl VectorTask for BlockTask<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let of = self.0;
        // SAFETY: blocks are made by `blocks` of [`matmul`](super), where lengths are checked, and columns of `y` are
        // those of one block.
        unsafe {
            match of.dtype {
                Dtype::F32 if of.blocks.is_some() => match S::REGISTERS {
                    0..8 => decoded_block::<S, 2, 2>(s, of),
                    8..32 => decoded_block::<S, 2, 4>(s, of),
                    _ => decoded_block::<S, 4, 8>(s, of),
                },
                Dtype::F32 if S::REGISTERS < 32 => block::<S, F32Weights, 2>(s, of),
                Dtype::F32 => block::<S, F32Weights, 4>(s, of),
                Dtype::F16 if S::REGISTERS < 32 => block::<S, F16Weights, 2>(s, of),
                Dtype::F16 => block::<S, F16Weights, 4>(s, of),
                Dtype::Bf16 if S::REGISTERS < 32 => block::<S, Bf16Weights, 2>(s, of),
                Dtype::Bf16 => block::<S, Bf16Weights, 4>(s, of),
            }
        }
    }
}

/// Computes one block of bf16, whose `x` is packed in pairs.
pub(super) struct PairBlockTask<'a, 'b>(pub(super) &'b RowBlock<'a>);

impl VectorTask for PairBlockTask<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        assert!(S::PAIRS, "products of pairs");
        // SAFETY: as in `BlockTask`.
        unsafe { block::<S, Bf16Pairs, 4>(s, self.0) }
    }
}

/// Computes one block.
///
/// # Safety
/// `y` is writable at `count` columns of every row, by nobody
/// else; `packed` was packed for `F`; `weight` holds `count` rows.
#[inline(always)]
unsafe fn block<S: Simd, F: WeightFormat, const N: usize>(s: S, block: &RowBlock<'_>) {
    for panel in 0..block.panels.count() {
        let (first, rows) = block.panels.get(panel);
        let lines = block.inner.div_ceil(STEP) * F::PHASES;
        let x = block.packed[first * lines..(first + rows) * lines].as_ptr().cast::<u8>();
        // SAFETY: the caller's promise; `x` has the lines of `rows` rows.
        unsafe {
            let y = block.y.add(first * block.y_stride);
            match rows {
                1 => tiles::<S, F, 1, N>(s, block, panel, x, y),
                2 => tiles::<S, F, 2, N>(s, block, panel, x, y),
                3 if tile_rows::<S>() > 2 => tiles::<S, F, 3, N>(s, block, panel, x, y),
                4 if tile_rows::<S>() > 3 => tiles::<S, F, 4, N>(s, block, panel, x, y),
                5 if tile_rows::<S>() > 3 => tiles::<S, F, 5, N>(s, block, panel, x, y),
                6 if tile_rows::<S>() > 3 => tiles::<S, F, 6, N>(s, block, panel, x, y),
                _ => unreachable!("panels hold at most the rows of a tile"),
            }
        }
    }
}

/// Computes one block whose weights are decoded into the L1 cache, a few rows and [`DECODED`] numbers at a time.
/// Serves one panel of `x`: more would decode the weights again. One row of `x` is multiplied by `LONE` rows at
/// a time, because fewer sums would wait for each other.
///
/// # Safety
/// As [`block`] for f32 weights; `weight` holds `count` rows of blocks.
#[inline(always)]
unsafe fn decoded_block<S: Simd, const N: usize, const LONE: usize>(s: S, block: &RowBlock<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match block.panels.rows {
            1 => decoded_tiles::<S, 1, LONE>(s, block),
            2 => decoded_tiles::<S, 2, N>(s, block),
            3 if tile_rows::<S>() > 2 => decoded_tiles::<S, 3, N>(s, block),
            4 if tile_rows::<S>() > 3 => decoded_tiles::<S, 4, N>(s, block),
            5 if tile_rows::<S>() > 3 => decoded_tiles::<S, 5, N>(s, block),
            6 if tile_rows::<S>() > 3 => decoded_tiles::<S, 6, N>(s, block),
            _ => unreachable!("one panel holds at most the rows of a tile"),
        }
    }
}

/// Runs the tiles of [`decoded_block`] for `R` rows of `x`.
///
/// # Safety
/// As [`decoded_block`].
#[inline(always)]
unsafe fn decoded_tiles<S: Simd, const R: usize, const N: usize>(s: S, block: &RowBlock<'_>) {
    const { assert!(N <= LONE_ROW_TILE, "decoded rows have room for this tile") }
    let Some(ty) = block.blocks else { return };
    let reader = BlockReader::new(ty);
    if let Some(reader) =
        reader.filter(|reader| R == 1 && reader.multiplies() && block.factor == 1.0)
    {
        // SAFETY: the caller's promise.
        return unsafe { multiplied_tiles::<S, N>(s, block, reader) };
    }
    let mut decoded = DecodedWeights([0.0; LONE_ROW_TILE * DECODED]);
    let steps = block.inner / STEP;
    let mut spilled = MaybeUninit::<[[S::Wide; N]; R]>::uninit();
    for first in (0..block.count).step_by(N) {
        for start in (0..block.inner).step_by(DECODED) {
            let numbers = DECODED.min(block.inner - start);
            let count = numbers / ty.elements();
            let begins = start / ty.elements() * ty.bytes();
            // Rows past the end keep the numbers of earlier ones, and are not stored.
            let rows = N.min(block.count - first);
            for (n, decoded) in decoded.0.chunks_exact_mut(DECODED).enumerate().take(rows) {
                let begin = (first + n) * block.stored + begins;
                let later = block.weight.as_ptr().wrapping_add(begin + N * block.stored);
                for line in (0..count * ty.bytes()).step_by(64) {
                    prefetch_to_l2(later.wrapping_add(line));
                }
                match reader {
                    Some(reader) => reader.read(count, &block.weight[begin..], decoded),
                    // A format that is not decoded was refused on loading.
                    None => decoded.fill(f32::NAN),
                }
                scale(block.factor, &mut decoded[..numbers]);
            }
            let from = decoded.0.as_ptr().cast::<u8>();
            let sweep = Sweep {
                weights: from_fn(|n| from.wrapping_add(4 * n * DECODED).wrapping_sub(4 * start)),
                x: block.packed.as_ptr().cast(),
                start: start / STEP,
                end: (start + numbers) / STEP,
                steps,
                rest: 0,
                spilled: spilled.as_mut_ptr().cast(),
                y: block.y.wrapping_add(first),
                y_stride: block.y_stride,
                next: from,
                pace: 0,
                columns: N.min(block.count - first),
            };
            // SAFETY: `decoded` holds the steps `start..end` of `N` rows, and `packed` one panel of `R` rows;
            // `y` is the caller's promise; `spilled` was written by the stretch before.
            unsafe { sweep_apart::<S, F32Weights, R, N, 1>(s, &sweep) }
        }
    }
    for r in 0..R {
        // SAFETY: this block's columns of row `r`, just written, and nobody else's.
        let y =
            unsafe { std::slice::from_raw_parts_mut(block.y.add(r * block.y_stride), block.count) };
        finish(y, block.bias, block.round);
    }
}

/// Multiplies one row of `x` by `N` rows at a time, whose numbers stay in registers.
///
/// # Safety
/// As [`decoded_block`]; the panel has one row.
#[inline(always)]
unsafe fn multiplied_tiles<S: Simd, const N: usize>(
    s: S,
    block: &RowBlock<'_>,
    reader: BlockReader,
) {
    // SAFETY: the lines hold `inner` f32 in their order. The columns of `y` are this block's, and nobody else's.
    let (x, y) = unsafe {
        let x: &[f32] = std::slice::from_raw_parts(block.packed.as_ptr().cast(), block.inner);
        (x, std::slice::from_raw_parts_mut(block.y, block.count))
    };
    let rows = block.weight.chunks(block.stored);
    for (first, y) in (0..block.count).step_by(N).zip(y.chunks_mut(N)) {
        let mut tile: [&[u8]; N] = [&[]; N];
        tile.iter_mut().zip(rows.clone().skip(first)).for_each(|(to, row)| *to = row);
        let mut sums = [LaneSums::default(); N];
        reader.add_products(&tile[..y.len()], N * block.stored, x, &mut sums);
        let mut vectors = [s.splat16(0.0); N];
        for (vector, sums) in vectors.iter_mut().zip(&sums) {
            *vector = s.load16(sums);
        }
        let sums = s.sums16(vectors);
        y.copy_from_slice(&sums[..y.len()]);
    }
    finish(y, block.bias, block.round);
}

/// Runs the tiles of one panel, the row cut into stretches whose part of `x` fits the L1 cache.
///
/// # Safety
/// As [`block`]; `x` is the packed `panel`, of `R` rows, and `y` the block's place in its first row.
#[inline(always)]
unsafe fn tiles<S: Simd, F: WeightFormat, const R: usize, const N: usize>(
    s: S,
    block: &RowBlock<'_>,
    panel: usize,
    x: *const u8,
    y: *mut f32,
) {
    let steps = block.inner / STEP;
    let limit = STRETCH_BYTES / (R * F::PHASES * size_of::<CacheLine>());
    let stretch = steps.div_ceil(steps.div_ceil(limit).max(1)).max(1);
    let stretches = steps.div_ceil(stretch).max(1);
    let tiles = block.count.div_ceil(N);
    const { assert!(N >= 2 && R <= MAX_ROWS, "spilled sums have room for this tile") }
    let mut spilled = [const { MaybeUninit::<[[S::Wide; N]; MAX_ROWS]>::uninit() }; MAX_TILES];
    // While this block is worked on, the one that follows is fetched, at an even pace.
    let panels = block.panels.count();
    let here = block.count * block.row_bytes;
    let follows = here.min(block.weight.len() - here);
    let pace = follows / (panels * tiles * steps.max(1));
    let mut next = block.weight.as_ptr().wrapping_add(here + follows / panels * panel);
    for part in 0..stretches {
        for (tile, spilled) in spilled.iter_mut().enumerate().take(tiles) {
            let first = tile * N;
            // Rows past the end are the last row once more, and are not stored.
            let weights = from_fn(|n| {
                let row = (first + n).min(block.count - 1);
                block.weight.as_ptr().wrapping_add(row * block.row_bytes)
            });
            let sweep = Sweep {
                weights,
                x,
                start: part * stretch,
                end: steps.min((part + 1) * stretch),
                steps,
                rest: block.row_bytes - steps * F::BYTES,
                spilled: spilled.as_mut_ptr().cast(),
                y: y.wrapping_add(first),
                y_stride: block.y_stride,
                next,
                pace,
                columns: N.min(block.count - first),
            };
            next = next.wrapping_add(pace * (sweep.end - sweep.start));
            // SAFETY: `weights` and `x` are of rows of the block and of the panel; `y` is
            // the caller's promise; `spilled` has room for the tallest tile and was written
            // by the stretch before.
            unsafe {
                match panels {
                    1 => sweep_apart::<S, F, R, N, 0>(s, &sweep),
                    2..8 => sweep_apart::<S, F, R, N, 4>(s, &sweep),
                    _ => sweep_apart::<S, F, R, N, 1>(s, &sweep),
                }
            }
        }
    }
    for r in 0..R {
        // SAFETY: this block's columns of row `r`, just written, and nobody else's.
        let y = unsafe { std::slice::from_raw_parts_mut(y.add(r * block.y_stride), block.count) };
        finish(y, block.bias, block.round);
    }
}
