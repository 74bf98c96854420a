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
    /// The input that has numbers of each row to add to the kernel.
    pub(super) taps: Option<usize>,
}

impl CausalConv {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let then = args.word_or_null("activation")?;
        Ok(Self {
            then: then.map(|_| activation::argument(args, "activation")).transpose()?,
            stepwise: args.flag("stepwise")?,
            taps: args.count_or_null("taps")?,
        })
    }
}

/// Returns the heads of numbers that rows add to a kernel of so many taps, if they have this shape.
pub(super) fn heads_of_taps(
    shape: &[usize],
    rows: usize,
    channels: usize,
    taps: usize,
) -> Option<usize> {
    match *shape {
        [of, heads, width] if of == rows && width == taps && heads > 0 => Some(heads),
        _ => None,
    }
    .filter(|heads| channels.is_multiple_of(*heads))
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
        let &Self { then, stepwise, taps: own } = self;
        let own = own.map(|own| ctx.input(own)).transpose()?;
        let own_taps = match &own {
            None => None,
            Some(own) => {
                let heads = heads_of_taps(own.shape(), x.rows(), channels, taps);
                let heads = heads.ok_or_else(|| ctx.error("taps of rows do not fit the kernel"))?;
                Some((own.view(), heads))
            }
        };
        let view = x.view();
        let mut y = vec![0.0; view.len()];
        for chunk in ctx.chunks() {
            let wrong = ctx.error("its state does not hold inputs of this shape");
            let rows = &view[chunk.rows.start * channels..chunk.rows.end * channels];
            let Memory::Conv(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
            if !memory.continues(channels, taps - 1, chunk.start) {
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
                    let by_steps = stepwise && chunk.continued;
                    let added = own_taps.as_ref().map(|(own, heads)| {
                        let first = (chunk.rows.start + row) * heads * taps;
                        added_taps(&by_tap, &own[first..first + heads * taps], taps)
                    });
                    let by_tap = added.as_ref().unwrap_or(&by_tap);
                    wide(ConvRow { dtype, x, by_tap, bias, by_steps, y: &mut *y });
                    if let Some(then) = then {
                        then(dtype, y);
                    }
                });
        }
        ctx.set(0, y)
    }
}

/// Returns the kernel `[tap][channel]` of a row, which adds `[head][taps]`, its own tap first.
fn added_taps(by_tap: &[f32], own: &[f32], taps: usize) -> Vec<f32> {
    let channels = by_tap.len() / taps;
    let size = channels / (own.len() / taps);
    let place = |n: usize| n % channels / size * taps + taps - 1 - n / channels;
    by_tap.iter().enumerate().map(|(n, weight)| weight + own[place(n)]).collect()
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

#[cfg(test)]
mod tests {
    use super::{added_taps, heads_of_taps};

    #[test]
    fn rows_add_to_the_kernel_of_their_heads_the_newest_tap_first() {
        // Two taps of four channels in two heads.
        let by_tap = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let own = [0.25, 0.5, 10.0, 20.0];
        let want = [1.5, 2.5, 23.0, 24.0, 5.25, 6.25, 17.0, 18.0];
        assert_eq!(added_taps(&by_tap, &own, 2), want);
    }

    #[test]
    fn heads_of_taps_divide_the_channels() {
        assert_eq!(heads_of_taps(&[3, 2, 4], 3, 6, 4), Some(2));
        assert_eq!(heads_of_taps(&[3, 4, 4], 3, 6, 4), None);
        assert_eq!(heads_of_taps(&[3, 0, 4], 3, 6, 4), None);
        assert_eq!(heads_of_taps(&[2, 2, 4], 3, 6, 4), None);
        assert_eq!(heads_of_taps(&[3, 2, 3], 3, 6, 4), None);
    }
}
