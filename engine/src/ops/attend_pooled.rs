//! `attend_pooled`: attention to the last positions and to pooled keys of blocks. Keys are values too.

use rayon::prelude::*;

use super::attend::AttendWindow;
use super::row_scores::block_size;
use super::{Args, ChunkRows, Ctx, Kernel, Kernels};
use crate::Error;
use crate::kernels::attention::{
    self, AttendBlock, AttentionParams, CachedColumns, CachedHead, CachedRows, Query,
    ScoreRounding, SoftmaxForm, StoredNumbers,
};
use crate::states::Memory;
use crate::states::pooled::Pooled;
use crate::value::GraphValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("attend_pooled", AttendPooled::prepare);
}

/// Sizes of an attention to pooled keys.
pub(super) struct AttendPooled {
    pub(super) heads: usize,
    /// Numbers of a key.
    pub(super) size: usize,
    pub(super) scale: f32,
    /// Positions that a query sees, its own among them.
    pub(super) window: usize,
    /// Positions of a block.
    pub(super) block: usize,
    /// The input that has the numbers of the seen blocks, and how many of a row; none if all are seen.
    pub(super) selected: Option<(usize, usize)>,
}

impl AttendPooled {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let &[heads, size] = args.input(0)? else {
            return Err(args.error("a query has two axes, heads and head size"));
        };
        let state = args.state()?;
        let window = args.count("window")?;
        let block = block_size(args)?;
        let state_sizes = state.parts.iter().map(|part| part.shape.iter().product::<usize>());
        let fits = args.width(1)? == size
            && args.width(2)? == size
            && state_sizes.eq([size, size])
            && args.may_have("sinks", heads);
        if !fits || size == 0 {
            return Err(args.error(format!(
                "keys, their state and sinks do not fit {heads} query heads of {size}"
            )));
        }
        if window == 0 || state.window.is_none_or(|positions| positions < window) {
            return Err(args.error("it would see more than its state keeps, or nothing"));
        }
        if state.block != Some(block) {
            return Err(args.error("its state has blocks of another size"));
        }
        args.expect_output(heads * size)?;
        let selected = args.count_or_null("selected")?;
        let selected = selected.map(|n| args.width(n).map(|width| (n, width))).transpose()?;
        Ok(Self { heads, size, scale: args.number("scale")?, window, block, selected })
    }

    /// Returns the first position that a query at `position` sees.
    pub(super) fn oldest(&self, position: usize) -> usize {
        AttendWindow { size: self.window, chunked: false }.oldest(position)
    }

    /// Returns the most keys that a query sees, of the rows up to position `end`.
    pub(super) fn most_keys(&self, end: usize) -> usize {
        let complete = end / self.block;
        let blocks = self.selected.map_or(complete, |(_, count)| count.min(complete));
        self.window.min(end) + blocks
    }

    /// Copies the keys that a query at `position` sees, those of positions first. `chosen`: numbers of blocks.
    fn keys(&self, memory: &Pooled, position: usize, chosen: Option<&[f32]>) -> Vec<f32> {
        let size = self.size;
        let complete = (position + 1) / self.block;
        let oldest = self.oldest(position);
        let blocks: Vec<usize> = match chosen {
            None => (0..complete).collect(),
            Some(chosen) => {
                let places = chosen.iter().filter(|place| **place >= 0.0);
                places.map(|place| *place as usize).filter(|place| *place < complete).collect()
            }
        };
        let mut keys = vec![0.0; (position + 1 - oldest + blocks.len()) * size];
        let mut rows = keys.chunks_exact_mut(size);
        for (at, row) in (oldest..=position).zip(&mut rows) {
            memory.keys.read(at, 0, row);
        }
        for (block, row) in blocks.into_iter().zip(&mut rows) {
            memory.blocks.rows.read(block, 0, row);
        }
        keys
    }
}

