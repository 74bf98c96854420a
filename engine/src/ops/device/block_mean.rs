//! `block_mean` on a device.

use crate::Error;
use crate::device::{KernelArgument, KernelParts};
use crate::ops::block_mean::BlockMean;
use crate::ops::device::index;
use crate::ops::device::index_topk::append_keys;
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::states::store::device::RowWrites;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("block_mean", |args: &Args<'_>| BlockMean::prepare(args).map(DeviceBlockMean));
}

struct DeviceBlockMean(BlockMean);

impl Kernel for DeviceBlockMean {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let x = ctx.device_input(0)?;
        let &BlockMean { size, block } = &self.0;
        let y = ctx.device_output(0, x.rows())?;
        let mut writes = RowWrites::default();
        let mut launch = KernelParts::new("block_mean");
        for chunk in ctx.chunks() {
            let rows = chunk.rows.len();
            let first = index(ctx, chunk.rows.start)?;
            let start = index(ctx, chunk.start)?;
            let cache = append_keys(ctx, chunk, &x, &mut writes)?;
            let mut arguments: Vec<KernelArgument> = cache.list.to_vec();
            let numbers = [first, index(ctx, rows)?, index(ctx, size)?, start];
            arguments.extend(numbers.map(KernelArgument::from));
            arguments.extend::<[KernelArgument; 3]>([
                index(ctx, block)?.into(),
                (&*y.buffer).into(),
                y.dtype.into(),
            ]);
            launch.push_each(rows * size, arguments);
        }
        let mut launches = writes.into_launches();
        launches.push(launch);
        queue.launch_parts(&launches)?;
        ctx.set_device(0, y)
    }
}
