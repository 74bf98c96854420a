//! Rounding of the rows that a matrix multiplies, on a device.

use std::borrow::Cow;

use checkpoints::checkpoint::{CodeType, Rounding, ScaleSharing};
use registry::dtype::Dtype;

use crate::Error;
use crate::kernels::round::round1;
use crate::kernels::tokens::{ends, epsilon};
use crate::ops::Ctx;
use crate::ops::device::index;
use crate::value::DeviceValue;

/// Returns rows as the matrix of a role multiplies them.
pub(super) fn rows_for<'x>(
    ctx: &Ctx<'_>,
    role: &str,
    x: &'x DeviceValue,
) -> Result<Cow<'x, DeviceValue>, Error> {
    let Some(Rounding { codes, shared }) = ctx.rounding(role) else { return Ok(Cow::Borrowed(x)) };
    let queue = ctx.queue()?;
    let grid = ctx.activation();
    let width = x.width();
    if x.is_empty() {
        return Ok(Cow::Borrowed(x));
    }
    let y = DeviceValue::of(queue, Dtype::F32, &x.shape)?;
    let kind: u32 = match codes {
        CodeType::E4m3 => 0,
        CodeType::Integer { symmetric: true, .. } => 1,
        CodeType::Integer { symmetric: false, .. } => 2,
        CodeType::Float(narrow) => {
            let name = narrow.name();
            return Err(ctx.error(format!("devices do not round rows to {name} before a product")));
        }
    };
    let (group, fixed) = match shared {
        ScaleSharing::Row => (width, None),
        ScaleSharing::Group(size) => (size.clamp(1, width), None),
        ScaleSharing::Fixed { scale, zero } => (width, Some((round1(grid, scale), zero))),
    };
    let (lowest, highest) = ends(codes);
    let (scale, zero) = fixed.unwrap_or_default();
    let arguments = [
        (&*x.buffer).into(),
        x.dtype.into(),
        index(ctx, width)?.into(),
        index(ctx, group)?.into(),
        kind.into(),
        lowest.into(),
        highest.into(),
        fixed.is_some().into(),
        scale.into(),
        zero.into(),
        epsilon(grid).into(),
        grid.into(),
        (&*y.buffer).into(),
    ];
    queue.launch("round_inputs", x.rows() * width.div_ceil(group), &arguments)?;
    Ok(Cow::Owned(y))
}
