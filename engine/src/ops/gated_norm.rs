//! `gated_norm`: a norm of the root mean square per group, with a gate before or after it.
//! The gate's activation is in f32 and never rounded by itself.

use super::norm::NormCast;
use super::{Args, Ctx, Kernel, Kernels, rows, scan};
use crate::Error;
use crate::kernels::math::{fold, sigmoid, silu};
use crate::kernels::round::round;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("gated_norm", GatedNorm::prepare);
}

/// A norm and the gate before or after it.
pub(super) struct GatedNorm {
    pub(super) eps: f32,
    pub(super) cast: NormCast,
    pub(super) gate_first: bool,
    act: fn(f32) -> f32,
    pub(super) groups: usize,
    pub(super) stepwise: bool,
}

impl GatedNorm {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self {
            eps: args.number("eps")?,
            cast: NormCast::of(args)?,
            gate_first: args.one_of("order", &[("gate_first", true), ("norm_first", false)])?,
            act: args
                .one_of::<fn(f32) -> f32>("activation", &[("silu", silu), ("sigmoid", sigmoid)])?,
            groups: args.count("groups")?,
            stepwise: args.flag("stepwise")?,
        })
    }
}

impl Kernel for GatedNorm {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let (x, gate) = (ctx.input(0)?, ctx.input(1)?);
        let &Self { eps, cast, gate_first, act, groups, stepwise } = self;
        let weight = ctx.need_vector("weight")?;
        let axis = x.shape().iter().skip(1).next_back().copied().unwrap_or(1);
        let group = axis.checked_div(groups).unwrap_or(0);
        // An f32 value of a sequence's first step is one of the run's dtype in rows that continue it.
        let continued = if stepwise { scan::continued(ctx) } else { Vec::new() };
        if group == 0
            || axis % group != 0
            || weight.len() != axis
            || gate.width() != x.width()
            || (!continued.is_empty() && continued.len() != x.rows())
        {
            return Err(ctx.error(format!(
                "its weight has {} numbers and its gate {}, for {axis} in groups of {group}",
                weight.len(),
                gate.width()
            )));
        }
        let (own, activation) = (ctx.output_dtype(0), ctx.activation());
        let gates = gate.view();
        let gates: &[f32] = &gates;
        let width = x.width();
        let y = rows::map(&x.view(), width, width, |row, x, y| {
            let gates = &gates[row * width..][..width];
            let dtype = if continued.get(row) == Some(&true) { activation } else { own };
            y.copy_from_slice(x);
            if gate_first {
                y.iter_mut().zip(gates).for_each(|(y, g)| *y *= act(*g));
            }
            for y in y.chunks_exact_mut(group) {
                let scale = 1.0 / (fold(y, |y| y * y) / group as f32 + eps).sqrt();
                for y in y.iter_mut() {
                    *y *= scale;
                }
            }
            if cast == NormCast::Before {
                round(dtype, y);
            }
            for y in y.chunks_exact_mut(axis) {
                y.iter_mut().zip(weight).for_each(|(y, w)| *y *= w);
            }
            if cast == NormCast::Before {
                round(dtype, y);
            }
            if !gate_first {
                y.iter_mut().zip(gates).for_each(|(y, g)| *y *= act(*g));
            }
            round(dtype, y);
        });
        ctx.set(0, y)
    }
}
