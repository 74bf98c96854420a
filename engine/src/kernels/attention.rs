//! Causal attention of blocks of queries over one key/value head.
//!
//! Keys and values are read from the cache a tile at a time, in their stored dtype; a tile serves all queries of
//! a block. Memory grows with the positions that a block sees, not with their square.
//!
//! **One order of additions.** A score is one chain of fused multiply-adds over the head's dims, in pairs, the odd
//! dim of a pair first. Exponentials are summed over spans of 512 positions, counted from position 0, and the
//! sums of spans in f64. An output is one chain over the positions of a span, in pairs as above, and the chains
//! of spans are added in order. The order depends on positions alone: chunks, blocks, threads and instruction
//! sets give the same bits. The one exception: `vdpbf16ps`, which multiplies where all factors are bf16, takes
//! numbers below 2^-126 as zero.
//!
//! The reasons are in [decision 65](../../../docs/decisions/0065-attention-in-tiles-and-spans.md).

use std::cell::RefCell;

use rayon::prelude::*;
use registry::dtype::Dtype;

pub(super) mod product;
#[cfg(test)]
mod reference;
mod rows;
mod softmax;
mod spans;
#[cfg(test)]
mod tests;

use super::finish::finish;
use lanes::Isa;
use product::{LANES, Line, room};
use softmax::SoftmaxSums;
use spans::{PackedHead, SpanBlock, SpanBuffers, SpanTiles};

pub use rows::{CachedColumns, CachedHead, CachedRows, CodedNumbers, StoredNumbers};

/// The rounding of attention scores before the softmax.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScoreRounding {
    /// The product is rounded, and again after the scale; a bias then stays f32.
    Rounded,
    /// Scores are rounded once, after the scale and a bias that is itself rounded: one fused product.
    Once,
    /// Scores are not rounded.
    None,
}

/// The rounding of the weights of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SoftmaxForm {
    /// Weights are rounded, once.
    F32,
    /// The largest score is subtracted and the difference rounded before, too. Models that run the softmax in
    /// their own dtype take this form.
    Activation,
    /// Weights stay f32, and sums of values alone are rounded.
    Unrounded,
}

/// The parameters of attention that all heads share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionParams {
    /// Numbers of a query or key.
    pub key_dim: usize,
    /// Numbers of a value.
    pub value_dim: usize,
    /// Multiplies each score.
    pub scale: f32,
    /// `c * tanh(score / c)`, if given.
    pub softcap: Option<f32>,
    /// Every step is rounded to this.
    pub round: Dtype,
    /// The rounding of the weights.
    pub softmax: SoftmaxForm,
    /// The rounding of the scores.
    pub scores: ScoreRounding,
    /// True if a sink takes its share by a sigmoid on the output, and not in the softmax.
    pub gated: bool,
}

/// One query: its numbers, and the positions `from..to` it sees.
#[derive(Debug, Clone, Copy, Default)]
pub struct Query<'a> {
    /// `[key_dim]`.
    pub q: &'a [f32],
    /// First position seen.
    pub from: usize,
    /// One past the last position seen.
    pub to: usize,
    /// A logit that takes part in the softmax and has no value.
    pub sink: Option<f32>,
    /// The ALiBi slope, which times the position is added to the score.
    pub slope: Option<f32>,
    /// Numbers that are added to the scores of positions by their distance from the last one seen; 0 beyond the last number.
    pub relative: Option<&'a [f32]>,
    /// The salience that each seen key adds to its score, and the largest number of keys that count. The keys
    /// with the largest salience are kept.
    pub salience: Option<(&'a [f32], usize)>,
}

/// A block of queries over one head.
pub struct AttendBlock<'a> {
    /// The keys and values. They are packed once for all queries of the block.
    pub head: CachedHead<'a>,
    /// The queries, by position.
    pub queries: Vec<Query<'a>>,
}

/// Queries that are computed together: few enough for their scores to stay in caches.
pub const BLOCK_QUERIES: usize = 64;

