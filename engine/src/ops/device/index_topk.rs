//! `index_topk` on a device.

use crate::Error;
use crate::device::{KernelArgument, KernelParts};
use crate::ops::device::index;
use crate::ops::device::scores::{SCORES, score_groups};
use crate::ops::index_topk::IndexTopk;
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::states::Memory;
use crate::states::store::device::{CacheArguments, RowWrites};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("index_topk", |args: &Args<'_>| IndexTopk::prepare(args).map(DeviceIndex));
}

struct DeviceIndex(IndexTopk);

impl Kernel for DeviceIndex {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let q = ctx.device_input(0)?;
        let k = ctx.device_input(1)?;
        let w = (ctx.node().inputs.len() > 2).then(|| ctx.device_input(2)).transpose()?;
        let w = w.as_ref();
        let size = k.width();
        let heads = q.width().checked_div(size).unwrap_or(0);
        let y = ctx.device_output(0, q.rows())?;
        if heads == 0
            || q.width() != heads * size
            || w.is_some_and(|w| w.width() != heads)
            || y.width() != self.0.width()
        {
            return Err(ctx.error("its queries, keys and weights do not fit"));
        }
        let mut writes = RowWrites::default();
        let mut parts = Vec::new();
        for chunk in ctx.chunks() {
            let wrong = ctx.error("its state does not hold keys of this shape");
            let Memory::Index(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
            if memory.width() != size || memory.end() != chunk.start {
                return Err(wrong);
            }
            memory.append_value(&k, (chunk.rows.start, chunk.rows.len()), &mut writes)?;
            let (cache, _) = memory.cache()?;
            // A row with no complete block has no score, and one place for it.
            let span = (memory.end() / self.0.block).max(1);
            let batch = (SCORES / span).max(1);
            for first in chunk.rows.clone().step_by(batch) {
                let rows = chunk.rows.end.min(first + batch) - first;
                let start = chunk.start + first - chunk.rows.start;
                let span = ((start + rows) / self.0.block).max(1);
                parts.push(IndexPart { cache, first, rows, start, span });
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
                let block = index(ctx, self.0.block)?;
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
                arguments.extend([self.0.scale.into(), scores]);
                score.push_each(rows * span, arguments);
                let arguments = vec![
                    scores,
                    first.into(),
                    start.into(),
                    columns.into(),
                    block.into(),
                    index(ctx, self.0.topk)?.into(),
                    self.0.newest.into(),
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
struct IndexPart {
    cache: CacheArguments,
    /// The first row.
    first: usize,
    rows: usize,
    /// The position of the first row.
    start: usize,
    /// Complete blocks that the last row sees, and at least 1.
    span: usize,
}
