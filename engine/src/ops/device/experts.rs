//! `experts` on a device.

use registry::dtype::Dtype;

use crate::Error;
use crate::device::count;
use crate::kernels::round::round1;
use crate::ops::device::expert_matrices::{ExpertMatrices, SortedPairs, sorted};
use crate::ops::device::{activation, index};
use crate::ops::experts::Experts;
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::value::DeviceValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("experts", DeviceExperts::prepare);
}

struct DeviceExperts {
    rule: Experts,
    /// The number of the activation in kernels.
    kind: u32,
    /// The matrices `gate`, `up` and `down` of all experts.
    matrices: [ExpertMatrices; 3],
}

impl DeviceExperts {
    fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let rule = Experts::prepare(args)?;
        let matrices = ["gate", "up", "down"].map(|part| ExpertMatrices::new(part, rule.n));
        Ok(Self { rule, kind: activation::argument(args, "act")?, matrices })
    }

    /// Makes what goes into the last matrix.
    fn inner(
        &self,
        ctx: &Ctx<'_>,
        input: (&DeviceValue, usize),
        pairs: &SortedPairs,
        hidden: usize,
        dtype: Dtype,
    ) -> Result<DeviceValue, Error> {
        let queue = ctx.queue()?;
        let Experts { ffn, limit, alpha, plain, fine, softcaps, .. } = self.rule;
        let up = self.matrices[1].multiply(ctx, input, pairs, (ffn, hidden), dtype)?;
        let numbers = &*up.buffer;
        if plain {
            let arguments = [
                self.kind.into(),
                numbers.into(),
                dtype.into(),
                numbers.into(),
                dtype.into(),
                count(up.len()),
            ];
            queue.launch_each("activation", up.len(), &arguments)?;
            return Ok(up);
        }
        let gate = self.matrices[0].multiply(ctx, input, pairs, (ffn, hidden), dtype)?;
        let arguments = [
            self.kind.into(),
            (&*gate.buffer).into(),
            numbers.into(),
            limit.is_some().into(),
            limit.map_or(0.0, |limit| round1(dtype, limit)).into(),
            alpha.is_some().into(),
            alpha.unwrap_or(0.0).into(),
            softcaps.map_or(0.0, |[gate, _]| gate).into(),
            softcaps.map_or(0.0, |[_, up]| up).into(),
            (if fine { Dtype::F32 } else { dtype }).into(),
            dtype.into(),
            count(up.len()),
        ];
        queue.launch_each("experts_gate", up.len(), &arguments)?;
        Ok(gate)
    }
}

impl Kernel for DeviceExperts {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let x = ctx.device_input(0)?;
        let chosen = ctx.device_input(1)?;
        let weights = ctx.device_input(2)?;
        let Experts { n, ffn, on_input, once, identities, .. } = self.rule;
        let hidden = x.width();
        let k = chosen.width();
        let rows = x.rows();
        if chosen.rows() != rows || weights.shape != chosen.shape {
            return Err(ctx.error("values and choices differ in rows"));
        }
        let y = ctx.device_output(0, rows)?;
        if y.width() != hidden || k == 0 {
            return Err(ctx.error(format!("rows of {hidden} give {:?} by {k} choices", y.shape)));
        }
        // Experts without weights, which give back what they get, come behind the others.
        let dtype = y.dtype;
        let all = n + identities;
        let pairs = sorted(ctx, &chosen, all)?;
        let weighted = if on_input {
            let weighted = DeviceValue::of(queue, dtype, &[pairs.count, hidden])?;
            let arguments = [
                (&*x.buffer).into(),
                x.dtype.into(),
                (&*weights.buffer).into(),
                weights.dtype.into(),
                index(ctx, k)?.into(),
                index(ctx, hidden)?.into(),
                (&*weighted.buffer).into(),
                dtype.into(),
                count(weighted.len()),
            ];
            queue.launch_each("experts_inputs", weighted.len(), &arguments)?;
            Some(weighted)
        } else {
            None
        };
        let (input, share) = weighted.as_ref().map_or((&x, k), |weighted| (weighted, 1));
        let inner = self.inner(ctx, (input, share), &pairs, hidden, dtype)?;
        let products = self.matrices[2].multiply(ctx, (&inner, 1), &pairs, (hidden, ffn), dtype)?;
        // What is added in f32 is not rounded before.
        let each = if once { Dtype::F32 } else { dtype };
        let sum = ExpertsSum {
            products: &products,
            input: (input, share),
            chosen: &chosen,
            weights: (!on_input).then_some(&weights),
            n,
            all,
            k,
            each,
        };
        sum.launch(ctx, &y)?;
        ctx.set_device(0, y)
    }
}

/// The sum of the products of a row's choices, in the order of their experts.
pub(super) struct ExpertsSum<'a> {
    /// Products of all pairs, in the dtype of the output.
    pub(super) products: &'a DeviceValue,
    /// Rows that experts without a matrix give back, and the number of pairs that share one.
    pub(super) input: (&'a DeviceValue, usize),
    pub(super) chosen: &'a DeviceValue,
    /// Factors of the products; none if they are added as they are.
    pub(super) weights: Option<&'a DeviceValue>,
    /// Experts with a matrix.
    pub(super) n: usize,
    /// All experts.
    pub(super) all: usize,
    /// Choices of a row.
    pub(super) k: usize,
    /// Dtype that each sum is rounded to.
    pub(super) each: Dtype,
}

impl ExpertsSum<'_> {
    pub(super) fn launch(&self, ctx: &Ctx<'_>, y: &DeviceValue) -> Result<(), Error> {
        let &Self { products, input: (input, share), chosen, weights, n, all, k, each } = self;
        // The kernel does not read factors that are none.
        let factors = weights.unwrap_or(chosen);
        let arguments = [
            (&*products.buffer).into(),
            (&*input.buffer).into(),
            input.dtype.into(),
            index(ctx, share)?.into(),
            (&*chosen.buffer).into(),
            chosen.dtype.into(),
            (&*factors.buffer).into(),
            factors.dtype.into(),
            weights.is_none().into(),
            index(ctx, n)?.into(),
            index(ctx, all)?.into(),
            index(ctx, k)?.into(),
            index(ctx, products.width())?.into(),
            each.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            count(y.len()),
        ];
        ctx.queue()?.launch_each("experts_sum", y.len(), &arguments)
    }
}
