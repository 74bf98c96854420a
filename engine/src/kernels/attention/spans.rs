//! The work of a block of queries on one span of positions.
#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for vectors")]

use std::ops::Range;

use registry::dtype::Dtype;

use super::product::{LANES, Line, TileProduct, VectorTask, Vectors, dispatch, room, transpose};
use super::rows::{CachedColumns, CachedHead};
use super::softmax::{SoftmaxSums, divide, exponentials, scale};
use super::{AttentionParams, Query};
use crate::kernels::isa::Isa;

/// Positions whose values are summed together. Sums of spans are then added in order.
pub(super) const SPAN: usize = 512;
/// Numbers from one query's scores of a span to the next query's: not a power of two, which caches do not like.
const ROW: usize = SPAN + LANES;
/// Positions in one tile of keys, and of values.
const KEY_TILE: usize = 64;
const VALUE_TILE: usize = 128;
/// Queries that are multiplied, or left out, together.
const PANEL: usize = 6;

/// Memory that is used again from span to span.
#[derive(Debug, Default)]
pub(super) struct SpanBuffers {
    queries: Vec<Line>,
    gathered: Vec<Line>,
    tile: Vec<Line>,
}

/// A block of queries over one head, and the numbers it is computed in.
pub(super) struct SpanBlock<'a> {
    pub(super) rule: &'a AttentionParams,
    head: CachedHead<'a>,
    pub(super) queries: &'a [Query<'a>],
    isa: Isa,
    key_pairs: bool,
    value_pairs: bool,
    /// The positions that some query sees.
    seen: Range<usize>,
}

impl<'a> SpanBlock<'a> {
    pub(super) fn new(
        isa: Isa,
        rule: &'a AttentionParams,
        head: CachedHead<'a>,
        queries: &'a [Query<'a>],
    ) -> Self {
        let fits = |parts: &[CachedColumns<'_>; 2], dim: usize| parts[0].len + parts[1].len == dim;
        assert!(fits(&head.keys, rule.key_dim), "parts of a key make up a key");
        assert!(fits(&head.values, rule.value_dim), "parts of a value make up a value");
        assert!(
            queries.iter().all(|q| q.from < q.to && q.q.len() == rule.key_dim),
            "a query sees at least one of the keys"
        );
        let bf16 = |parts: &[CachedColumns<'_>; 2]| parts.iter().all(CachedColumns::is_bf16);
        let exact = |q: &Query<'_>| q.q.iter().all(|x| x.to_bits().trailing_zeros() >= 16);
        let pairs = isa == Isa::Avx512Bf16;
        Self {
            rule,
            queries,
            isa,
            key_pairs: pairs
                && bf16(&head.keys)
                && head.keys.iter().all(|part| part.len.is_multiple_of(2))
                && queries.iter().all(exact),
            value_pairs: pairs && rule.round == Dtype::Bf16 && bf16(&head.values),
            seen: queries.iter().map(|q| q.from).min().unwrap_or(0)
                ..queries.iter().map(|q| q.to).max().unwrap_or(0),
            head,
        }
    }

    /// Returns the spans that some query sees.
    pub(super) fn spans(&self) -> Range<usize> {
        self.seen.start / SPAN..self.seen.end.div_ceil(SPAN)
    }

    /// Numbers that the scores of one span take.
    pub(super) fn span_len(&self) -> usize {
        self.queries.len().max(1) * ROW
    }

    /// Numbers of a value in whole vectors.
    pub(super) fn value_width(&self) -> usize {
        self.rule.value_dim.next_multiple_of(LANES)
    }

    /// Computes the scores of one span, `[queries, ROW]`.
    pub(super) fn score(&self, span: usize, scores: &mut [f32], buffers: &mut SpanBuffers) {
        dispatch(self.isa, self.key_pairs, ScoreTask { block: self, span, scores, buffers });
    }

    /// Turns the scores of all spans into exponentials.
    pub(super) fn exponentials(&self, scores: &mut [f32]) -> Vec<SoftmaxSums> {
        dispatch(self.isa, false, ExponentialTask { block: self, scores })
    }

    /// Adds the weighted values of one span to `sums`, `[queries, value_width]`.
    pub(super) fn mix(
        &self,
        span: usize,
        scores: &mut [f32],
        totals: &[SoftmaxSums],
        sums: &mut [f32],
        buffers: &mut SpanBuffers,
    ) {
        let task = MixTask { block: self, span, scores, totals, sums, buffers };
        dispatch(self.isa, self.value_pairs, task);
    }

    /// Returns the positions of a span that some query sees.
    fn seen_of(&self, span: usize) -> Range<usize> {
        self.seen.start.max(span * SPAN)..self.seen.end.min((span + 1) * SPAN)
    }
}

/// Returns the part of a row of scores that a query sees.
#[inline(always)]
fn visible(query: &Query<'_>, span: usize) -> Range<usize> {
    let start = span * SPAN;
    let from = query.from.clamp(start, start + SPAN) - start;
    from..(query.to.clamp(start, start + SPAN) - start).max(from)
}

/// Returns the panels of queries, as first and last, that see some position of `range`.
fn panels<'b>(
    queries: &'b [Query<'_>],
    range: &'b Range<usize>,
) -> impl Iterator<Item = Range<usize>> + 'b {
    queries.chunks(PANEL).enumerate().filter_map(move |(n, panel)| {
        let sees = |q: &Query<'_>| q.from < range.end && range.start < q.to;
        panel.iter().any(sees).then_some(n * PANEL..n * PANEL + panel.len())
    })
}

