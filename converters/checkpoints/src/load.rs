//! A weight, ready to be read: what it is kept in, its shape and its bytes.

use formats::numbers;
use formats::safetensors::FileDtype;

/// A weight's bytes, straight from a map or from a buffer that a weight map made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightView<'a> {
    /// What its numbers are kept in.
    pub dtype: FileDtype,
    /// Its shape, row-major.
    pub shape: &'a [usize],
    /// Its bytes, little-endian. They may begin at any address: read numbers with `from_le_bytes`.
    pub bytes: &'a [u8],
}

impl WeightView<'_> {
    /// How many numbers it has.
    pub fn elements(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// Its numbers as f32.
    pub fn to_f32(&self) -> Result<Vec<f32>, numbers::Error> {
        let mut values = vec![0.0; self.elements()];
        numbers::to_f32(self.dtype, self.bytes, &mut values)?;
        Ok(values)
    }
}
