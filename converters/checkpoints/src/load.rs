//! Weights that are ready to be read: dtype, shape and bytes.

use formats::numbers;
use formats::safetensors::FileDtype;

/// Bytes of a weight, from a memory map or from a buffer that a weight map filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightView<'a> {
    /// Dtype of the values.
    pub dtype: FileDtype,
    /// Row-major shape.
    pub shape: &'a [usize],
    /// Little-endian bytes. They may begin at any address: read values with `from_le_bytes`.
    pub bytes: &'a [u8],
}

impl WeightView<'_> {
    /// Returns the number of values.
    pub fn elements(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// Converts the values to f32.
    pub fn to_f32(&self) -> Result<Vec<f32>, numbers::Error> {
        let mut values = vec![0.0; self.elements()];
        numbers::to_f32(self.dtype, self.bytes, &mut values)?;
        Ok(values)
    }
}
