//! `expert_linear` on a device.

use crate::Error;
use crate::ops::device::expert_matrices::{ExpertMatrices, sorted};
use crate::ops::device::experts::ExpertsSum;
use crate::ops::expert_linear::ExpertLinear;
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
        let &ExpertLinear { n, outputs, inputs, k, share, is_summed } = &self.rule;
        let weights = is_summed.then(|| ctx.device_input(2)).transpose()?;
        let y = ctx.device_output(0, x.rows())?;
        let pairs = sorted(ctx, &chosen, n)?;
        let rows = x.len() / inputs.max(1);
        let input = DeviceValue { shape: vec![rows, inputs], ..x };
        let shape = (outputs, inputs);
        let products = self.matrices.multiply(ctx, (&input, share), &pairs, shape, y.dtype)?;
        let sum = ExpertsSum {
            products: &products,
            input: (&products, 1),
            chosen: &chosen,
            weights: weights.as_ref(),
            n,
            all: n,
            // Without weights each result stands alone: one choice of a row of its own.
            k: if is_summed { k } else { 1 },
            each: y.dtype,
        };
        sum.launch(ctx, &y)?;
        ctx.set_device(0, y)
    }
}
