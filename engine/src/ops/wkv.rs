//! `wkv` (Peng et al. 2023): a mean of values whose weights decay with the distance.
//!
//! Sums are divided by the exponential of their largest exponent, which goes with them in the state.

use super::scan::{channels_of_task, scan};
use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;
use crate::kernels::round::round1;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("wkv", Wkv::prepare);
}

/// Channels that one task handles at most.
const CHANNELS: usize = 64;

/// The exponent before the first position, whose weights are 0 beside any other.
const NOTHING: f32 = -1e38;

/// Returns `-exp(time_decay)` of each channel, rounded to the dtype that the reference keeps the weight in.
pub(super) fn decays(ctx: &Ctx<'_>) -> Result<Vec<f32>, Error> {
    let role = "time_decay";
    let weight = ctx.need_vector(role)?;
    let id = ctx.node().weights.get(role).ok_or_else(|| ctx.error("it has no decay"))?;
    let dtype = ctx.graph.weights[id.0].dtype.resolve(ctx.activation());
    Ok(weight.iter().map(|w| -round1(dtype, w.exp())).collect())
}

/// A mean of so many channels.
pub(super) struct Wkv {
    pub(super) channels: usize,
}

impl Wkv {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let channels = args.width(0)?;
        let widths = [args.width(1)?, args.numbers("time_decay"), args.numbers("time_first")];
        if channels == 0 || widths != [channels; 3] || args.state_width()? != 3 * channels {
            return Err(
                args.error(format!("its values and weights are not of {channels} channels"))
            );
        }
        args.expect_output(channels)?;
        Ok(Self { channels })
    }
}

impl Kernel for Wkv {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let k = ctx.input(0)?;
        let v = ctx.input(1)?;
        let channels = self.channels;
        let dtype = ctx.output_dtype(0);
        let decay = decays(ctx)?;
        let bonus = ctx.need_vector("time_first")?;
        let keys = k.view();
        let keys: &[f32] = &keys;
        let values = v.view();
        let values: &[f32] = &values;
        let task = channels_of_task(channels, CHANNELS);
        let y = scan(ctx, channels / task, task, |at, before, after, y| {
            let blocks = before.chunks_exact(3).zip(after.chunks_exact_mut(3));
            for (n, ((before, after), y)) in blocks.zip(y).enumerate() {
                let channel = at.unit * task + n;
                let place = at.row * channels + channel;
                let held = if at.begins { NOTHING } else { before[2] };
                let key = keys[place];
                let value = values[place];
                let boosted = key + bonus[channel];
                let top = held.max(boosted);
                let old = (held - top).exp();
                let new = (boosted - top).exp();
                *y = round1(dtype, (old * before[0] + new * value) / (old * before[1] + new));
                let faded = held + decay[channel];
                let top = faded.max(key);
                let old = (faded - top).exp();
                let new = (key - top).exp();
                after[0] = old * before[0] + new * value;
                after[1] = old * before[1] + new;
                after[2] = top;
            }
        })?;
        ctx.set(0, y)
    }
}
