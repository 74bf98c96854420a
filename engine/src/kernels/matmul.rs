//! The linear op: `y = round(x · Wᵀ + bias)`, the one kernel where the time goes.
//!
//! Weights are the raw little-endian bytes of a mapped file, in f32, bf16 or f16, at any
//! alignment. They are widened in registers, never as a whole.
//!
//! **One order of additions.** An output element is summed in sixteen f32 lanes by fused
//! multiply-adds, and the lanes are then added in halves (`l + 8`, `l + 4`, `l + 2`, `l + 1`).
//! Element `k` of an f32 or f16 row belongs to lane `k % 16`; a bf16 row goes in pairs, lane
//! `l` taking elements `32 b + 2 l + 1` and then `32 b + 2 l` of block `b`, which is the order
//! of the `vdpbf16ps` instruction. Rows are padded with zeros to a multiple of 32. The order
//! depends on nothing but the weight's dtype and `inputs`, so a result has the same bits
//! whatever the number of rows, the thread count and the instruction set: chunked prefill
//! equals decode exactly. The one exception: `vdpbf16ps`, which is used where `x` is on the
//! bf16 grid, takes numbers below 2^-126 as zero.

use std::cell::Cell;

use checkpoints::gguf_weights::RowRun;
use formats::codec::{self, BlockType};
use lanes::Isa;
use rayon::prelude::*;
use registry::dtype::Dtype;

mod pack;
pub mod reference;
mod register_tile;
mod strided;
mod sweep;
mod tile;
mod weights;

use super::finish::finish;
use super::q8::{self, IntegerProduct, PackedMatrix};
use super::tiles::{self, Bf16Product, TileUnit};
use pack::{CacheLine, PackLayout, Panels};
pub use strided::Strides;
use tile::{BlockTask, PairBlockTask, RowBlock, TileRows};

/// Weight rows that one task holds at most; bounds the spilled accumulators.
const BLOCK_ROWS: usize = 64;
/// Bytes of weights that a block aims at, so that it and its successor fit a core's L2.
const BLOCK_BYTES: usize = 256 << 10;
/// Below this cost (bytes of weights, or multiply-adds / 16) starting a thread costs more.
const PARALLEL_COST: usize = 256 << 10;

/// A weight as it lies in memory: row-major `[outputs, inputs]`, little endian.
#[derive(Debug, Clone, Copy)]
pub struct MatrixView<'a> {
    /// The dtype of the stored numbers, which are widened to f32 exactly. F32 for blocks.
    pub dtype: Dtype,
    /// The block format that rows are kept in, if it is not plain numbers. They are decoded a
    /// few rows at a time, just before they are multiplied.
    pub blocks: Option<BlockType>,
    /// `outputs * inputs * dtype.size()` bytes, of any alignment; or `outputs` rows of blocks.
    pub bytes: &'a [u8],
    /// Rows.
    pub outputs: usize,
    /// Columns.
    pub inputs: usize,
    /// The factor on numbers decoded from blocks; 1 for plain numbers.
    pub factor: f32,
    /// Factors on the sums of rows, before the bias; none if all are 1.
    pub row_factors: Option<&'a [f32]>,
    /// The layout of blocks for products in integers; none for exact products.
    pub packed: Option<&'a PackedMatrix>,
    /// The unit that multiplies rows on the bf16 grid in tiles; for weights of plain bf16 alone.
    pub tiles: Option<TileUnit>,
    /// Distances of the numbers, if rows are no ranges of `bytes`. These are gathered a few rows at a time.
    pub strides: Option<Strides>,
    /// The matrices that hold the rows; this view then has a shape and nothing else. None for one matrix.
    pub parts: Option<MatrixParts<'a>>,
}

/// Matrices whose rows, in another order, are those of one matrix.
#[derive(Debug, Clone, Copy)]
pub struct MatrixParts<'a> {
    /// Each as wide as the matrix.
    pub parts: &'a [MatrixView<'a>],
    /// The origin of the matrix' rows, from the first to the last.
    pub runs: &'a [RowRun],
}

impl<'a> MatrixView<'a> {
    /// Returns a matrix of plain numbers.
    pub fn plain(dtype: Dtype, bytes: &'a [u8], outputs: usize, inputs: usize) -> Self {
        Self {
            dtype,
            blocks: None,
            bytes,
            outputs,
            inputs,
            factor: 1.0,
            row_factors: None,
            packed: None,
            tiles: None,
            strides: None,
            parts: None,
        }
    }

    /// True if products are in integers.
    pub fn is_packed(&self) -> bool {
        match self.parts {
            Some(of) => of.parts.iter().all(|part| part.packed.is_some()),
            None => self.packed.is_some(),
        }
    }

