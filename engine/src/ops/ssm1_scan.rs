//! `ssm1_scan`: the selective scan (Gu and Dao 2023), a decay per channel and state
//! number: `h = exp(dt·A)·h + (dt·B)·x`, `y = h·C + D·x`.
//!
//! States are f32 and rounded where they are read, as in `mamba_selective_scan` of transformers.
//! `D·x` is added in f32; with `stepwise`, rows that continue a sequence add it in the run's dtype.

use super::scan::{channels_of_task, scan};
use super::shape::last;
use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::math::{dot, exp, softplus};
use crate::kernels::round::{round, round_inline, round1};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("ssm1_scan", Ssm1Scan::prepare);
}

/// Channels that one task handles at most.
const CHANNELS: usize = 64;

/// Sizes of the channels and the state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ssm1Sizes {
    pub(super) channels: usize,
    /// Channels of a head.
    pub(super) dim: usize,
    /// Numbers of the state for each channel.
    pub(super) size: usize,
}

impl Ssm1Sizes {
    fn of(args: &Args<'_>) -> Result<Self, Error> {
        let channels = args.width(0)?;
        let dim = last(args.input(0)?);
        let size = last(args.input(2)?);
        let heads = channels.checked_div(dim).unwrap_or(0);
        if heads == 0
            || size == 0
            || args.width(1)? != channels
            || args.width(2)? != heads * size
            || args.width(3)? != heads * size
            || args.numbers("A_log") != channels * size
            || args.numbers("D") != channels
            || !args.may_have("dt_bias", channels)
            || args.state_width()? != channels * size
        {
            return Err(args.error(format!(
                "{channels} channels in {heads} heads do not fit its other inputs and weights"
            )));
        }
        args.expect_output(channels)?;
        Ok(Self { channels, dim, size })
    }
}

/// Sizes, and the rounding of rows that continue a sequence.
pub(super) struct Ssm1Scan {
    pub(super) sizes: Ssm1Sizes,
    pub(super) stepwise: bool,
}

impl Ssm1Scan {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self { sizes: Ssm1Sizes::of(args)?, stepwise: args.flag("stepwise")? })
    }
}

impl Kernel for Ssm1Scan {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let b = ctx.input(2)?;
        let c = ctx.input(3)?;
        let Ssm1Sizes { channels, dim, size } = self.sizes;
        let heads = channels / dim;
        let decay: Vec<f32> = ctx.need_vector("A_log")?.iter().map(|a| -a.exp()).collect();
        let skip = ctx.need_vector("D")?;
        let dt = steps(ctx, channels)?;
        let dtype = ctx.activation();
        let stepwise = self.stepwise;
        let xs = x.view();
        let xs: &[f32] = &xs;
        let bs = b.view();
        let bs: &[f32] = &bs;
        let cs = c.view();
        let cs: &[f32] = &cs;
        // Tasks do not cross heads.
        let task = channels_of_task(dim, CHANNELS);
        let y = scan(ctx, channels / task, task, |at, before, after, y| {
            let first = at.unit * task;
            let head = (at.row * heads + first / dim) * size;
            let b = &bs[head..][..size];
            let c = &cs[head..][..size];
            let mut line = vec![0.0; size];
            let lines = before.chunks_exact(size).zip(after.chunks_exact_mut(size));
            for (n, ((from, to), y)) in lines.zip(y).enumerate() {
                let channel = first + n;
                let x = xs[at.row * channels + channel];
                let dt = dt[at.row * channels + channel];
                let decay = &decay[channel * size..][..size];
                for (((to, from), a), b) in to.iter_mut().zip(from).zip(decay).zip(b) {
                    *to = exp(a * dt) * from + dt * b * x;
                }
                line.copy_from_slice(to);
                round_inline(dtype, &mut line);
                let read = round1(dtype, dot(&line, c));
                let skip = x * skip[channel];
                let apart = stepwise && at.continued;
                *y = if apart { round1(dtype, read + round1(dtype, skip)) } else { read + skip };
            }
        })?;
        ctx.set(0, y)
    }
}

/// Computes `softplus(dt + bias)`, each step rounded: `[rows, channels]`.
fn steps(ctx: &Ctx<'_>, channels: usize) -> Result<Vec<f32>, Error> {
    let dt = ctx.input(1)?;
    let dtype = ctx.activation();
    let bias = ctx.vector("dt_bias");
    Ok(rows::map(&dt.view(), channels, channels, |_, dt, y| {
        y.copy_from_slice(dt);
        if let Some(bias) = bias {
            y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
            round(dtype, y);
        }
        for y in y.iter_mut() {
            *y = softplus(*y);
        }
        round(dtype, y);
    }))
}
