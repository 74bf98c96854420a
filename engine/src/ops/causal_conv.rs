//! `causal_conv`: each channel over its last `width` inputs.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for wide vectors")]

use rayon::prelude::*;
use registry::dtype::Dtype;

use super::activation::Activation;
use super::{Args, Ctx, Kernel, Kernels, activation};
use crate::Error;
use crate::kernels::round::{round_inline, round1};
use crate::kernels::wide::{Wide, wide};
use crate::states::Memory;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("causal_conv", CausalConv::prepare);
}

/// The activation after the convolution, and the rounding of rows that continue a sequence.
pub(super) struct CausalConv {
    pub(super) then: Option<Activation>,
    pub(super) stepwise: bool,
    /// Positions from an input to the next.
    pub(super) dilation: usize,
}

impl CausalConv {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let then = args.word_or_null("activation")?;
        Ok(Self {
            then: then.map(|_| activation::argument(args, "activation")).transpose()?,
            stepwise: args.flag("stepwise")?,
            dilation: args.count("dilation")?,
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
        let &Self { then, stepwise, dilation } = self;
        let view = x.view();
        let mut y = vec![0.0; view.len()];
        for chunk in ctx.chunks() {
            let wrong = ctx.error("its state does not hold inputs of this shape");
            let rows = &view[chunk.rows.start * channels..chunk.rows.end * channels];
            let Memory::Conv(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
            if !memory.continues(channels, (taps - 1).saturating_mul(dilation), chunk.start) {
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
                    let x = &all[row * channels..];
                    let by_steps = stepwise && chunk.continued;
                    let by_tap = &by_tap;
                    wide(ConvRow { dtype, x, dilation, by_tap, bias, by_steps, y: &mut *y });
                    if let Some(then) = then {
                        then(dtype, y);
                    }
                });
        }
        ctx.set(0, y)
    }
}

/// One row of outputs.
struct ConvRow<'a> {
    dtype: Dtype,
    /// Inputs, the first of which is that of the first tap.
    x: &'a [f32],
    /// Positions from an input to the next.
    dilation: usize,
    by_tap: &'a [f32],
    bias: Option<&'a [f32]>,
    /// True to round as tensor operations do: products, then their sum, then the sum with the bias. Otherwise the row
    /// is computed in f32 and rounded at its end.
    by_steps: bool,
    /// Zeros.
    y: &'a mut [f32],
}

impl Wide for ConvRow<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { dtype, x, dilation, by_tap, bias, by_steps, y } = self;
        let channels = y.len();
        let inputs = x.chunks_exact(channels).step_by(dilation);
        for (x, weight) in inputs.zip(by_tap.chunks_exact(channels)) {
            if by_steps {
                for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                    *y += round1(dtype, x * w);
                }
            } else {
                for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                    *y += x * w;
                }
            }
        }
        if by_steps {
            round_inline(dtype, y);
        }
        if let Some(bias) = bias {
            y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
        if !by_steps || bias.is_some() {
            round_inline(dtype, y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_of_taps_are_a_dilation_apart() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0];
        let by_tap = [1.0, 10.0, 100.0];
        for (dilation, expected) in [(1, 321.0), (2, 531.0)] {
            let mut y = [0.0];
            let dtype = Dtype::F32;
            ConvRow {
                dtype,
                x: &x,
                dilation,
                by_tap: &by_tap,
                bias: None,
                by_steps: false,
                y: &mut y,
            }
            .run();
            assert_eq!(y, [expected]);
        }
    }
}