    /// Returns the bytes of a row; none if rows do not divide into blocks.
    fn row_bytes(&self) -> Option<usize> {
        match self.blocks {
            None => self.inputs.checked_mul(self.dtype.size()),
            Some(ty) => ty.row_bytes(self.inputs),
        }
    }

    /// Writes one row, widened to f32.
    ///
    /// # Panics
    /// If there is no such row, or `into` is not as long as a row.
    pub fn widen_row(&self, row: usize, into: &mut [f32]) {
        assert_eq!(into.len(), self.inputs, "a row has as many numbers as the weight has inputs");
        if let Some(MatrixParts { parts, runs }) = self.parts {
            let mut before = row;
            for run in runs {
                if before < run.count {
                    return parts[run.part].widen_row(run.first + before, into);
                }
                before -= run.count;
            }
            panic!("there is no row {row}");
        }
        if let Some(strides) = self.strides {
            return strides.gather(strides.row_onwards(row, self.bytes), self.inputs, into);
        }
        let size = self.row_bytes().expect("rows divide into blocks");
        let bytes = &self.bytes[row * size..(row + 1) * size];
        if let Some(ty) = self.blocks {
            decode(ty, self.factor, bytes, into);
        } else {
            widen(self.dtype, bytes, into);
        }
        scale(self.row_factors.map_or(1.0, |factors| factors[row]), into);
    }
}

