//! Ops on devices: the kernels of `device/kernels`, with the arguments and checks of their twins on the CPU.

use super::{Ctx, Kernels};
use crate::Error;
use crate::device::{DeviceQueue, count};
use crate::value::DeviceValue;

mod activation;
mod attend;
mod attend_pooled;
mod attend_selected;
mod block_mean;
mod block_pool;
mod causal_conv;
mod codes;
mod elementwise;
mod embed;
mod expert_linear;
mod expert_matrices;
mod experts;
mod gated_norm;
mod grouped_conv;
mod index_blocks;
mod index_topk;
mod latent_attend;
mod library;
mod linear;
mod long_rows;
mod ngram_embed;
mod norm;
mod rope;
mod round_inputs;
mod route;
mod rows;
mod scan;
mod scores;
mod seen;
mod shape;

/// Rows of one block of products, and outputs: `LINEAR_ROWS` of `linear.cu`, and threads by lanes.
const LINEAR_TILE: (usize, usize) = (4, 8);

/// Returns the blocks of a product.
fn product_blocks(rows: usize, outputs: usize) -> usize {
    rows.div_ceil(LINEAR_TILE.0) * outputs.div_ceil(LINEAR_TILE.1)
}

/// Every file of kernels registers its own ops.
pub(super) const FILES: &[fn(&mut Kernels)] = &[
    activation::kernels,
    attend::kernels,
    attend_pooled::kernels,
    block_mean::kernels,
    block_pool::kernels,
    causal_conv::kernels,
    elementwise::kernels,
    embed::kernels,
    expert_linear::kernels,
    experts::kernels,
    gated_norm::kernels,
    grouped_conv::kernels,
    index_blocks::kernels,
    index_topk::kernels,
    latent_attend::kernels,
    linear::kernels,
    ngram_embed::kernels,
    norm::kernels,
    rope::kernels,
    route::kernels,
    rows::kernels,
    scan::kernels,
    shape::kernels,
];

/// The shape of the last axis.
fn last_axis(value: &DeviceValue) -> usize {
    value.shape.iter().skip(1).next_back().copied().unwrap_or(1)
}

/// Copies numbers into a value of another dtype.
fn convert(queue: &DeviceQueue, from: &DeviceValue, to: &DeviceValue) -> Result<(), Error> {
    let total = from.len();
    let arguments = [
        (&*from.buffer).into(),
        from.dtype.into(),
        (&*to.buffer).into(),
        to.dtype.into(),
        count(total),
    ];
    queue.launch_each("convert", total, &arguments)
}

/// Reads a size as kernels take it.
fn index(ctx: &Ctx<'_>, size: usize) -> Result<u32, Error> {
    u32::try_from(size).map_err(|_| ctx.error(format!("{size} is too large for a kernel")))
}
