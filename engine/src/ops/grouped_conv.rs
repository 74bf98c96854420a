//! `grouped_conv`: a depthwise convolution and one by groups behind it.

use std::sync::OnceLock;

use rayon::prelude::*;
use registry::dtype::Dtype;

use super::causal_conv::{expect_inputs, extend_inputs};
use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;
use crate::kernels::math::dot;
use crate::kernels::round::{round, round1};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("grouped_conv", GroupedConv::prepare);
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
    /// Returns the sizes of a node, from the shapes of its weights.
    pub(super) fn of(args: &Args<'_>) -> Result<Self, Error> {
        let channels = args.width(0)?;
        let shapes = (args.weight("weight"), args.weight("grouped"));
        let (Some(&[first, 1, width]), Some(&[outputs, group, second])) = shapes else {
            return Err(args.error(format!("weights {shapes:?} are no two convolutions")));
        };
        if [first, outputs, args.numbers("bias"), args.numbers("grouped_bias")] != [channels; 4]
            || [width, second, group].contains(&0)
            || !channels.is_multiple_of(group)
        {
            return Err(args.error(format!(
                "weights {shapes:?} and their biases do not convolve {channels} channels"
            )));
        }
        expect_inputs(args, channels, width + second - 2)?;
        args.expect_output(channels)?;
        Ok(Self { channels, width, second, group })
    }
}

/// Weights of both convolutions.
struct ConvPair<'a> {
    sizes: ConvSizes,
    /// `[tap][channel]`.
    by_tap: &'a [f32],
    bias: &'a [f32],
    /// `[tap][output][channel of the group]`.
    grouped: &'a [f32],
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

/// Matrices of both convolutions, ordered so that products run along memory.
struct OrderedWeights {
    /// `[tap][channel]`.
    by_tap: Vec<f32>,
    /// `[tap][output][channel of the group]`.
    grouped: Vec<f32>,
}

struct GroupedConv {
    sizes: ConvSizes,
    /// Ordered once in a session.
    weights: OnceLock<OrderedWeights>,
}

impl GroupedConv {
    fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self { sizes: ConvSizes::of(args)?, weights: OnceLock::new() })
    }

    fn order(&self, weight: &[f32], grouped: &[f32]) -> OrderedWeights {
        let ConvSizes { channels, width, second, group } = self.sizes;
        let by_tap = (0..width).flat_map(|tap| (0..channels).map(move |c| weight[c * width + tap]));
        let lines = (0..second).flat_map(|tap| (0..channels * group).map(move |n| (tap, n)));
        OrderedWeights {
            by_tap: by_tap.collect(),
            grouped: lines.map(|(tap, n)| grouped[n * second + tap]).collect(),
        }
    }
}

impl Kernel for GroupedConv {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let ConvSizes { channels, width, second, group } = self.sizes;
        let weight = ctx.need_vector("weight")?;
        let grouped = ctx.need_vector("grouped")?;
        let OrderedWeights { by_tap, grouped } =
            self.weights.get_or_init(|| self.order(weight, grouped));
        let pair = ConvPair {
            sizes: self.sizes,
            by_tap,
            bias: ctx.need_vector("bias")?,
            grouped,
            grouped_bias: ctx.need_vector("grouped_bias")?,
            dtype: ctx.output_dtype(0),
        };
        let view = x.view();
        let mut y = vec![0.0; view.len()];
        for chunk in ctx.chunks() {
            let rows = &view[chunk.rows.start * channels..chunk.rows.end * channels];
            let all = extend_inputs(ctx, chunk, rows)?;
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
}
