//! The work of a block of queries on one span of positions.
#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for vectors")]

use std::ops::Range;

use registry::dtype::Dtype;

use super::product::{LANES, Line, TileProduct, dispatch, room, transpose};
use super::rows::{CachedColumns, CachedHead};
use super::softmax::{SoftmaxSums, divide, exponentials, scale};
use super::{AttentionParams, Query, SoftmaxForm};
use lanes::{Isa, Simd, VectorTask};

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

/// Keys and values of a head as products read them: packed once for many blocks of queries.
#[derive(Debug, Default)]
pub(super) struct PackedHead {
    /// Tiles of `KEY_TILE` keys, from the tile of the first key on: `[tile, word, KEY_TILE]`.
    keys: Vec<Line>,
    /// Values by position, or by pair of positions, from the first even position on.
    values: Vec<Line>,
}

/// The buffers of a span, and the packed keys and values, if blocks share them.
pub(super) struct SpanTiles<'b> {
    pub(super) buffers: &'b mut SpanBuffers,
    /// With the positions that are packed.
    pub(super) packed: Option<(&'b mut PackedHead, Range<usize>)>,
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
        let key_len = head.keys[0].len + head.keys[1].len;
        let value_len = head.values[0].len + head.values[1].len;
        assert!(key_len == rule.key_dim, "parts of a key make up a key");
        assert!(value_len == rule.value_dim, "parts of a value make up a value");
        assert!(
            queries.iter().all(|q| q.from < q.to && q.q.len() == rule.key_dim),
            "a query sees at least one of the keys"
        );
        let pairs = isa.has_pairs();
        Self {
            rule,
            queries,
            isa,
            key_pairs: pairs
                && head.keys.iter().all(CachedColumns::is_bf16)
                && head.keys.iter().all(|part| part.len.is_multiple_of(2))
                && queries
                    .iter()
                    .all(|q: &Query<'_>| q.q.iter().all(|x| x.to_bits().trailing_zeros() >= 16)),
            value_pairs: pairs
                && rule.round == Dtype::Bf16
                && rule.softmax != SoftmaxForm::Unrounded
                && head.values.iter().all(CachedColumns::is_bf16),
            seen: seen_by(queries),
            head,
        }
    }

    /// Returns the spans that some query sees.
    pub(super) fn spans(&self) -> Range<usize> {
        self.seen.start / SPAN..self.seen.end.div_ceil(SPAN)
    }

    /// Numbers that the sums of all queries take.
    pub(super) fn sums_len(&self) -> usize {
        self.queries.len() * self.value_width()
    }

    /// Numbers that the scores of one span take.
    pub(super) fn span_len(&self) -> usize {
        self.queries.len().max(1) * ROW
    }

    /// Numbers of a value in whole vectors.
    pub(super) fn value_width(&self) -> usize {
        self.rule.value_dim.next_multiple_of(LANES)
    }

    /// Returns some of the queries, over the same head in the same numbers.
    pub(super) fn part(&self, queries: Range<usize>) -> Self {
        let queries = &self.queries[queries];
        Self { queries, seen: seen_by(queries), ..*self }
    }

    /// Returns the positions that some query sees.
    pub(super) fn seen(&self) -> Range<usize> {
        self.seen.clone()
    }

    /// Packs the keys and values that the queries see.
    pub(super) fn pack(&self, packed: &mut PackedHead, buffers: &mut SpanBuffers) {
        let PackedHead { keys, values } = packed;
        dispatch(self.isa, self.key_pairs, KeyPacking { block: self, keys, buffers });
        dispatch(self.isa, self.value_pairs, ValuePacking { block: self, values });
    }

    /// Computes the scores of one span, `[queries, ROW]`.
    pub(super) fn score(&self, span: usize, scores: &mut [f32], tiles: &mut SpanTiles<'_>) {
        dispatch(self.isa, self.key_pairs, ScoreTask { block: self, span, scores, tiles });
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
        tiles: &mut SpanTiles<'_>,
    ) {
        let task = MixTask { block: self, span, scores, totals, sums, tiles };
        dispatch(self.isa, self.value_pairs, task);
    }

    /// Returns the positions of a span that some query sees.
    fn seen_of(&self, span: usize) -> Range<usize> {
        self.seen.start.max(span * SPAN)..self.seen.end.min((span + 1) * SPAN)
    }
}

/// Returns the positions that some query sees.
fn seen_by(queries: &[Query<'_>]) -> Range<usize> {
    queries.iter().map(|q| q.from).min().unwrap_or(0)
        ..queries.iter().map(|q| q.to).max().unwrap_or(0)
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
        panel
            .iter()
            .any(|q: &Query<'_>| q.from < range.end && range.start < q.to)
            .then_some(n * PANEL..n * PANEL + panel.len())
    })
}

