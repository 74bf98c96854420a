//! `rg_lru`: the real-gated linear recurrent unit of Griffin (De et al. 2024):
//! `log a = -8·σ(r)·softplus(P)`, `h = a·h + √(1 - a²)·σ(i)·x`.
//!
//! Gates and decays are in the run's dtype, each step rounded, and the sum is in f32, as
//! the reference has them.

use super::scan::{channels_of_task, scan};
use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;
use crate::kernels::math::{sigmoid, softplus};
use crate::kernels::round::round1;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("rg_lru", RgLru::prepare);
}

/// Channels that one task handles at most.
const CHANNELS: usize = 256;

/// A unit of so many channels.
pub(super) struct RgLru {
    pub(super) channels: usize,
}

impl RgLru {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let channels = args.width(0)?;
        let widths = [args.width(1)?, args.width(2)?, args.numbers("recurrent_param")];
        if channels == 0 || widths != [channels; 3] {
            return Err(args.error(format!("its gates and weight are not of {channels} channels")));
        }
        args.expect_output(channels)?;
        Ok(Self { channels })
    }
}

impl Kernel for RgLru {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let input = ctx.input(1)?;
        let gate = ctx.input(2)?;
        let channels = self.channels;
        let dtype = ctx.activation();
        let param = ctx.need_vector("recurrent_param")?;
        let r = |x: f32| round1(dtype, x);
        let soft: Vec<f32> = param.iter().map(|p| r(softplus(*p))).collect();
        let xs = x.view();
        let xs: &[f32] = &xs;
        let is = input.view();
        let is: &[f32] = &is;
        let gs = gate.view();
        let gs: &[f32] = &gs;
        let task = channels_of_task(channels, CHANNELS);
        let y = scan(ctx, channels / task, task, |at, before, after, y| {
            // The first position of a sequence has nothing to decay, and takes its input whole.
            let reset = at.begins;
            for n in 0..y.len() {
                let channel = at.unit * task + n;
                let place = at.row * channels + channel;
                let log = r(r(-8.0 * r(sigmoid(gs[place]))) * soft[channel]);
                let gated = r(xs[place] * r(sigmoid(is[place])));
                let share = if reset { 1.0 } else { r(r(1.0 - r(r(2.0 * log).exp())).sqrt()) };
                let decay = if reset { 0.0 } else { r(log.exp()) };
                after[n] = decay * before[n] + r(gated * share);
                y[n] = r(after[n]);
            }
        })?;
        ctx.set(0, y)
    }
}
