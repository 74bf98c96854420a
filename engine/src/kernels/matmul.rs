//! `y = round(x · Wᵀ + bias)`: the one kernel where the time goes.

use registry::dtype::Dtype;

pub mod reference;

/// A weight as it lies in memory: row-major `[outputs, inputs]`, little endian.
#[derive(Debug, Clone, Copy)]
pub struct WeightView<'a> {
    /// Of the stored numbers; they are widened to f32 exactly.
    pub dtype: Dtype,
    /// `outputs * inputs * dtype.size()` bytes, of any alignment.
    pub bytes: &'a [u8],
    /// Rows.
    pub outputs: usize,
    /// Columns.
    pub inputs: usize,
}

impl WeightView<'_> {
    /// Writes one row, widened to f32.
    ///
    /// # Panics
    /// If there is no such row, or `into` is not as long as a row.
    pub fn widen_row(&self, row: usize, into: &mut [f32]) {
        assert_eq!(into.len(), self.inputs, "a row has as many numbers as the weight has inputs");
        let size = self.dtype.size();
        let bytes = &self.bytes[row * self.inputs * size..(row + 1) * self.inputs * size];
        match self.dtype {
            Dtype::F32 => {
                for (x, b) in into.iter_mut().zip(bytes.chunks_exact(4)) {
                    *x = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                }
            }
            Dtype::Bf16 => {
                for (x, b) in into.iter_mut().zip(bytes.chunks_exact(2)) {
                    *x = f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
                }
            }
            Dtype::F16 => {
                for (x, b) in into.iter_mut().zip(bytes.chunks_exact(2)) {
                    *x = half::f16::from_le_bytes([b[0], b[1]]).to_f32();
                }
            }
        }
    }
}

/// Multiplies `rows` rows of `x` `[rows, inputs]` into `y` `[rows, outputs]`; sums in f32, adds
/// the bias, and rounds once, to the grid of `round`.
///
/// A row's result does not depend on the other rows of the call, so a sequence fed in chunks
/// gives the same bits as one fed at once.
///
/// # Panics
/// If a slice is not as long as the shapes say.
pub fn matmul(
    x: &[f32],
    rows: usize,
    weight: &WeightView<'_>,
    bias: Option<&[f32]>,
    round: Dtype,
    y: &mut [f32],
) {
    reference::matmul(x, rows, weight, bias, round, y);
}
