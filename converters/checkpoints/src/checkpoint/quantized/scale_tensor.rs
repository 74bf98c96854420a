//! Tensors of scales, beside tensors of codes.

use formats::numbers;
use formats::safetensors::FileDtype;

/// Tensor of scales.
pub(super) struct ScaleTensor<'a> {
    pub(super) dtype: FileDtype,
    pub(super) bytes: &'a [u8],
}

impl ScaleTensor<'_> {
    pub(super) fn at(&self, n: usize) -> f32 {
        let size = self.dtype.size();
        let bytes = &self.bytes[n * size..(n + 1) * size];
        if self.dtype == FileDtype::U8 {
            // Power-of-two scales stored as bytes.
            return numbers::f8_e8m0_to_f32(bytes[0]);
        }
        let mut one = [0.0];
        numbers::widen(self.dtype, bytes, &mut one);
        one[0]
    }
}
