//! `causal_conv`: each channel over its last `width` inputs.

use rayon::prelude::*;
use registry::dtype::Dtype;

use super::activation::Activation;
use super::{Args, Ctx, Kernel, Kernels, activation};
use crate::Error;
use crate::kernels::round::round;
use crate::states::Memory;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("causal_conv", CausalConv::prepare);
}

/// The activation after the convolution, and the rounding of rows that continue a sequence.
pub(super) struct CausalConv {
    pub(super) then: Option<Activation>,
    pub(super) stepwise: bool,
}

impl CausalConv {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let then = args.word_or_null("activation")?;
        Ok(Self {
            then: then.map(|_| activation::argument(args, "activation")).transpose()?,
            stepwise: args.flag("stepwise")?,
        })
    }
}

impl Kernel for CausalConv {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let channels = x.width();
        let weight = ctx.need_vector("weight")?; // [channels, 1, width]
        let bias = ctx.vector("bias");
        let taps = weight.len().checked_div(channels).unwrap_or(0);
        if taps == 0 || taps * channels != weight.len() || bias.is_some_and(|b| b.len() != channels)
        {
            return Err(
                ctx.error(format!("a weight of {} numbers for {channels} channels", weight.len()))
            );
        }
        // [tap][channel], so that the loop over channels runs along memory.
        let by_tap: Vec<f32> =
            (0..taps).flat_map(|t| (0..channels).map(move |c| weight[c * taps + t])).collect();
        let dtype = ctx.output_dtype(0);
        // Some references convolve a sequence's first step, and multiply and add after it.
        let &Self { then, stepwise } = self;
        let view = x.view();
        let mut y = vec![0.0; view.len()];
        for chunk in ctx.chunks() {
            let wrong = ctx.error("its state does not hold inputs of this shape");
            let rows = &view[chunk.rows.start * channels..chunk.rows.end * channels];
            let Memory::Conv(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
            if memory.inputs.width() != channels
                || memory.needed != taps - 1
                || memory.inputs.end() != chunk.start
            {
                return Err(wrong);
            }
            // Earlier inputs come from the state, in its dtype; this step's are still in the run's.
            let held = memory.inputs.tail(chunk.start.saturating_sub(memory.needed));
            let mut all = vec![0.0; memory.needed * channels - held.len()];
            all.extend_from_slice(&held);
            all.extend_from_slice(rows);
            memory.inputs.append(rows);
            y[chunk.rows.start * channels..chunk.rows.end * channels]
                .par_chunks_exact_mut(channels)
                .with_min_len((1 << 14) / channels + 1)
                .enumerate()
                .for_each(|(row, y)| {
                    let x = &all[row * channels..][..taps * channels];
                    if stepwise && chunk.start > 0 {
                        by_steps(dtype, x, &by_tap, bias, y);
                    } else {
                        at_once(dtype, x, &by_tap, bias, y);
                    }
                    if let Some(then) = then {
                        then(dtype, y);
                    }
                });
        }
        ctx.set(0, y)
    }
}

/// Computes one row in f32, rounded at its end.
fn at_once(dtype: Dtype, x: &[f32], by_tap: &[f32], bias: Option<&[f32]>, y: &mut [f32]) {
    let channels = y.len();
    for (x, weight) in x.chunks_exact(channels).zip(by_tap.chunks_exact(channels)) {
        for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
            *y += x * w;
        }
    }
    if let Some(bias) = bias {
        y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
    }
    round(dtype, y);
}

/// Computes one row by tensor operations: products rounded, then their sum, then the sum with the bias.
fn by_steps(dtype: Dtype, x: &[f32], by_tap: &[f32], bias: Option<&[f32]>, y: &mut [f32]) {
    let channels = y.len();
    let mut line = vec![0.0; channels];
    for (x, weight) in x.chunks_exact(channels).zip(by_tap.chunks_exact(channels)) {
        line.iter_mut().zip(x).zip(weight).for_each(|((p, x), w)| *p = x * w);
        round(dtype, &mut line);
        y.iter_mut().zip(&line).for_each(|(y, p)| *y += p);
    }
    round(dtype, y);
    if let Some(bias) = bias {
        y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        round(dtype, y);
    }
}
