//! Values of a graph: CPU tensors in f32, `[rows, ...]`, contiguous.
//!
//! A thin seam over candle's tensors: slices come out without a copy, and a vector goes in
//! without one.

use std::ops::{Deref, Range};

use candle_core::{CpuStorage, Device, Storage, Tensor};

use crate::Error;

/// A value of a graph, as made by one node in one step.
#[derive(Debug, Clone)]
pub struct GraphValue {
    tensor: Tensor,
}

/// A borrowed look at a value's numbers; `G` is the guard of candle's storage.
struct ValueView<G> {
    storage: G,
    range: Range<usize>,
}

impl<G: Deref<Target = Storage>> Deref for ValueView<G> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &*self.storage {
            Storage::Cpu(CpuStorage::F32(data)) => &data[self.range.clone()],
            _ => &[], // never: `GraphValue::new` and `GraphValue::from_tensor` admit nothing else
        }
    }
}

impl GraphValue {
    /// Creates a value from its numbers; `shape` is `[rows, ...]`.
    pub fn new(data: Vec<f32>, shape: &[usize]) -> Result<Self, Error> {
        Ok(Self { tensor: Tensor::from_vec(data, shape, &Device::Cpu)? })
    }

    /// Takes a tensor over; it is made f32, contiguous and on the CPU if it is not.
    pub fn from_tensor(tensor: &Tensor) -> Result<Self, Error> {
        let tensor = tensor.to_device(&Device::Cpu)?;
        Ok(Self { tensor: tensor.to_dtype(candle_core::DType::F32)?.contiguous()? })
    }

    /// Returns the tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Returns the shape `[rows, ...]`.
    pub fn shape(&self) -> &[usize] {
        self.tensor.dims()
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.shape().first().copied().unwrap_or(0)
    }

    /// Numbers per row.
    pub fn width(&self) -> usize {
        self.shape().iter().skip(1).product()
    }

    /// Returns the numbers, without a copy.
    pub fn view(&self) -> impl Deref<Target = [f32]> + '_ {
        let (storage, layout) = self.tensor.storage_and_layout();
        let start = layout.start_offset();
        ValueView { storage, range: start..start + layout.shape().elem_count() }
    }

    /// Returns the same numbers with another shape, without a copy.
    pub fn reshape(&self, shape: &[usize]) -> Result<Self, Error> {
        Ok(Self { tensor: self.tensor.reshape(shape)? })
    }

    /// Returns a copy of the numbers.
    pub fn to_vec(&self) -> Vec<f32> {
        self.view().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_goes_in_and_a_slice_comes_out_without_a_copy() {
        let data = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let at = data.as_ptr();
        let value = GraphValue::new(data, &[3, 2]).unwrap();
        assert_eq!(value.view().as_ptr(), at);
        assert_eq!(value.reshape(&[3, 2, 1]).unwrap().view().as_ptr(), at);
        assert_eq!((value.rows(), value.width()), (3, 2));
    }
}