/// Adds the keys of a chunk to its state, and the pooled keys of the blocks that it completes.
fn keep(ctx: &mut Ctx<'_>, chunk: &ChunkRows, keys: &[f32], pooled: &[f32]) -> Result<(), Error> {
    let wrong = ctx.error("its state does not hold the keys before this step");
    let Memory::Pooled(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
    let size = memory.keys.width();
    if memory.keys.end() != chunk.start
        || memory.blocks.rows.end() != chunk.start / memory.blocks.size
    {
        return Err(wrong);
    }
    memory.keys.append(&keys[chunk.rows.start * size..chunk.rows.end * size]);
    for position in memory.blocks.ends(chunk.start, chunk.rows.len()) {
        let row = chunk.rows.start + position - chunk.start;
        memory.blocks.rows.append(&pooled[row * size..(row + 1) * size]);
    }
    Ok(())
}

impl Kernel for AttendPooled {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let q = ctx.input(0)?;
        let k = ctx.input(1)?;
        let pooled = ctx.input(2)?;
        let chosen = self.selected.map(|(n, _)| ctx.input(n)).transpose()?;
        let &Self { heads, size, .. } = self;
        let width = heads * size;
        let rule = AttentionParams {
            key_dim: size,
            value_dim: size,
            scale: self.scale,
            softcap: None,
            round: ctx.output_dtype(0),
            softmax: SoftmaxForm::F32,
            scores: ScoreRounding::Rounded,
            gated: false,
        };
        let view = q.view();
        let keys = k.view();
        let entries = pooled.view();
        let chosen = chosen.as_ref().map(GraphValue::view);
        for chunk in ctx.chunks() {
            ctx.observe_cached(0, &keys[chunk.rows.start * size..chunk.rows.end * size]);
            keep(ctx, chunk, &keys, &entries)?;
        }
        let sinks = ctx.vector("sinks");
        let mut y = vec![0.0; view.len()];
        for chunk in ctx.chunks() {
            let Memory::Pooled(memory) = ctx.memory(chunk.slot)? else {
                return Err(ctx.error("its state is of another kind"));
            };
            y[chunk.rows.start * width..chunk.rows.end * width]
                .par_chunks_exact_mut(width)
                .enumerate()
                .for_each(|(n, y)| {
                    let row = chunk.rows.start + n;
                    let picks = self.selected.zip(chosen.as_deref());
                    let picks = picks.map(|((_, count), all)| &all[row * count..(row + 1) * count]);
                    let seen = self.keys(memory, chunk.start + n, picks);
                    let q = &view[row * width..(row + 1) * width];
                    y.copy_from_slice(&attended(&rule, q, &seen, sinks));
                });
        }
        ctx.set(0, y)
    }
}

/// Attends with all heads of a row to keys that are values too.
fn attended(rule: &AttentionParams, q: &[f32], keys: &[f32], sinks: Option<&[f32]>) -> Vec<f32> {
    let size = rule.key_dim;
    let rows = CachedRows { numbers: StoredNumbers::Wide(keys), width: size, first: 0 };
    let all = CachedColumns { rows, column: 0, len: size };
    let none = CachedColumns { len: 0, ..all };
    let head = CachedHead { keys: [all, none], values: [all, none], selected: None };
    let queries = q.chunks_exact(size).enumerate().map(|(n, q)| Query {
        q,
        from: 0,
        to: keys.len() / size,
        sink: sinks.map(|sinks| sinks[n]),
        ..Query::default()
    });
    let blocks = [AttendBlock { head, queries: queries.collect() }];
    attention::attend(rule, &blocks).concat()
}

#[cfg(test)]
mod tests {
    use registry::dtype::Dtype;

    use super::*;
    use crate::states::history::History;
    use crate::states::pooled::Blocks;

    #[test]
    fn a_query_sees_a_window_and_complete_blocks() {
        let mut memory = Pooled {
            keys: History::new(Dtype::F32, 1, None, 0),
            blocks: Blocks { rows: History::new(Dtype::F32, 1, None, 0), size: 2 },
        };
        memory.keys.append(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        memory.blocks.rows.append(&[-1.0, -2.0, -3.0]);
        let mut rule =
            AttendPooled { heads: 1, size: 1, scale: 1.0, window: 2, block: 2, selected: None };
        assert_eq!(rule.keys(&memory, 0, None), [1.0]);
        assert_eq!(rule.keys(&memory, 4, None), [4.0, 5.0, -1.0, -2.0]);
        assert_eq!(rule.keys(&memory, 5, None), [5.0, 6.0, -1.0, -2.0, -3.0]);
        assert_eq!(rule.keys(&memory, 4, Some(&[1.0, 2.0, -1.0, f32::NAN])), [4.0, 5.0, -2.0]);
        assert_eq!((rule.most_keys(1), rule.most_keys(6)), (1, 5));
        rule.selected = Some((3, 2));
        assert_eq!(rule.most_keys(6), 4);
    }
}