struct KeyPacking<'a, 'b> {
    block: &'b SpanBlock<'a>,
    keys: &'b mut Vec<Line>,
    buffers: &'b mut SpanBuffers,
}

impl VectorTask for KeyPacking<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { block, keys, buffers } = self;
        let padded = block.key_words::<S>().1;
        let seen = block.seen();
        let start = seen.start / KEY_TILE * KEY_TILE;
        let tiles = room(keys, (seen.end - start).next_multiple_of(KEY_TILE) * padded);
        for (n, tile) in tiles.chunks_exact_mut(KEY_TILE * padded).enumerate() {
            let first = start + n * KEY_TILE;
            block.key_tile(s, &seen, first, KEY_TILE, &mut buffers.gathered, tile);
        }
    }
}

struct ValuePacking<'a, 'b> {
    block: &'b SpanBlock<'a>,
    values: &'b mut Vec<Line>,
}

impl VectorTask for ValuePacking<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _s: S) {
        let Self { block, values } = self;
        let seen = block.seen();
        let width = block.value_width();
        let start = seen.start / 2 * 2;
        let steps = (seen.end - start).div_ceil(2);
        let rows = if S::PAIRS { steps } else { 2 * steps };
        block.value_tile::<S>(&seen, start, room(values, rows * width));
    }
}

struct ScoreTask<'a, 'b, 'c> {
    block: &'b SpanBlock<'a>,
    span: usize,
    scores: &'b mut [f32],
    tiles: &'b mut SpanTiles<'c>,
}

impl VectorTask for ScoreTask<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { block, span, scores, tiles } = self;
        let SpanTiles { buffers, packed } = tiles;
        let dim = block.rule.key_dim;
        let (words, padded) = block.key_words::<S>();
        let queries = room(&mut buffers.queries, block.queries.len() * padded);
        for (query, row) in block.queries.iter().zip(queries.chunks_exact_mut(padded)) {
            if S::PAIRS {
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
            let start = first / KEY_TILE * KEY_TILE;
            let end = (start + KEY_TILE).min(seen.end);
            let count = (end - first).next_multiple_of(LANES);
            let (tile, stride) = if let Some((packed, all)) = packed {
                let from = start - all.start / KEY_TILE * KEY_TILE;
                let keys = room(&mut packed.keys, (from + KEY_TILE) * padded);
                (&keys[from * padded + first - start..], KEY_TILE)
            } else {
                let tile = room(&mut buffers.tile, count * padded);
                block.key_tile(s, &seen, first, count, &mut buffers.gathered, tile);
                (&*tile, count)
            };
            for panel in panels(block.queries, &(first..end)) {
                let factors = TileProduct {
                    a: &queries[panel.start * padded..],
                    a_stride: padded,
                    rows: panel.len(),
                    b: tile,
                    b_stride: stride,
                    vectors: count / LANES,
                    steps: dim.div_ceil(2),
                };
                let at = panel.start * ROW + first - span * SPAN;
                factors.multiply(s, &mut scores[at..], ROW, true);
            }
            first = end;
        }
        for (query, row) in block.queries.iter().zip(scores.chunks_exact_mut(ROW)) {
            let part = visible(query, span);
            let first = span * SPAN + part.start;
            scale(block.rule, &mut row[part], query, first);
        }
    }
}

impl<'a> SpanBlock<'a> {
    /// Returns the words of a packed key, and the words from one key to the next.
    #[inline(always)]
    fn key_words<S: Simd>(&self) -> (usize, usize) {
        let steps = self.rule.key_dim.div_ceil(2);
        let words = if S::PAIRS { steps } else { 2 * steps };
        (words, words.next_multiple_of(LANES))
    }

    /// Packs `count` keys from position `first` on, those that are seen: `[word, count]`.
    #[inline(always)]
    fn key_tile<S: Simd>(
        &self,
        s: S,
        seen: &Range<usize>,
        first: usize,
        count: usize,
        gathered: &mut Vec<Line>,
        tile: &mut [f32],
    ) {
        let (words, padded) = self.key_words::<S>();
        if let Some((rows, stride)) = self.in_place::<S>(&self.head.keys, seen, first, count) {
            return transpose(s, rows, stride, count, padded, tile);
        }
        let gathered = room(gathered, count * padded);
        for (n, row) in gathered.chunks_exact_mut(padded).enumerate() {
            let position = first + n;
            if !seen.contains(&position) {
                row.fill(0.0);
            } else if S::PAIRS {
                self.gather_pairs(position, row);
            } else {
                self.gather(position, row);
                row[self.rule.key_dim..words].fill(0.0);
            }
        }
        transpose(s, gathered, padded, count, padded, tile);
    }