struct ScoreTask<'a, 'b> {
    block: &'b SpanBlock<'a>,
    span: usize,
    scores: &'b mut [f32],
    buffers: &'b mut SpanBuffers,
}

impl VectorTask for ScoreTask<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vectors>(self) {
        let Self { block, span, scores, buffers } = self;
        let dim = block.rule.key_dim;
        let steps = dim.div_ceil(2);
        let words = if V::PAIRS { steps } else { 2 * steps };
        let padded = words.next_multiple_of(LANES);
        let queries = room(&mut buffers.queries, block.queries.len() * padded);
        for (query, row) in block.queries.iter().zip(queries.chunks_exact_mut(padded)) {
            if V::PAIRS {
                for (word, pair) in row.iter_mut().zip(query.q.chunks_exact(2)) {
                    *word = f32::from_bits(pair[0].to_bits() >> 16 | pair[1].to_bits());
                }
            } else {
                row[..dim].copy_from_slice(query.q);
                row[dim..words].fill(0.0);
            }
        }
        let seen = block.seen_of(span);
        let mut first = seen.start / LANES * LANES;
        while first < seen.end {
            let end = (first / KEY_TILE * KEY_TILE + KEY_TILE).min(seen.end);
            let count = (end - first).next_multiple_of(LANES);
            let gathered = room(&mut buffers.gathered, count * padded);
            for (n, row) in gathered.chunks_exact_mut(padded).enumerate() {
                let position = first + n;
                if !seen.contains(&position) {
                    row.fill(0.0);
                } else if V::PAIRS {
                    block.gather_pairs(position, row);
                } else {
                    block.gather(position, row);
                    row[dim..words].fill(0.0);
                }
            }
            let tile = room(&mut buffers.tile, count * padded);
            transpose::<V>(gathered, count, padded, tile);
            for panel in panels(block.queries, &(first..end)) {
                let factors = TileProduct {
                    a: &queries[panel.start * padded..],
                    a_stride: padded,
                    rows: panel.len(),
                    b: tile,
                    vectors: count / LANES,
                    steps,
                };
                let at = panel.start * ROW + first - span * SPAN;
                factors.multiply::<V>(&mut scores[at..], ROW, true);
            }
            first = end;
        }
        for (query, row) in block.queries.iter().zip(scores.chunks_exact_mut(ROW)) {
            let part = visible(query, span);
            let bias = query.slope.map(|slope| (slope, span * SPAN + part.start));
            scale(block.rule, &mut row[part], bias);
        }
    }
}

impl SpanBlock<'_> {
    #[inline(always)]
    fn gather_pairs(&self, key: usize, row: &mut [f32]) {
        let position = self.head.position(key);
        let mut rest = row;
        for part in &self.head.keys {
            let (words, others) = rest.split_at_mut(part.len / 2);
            rest = others;
            for (word, pair) in words.iter_mut().zip(part.halves(position).chunks_exact(2)) {
                *word = f32::from_bits(u32::from(pair[0]) | u32::from(pair[1]) << 16);
            }
        }
    }

    #[inline(always)]
    fn gather(&self, key: usize, row: &mut [f32]) {
        let position = self.head.position(key);
        let [front, back] = &self.head.keys;
        front.widen(position, row);
        back.widen(position, &mut row[front.len..]);
    }
}

struct ExponentialTask<'a, 'b> {
    block: &'b SpanBlock<'a>,
    scores: &'b mut [f32],
}

impl VectorTask for ExponentialTask<'_, '_> {
    type Output = Vec<SoftmaxSums>;

    #[inline(always)]
    fn run<V: Vectors>(self) -> Vec<SoftmaxSums> {
        let Self { block, scores } = self;
        let (first, len) = (block.spans().start, block.span_len());
        let mut sums = Vec::with_capacity(block.queries.len());
        // No closure: the compiler would build it without the features of the vectors.
        for (n, query) in block.queries.iter().enumerate() {
            let mut parts = Vec::with_capacity(block.spans().len());
            for (span, rows) in scores.chunks_exact_mut(len).enumerate() {
                parts.push(&mut rows[n * ROW..(n + 1) * ROW][visible(query, first + span)]);
            }
            sums.push(exponentials(block.rule, query, &mut parts));
        }
        sums
    }
}

