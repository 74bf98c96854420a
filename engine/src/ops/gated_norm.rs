//! `gated_norm`: a norm of the root mean square per group, with a gate before or after it.
//! The gate's activation is in f32 and never rounded by itself.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for wide vectors")]

use registry::dtype::Dtype;

use super::norm::NormCast;
use super::shape::last;
use super::{Args, Ctx, Kernel, Kernels, rows, scan};
use crate::Error;
use crate::kernels::math::{fold, sigmoid, silu};
use crate::kernels::round::round_inline;
use crate::kernels::wide::{Wide, wide};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("gated_norm", GatedNorm::prepare);
}

/// The activation of a gate.
#[derive(Debug, Clone, Copy)]
enum GateActivation {
    Silu,
    Sigmoid,
}

/// A norm and the gate before or after it.
pub(super) struct GatedNorm {
    pub(super) eps: f32,
    pub(super) cast: NormCast,
    pub(super) gate_first: bool,
    act: GateActivation,
    /// Numbers of the last axis.
    pub(super) axis: usize,
    /// Numbers that are normed together.
    pub(super) group: usize,
    pub(super) stepwise: bool,
}

impl GatedNorm {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let axis = last(args.input(0)?);
        let group = axis.checked_div(args.count("groups")?).unwrap_or(0);
        let numbers = args.numbers("weight");
        let gates = args.width(1)?;
        if group == 0 || !axis.is_multiple_of(group) || numbers != axis || gates != args.width(0)? {
            return Err(args.error(format!(
                "its weight has {numbers} numbers and its gate {gates}, for {axis} in groups of \
                 {group}"
            )));
        }
        args.expect_output(gates)?;
        Ok(Self {
            eps: args.number("eps")?,
            cast: NormCast::of(args)?,
            gate_first: args.one_of("order", &[("gate_first", true), ("norm_first", false)])?,
            act: args.one_of(
                "activation",
                &[("silu", GateActivation::Silu), ("sigmoid", GateActivation::Sigmoid)],
            )?,
            axis,
            group,
            stepwise: args.flag("stepwise")?,
        })
    }

    /// Returns for each row if it continues a sequence: an f32 value of a sequence's first step is one of the run's dtype
    /// there.
    pub(super) fn continued(&self, ctx: &Ctx<'_>, rows: usize) -> Result<Vec<bool>, Error> {
        let continued = if self.stepwise { scan::continued(ctx) } else { vec![false; rows] };
        if continued.len() != rows {
            return Err(ctx.error("it stands where rows of the step are left out"));
        }
        Ok(continued)
    }
}

impl Kernel for GatedNorm {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let gate = ctx.input(1)?;
        let &Self { eps, cast, gate_first, act, group, .. } = self;
        let weight = ctx.need_vector("weight")?;
        let continued = self.continued(ctx, x.rows())?;
        let output_dtype = ctx.output_dtype(0);
        let activation = ctx.activation();
        let gates = gate.view();
        let gates: &[f32] = &gates;
        let width = x.width();
        let y = rows::map(&x.view(), width, width, |row, x, y| {
            let gates = &gates[row * width..][..width];
            let dtype = if continued[row] { activation } else { output_dtype };
            y.copy_from_slice(x);
            wide(GatedRow { y, gates, weight, act, gate_first, group, eps, cast, dtype });
        });
        ctx.set(0, y)
    }
}

/// One row, which is normed and gated in place.
struct GatedRow<'a> {
    y: &'a mut [f32],
    gates: &'a [f32],
    weight: &'a [f32],
    act: GateActivation,
    gate_first: bool,
    /// Numbers that are normed together.
    group: usize,
    eps: f32,
    cast: NormCast,
    dtype: Dtype,
}

impl Wide for GatedRow<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { y, gates, weight, act, gate_first, group, eps, cast, dtype } = self;
        if gate_first {
            act.multiply(y, gates);
        }
        for y in y.chunks_exact_mut(group) {
            let scale = 1.0 / (fold(y, |y| y * y) / group as f32 + eps).sqrt();
            for y in y.iter_mut() {
                *y *= scale;
            }
        }
        if cast == NormCast::Before {
            round_inline(dtype, y);
        }
        for y in y.chunks_exact_mut(weight.len()) {
            y.iter_mut().zip(weight).for_each(|(y, w)| *y *= w);
        }
        if cast == NormCast::Before {
            round_inline(dtype, y);
        }
        if !gate_first {
            act.multiply(y, gates);
        }
        round_inline(dtype, y);
    }
}

impl GateActivation {
    #[inline(always)]
    fn multiply(self, y: &mut [f32], gates: &[f32]) {
        match self {
            Self::Silu => y.iter_mut().zip(gates).for_each(|(y, g)| *y *= silu(*g)),
            Self::Sigmoid => y.iter_mut().zip(gates).for_each(|(y, g)| *y *= sigmoid(*g)),
        }
    }
}
