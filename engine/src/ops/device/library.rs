//! Products of many rows by the library of the device, where a session asks for them.

use std::borrow::Cow;

use registry::dtype::Dtype;

use crate::Error;
use crate::device::product::{ProductSizes, whole};
use crate::device::{DeviceBuffer, count};
use crate::ops::Ctx;
use crate::ops::device::{LINEAR_TILE, index};
use crate::value::DeviceValue;
use crate::weights::DeviceMatrix;

/// Rows from which the library multiplies: one more than a read of the weights by the exact kernel serves.
const ROWS: usize = LINEAR_TILE.0 + 1;

/// Rows from which weights are decoded for the library. A decoded matrix is written and read once more.
const ROWS_TO_DECODE: usize = 32;

/// A matrix in the dtype of the rows.
pub(super) enum LibraryMatrix<'a> {
    /// As it is stored.
    Stored(&'a DeviceBuffer),
    /// Decoded for one use.
    Decoded(DeviceBuffer),
}

impl LibraryMatrix<'_> {
    pub(super) fn numbers(&self) -> &DeviceBuffer {
        match self {
            Self::Stored(buffer) => buffer,
            Self::Decoded(buffer) => buffer,
        }
    }
}

/// True if the library multiplies so many rows by a matrix of a plain dtype, or of blocks. 16-bit rows and a matrix of
/// another plain dtype are multiplied exactly: no dtype of the library holds both.
pub(super) fn takes(ctx: &Ctx<'_>, rows: usize, dtype: Dtype, stored: Option<Dtype>) -> bool {
    let least = match stored {
        Some(stored) if stored == dtype => ROWS,
        Some(_) if dtype != Dtype::F32 => return false,
        _ => ROWS_TO_DECODE,
    };
    ctx.library && rows >= least
}

/// Returns a matrix in the dtype of the rows.
pub(super) fn matrix<'a>(
    ctx: &Ctx<'_>,
    weight: &'a DeviceMatrix,
    dtype: Dtype,
) -> Result<LibraryMatrix<'a>, Error> {
    if weight.plain() == Some(dtype) {
        return Ok(LibraryMatrix::Stored(&weight.buffer));
    }
    let queue = ctx.queue()?;
    let total = weight.outputs * weight.inputs;
    let decoded = queue.allocate(total * dtype.size())?;
    let arguments = [
        (&weight.buffer).into(),
        weight.form.into(),
        weight.factor.into(),
        index(ctx, weight.inputs)?.into(),
        (&decoded).into(),
        dtype.into(),
        count(total),
    ];
    queue.launch_each("matrix_numbers", total, &arguments)?;
    Ok(LibraryMatrix::Decoded(decoded))
}

/// Returns the sizes of rows times a matrix.
pub(super) fn sizes(
    rows: usize,
    weight: &DeviceMatrix,
    dtype: Dtype,
    result_dtype: Dtype,
) -> ProductSizes {
    let inputs = weight.inputs;
    let outputs = weight.outputs;
    ProductSizes {
        batch: 1,
        rows,
        inputs,
        outputs,
        by_outputs: true,
        dtype,
        made: result_dtype,
        adds: false,
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
    let queue = ctx.queue()?;
    let inputs = weight.inputs;
    let outputs = weight.outputs;
    // A bias is added before the one rounding.
    let direct = bias.is_none() && (y.dtype == x.dtype || y.dtype == Dtype::F32);
    let sums = if direct {
        Cow::Borrowed(y)
    } else {
        Cow::Owned(DeviceValue::of(queue, Dtype::F32, &y.shape)?)
    };
    let sizes = sizes(x.rows(), weight, x.dtype, sums.dtype);
    let matrix = matrix(ctx, weight, x.dtype)?;
    let x = whole(&x.buffer, inputs);
    let w = whole(matrix.numbers(), inputs);
    queue.multiply(sizes, x, w, whole(&sums.buffer, outputs))?;
    if direct {
        return Ok(());
    }
    let arguments = [
        (&*sums.buffer).into(),
        bias.into(),
        index(ctx, outputs)?.into(),
        (&*y.buffer).into(),
        y.dtype.into(),
        count(y.len()),
    ];
    queue.launch_each("sums_with_bias", y.len(), &arguments)
}