    /// Returns `count` rows of f32 where they lie in the cache; none if they have to be copied: unless all are seen, in
    /// one stretch of whole vectors.
    #[inline(always)]
    fn in_place<S: Simd>(
        &self,
        parts: &[CachedColumns<'a>; 2],
        seen: &Range<usize>,
        first: usize,
        count: usize,
    ) -> Option<(&'a [f32], usize)> {
        let [front, back] = parts;
        let contiguous = back.len == 0 && front.len.is_multiple_of(LANES) && !S::PAIRS;
        let all = seen.start <= first && first + count <= seen.end;
        if !contiguous || !all || self.head.selected.is_some() {
            return None;
        }
        front.in_place(first..first + count)
    }

    /// Packs values from an even position on, those that are seen.
    #[inline(always)]
    fn value_tile<S: Simd>(&self, seen: &Range<usize>, first: usize, tile: &mut [f32]) {
        for (n, row) in tile.chunks_exact_mut(self.value_width()).enumerate() {
            if S::PAIRS {
                self.value_pair(seen, first + 2 * n, row);
            } else {
                self.value(seen, first + n, row);
            }
        }
    }
}

impl SpanBlock<'_> {
    #[inline(always)]
    fn gather_pairs(&self, key: usize, row: &mut [f32]) {
        let position = self.head.position(key);
        let mut unfilled = row;
        for part in &self.head.keys {
            let (words, remaining) = unfilled.split_at_mut(part.len / 2);
            unfilled = remaining;
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
    fn run<S: Simd>(self, _s: S) -> Vec<SoftmaxSums> {
        let Self { block, scores } = self;
        let first = block.spans().start;
        let len = block.span_len();
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

struct MixTask<'a, 'b, 'c> {
    block: &'b SpanBlock<'a>,
    span: usize,
    scores: &'b mut [f32],
    totals: &'b [SoftmaxSums],
    sums: &'b mut [f32],
    tiles: &'b mut SpanTiles<'c>,
}

impl VectorTask for MixTask<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { block, span, scores, totals, sums, tiles } = self;
        let SpanTiles { buffers, packed } = tiles;
        let seen = block.seen_of(span);
        let start = span * SPAN;
        let low = seen.start / 2 * 2 - start;
        let high = seen.end.next_multiple_of(2) - start;
        let rows = block.queries.iter().zip(totals).zip(scores.chunks_exact_mut(ROW));
        for ((query, sums), row) in rows {
            let part = visible(query, span);
            divide(block.rule, &mut row[part.clone()], sums.total);
            // What others of the block see and this query does not weighs nothing.
            row[low.min(part.start)..part.start].fill(0.0);
            row[part.end..high.max(part.end)].fill(0.0);
            if S::PAIRS {
                pack_pairs(row, low, high);
            }
        }
        let width = block.value_width();
        let mut first = seen.start / 2 * 2;
        while first < seen.end {
            let end = (first / VALUE_TILE * VALUE_TILE + VALUE_TILE).min(seen.end);
            let steps = (end - first).div_ceil(2);
            let words = if S::PAIRS { steps } else { 2 * steps };
            let (tile, stride) = if let Some((packed, all)) = packed {
                let from = first - all.start / 2 * 2;
                let from = if S::PAIRS { from / 2 } else { from };
                (&room(&mut packed.values, (from + words) * width)[from * width..], width)
            } else if let Some(rows) = block.in_place::<S>(&block.head.values, &seen, first, words)
            {
                rows
            } else {
                let tile = room(&mut buffers.tile, words * width);
                block.value_tile::<S>(&seen, first, tile);
                (&*tile, width)
            };
            for panel in panels(block.queries, &(first..end)) {
                let at = if S::PAIRS { (first - start) / 2 } else { first - start };
                let factors = TileProduct {
                    a: &scores[panel.start * ROW + at..],
                    a_stride: ROW,
                    rows: panel.len(),
                    b: tile,
                    b_stride: stride,
                    vectors: width / LANES,
                    steps,
                };
                factors.multiply(s, &mut sums[panel.start * width..], width, false);
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
        let even = seen.contains(&key).then(|| self.head.position(key));
        let odd = seen.contains(&(key + 1)).then(|| self.head.position(key + 1));
        let mut row = &mut row[..self.rule.value_dim];
        for part in &self.head.values {
            let (words, remaining) = row.split_at_mut(part.len);
            row = remaining;
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
