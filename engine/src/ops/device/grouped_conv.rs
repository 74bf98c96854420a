//! `grouped_conv` on a device.

use crate::Error;
use crate::device::{KernelArgument, KernelParts};
use crate::ops::device::causal_conv::append_inputs;
use crate::ops::device::index;
use crate::ops::grouped_conv::ConvSizes;
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::states::store::device::RowWrites;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("grouped_conv", |args: &Args<'_>| ConvSizes::of(args).map(DeviceGroupedConv));
}

struct DeviceGroupedConv(ConvSizes);

impl Kernel for DeviceGroupedConv {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let x = ctx.device_input(0)?;
        let ConvSizes { channels, width, second, group } = self.0;
        let roles = ["weight", "bias", "grouped", "grouped_bias"];
        let mut weights = roles.map(|role| KernelArgument::from(ctx.device_vector(role))).to_vec();
        for size in [width, second, group] {
            weights.push(index(ctx, size)?.into());
        }
        let y = ctx.device_output(0, x.rows())?;
        let mut writes = RowWrites::default();
        let mut launch = KernelParts::new("grouped_conv");
        for chunk in ctx.chunks() {
            let rows = chunk.rows.len();
            let from = chunk.rows.start;
            let mut arguments: Vec<KernelArgument> = vec![
                (&*x.buffer).into(),
                x.dtype.into(),
                index(ctx, from)?.into(),
                index(ctx, rows)?.into(),
                index(ctx, channels)?.into(),
            ];
            arguments.extend(&weights);
            arguments.extend(append_inputs(ctx, chunk, &x, &mut writes)?);
            arguments.extend::<[KernelArgument; 2]>([(&*y.buffer).into(), y.dtype.into()]);
            launch.push_each(rows * channels, arguments);
        }
        let mut launches = writes.into_launches();
        launches.push(launch);
        queue.launch_parts(&launches)?;
        ctx.set_device(0, y)
    }
}