struct MixTask<'a, 'b> {
    block: &'b SpanBlock<'a>,
    span: usize,
    scores: &'b mut [f32],
    totals: &'b [SoftmaxSums],
    sums: &'b mut [f32],
    buffers: &'b mut SpanBuffers,
}

impl VectorTask for MixTask<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vectors>(self) {
        let Self { block, span, scores, totals, sums, buffers } = self;
        let seen = block.seen_of(span);
        let start = span * SPAN;
        let (low, high) = (seen.start / 2 * 2 - start, seen.end.next_multiple_of(2) - start);
        let rows = block.queries.iter().zip(totals).zip(scores.chunks_exact_mut(ROW));
        for ((query, sums), row) in rows {
            let part = visible(query, span);
            divide(block.rule.round, &mut row[part.clone()], sums.total);
            // What others of the block see and this query does not weighs nothing.
            row[low.min(part.start)..part.start].fill(0.0);
            row[part.end..high.max(part.end)].fill(0.0);
            if V::PAIRS {
                pack_pairs(row, low, high);
            }
        }
        let width = block.value_width();
        let mut first = seen.start / 2 * 2;
        while first < seen.end {
            let end = (first / VALUE_TILE * VALUE_TILE + VALUE_TILE).min(seen.end);
            let steps = (end - first).div_ceil(2);
            let words = if V::PAIRS { steps } else { 2 * steps };
            let tile = room(&mut buffers.tile, words * width);
            for (n, row) in tile.chunks_exact_mut(width).enumerate() {
                if V::PAIRS {
                    block.value_pair(&seen, first + 2 * n, row);
                } else {
                    block.value(&seen, first + n, row);
                }
            }
            for panel in panels(block.queries, &(first..end)) {
                let at = if V::PAIRS { (first - start) / 2 } else { first - start };
                let factors = TileProduct {
                    a: &scores[panel.start * ROW + at..],
                    a_stride: ROW,
                    rows: panel.len(),
                    b: tile,
                    vectors: width / LANES,
                    steps,
                };
                factors.multiply::<V>(&mut sums[panel.start * width..], width, false);
            }
            first = end;
        }
    }
}

/// Packs numbers `low..high` of a row, which are on the bf16 grid, into words of two, in place.
#[inline(always)]
fn pack_pairs(row: &mut [f32], low: usize, high: usize) {
    for n in low / 32..high.div_ceil(32) {
        let mut numbers = [0.0; 32];
        numbers.copy_from_slice(&row[32 * n..32 * n + 32]);
        for (word, pair) in row[16 * n..16 * n + 16].iter_mut().zip(numbers.chunks_exact(2)) {
            *word = f32::from_bits(pair[0].to_bits() >> 16 | pair[1].to_bits() & 0xffff_0000);
        }
    }
}

impl SpanBlock<'_> {
    /// Puts the values of two positions in place, in pairs.
    #[inline(always)]
    fn value_pair(&self, seen: &Range<usize>, key: usize, row: &mut [f32]) {
        let place = |key| seen.contains(&key).then(|| self.head.position(key));
        let (even, odd) = (place(key), place(key + 1));
        let mut row = &mut row[..self.rule.value_dim];
        for part in &self.head.values {
            let (words, rest) = row.split_at_mut(part.len);
            row = rest;
            let even = even.map(|position| part.halves(position));
            let odd = odd.map(|position| part.halves(position));
            match (even, odd) {
                (Some(even), Some(odd)) => {
                    for ((word, &even), &odd) in words.iter_mut().zip(even).zip(odd) {
                        *word = f32::from_bits(u32::from(even) | u32::from(odd) << 16);
                    }
                }
                (Some(even), None) => {
                    for (word, &even) in words.iter_mut().zip(even) {
                        *word = f32::from_bits(u32::from(even));
                    }
                }
                (None, Some(odd)) => {
                    for (word, &odd) in words.iter_mut().zip(odd) {
                        *word = f32::from_bits(u32::from(odd) << 16);
                    }
                }
                (None, None) => words.fill(0.0),
            }
        }
    }

    /// Puts the value of one position in place.
    #[inline(always)]
    fn value(&self, seen: &Range<usize>, key: usize, row: &mut [f32]) {
        if !seen.contains(&key) {
            row.fill(0.0);
            return;
        }
        let position = self.head.position(key);
        let [front, back] = &self.head.values;
        front.widen(position, row);
        back.widen(position, &mut row[front.len..]);
    }
}
