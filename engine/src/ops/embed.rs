//! `embed`: one row of a matrix per token.

use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;
use crate::kernels::round::{round, round1};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("embed", Embed::prepare);
}

/// The rows of a matrix, one per token.
pub(super) struct Embed {
    pub(super) scale: Option<f32>,
    pub(super) rounds: bool,
    pub(super) first: bool,
}

impl Embed {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self {
            scale: args.number_or_null("scale")?,
            rounds: args.one_of("round", &[("activation", true), ("none", false)])?,
            first: args.one_of("outside", &[("error", false), ("first", true)])?,
        })
    }
}

impl Kernel for Embed {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let matrix = ctx.matrix("weight")?;
        let weight = matrix.view();
        let width = ctx.output_width(0)?;
        if weight.inputs != width {
            return Err(ctx.error(format!("its weight has rows of {}, not {width}", weight.inputs)));
        }
        let dtype = ctx.output_dtype(0);
        // The factor may itself be a number of the activation dtype.
        let scale =
            self.scale.map(|s: f32| if self.rounds { round1(ctx.activation(), s) } else { s });
        let first = self.first;
        let mut data = vec![0.0; ctx.tokens().len() * width];
        for (&token, row) in ctx.tokens().iter().zip(data.chunks_exact_mut(width)) {
            let at = if first && token as usize >= weight.outputs { 0 } else { token as usize };
            if at >= weight.outputs {
                return Err(ctx.error(format!("token {token} is not below {}", weight.outputs)));
            }
            weight.widen_row(at, row);
            round(dtype, row);
            if let Some(scale) = scale {
                for x in row.iter_mut() {
                    *x *= scale;
                }
                round(dtype, row);
            }
        }
        ctx.set(0, data)
    }
}