/// Queries of the largest block that a caller should make: enough to make up for packing keys and values.
const PACKED_QUERIES: usize = 1024;

/// Returns the number of rows in a block, for `rows` rows of so many heads with `group` queries each: many, but not
/// so many that threads go idle.
pub fn rows_of_block(rows: usize, heads: usize, group: usize) -> usize {
    let least = (BLOCK_QUERIES / group.max(1)).max(1);
    let blocks = (4 * rayon::current_num_threads()).div_ceil(heads.max(1));
    let most = (PACKED_QUERIES / group.max(1)).max(1);
    rows.div_ceil(blocks).min(most).next_multiple_of(least)
}

/// Computes attention: `[queries, value_dim]` for each block.
///
/// # Panics
/// If a query sees no position, or positions that are not held, or sizes do not fit.
pub fn attend(rule: &AttentionParams, blocks: &[AttendBlock<'_>]) -> Vec<Vec<f32>> {
    attend_on(Isa::best(), rule, blocks)
}

/// Computes [`attend`] with the loops of one instruction set.
fn attend_on(isa: Isa, rule: &AttentionParams, blocks: &[AttendBlock<'_>]) -> Vec<Vec<f32>> {
    let blocks: Vec<SpanBlock<'_>> =
        blocks.iter().map(|b| SpanBlock::new(isa, rule, b.head, &b.queries)).collect();
    let spans: usize = blocks.iter().map(|block| block.spans().len()).sum();
    // Decode: few queries wait for memory, which spans of all heads read in its order.
    let decode = blocks.iter().all(|block| block.queries.len() <= BLOCK_QUERIES / 2);
    if decode && spans > blocks.len() {
        return by_span(&blocks);
    }
    blocks.par_iter().map(by_block).collect()
}

/// Buffers of a thread. They are kept: fresh memory of this size costs a page fault every 4 KiB.
#[derive(Default)]
struct BlockBuffers {
    spans: SpanBuffers,
    packed: PackedHead,
    scores: Vec<Line>,
    sums: Vec<Line>,
    total: Vec<Line>,
}

thread_local! {
    static BUFFERS: RefCell<BlockBuffers> = RefCell::default();
    /// Scores and sums of [`by_span`].
    static SHARED: RefCell<(Vec<Line>, Vec<Line>)> = RefCell::default();
}

/// Computes one block: packs its keys and values, and computes some queries after others, span after span.
fn by_block(block: &SpanBlock<'_>) -> Vec<f32> {
    BUFFERS.with_borrow_mut(|buffers| {
        let BlockBuffers { spans: buffers, packed, scores, sums, total } = buffers;
        let count = block.queries.len();
        let shared = count > BLOCK_QUERIES;
        if shared {
            block.pack(packed, buffers);
        }
        let packed = shared.then(|| (packed, block.seen()));
        let mut tiles = SpanTiles { buffers, packed };
        let mut y = Vec::with_capacity(count * block.rule.value_dim);
        for from in (0..count).step_by(BLOCK_QUERIES) {
            let block = block.part(from..count.min(from + BLOCK_QUERIES));
            let len = block.span_len();
            let scores = room(scores, block.spans().len() * len);
            for (span, scores) in block.spans().zip(scores.chunks_exact_mut(len)) {
                block.score(span, scores, &mut tiles);
            }
            let totals = block.exponentials(scores);
            let size = block.queries.len() * block.value_width();
            let sums = room(sums, size);
            let total = room(total, size);
            total.fill(0.0);
            for (span, scores) in block.spans().zip(scores.chunks_exact_mut(len)) {
                sums.fill(0.0);
                block.mix(span, scores, &totals, sums, &mut tiles);
                total.iter_mut().zip(&*sums).for_each(|(total, sum)| *total += sum);
            }
            y.extend(output(&block, &totals, total));
        }
        y
    })
}

/// Computes a few blocks, the spans of all of them in parallel.
fn by_span(blocks: &[SpanBlock<'_>]) -> Vec<Vec<f32>> {
    // Taken, not borrowed: while this thread waits for others it may begin another attention.
    let (mut scores, mut sums) = SHARED.take();
    let lens = blocks.iter().map(|block| block.spans().len() * block.span_len());
    let mut unassigned = room(&mut scores, lens.clone().sum());
    let mut scores_of = Vec::with_capacity(blocks.len());
    for len in lens {
        let (block_scores, remaining) = unassigned.split_at_mut(len);
        scores_of.push(block_scores);
        unassigned = remaining;
    }
    let lens = blocks.iter().map(|block| block.spans().len() * block.sums_len());
    let mut unassigned = room(&mut sums, lens.clone().sum());
    let mut sums_of = Vec::with_capacity(blocks.len());
    for len in lens {
        let (block_sums, remaining) = unassigned.split_at_mut(len);
        block_sums.fill(0.0);
        sums_of.push(block_sums);
        unassigned = remaining;
    }
    let mut tasks: Vec<(usize, &SpanBlock<'_>, &mut [f32])> = Vec::new();
    for (block, scores) in blocks.iter().zip(&mut scores_of) {
        let parts = block.spans().zip(scores.chunks_exact_mut(block.span_len()));
        tasks.extend(parts.map(|(span, scores)| (span, block, scores)));
    }
    // Spans of all heads together: their rows are read once from memory.
    tasks.sort_by_key(|(span, ..)| *span);
    tasks.into_par_iter().for_each(|(span, block, scores)| {
        BUFFERS.with_borrow_mut(|buffers| {
            let mut tiles = SpanTiles { buffers: &mut buffers.spans, packed: None };
            block.score(span, scores, &mut tiles);
        });
    });
    let totals: Vec<Vec<SoftmaxSums>> = blocks
        .par_iter()
        .zip(&mut scores_of)
        .map(|(block, scores)| block.exponentials(scores))
        .collect();
    let mut tasks = Vec::new();
    let all = blocks.iter().zip(&mut scores_of).zip(&mut sums_of).zip(&totals);
    for (((block, scores), sums), totals) in all {
        let scores = scores.chunks_exact_mut(block.span_len());
        let parts = block.spans().zip(scores).zip(sums.chunks_exact_mut(block.sums_len()));
        tasks.extend(parts.map(|((span, scores), sums)| (span, block, scores, totals, sums)));
    }
    tasks.sort_by_key(|(span, ..)| *span);
    tasks.into_par_iter().for_each(|(span, block, scores, totals, sums)| {
        BUFFERS.with_borrow_mut(|buffers| {
            let mut tiles = SpanTiles { buffers: &mut buffers.spans, packed: None };
            block.mix(span, scores, totals, sums, &mut tiles);
        });
    });
    let outputs = blocks
        .iter()
        .zip(sums_of)
        .zip(&totals)
        .map(|((block, sums), totals)| {
            let mut total = vec![0.0; block.sums_len()];
            for sums in sums.chunks_exact(total.len().max(1)) {
                total.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
            }
            output(block, totals, &total)
        })
        .collect();
    SHARED.set((scores, sums));
    outputs
}

/// Rounds sums to outputs, `[queries, value_dim]`.
fn output(block: &SpanBlock<'_>, totals: &[SoftmaxSums], sums: &[f32]) -> Vec<f32> {
    let dim = block.rule.value_dim;
    let round = block.rule.round;
    let mut y = Vec::with_capacity(totals.len() * dim);
    for (sums, softmax) in sums.chunks_exact(block.value_width()).zip(totals) {
        let from = y.len();
        y.extend_from_slice(&sums[..dim]);
        let y = &mut y[from..];
        finish(y, None, round);
        if let Some(gate) = softmax.gate {
            for x in y.iter_mut() {
                *x *= gate;
            }
            finish(y, None, round);
        }
    }
    y
}
