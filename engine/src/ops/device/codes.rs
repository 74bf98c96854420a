//! Products in integers on a device: rows rounded to codes of 8 bits, times levels of weights in blocks.

use crate::Error;
use crate::device::{DeviceBuffer, count};
use crate::ops::Ctx;
use crate::ops::device::{LINEAR_TILE, index};
use crate::value::DeviceValue;
use crate::weights::DeviceMatrix;

/// Numbers of a block with one scale.
const STEP: usize = 32;

/// Rows in blocks of codes.
pub(super) struct CodedRows {
    pub(super) codes: DeviceBuffer,
    pub(super) scales: DeviceBuffer,
}

impl CodedRows {
    /// Rounds rows whose width is a multiple of 32.
    pub(super) fn new(ctx: &Ctx<'_>, x: &DeviceValue) -> Result<Self, Error> {
        let (queue, blocks) = (ctx.queue()?, x.len() / STEP);
        let (codes, scales) = (queue.allocate(x.len())?, queue.allocate(4 * blocks)?);
        let arguments =
            [(&*x.buffer).into(), x.dtype.into(), (&codes).into(), (&scales).into(), count(blocks)];
        queue.launch_each("round_codes", blocks, &arguments)?;
        Ok(Self { codes, scales })
    }
}

/// Multiplies rows by a matrix; the caller has checked the shapes.
pub(super) fn product(
    ctx: &Ctx<'_>,
    x: &DeviceValue,
    weight: &DeviceMatrix,
    bias: Option<&DeviceBuffer>,
    y: &DeviceValue,
) -> Result<(), Error> {
    let (outputs, inputs, rows) = (weight.outputs, weight.inputs, x.rows());
    let CodedRows { codes, scales } = CodedRows::new(ctx, x)?;
    let arguments = [
        (&codes).into(),
        (&scales).into(),
        index(ctx, rows)?.into(),
        (&weight.buffer).into(),
        weight.form.into(),
        weight.factor.into(),
        index(ctx, outputs)?.into(),
        index(ctx, inputs)?.into(),
        bias.into(),
        (&*y.buffer).into(),
        y.dtype.into(),
    ];
    let blocks = rows.div_ceil(LINEAR_TILE.0) * outputs.div_ceil(LINEAR_TILE.1);
    ctx.queue()?.launch("linear_codes", blocks, &arguments)
}
