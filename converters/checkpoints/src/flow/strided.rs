//! Finds tensors whose values lie at constant distances in one source: parts of transposed tensors.

use formats::safetensors::FileDtype;

use super::{Flow, FlowNode, product};

/// Values at constant distances in a plain source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StridedValues<'p> {
    /// Dtype of the source.
    pub dtype: FileDtype,
    /// All bytes of the source.
    pub bytes: &'p [u8],
    /// Index of the first value in the source.
    pub first: usize,
    /// Number of the source's values between neighbours on each axis.
    pub strides: Vec<usize>,
}

impl Flow<'_> {
    /// Returns the places of all values, if they lie at constant distances in one plain source.
    pub fn strided(&self) -> Option<StridedValues<'_>> {
        if self.is_empty() {
            return None;
        }
        match &*self.node {
            FlowNode::Source(source) => {
                let (dtype, bytes) = source.bytes()?;
                let strides = (0..self.shape.len()).map(|axis| self.inner(axis)).collect();
                Some(StridedValues { dtype, bytes, first: 0, strides })
            }
            FlowNode::Shaped(of) => {
                let values = of.strided()?;
                let strides = reshaped(&of.shape, &values.strides, &self.shape)?;
                Some(StridedValues { strides, ..values })
            }
            FlowNode::Cut { of, from, whole: axis_size, run, .. } => {
                let values = of.strided()?;
                let axis = (0..of.shape.len())
                    .find(|&axis| of.shape[axis] == *axis_size && of.inner(axis) == *run)?;
                let first = values.first + from * values.strides[axis];
                Some(StridedValues { first, ..values })
            }
            FlowNode::Swapped { of, axes: [a, b] } => {
                let mut values = of.strided()?;
                values.strides.swap(*a, *b);
                Some(values)
            }
            FlowNode::Join { .. }
            | FlowNode::Heads { .. }
            | FlowNode::Resized { .. }
            | FlowNode::Computed { .. } => None,
        }
    }
}

/// Returns the strides of the same values in another shape; none if values would lie at other distances.
fn reshaped(from: &[usize], strides: &[usize], to: &[usize]) -> Option<Vec<usize>> {
    let mut old = from.iter().zip(strides).filter(|(size, _)| **size != 1);
    let mut new_strides = vec![0; to.len()];
    let mut end = 0;
    while end < to.len() {
        let begin = end;
        end += 1;
        if to[begin] == 1 {
            continue;
        }
        // The fewest old axes and new axes that have as many values.
        let (&first, &stride) = old.next()?;
        let mut old_count = first;
        let mut last_stride = stride;
        while old_count != product(&to[begin..end]) {
            if product(&to[begin..end]) < old_count {
                end += 1;
                to.get(end - 1)?;
            } else {
                let (&size, &stride) = old.next()?;
                if last_stride != size * stride {
                    return None;
                }
                (old_count, last_stride) = (old_count * size, stride);
            }
        }
        let mut distance = last_stride;
        for axis in (begin..end).rev() {
            new_strides[axis] = distance;
            distance *= to[axis];
        }
    }
    Some(new_strides)
}
