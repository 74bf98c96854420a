//! Weights whose rows are no ranges of memory: parts of transposed tensors.

use registry::dtype::Dtype;

use crate::kernels::round::round;

/// Distances of a matrix' numbers in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strides {
    /// The dtype of the stored numbers.
    pub dtype: Dtype,
    /// The grid that numbers are rounded to when they are gathered.
    pub round: Dtype,
    /// Number of stored numbers between rows, and between columns.
    pub by: [usize; 2],
}

/// Columns that are gathered together: those of a cache line of the result.
const COLUMNS: usize = 16;

impl Strides {
    /// Returns the bytes from the first number of a matrix to its last; none if they overflow.
    pub(super) fn bytes(&self, outputs: usize, inputs: usize) -> Option<usize> {
        let [row, column] = self.by;
        let (Some(rows), Some(columns)) = (outputs.checked_sub(1), inputs.checked_sub(1)) else {
            return Some(0);
        };
        let last = rows.checked_mul(row)?.checked_add(columns.checked_mul(column)?)?;
        last.checked_add(1)?.checked_mul(self.dtype.size())
    }

    /// Returns the bytes from a row on.
    pub(super) fn row_onwards<'a>(&self, row: usize, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[row * self.by[0] * self.dtype.size()..]
    }

    /// Gathers the first rows of `inputs` numbers into `rows`, widened and rounded.
    pub fn gather(&self, bytes: &[u8], inputs: usize, rows: &mut [f32]) {
        match self.dtype {
            Dtype::F32 => self.gather_as(bytes, inputs, rows, f32::from_le_bytes),
            Dtype::Bf16 => self.gather_as(bytes, inputs, rows, |b| {
                f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)
            }),
            Dtype::F16 => {
                self.gather_as(bytes, inputs, rows, |b| half::f16::from_le_bytes(b).to_f32());
            }
        }
        round(self.round, rows);
    }

    /// Gathers numbers of `SIZE` bytes. All rows take a few columns in turn, whose numbers lie near each other.
    fn gather_as<const SIZE: usize>(
        &self,
        bytes: &[u8],
        inputs: usize,
        rows: &mut [f32],
        widen: impl Fn([u8; SIZE]) -> f32,
    ) {
        let (numbers, _) = bytes.as_chunks::<SIZE>();
        let [row_stride, column_stride] = self.by;
        for first in (0..inputs).step_by(COLUMNS) {
            let columns = first..inputs.min(first + COLUMNS);
            for (row, into) in rows.chunks_exact_mut(inputs.max(1)).enumerate() {
                let begin = row * row_stride + first * column_stride;
                let from = numbers[begin..].iter().step_by(column_stride.max(1));
                into[columns.clone()].iter_mut().zip(from).for_each(|(x, from)| *x = widen(*from));
            }
        }
    }
}