/// Widens plain numbers.
fn widen(dtype: Dtype, bytes: &[u8], into: &mut [f32]) {
    match dtype {
        Dtype::F32 => {
            for (x, b) in into.iter_mut().zip(bytes.chunks_exact(4)) {
                *x = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        Dtype::Bf16 => {
            for (x, b) in into.iter_mut().zip(bytes.chunks_exact(2)) {
                *x = f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
            }
        }
        Dtype::F16 => {
            for (x, b) in into.iter_mut().zip(bytes.chunks_exact(2)) {
                *x = half::f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
    }
}

fn decode(ty: BlockType, factor: f32, bytes: &[u8], into: &mut [f32]) {
    // Lengths are right: callers give whole rows. What no decoder knows was refused on loading.
    if codec::decode(ty, bytes, into).is_err() {
        into.fill(f32::NAN);
    }
    scale(factor, into);
}

/// Multiplies decoded numbers by the factor beside their blocks.
fn scale(factor: f32, numbers: &mut [f32]) {
    if factor != 1.0 {
        for x in numbers.iter_mut() {
            *x *= factor;
        }
    }
}

/// One linear op: weight, bias, and where its result goes.
#[derive(Debug)]
pub struct Linear<'a> {
    /// `[outputs, inputs]`.
    pub weight: MatrixView<'a>,
    /// `[outputs]`, added in f32 before the one rounding.
    pub bias: Option<&'a [f32]>,
    /// The grid that results are rounded to.
    pub round: Dtype,
    /// `[rows, outputs]`.
    pub y: &'a mut [f32],
}

/// Multiplies `rows` rows of `x` `[rows, inputs]` into `y` `[rows, outputs]`. Sums in f32, adds the bias, and
/// rounds once, to the grid of `round`.
///
/// A row's result does not depend on the other rows of the call, so a sequence fed in chunks
/// gives the same bits as one fed at once.
///
/// # Panics
/// If a slice is not as long as the shapes say.
pub fn matmul(
    x: &[f32],
    rows: usize,
    weight: &MatrixView<'_>,
    bias: Option<&[f32]>,
    round: Dtype,
    y: &mut [f32],
) {
    matmul_many(x, rows, &mut [Linear { weight: *weight, bias, round, y }]);
}

/// Runs several linear ops over the same `x`, sharing its packing and the start of the threads.
///
/// Runs on the current rayon pool; a caller on one of its threads spares the hand-over.
///
/// # Panics
/// If a slice is not as long as the shapes say, or the weights differ in `inputs`.
pub fn matmul_many(x: &[f32], rows: usize, linears: &mut [Linear<'_>]) {
    matmul_many_on(Isa::best(), x, rows, linears);
}

/// Computes linear ops of which some have factors of rows, or rows of several matrices: these are multiplied as plain
/// matrices first, and finished after that.
fn in_steps(isa: Isa, x: &[f32], rows: usize, linears: &mut [Linear<'_>]) {
    let mut of_parts: Vec<Vec<Vec<f32>>> = linears
        .iter()
        .map(|linear| match linear.weight.parts {
            Some(of) => of.parts.iter().map(|part| vec![0.0; rows * part.outputs]).collect(),
            None => Vec::new(),
        })
        .collect();
    let mut unfinished = Vec::new();
    for (linear, sums) in linears.iter_mut().zip(&mut of_parts) {
        let Linear { weight, bias, round, y } = linear;
        if let Some(of) = weight.parts {
            unfinished.extend(of.parts.iter().zip(sums).map(|(part, y)| Linear {
                weight: *part,
                bias: None,
                round: Dtype::F32,
                y,
            }));
        } else if weight.row_factors.is_some() {
            let weight = MatrixView { row_factors: None, ..*weight };
            unfinished.push(Linear { weight, bias: None, round: Dtype::F32, y });
        } else {
            unfinished.push(Linear { weight: *weight, bias: *bias, round: *round, y });
        }
    }
    matmul_many_on(isa, x, rows, &mut unfinished);
    for (Linear { weight, bias, round, y }, sums) in linears.iter_mut().zip(&of_parts) {
        if weight.parts.is_none() && weight.row_factors.is_none() {
            continue;
        }
        y.par_chunks_exact_mut(weight.outputs.max(1)).enumerate().for_each(|(row, y)| {
            if let Some(of) = weight.parts {
                let mut remaining = &mut *y;
                for run in of.runs {
                    let (to, after) = remaining.split_at_mut(run.count);
                    let from = row * of.parts[run.part].outputs + run.first;
                    to.copy_from_slice(&sums[run.part][from..from + run.count]);
                    remaining = after;
                }
            }
            if let Some(factors) = weight.row_factors {
                y.iter_mut().zip(factors).for_each(|(y, factor)| *y *= factor);
            }
            finish(y, *bias, *round);
        });
    }
}

/// Computes [`matmul_many`] with the kernels of one instruction set.
///
/// # Panics
/// As [`matmul_many`].
pub fn matmul_many_on(isa: Isa, x: &[f32], rows: usize, linears: &mut [Linear<'_>]) {
    let Some(inner) = linears.first().map(|linear| linear.weight.inputs) else { return };
    assert_eq!(Some(x.len()), rows.checked_mul(inner), "x is [rows, inputs]");
    for Linear { weight, bias, y, .. } in &*linears {
        assert_eq!(weight.inputs, inner, "every weight has the inputs of x");
        if let Some(MatrixParts { runs, .. }) = weight.parts {
            let outputs: usize = runs.iter().map(|run| run.count).sum();
            assert_eq!(outputs, weight.outputs, "every row is of a part");
        } else if let Some(strides) = weight.strides {
            let bytes = strides.bytes(weight.outputs, weight.inputs);
            assert!(
                bytes.is_some_and(|bytes| bytes <= weight.bytes.len()),
                "every number is there"
            );
        } else {
            let bytes = weight.row_bytes().and_then(|row| row.checked_mul(weight.outputs));
            assert_eq!(Some(weight.bytes.len()), bytes, "the weight is [outputs, inputs]");
        }
        assert_eq!(Some(y.len()), rows.checked_mul(weight.outputs), "y is [rows, outputs]");
        assert!(bias.is_none_or(|b| b.len() == weight.outputs), "bias is [outputs]");
        assert!(weight.row_factors.is_none_or(|f| f.len() == weight.outputs), "a factor per row");
    }
    let needs_steps = linears
        .iter()
        .any(|linear| linear.weight.row_factors.is_some() || linear.weight.parts.is_some());
    if needs_steps {
        return in_steps(isa, x, rows, linears);
    }
    if rows == 0 {
        return;
    }
    let (in_integers, linears): (Vec<_>, Vec<_>) =
        linears.iter_mut().partition(|linear| linear.weight.packed.is_some());
    multiply_in_integers(x, rows, in_integers);
    let (in_tiles, mut linears): (Vec<_>, Vec<_>) =
        linears.into_iter().partition(|linear| linear.weight.tiles.is_some());
    multiply_in_tiles(x, rows, in_tiles);
    let panels = Panels::new(rows, isa.run(TileRows));
    let pairs = if isa.has_pairs()
        && linears.iter().any(|linear| linear.weight.dtype == Dtype::Bf16)
        && pack::is_bf16(x)
    {
        PackLayout::PairBf16
    } else {
        PackLayout::PairF32
    };
    for kind in [pairs, PackLayout::Natural] {
        let bf16 = kind == pairs;
        if linears.iter().any(|linear| (linear.weight.dtype == Dtype::Bf16) == bf16) {
            pack::with_packed(x, inner, panels, kind, |packed| {
                run(isa, kind, &blocks(packed, panels, &mut linears, bf16));
            });
        }
    }
}

/// Rounds `x` once and runs the linear ops whose weights are packed.
fn multiply_in_integers(x: &[f32], rows: usize, linears: Vec<&mut Linear<'_>>) {
    let products = linears.into_iter().filter_map(|linear| {
        let MatrixView { packed, bytes, .. } = linear.weight;
        Some(IntegerProduct {
            weight: packed?,
            bytes,
            bias: linear.bias,
            round: linear.round,
            y: linear.y,
        })
    });
    q8::products(x, rows, &mut products.collect::<Vec<_>>());
}

/// Runs the linear ops whose weights are multiplied in tiles.
fn multiply_in_tiles(x: &[f32], rows: usize, linears: Vec<&mut Linear<'_>>) {
    let Some(unit) = linears.first().and_then(|linear| linear.weight.tiles) else { return };
    let products = linears.into_iter().map(|linear| {
        let MatrixView { dtype, blocks, bytes, outputs, .. } = linear.weight;
        assert!(blocks.is_none() && dtype == Dtype::Bf16, "tiles are of plain bf16");
        Bf16Product { weight: bytes, outputs, bias: linear.bias, round: linear.round, y: linear.y }
    });
    tiles::products(unit, x, rows, &mut products.collect::<Vec<_>>());
}

/// Cuts the ops with weights in bf16, or all others, into blocks of weight rows, in the order of memory.
fn blocks<'a>(
    packed: &'a [CacheLine],
    panels: Panels,
    linears: &'a mut [&mut Linear<'_>],
    bf16: bool,
) -> Vec<RowBlock<'a>> {
    let threads = rayon::current_num_threads();
    let mut blocks = Vec::new();
    for linear in linears {
        if (linear.weight.dtype == Dtype::Bf16) != bf16 {
            continue;
        }
        let MatrixView { dtype, blocks: ty, bytes, outputs, inputs, factor, strides, .. } =
            linear.weight;
        // Blocks are decoded into rows of f32, which is what has to fit the cache.
        let row_bytes = inputs * dtype.size();
        let stored = ty.and_then(|ty| ty.row_bytes(inputs)).unwrap_or(row_bytes);
        // Columns of few numbers are read slowly from memory, whatever the cache holds.
        let by_bytes = if strides.is_some() { BLOCK_ROWS } else { BLOCK_BYTES / row_bytes.max(1) };
        let by_threads = outputs.div_ceil(threads * 4);
        let height = by_bytes.min(by_threads).next_multiple_of(4).clamp(4, BLOCK_ROWS);
        let y = linear.y.as_mut_ptr();
        for first in (0..outputs).step_by(height) {
            let count = height.min(outputs - first);
            blocks.push(RowBlock {
                weight: match strides {
                    Some(strides) => strides.row_onwards(first, bytes),
                    None => &bytes[first * stored..],
                },
                strides,
                dtype,
                blocks: ty,
                factor,
                count,
                row_bytes,
                stored,
                inner: inputs,
                packed,
                panels,
                bias: linear.bias.map(|bias| &bias[first..first + count]),
                round: linear.round,
                y: y.wrapping_add(first),
                y_stride: outputs,
            });
        }
    }
    blocks
}

/// Runs blocks, over the threads where that pays.
fn run(isa: Isa, kind: PackLayout, blocks: &[RowBlock<'_>]) {
    let cost = blocks.iter().map(|b| b.count * (b.row_bytes + b.inner * b.panels.rows / 16));
    if cost.sum::<usize>() < PARALLEL_COST {
        for block in blocks {
            run_block(isa, kind, block);
        }
    } else {
        blocks.par_iter().with_max_len(1).for_each(|block| run_block(isa, kind, block));
    }
}

thread_local! {
    /// Rows decoded from blocks.
    static DECODED: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Computes a block. Rows that are no ranges of memory are gathered first. Rows of blocks are decoded first, unless one
/// panel of `x` needs them: then they are decoded a few numbers at a time.
fn run_block(isa: Isa, kind: PackLayout, block: &RowBlock<'_>) {
    let ty = block.blocks.filter(|_| block.panels.count() > 1);
    if ty.is_none() && block.strides.is_none() {
        return run_plain(isa, kind, block);
    }
    let mut rows = DECODED.take();
    rows.resize(block.count * block.inner, 0.0);
    if let Some(strides) = block.strides {
        strides.gather(block.weight, block.inner, &mut rows);
    } else if let Some(ty) = ty {
        decode(ty, block.factor, &block.weight[..block.count * block.stored], &mut rows);
    }
    let weight = bytemuck::cast_slice(&rows);
    let stored = block.row_bytes;
    run_plain(isa, kind, &RowBlock { weight, stored, blocks: None, strides: None, ..*block });
    DECODED.set(rows);
}

fn run_plain(isa: Isa, kind: PackLayout, block: &RowBlock<'_>) {
    if kind == PackLayout::PairBf16 {
        isa.run_pairs(PairBlockTask(block));
    } else {
        isa.run(BlockTask(block));
    }
}

#[cfg(test)]
mod tests;
