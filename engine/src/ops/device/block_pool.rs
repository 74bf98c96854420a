//! `block_pool` on a device.

use crate::Error;
use crate::device::{KernelArgument, KernelParts};
use crate::ops::block_pool::BlockPool;
use crate::ops::device::causal_conv::append_inputs;
use crate::ops::device::index;
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::states::store::device::RowWrites;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("block_pool", |args: &Args<'_>| BlockPool::prepare(args).map(DeviceBlockPool));
}

struct DeviceBlockPool(BlockPool);

impl Kernel for DeviceBlockPool {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let x = ctx.device_input(0)?;
        let &BlockPool { numbers, block, overlap } = &self.0;
        let bias = ctx.device_vector("position_bias");
        let y = ctx.device_output(0, x.rows())?;
        let mut writes = RowWrites::default();
        let mut launch = KernelParts::new("block_pool");
        for chunk in ctx.chunks() {
            let rows = chunk.rows.len();
            let mut arguments: Vec<KernelArgument> = vec![
                (&*x.buffer).into(),
                x.dtype.into(),
                index(ctx, chunk.rows.start)?.into(),
                index(ctx, rows)?.into(),
                index(ctx, numbers)?.into(),
                bias.into(),
                index(ctx, block)?.into(),
                overlap.into(),
            ];
            arguments.extend(append_inputs(ctx, chunk, &x, &mut writes)?);
            arguments.extend::<[KernelArgument; 2]>([(&*y.buffer).into(), y.dtype.into()]);
            launch.push_each(rows * self.0.size(), arguments);
        }
        let mut launches = writes.into_launches();
        launches.push(launch);
        queue.launch_parts(&launches)?;
        ctx.set_device(0, y)
    }
}
