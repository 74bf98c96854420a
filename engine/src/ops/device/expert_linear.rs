//! `expert_linear` on a device.

use crate::Error;
use crate::device::count;
use crate::ops::device::expert_matrices::{ExpertMatrices, sorted};
use crate::ops::device::index;
use crate::ops::expert_linear::{ExpertLinear, ExpertLinearSizes};
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::value::DeviceValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("expert_linear", DeviceExpertLinear::prepare);
}

struct DeviceExpertLinear {
    rule: ExpertLinear,
    matrices: ExpertMatrices,
}

impl DeviceExpertLinear {
    fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let rule = ExpertLinear::prepare(args)?;
        let matrices = ExpertMatrices::new("up", rule.n);
        Ok(Self { rule, matrices })
    }
}

impl Kernel for DeviceExpertLinear {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let chosen = ctx.device_input(1)?;
        let weights = (ctx.node().inputs.len() > 2).then(|| ctx.device_input(2)).transpose()?;
        let shape = weights.as_ref().map(|weights| &weights.shape[..]);
        let sizes = ExpertLinear::sizes(&x.shape, &chosen.shape, shape);
        let ExpertLinearSizes { k, inputs, share } = sizes.map_err(|why| ctx.error(why))?;
        let &ExpertLinear { n, outputs } = &self.rule;
        let y = ctx.device_output(0, x.rows())?;
        let pairs = sorted(ctx, &chosen, n)?;
        let rows = x.len() / inputs.max(1);
        let input = DeviceValue { shape: vec![rows, inputs], ..x };
        let shape = (outputs, inputs);
        let products = self.matrices.multiply(ctx, (&input, share), &pairs, shape, y.dtype)?;
        let queue = ctx.queue()?;
        // Without weights each result stands alone: one choice of a row of its own.
        let (factors, choices) = weights.as_ref().map_or((&chosen, 1), |weights| (weights, k));
        let arguments = [
            (&*products.buffer).into(),
            (&*products.buffer).into(),
            products.dtype.into(),
            1_u32.into(),
            (&*chosen.buffer).into(),
            chosen.dtype.into(),
            (&*factors.buffer).into(),
            factors.dtype.into(),
            weights.is_none().into(),
            index(ctx, n)?.into(),
            index(ctx, n)?.into(),
            index(ctx, choices)?.into(),
            index(ctx, outputs)?.into(),
            y.dtype.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            count(y.len()),
        ];
        queue.launch_each("experts_sum", y.len(), &arguments)?;
        ctx.set_device(0, y)
    }
}
