//! Products of matrices by a library of the device, in an order of additions of its own.
//!
//! Kernels of this project cannot use tensor cores ([decision 100](../../../docs/decisions/0100-long-products-by-a-library.md)).

use registry::dtype::Dtype;

use super::{DeviceBuffer, DeviceQueue};
use crate::{DeviceError, Error};

/// Bytes that the library may use beside the matrices: what cuBLASLt advises for GPUs of compute capability 9.
pub const WORKSPACE: usize = 32 << 20;

/// The sizes of products `y = x w`: a batch of matrices of rows times weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProductSizes {
    /// Matrices.
    pub batch: usize,
    /// Rows of `x` and of `y`.
    pub rows: usize,
    /// Numbers of a row of `x`.
    pub inputs: usize,
    /// Numbers of a row of `y`.
    pub outputs: usize,
    /// True if a row of `w` belongs to an output; false if it belongs to an input.
    pub by_outputs: bool,
    /// Dtype of `x` and of `w`.
    pub dtype: Dtype,
    /// Dtype of `y`: that of `x`, or f32.
    pub made: Dtype,
    /// True if products are added to what is in `y`.
    pub adds: bool,
}

/// Place of the matrices of a batch: an address or a first number, and distances in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MatrixPlace<T> {
    /// The first number.
    pub at: T,
    /// Numbers from a row to the next.
    pub row: usize,
    /// Numbers from a matrix of the batch to the next; 0 if all are one.
    pub matrix: usize,
}

/// Products with the addresses of their matrices.
#[derive(Debug, Clone, Copy)]
pub struct DeviceProduct {
    /// The sizes.
    pub sizes: ProductSizes,
    /// Rows.
    pub x: MatrixPlace<u64>,
    /// Weights.
    pub w: MatrixPlace<u64>,
    /// Results.
    pub y: MatrixPlace<u64>,
}

/// Matrices in a buffer, and the number at which the first begins.
pub(crate) type PlacedMatrix<'a> = (&'a DeviceBuffer, MatrixPlace<usize>);

/// Places rows that lie one behind the other.
pub(crate) fn whole(buffer: &DeviceBuffer, width: usize) -> PlacedMatrix<'_> {
    (buffer, MatrixPlace { at: 0, row: width, matrix: 0 })
}

/// Returns the address of matrices; an error if they reach beyond their buffer.
fn placed(
    (buffer, place): PlacedMatrix<'_>,
    dtype: Dtype,
    [batch, rows, width]: [usize; 3],
) -> Result<MatrixPlace<u64>, Error> {
    let end = end_of(place, [batch, rows, width]).and_then(|end| end.checked_mul(dtype.size()));
    if place.row < width || end.is_none_or(|end| end > buffer.bytes()) {
        let message = format!(
            "{batch} matrices of {rows} by {width} at {place:?} are not in {} bytes",
            buffer.bytes()
        );
        return Err(DeviceError(message).into());
    }
    Ok(MatrixPlace {
        at: buffer.address() + (place.at * dtype.size()) as u64,
        row: place.row,
        matrix: place.matrix,
    })
}

/// Returns the number behind the last one of a batch; none if the batch is empty or the number too large.
fn end_of(place: MatrixPlace<usize>, [batch, rows, width]: [usize; 3]) -> Option<usize> {
    let last_matrix = batch.checked_sub(1)?.checked_mul(place.matrix)?;
    let last_row = rows.checked_sub(1)?.checked_mul(place.row)?;
    place.at.checked_add(last_matrix)?.checked_add(last_row)?.checked_add(width)
}

impl DeviceQueue {
    /// Multiplies matrices by the library of the device. `y` must not overlap the others.
    pub(crate) fn multiply(
        &self,
        sizes: ProductSizes,
        x: PlacedMatrix<'_>,
        w: PlacedMatrix<'_>,
        y: PlacedMatrix<'_>,
    ) -> Result<(), Error> {
        let ProductSizes { batch, rows, inputs, outputs, dtype, made: result_dtype, .. } = sizes;
        if batch == 0 || rows == 0 || outputs == 0 {
            return Ok(());
        }
        if inputs == 0 || (result_dtype != dtype && result_dtype != Dtype::F32) {
            return Err(DeviceError(format!("no product of matrices is {sizes:?}")).into());
        }
        let weights = if sizes.by_outputs { [outputs, inputs] } else { [inputs, outputs] };
        let product = DeviceProduct {
            sizes,
            x: placed(x, dtype, [batch, rows, inputs])?,
            w: placed(w, dtype, [batch, weights[0], weights[1]])?,
            y: placed(y, result_dtype, [batch, rows, outputs])?,
        };
        self.multiply_placed(&product)
    }
}
