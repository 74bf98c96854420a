//! Products in integers on a device: rows rounded to codes of 8 bits, times levels of weights in blocks.

use crate::Error;
use crate::device::{DeviceBuffer, KernelArgument, count};
use crate::ops::Ctx;
use crate::value::DeviceValue;

/// Numbers of a block with one scale.
const STEP: usize = 32;

/// Rows in blocks of codes.
pub(super) struct CodedRows {
    codes: DeviceBuffer,
    scales: DeviceBuffer,
}

impl CodedRows {
    /// Rounds rows whose width is a multiple of 32.
    pub(super) fn new(ctx: &Ctx<'_>, x: &DeviceValue) -> Result<Self, Error> {
        let queue = ctx.queue()?;
        let blocks = x.len() / STEP;
        let codes = queue.allocate(x.len())?;
        let scales = queue.allocate(4 * blocks)?;
        let arguments =
            [(&*x.buffer).into(), x.dtype.into(), (&codes).into(), (&scales).into(), count(blocks)];
        queue.launch_each("round_codes", blocks, &arguments)?;
        Ok(Self { codes, scales })
    }

    /// Returns the arguments of kernels, in place of the rows and their dtype.
    pub(super) fn arguments(&self) -> [KernelArgument; 2] {
        [(&self.codes).into(), (&self.scales).into()]
    }
}
