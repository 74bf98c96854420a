//! `index_blocks` on a device.

use crate::Error;
use crate::device::{KernelArgument, KernelParts};
use crate::ops::device::index;
use crate::ops::device::index_topk::{IndexPart, append_keys, index_parts};
use crate::ops::device::scores::score_groups;
use crate::ops::index_blocks::IndexBlocks;
use crate::ops::index_topk::IndexSizes;
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::states::store::device::RowWrites;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels
        .prepared("index_blocks", |args: &Args<'_>| IndexBlocks::prepare(args).map(DeviceBlocks));
}

struct DeviceBlocks(IndexBlocks);

impl Kernel for DeviceBlocks {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let IndexBlocks { sizes: IndexSizes { heads, size }, topk, block, local } = self.0;
        let queue = ctx.queue()?;
        let q = ctx.device_input(0)?;
        let k = ctx.device_input(1)?;
        let y = ctx.device_output(0, q.rows())?;
        let mut writes = RowWrites::default();
        let mut parts = Vec::new();
        for chunk in ctx.chunks() {
            let cache = append_keys(ctx, chunk, &k, &mut writes)?;
            let span = (chunk.start + chunk.rows.len()).div_ceil(block);
            parts.extend(index_parts(chunk, cache, span, heads));
        }
        let mut launches = writes.into_launches();
        for group in score_groups(&parts, |part| part.rows * heads * part.span) {
            let total: usize = group.iter().map(|part| part.rows * heads * part.span).sum();
            let buffer = queue.allocate(4 * total)?;
            let [mut score, mut select] = ["block_scores", "block_select"].map(KernelParts::new);
            let mut at = 0;
            for &IndexPart { cache, first, rows, start, span } in group {
                let scores = buffer.argument(4 * at)?;
                let first = index(ctx, first)?;
                let start = index(ctx, start)?;
                let columns = index(ctx, span)?;
                let block = index(ctx, block)?;
                let mut arguments: Vec<KernelArgument> = vec![
                    (&*q.buffer).into(),
                    q.dtype.into(),
                    first.into(),
                    index(ctx, rows)?.into(),
                    index(ctx, heads)?.into(),
                    index(ctx, size)?.into(),
                ];
                arguments.extend(cache.list);
                arguments
                    .extend([start, columns, block, index(ctx, local)?].map(KernelArgument::from));
                arguments.push(scores);
                score.push_each(rows * heads * span, arguments);
                let arguments = vec![
                    scores,
                    first.into(),
                    index(ctx, heads)?.into(),
                    start.into(),
                    columns.into(),
                    block.into(),
                    index(ctx, topk)?.into(),
                    (&*y.buffer).into(),
                    y.dtype.into(),
                ];
                select.push(rows * heads, arguments);
                at += rows * heads * span;
            }
            launches.extend([score, select]);
            queue.launch_parts(&std::mem::take(&mut launches))?;
        }
        ctx.set_device(0, y)
    }
}
