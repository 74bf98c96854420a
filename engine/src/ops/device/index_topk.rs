//! `index_topk` on a device.

use crate::Error;
use crate::device::{KernelArgument, KernelParts};
use crate::ops::device::index;
use crate::ops::device::scores::{SCORES, score_groups};
use crate::ops::index_topk::{IndexSizes, IndexTopk};
use crate::ops::{Args, ChunkRows, Ctx, Kernel, Kernels};
use crate::states::Memory;
use crate::states::store::device::{CacheArguments, RowWrites};
use crate::value::DeviceValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("index_topk", |args: &Args<'_>| IndexTopk::prepare(args).map(DeviceIndex));
}

struct DeviceIndex(IndexTopk);

impl Kernel for DeviceIndex {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let q = ctx.device_input(0)?;
        let k = ctx.device_input(1)?;
        let IndexTopk { sizes, topk, scale, block, newest, weighted } = self.0;
        let IndexSizes { heads, size } = sizes;
        let w = weighted.then(|| ctx.device_input(2)).transpose()?;
        let w = w.as_ref();
        let y = ctx.device_output(0, q.rows())?;
        let mut writes = RowWrites::default();
        let mut parts = Vec::new();
        for chunk in ctx.chunks() {
            let cache = append_keys(ctx, chunk, &k, &mut writes)?;
            // A row with no complete block has no score, and one place for it.
            let span = ((chunk.start + chunk.rows.len()) / block).max(1);
            for part in index_parts(chunk, cache, span, 1) {
                let span = ((part.start + part.rows) / block).max(1);
                parts.push(IndexPart { span, ..part });
            }
        }
        let mut launches = writes.into_launches();
        for group in score_groups(&parts, |part| part.rows * part.span) {
            let total: usize = group.iter().map(|part| part.rows * part.span).sum();
            let buffer = queue.allocate(4 * total)?;
            let [mut score, mut select] = ["index_scores", "index_select"].map(KernelParts::new);
            let mut at = 0;
            for &IndexPart { cache, first, rows, start, span } in group {
                let scores = buffer.argument(4 * at)?;
                at += rows * span;
                let first = index(ctx, first)?;
                let start = index(ctx, start)?;
                let row_count = index(ctx, rows)?;
                let columns = index(ctx, span)?;
                let block = index(ctx, block)?;
                let mut arguments: Vec<KernelArgument> = vec![
                    (&*q.buffer).into(),
                    q.dtype.into(),
                    w.map(|w| &*w.buffer).into(),
                    w.map_or(q.dtype, |w| w.dtype).into(),
                    first.into(),
                    row_count.into(),
                    index(ctx, heads)?.into(),
                    index(ctx, size)?.into(),
                ];
                arguments.extend(cache.list);
                arguments.extend([start, columns, block].map(KernelArgument::from));
                arguments.extend([scale.into(), scores]);
                score.push_each(rows * span, arguments);
                let arguments = vec![
                    scores,
                    first.into(),
                    start.into(),
                    columns.into(),
                    block.into(),
                    index(ctx, topk)?.into(),
                    newest.into(),
                    (&*y.buffer).into(),
                    y.dtype.into(),
                ];
                select.push(rows, arguments);
            }
            launches.extend([score, select]);
            queue.launch_parts(&std::mem::take(&mut launches))?;
        }
        ctx.set_device(0, y)
    }
}

/// Some rows of one chunk.
#[derive(Clone, Copy)]
pub(super) struct IndexPart {
    pub(super) cache: CacheArguments,
    /// The first row.
    pub(super) first: usize,
    pub(super) rows: usize,
    /// The position of the first row.
    pub(super) start: usize,
    /// Scores of a head for each row.
    pub(super) span: usize,
}

/// Adds the keys of a chunk to its state. Returns all keys as kernels read them.
pub(super) fn append_keys(
    ctx: &mut Ctx<'_>,
    chunk: &ChunkRows,
    keys: &DeviceValue,
    writes: &mut RowWrites,
) -> Result<CacheArguments, Error> {
    let wrong = ctx.error("its state does not hold the keys before this step");
    let Memory::Index(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
    if memory.end() != chunk.start {
        return Err(wrong);
    }
    memory.append_value(keys, (chunk.rows.start, chunk.rows.len()), writes)?;
    Ok(memory.cache()?.0)
}

/// Divides a chunk into parts whose scores are held at once, `span` for each head of a row.
pub(super) fn index_parts(
    chunk: &ChunkRows,
    cache: CacheArguments,
    span: usize,
    heads: usize,
) -> impl Iterator<Item = IndexPart> {
    let batch = (SCORES / (heads * span).max(1)).max(1);
    let ChunkRows { rows, start, .. } = chunk.clone();
    rows.clone().step_by(batch).map(move |first| IndexPart {
        cache,
        first,
        rows: rows.end.min(first + batch) - first,
        start: start + first - rows.start,
        span,
    })
}
