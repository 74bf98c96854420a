//! Values of a graph: CPU tensors in f32, `[rows, ...]`, contiguous; or memory of a device, in their dtype.
//!
//! A vector goes in without a copy, and slices come out without one.

use std::ops::Deref;
use std::sync::Arc;

use registry::dtype::Dtype;

use crate::Error;
use crate::device::{DeviceBuffer, DeviceQueue};
use crate::kernels::round::{from_bits, to_bits};

/// A value of a graph, as made by one node in one step.
#[derive(Debug, Clone)]
pub struct GraphValue {
    numbers: ValueNumbers,
}

#[derive(Debug, Clone)]
enum ValueNumbers {
    Host { numbers: Arc<Vec<f32>>, shape: Vec<usize> },
    Device(DeviceValue),
}

/// A value in the memory of a device: numbers of `[rows, ...]`, stored in a dtype.
#[derive(Debug, Clone)]
pub struct DeviceValue {
    /// The numbers.
    pub buffer: Arc<DeviceBuffer>,
    /// The dtype that they are stored in.
    pub dtype: Dtype,
    /// `[rows, ...]`.
    pub shape: Vec<usize>,
}

impl DeviceValue {
    /// Allocates a value.
    pub(crate) fn of(queue: &DeviceQueue, dtype: Dtype, shape: &[usize]) -> Result<Self, Error> {
        let bytes = shape.iter().product::<usize>() * dtype.size();
        Ok(Self { buffer: Arc::new(queue.allocate(bytes)?), dtype, shape: shape.to_vec() })
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    /// Numbers per row.
    pub fn width(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Returns the number of numbers.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if there are no numbers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the numbers.
    pub(crate) fn download(&self) -> Result<Vec<f32>, Error> {
        let bytes = self.buffer.read(0, self.len() * self.dtype.size())?;
        Ok(match self.dtype {
            Dtype::F32 => {
                let numbers = bytes.chunks_exact(4);
                numbers.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
            narrow => {
                let numbers = bytes.chunks_exact(2);
                numbers.map(|b| from_bits(narrow, u16::from_le_bytes([b[0], b[1]]))).collect()
            }
        })
    }
}

/// Returns numbers as a device stores them in a dtype.
pub(crate) fn stored_bytes(dtype: Dtype, numbers: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
        narrow => numbers.iter().flat_map(|x| to_bits(narrow, *x).to_le_bytes()).collect(),
    }
}

/// A borrowed look at a value's numbers.
enum ValueView<'v> {
    Host(&'v [f32]),
    Downloaded(Vec<f32>),
}

impl Deref for ValueView<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Host(numbers) => numbers,
            Self::Downloaded(numbers) => numbers,
        }
    }
}

/// Returns an error unless a shape has this many numbers.
fn check_shape(shape: &[usize], numbers: usize) -> Result<(), Error> {
    let size = shape.iter().try_fold(1_usize, |size, axis| size.checked_mul(*axis));
    if size == Some(numbers) {
        return Ok(());
    }
    Err(Error::Other(format!("{numbers} numbers cannot have the shape {shape:?}")))
}

impl GraphValue {
    /// Creates a value from its numbers; `shape` is `[rows, ...]`.
    pub fn new(numbers: Vec<f32>, shape: &[usize]) -> Result<Self, Error> {
        check_shape(shape, numbers.len())?;
        let numbers = Arc::new(numbers);
        Ok(Self { numbers: ValueNumbers::Host { numbers, shape: shape.to_vec() } })
    }

    /// Takes a value of a device over.
    pub fn on_device(value: DeviceValue) -> Self {
        Self { numbers: ValueNumbers::Device(value) }
    }

    /// Returns the value if it is on a device.
    pub fn device(&self) -> Option<&DeviceValue> {
        match &self.numbers {
            ValueNumbers::Host { .. } => None,
            ValueNumbers::Device(value) => Some(value),
        }
    }

    /// Returns the shape `[rows, ...]`.
    pub fn shape(&self) -> &[usize] {
        match &self.numbers {
            ValueNumbers::Host { shape, .. } => shape,
            ValueNumbers::Device(value) => &value.shape,
        }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.shape().first().copied().unwrap_or(0)
    }

    /// Numbers per row.
    pub fn width(&self) -> usize {
        self.shape().iter().skip(1).product()
    }

    /// Returns the numbers, without a copy if they are in memory. The failure of a device is noted there, and the
    /// numbers are then missing.
    pub fn view(&self) -> impl Deref<Target = [f32]> + '_ {
        match &self.numbers {
            ValueNumbers::Host { numbers, .. } => ValueView::Host(numbers),
            ValueNumbers::Device(value) => {
                let numbers = value.buffer.queue().note(value.download());
                ValueView::Downloaded(numbers.unwrap_or_default())
            }
        }
    }

    /// Returns the same numbers with another shape, without a copy.
    pub fn reshape(&self, shape: &[usize]) -> Result<Self, Error> {
        match &self.numbers {
            ValueNumbers::Host { numbers, .. } => {
                check_shape(shape, numbers.len())?;
                let numbers = Arc::clone(numbers);
                Ok(Self { numbers: ValueNumbers::Host { numbers, shape: shape.to_vec() } })
            }
            ValueNumbers::Device(value) => {
                check_shape(shape, value.len())?;
                Ok(Self::on_device(DeviceValue { shape: shape.to_vec(), ..value.clone() }))
            }
        }
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
