//! `index_topk` on a device.

use crate::Error;
use crate::device::KernelArgument;
use crate::ops::device::attend::SCORES;
use crate::ops::device::index;
use crate::ops::index_topk::IndexTopk;
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::states::Memory;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("index_topk", |args: &Args<'_>| IndexTopk::prepare(args).map(DeviceIndex));
}

struct DeviceIndex(IndexTopk);

impl Kernel for DeviceIndex {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let (q, k, w) = (ctx.device_input(0)?, ctx.device_input(1)?, ctx.device_input(2)?);
        let (heads, size) = (w.width(), k.width());
        let y = ctx.device_output(0, w.rows())?;
        if q.width() != heads * size || size == 0 || y.width() != self.0.topk {
            return Err(ctx.error("its queries, keys and weights do not fit"));
        }
        for chunk in ctx.chunks() {
            let wrong = ctx.error("its state does not hold keys of this shape");
            let Memory::Index(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
            if memory.width() != size || memory.end() != chunk.start {
                return Err(wrong);
            }
            memory.append_value(&k, chunk.rows.start, chunk.rows.len())?;
            let (cache, _) = memory.cache()?;
            let batch = (SCORES / memory.end().max(1)).max(1);
            for from in chunk.rows.clone().step_by(batch) {
                let rows = chunk.rows.end.min(from + batch) - from;
                let start = chunk.start + from - chunk.rows.start;
                let span = start + rows;
                let scores = queue.allocate(4 * rows * span)?;
                let mut arguments: Vec<KernelArgument> = vec![
                    (&*q.buffer).into(),
                    q.dtype.into(),
                    (&*w.buffer).into(),
                    w.dtype.into(),
                    index(ctx, from)?.into(),
                    index(ctx, rows)?.into(),
                    index(ctx, heads)?.into(),
                    index(ctx, size)?.into(),
                ];
                arguments.extend(cache.list);
                arguments.extend::<[KernelArgument; 4]>([
                    index(ctx, start)?.into(),
                    index(ctx, span)?.into(),
                    self.0.scale.into(),
                    (&scores).into(),
                ]);
                queue.launch_each("index_scores", rows * span, &arguments)?;
                let arguments = [
                    (&scores).into(),
                    index(ctx, from)?.into(),
                    index(ctx, start)?.into(),
                    index(ctx, span)?.into(),
                    index(ctx, self.0.topk)?.into(),
                    (&*y.buffer).into(),
                    y.dtype.into(),
                ];
                queue.launch("index_select", rows, &arguments)?;
            }
        }
        ctx.set_device(0, y)
    }
}
