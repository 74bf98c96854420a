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
use crate::value::GraphValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("causal_conv", CausalConv::prepare);
}

/// Channels, and the inputs of an output.
#[derive(Debug, Clone, Copy)]
pub(super) struct DepthwiseSizes {
    pub(super) channels: usize,
    pub(super) taps: usize,
    /// Positions from an input to the next.
    pub(super) dilation: usize,
}

impl DepthwiseSizes {
    fn of(args: &Args<'_>) -> Result<Self, Error> {
        let channels = args.width(0)?;
        let numbers = args.numbers("weight"); // [channels, 1, taps]
        let taps = numbers.checked_div(channels).unwrap_or(0);
        if taps == 0 || taps * channels != numbers || !args.may_have("bias", channels) {
            return Err(
                args.error(format!("a weight of {numbers} numbers for {channels} channels"))
            );
        }
        let dilation = args.count("dilation")?.max(1);
        expect_inputs(args, channels, (taps - 1).saturating_mul(dilation))?;
        args.expect_output(channels)?;
        Ok(Self { channels, taps, dilation })
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
    pub(super) sizes: DepthwiseSizes,
    pub(super) then: Option<Activation>,
    pub(super) stepwise: bool,
    pub(super) row_taps: Option<RowTaps>,
}

impl CausalConv {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let then = args.word_or_null("activation")?;
        let sizes = DepthwiseSizes::of(args)?;
        let row_taps = args.count_or_null("taps")?;
        Ok(Self {
            sizes,
            then: then.map(|_| activation::argument(args, "activation")).transpose()?,
            stepwise: args.flag("stepwise")?,
            row_taps: row_taps.map(|input| RowTaps::of(args, input, sizes)).transpose()?,
        })
    }
}

/// Numbers that each row adds to the kernel, the same for all channels of a head.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowTaps {
    /// Place among the inputs.
    pub(super) input: usize,
    pub(super) heads: usize,
}

impl RowTaps {
    fn of(args: &Args<'_>, input: usize, sizes: DepthwiseSizes) -> Result<Self, Error> {
        match *args.input(input)? {
            [heads, taps]
                if taps == sizes.taps && heads > 0 && sizes.channels.is_multiple_of(heads) =>
            {
                Ok(Self { input, heads })
            }
            ref shape => Err(args.error(format!("taps {shape:?} of rows do not fit the kernel"))),
        }
    }
}

impl Kernel for CausalConv {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let DepthwiseSizes { channels, taps, dilation } = self.sizes;
        let weight = ctx.need_vector("weight")?;
        let bias = ctx.vector("bias");
        // [tap][channel], so that the loop over channels runs along memory.
        let by_tap: Vec<f32> =
            (0..taps).flat_map(|t| (0..channels).map(move |c| weight[c * taps + t])).collect();
        let dtype = ctx.output_dtype(0);
        // Some references convolve a sequence's first step, and multiply and add after it.
        let &Self { then, stepwise, row_taps, .. } = self;
        let added = row_taps.map(|RowTaps { input, .. }| ctx.input(input)).transpose()?;
        let added = added.as_ref().map(GraphValue::view);
        let added = added.as_deref().zip(row_taps.map(|row_taps| row_taps.heads * taps));
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
                    let x = &all[row * channels..];
                    let by_steps = stepwise && chunk.continued;
                    let sum = added.map(|(added, width)| {
                        let first = (chunk.rows.start + row) * width;
                        sum_of_taps(&by_tap, &added[first..first + width], taps)
                    });
                    let by_tap = sum.as_ref().unwrap_or(&by_tap);
                    wide(ConvRow { dtype, x, dilation, by_tap, bias, by_steps, y: &mut *y });
                    if let Some(then) = then {
                        then(dtype, y);
                    }
                });
        }
        ctx.set(0, y)
    }
}

/// Returns the kernel `[tap][channel]` of a row, to which `[head][taps]` is added, the tap of the row itself first.
fn sum_of_taps(by_tap: &[f32], added: &[f32], taps: usize) -> Vec<f32> {
    let channels = by_tap.len() / taps;
    let size = channels / (added.len() / taps);
    let place = |n: usize| n % channels / size * taps + taps - 1 - n / channels;
    by_tap.iter().enumerate().map(|(n, weight)| weight + added[place(n)]).collect()
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
    fn rows_add_to_the_kernel_of_their_heads_the_newest_tap_first() {
        // Two taps of four channels in two heads.
        let by_tap = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let added = [0.25, 0.5, 10.0, 20.0];
        let want = [1.5, 2.5, 23.0, 24.0, 5.25, 6.25, 17.0, 18.0];
        assert_eq!(sum_of_taps(&by_tap, &added, 2), want);
    }

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
