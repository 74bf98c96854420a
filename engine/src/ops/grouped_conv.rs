//! `grouped_conv`: a depthwise convolution and one by groups behind it.

use rayon::prelude::*;
use registry::dtype::Dtype;

use super::{Ctx, Kernels};
use crate::Error;
use crate::kernels::math::dot;
use crate::kernels::round::{round, round1};
use crate::states::Memory;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.add("grouped_conv", run);
}

/// Sizes of both convolutions.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConvSizes {
    pub(super) channels: usize,
    /// Width of the depthwise kernel.
    pub(super) width: usize,
    /// Width of the kernel by groups.
    pub(super) second: usize,
    /// Channels of a group.
    pub(super) group: usize,
}

impl ConvSizes {
    /// Reads the sizes from the shapes of the weights.
    pub(super) fn of(ctx: &Ctx<'_>, channels: usize) -> Result<Self, Error> {
        let shape = |role: &str| {
            let id = ctx.node().weights.get(role)?;
            Some(ctx.graph.weights[id.0].shape.as_slice())
        };
        match (shape("weight"), shape("grouped")) {
            (Some(&[first, 1, width]), Some(&[outputs, group, second]))
                if first == channels
                    && outputs == channels
                    && width > 0
                    && second > 0
                    && group > 0
                    && channels.is_multiple_of(group) =>
            {
                Ok(Self { channels, width, second, group })
            }
            (first, second) => Err(ctx.error(format!(
                "weights {first:?} and {second:?} do not convolve {channels} channels"
            ))),
        }
    }

    /// Inputs before the current one that an output reads.
    pub(super) fn needed(&self) -> usize {
        self.width + self.second - 2
    }
}

/// Weights of both convolutions, ordered so that products run along memory.
struct ConvPair<'a> {
    sizes: ConvSizes,
    /// `[tap][channel]`.
    by_tap: Vec<f32>,
    bias: &'a [f32],
    /// `[tap][output][channel of the group]`.
    grouped: Vec<f32>,
    grouped_bias: &'a [f32],
    dtype: Dtype,
}

impl ConvPair<'_> {
    /// Convolves each channel of the inputs `[width][channel]`.
    fn depthwise(&self, x: &[f32], y: &mut [f32]) {
        let channels = self.sizes.channels;
        y.fill(0.0);
        for (x, weight) in x.chunks_exact(channels).zip(self.by_tap.chunks_exact(channels)) {
            for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                *y += x * w;
            }
        }
        y.iter_mut().zip(self.bias).for_each(|(y, bias)| *y += bias);
        round(self.dtype, y);
    }

    /// Convolves groups of what the depthwise convolution gave, `[second][channel]`.
    fn by_groups(&self, x: &[f32], y: &mut [f32]) {
        let ConvSizes { channels, group, .. } = self.sizes;
        for (output, (y, bias)) in y.iter_mut().zip(self.grouped_bias).enumerate() {
            let first = output / group * group;
            let mut sum = 0.0;
            for (tap, x) in x.chunks_exact(channels).enumerate() {
                let line = &self.grouped[(tap * channels + output) * group..][..group];
                sum += dot(&x[first..][..group], line);
            }
            *y = round1(self.dtype, sum + bias);
        }
    }
}

pub(super) fn run(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let sizes = ConvSizes::of(ctx, x.width())?;
    let ConvSizes { channels, width, second, group } = sizes;
    let weight = ctx.need_vector("weight")?;
    let grouped = ctx.need_vector("grouped")?;
    let by_tap = (0..width).flat_map(|tap| (0..channels).map(move |c| weight[c * width + tap]));
    let lines = (0..second).flat_map(|tap| (0..channels * group).map(move |n| (tap, n)));
    let pair = ConvPair {
        sizes,
        by_tap: by_tap.collect(),
        bias: ctx.need_vector("bias")?,
        grouped: lines.map(|(tap, n)| grouped[n * second + tap]).collect(),
        grouped_bias: ctx.need_vector("grouped_bias")?,
        dtype: ctx.output_dtype(0),
    };
    if pair.bias.len() != channels || pair.grouped_bias.len() != channels {
        return Err(ctx.error(format!("its biases are not of {channels} channels")));
    }
    let view = x.view();
    let mut y = vec![0.0; view.len()];
    for chunk in ctx.chunks() {
        let wrong = ctx.error("its state does not hold inputs of this shape");
        let rows = &view[chunk.rows.start * channels..chunk.rows.end * channels];
        let Memory::Conv(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
        if memory.inputs.width() != channels
            || memory.needed != sizes.needed()
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
        let mut between = vec![0.0; (chunk.rows.len() + second - 1) * channels];
        let least = (1 << 14) / channels + 1;
        between
            .par_chunks_exact_mut(channels)
            .with_min_len(least)
            .enumerate()
            .for_each(|(row, y)| pair.depthwise(&all[row * channels..][..width * channels], y));
        y[chunk.rows.start * channels..chunk.rows.end * channels]
            .par_chunks_exact_mut(channels)
            .with_min_len(least.div_ceil(group))
            .enumerate()
            .for_each(|(row, y)| {
                pair.by_groups(&between[row * channels..][..second * channels], y);
            });
    }
    ctx.set(0, y)
}
