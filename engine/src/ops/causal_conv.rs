//! `causal_conv`: each channel over its last `width` inputs.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for wide vectors")]

use rayon::prelude::*;
use registry::dtype::Dtype;

use super::activation::Activation;
use super::{Args, ChunkRows, Ctx, Kernel, Kernels, activation};
use crate::Error;
use crate::kernels::round::{round_inline, round1};
use crate::kernels::wide::{Wide, wide};
use crate::states::Memory;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("causal_conv", CausalConv::prepare);
}

/// Channels, and the inputs of an output.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConvSizes {
    pub(super) channels: usize,
    pub(super) taps: usize,
}

impl ConvSizes {
    fn of(args: &Args<'_>) -> Result<Self, Error> {
        let channels = args.width(0)?;
        let numbers = args.numbers("weight"); // [channels, 1, taps]
        let taps = numbers.checked_div(channels).unwrap_or(0);
        let bias = args.weight("bias").map_or(channels, |shape| shape.iter().product());
        if taps == 0 || taps * channels != numbers || bias != channels {
            return Err(
                args.error(format!("a weight of {numbers} numbers for {channels} channels"))
            );
        }
        expect_inputs(args, channels, taps - 1)?;
        args.expect_output(channels)?;
        Ok(Self { channels, taps })
    }
}

/// Checks that the state keeps so many inputs of so many channels.
pub(super) fn expect_inputs(args: &Args<'_>, channels: usize, needed: usize) -> Result<(), Error> {
    match args.state()?.parts.as_slice() {
        [part] if part.shape == [channels, needed] => Ok(()),
        _ => {
            Err(args
                .error(format!("its state does not hold {needed} inputs of {channels} channels")))
        }
    }
}

/// Adds the rows of a chunk to the inputs of its state. Returns them behind the earlier inputs that they read.
pub(super) fn extend_inputs(
    ctx: &mut Ctx<'_>,
    chunk: &ChunkRows,
    rows: &[f32],
) -> Result<Vec<f32>, Error> {
    let wrong = ctx.error("its state does not hold the inputs before this step");
    let Memory::Conv(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
    memory.extend(chunk.start, rows).ok_or(wrong)
}

/// Sizes, the activation after the convolution, and the rounding of rows that continue a sequence.
pub(super) struct CausalConv {
    pub(super) sizes: ConvSizes,
    pub(super) then: Option<Activation>,
    pub(super) stepwise: bool,
}

impl CausalConv {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let then = args.word_or_null("activation")?;
        Ok(Self {
            sizes: ConvSizes::of(args)?,
            then: then.map(|_| activation::argument(args, "activation")).transpose()?,
            stepwise: args.flag("stepwise")?,
        })
    }
}

impl Kernel for CausalConv {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let ConvSizes { channels, taps } = self.sizes;
        let weight = ctx.need_vector("weight")?;
        let bias = ctx.vector("bias");
        // [tap][channel], so that the loop over channels runs along memory.
        let by_tap: Vec<f32> =
            (0..taps).flat_map(|t| (0..channels).map(move |c| weight[c * taps + t])).collect();
        let dtype = ctx.output_dtype(0);
        // Some references convolve a sequence's first step, and multiply and add after it.
        let &Self { then, stepwise, .. } = self;
        let view = x.view();
        let mut y = vec![0.0; view.len()];
        for chunk in ctx.chunks() {
            let rows = &view[chunk.rows.start * channels..chunk.rows.end * channels];
            let all = extend_inputs(ctx, chunk, rows)?;
            y[chunk.rows.start * channels..chunk.rows.end * channels]
                .par_chunks_exact_mut(channels)
                .with_min_len((1 << 14) / channels + 1)
                .enumerate()
                .for_each(|(row, y)| {
                    let x = &all[row * channels..][..taps * channels];
                    let by_steps = stepwise && chunk.continued;
                    wide(ConvRow { dtype, x, by_tap: &by_tap, bias, by_steps, y: &mut *y });
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
    /// The inputs of each tap.
    x: &'a [f32],
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
        let Self { dtype, x, by_tap, bias, by_steps, y } = self;
        let channels = y.len();
        for (x, weight) in x.chunks_exact(channels).zip(by_tap.chunks_exact(channels)) {
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
