//! Encodes matrices in 8 or 4 bits with separate scales, as two tensors.
//!
//! A scale is rounded before codes are chosen ([decision 38](../../../../docs/decisions/0038-scales-first.md)).

use crate::work::{Encode, EncodeError};
use formats::numbers;
use formats::safetensors::FileDtype;

/// Side of a square block that shares a scale.
pub const BLOCK: usize = 128;

/// Quantization scheme of a matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScaleScheme {
    /// e4m3, with a scale of this dtype for each row.
    Fp8Rows(FileDtype),
    /// e4m3, with one known scale.
    Fp8Tensor(f32),
    /// e4m3, with a scale for each square block of [`BLOCK`] values a side.
    Fp8Blocks(BlockScale),
    /// e2m1, with an e4m3 scale for 16 values of a row, times one known scale.
    Nvfp4(f32),
    /// e2m1, with a power-of-two scale for 32 values of a row.
    Mxfp4,
}

/// Representation of the scale of a square block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockScale {
    /// f32.
    F32,
    /// A power of two, as f32.
    Power,
    /// bf16.
    Bf16,
}

/// Tensor of a quantized matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantizedPart {
    /// The codes.
    Codes,
    /// The scales.
    Scales,
}

/// Encoder of one tensor of a quantized matrix.
#[derive(Debug, Clone, Copy)]
pub struct QuantizedEncoder {
    /// Quantization scheme.
    pub scheme: ScaleScheme,
    /// Tensor to encode.
    pub part: QuantizedPart,
}

impl ScaleScheme {
    /// Returns the number of values of a row that share a scale; none for a whole row.
    pub fn run(self) -> Option<usize> {
        match self {
            Self::Fp8Rows(_) | Self::Fp8Tensor(_) => None,
            Self::Fp8Blocks(..) => Some(BLOCK),
            Self::Nvfp4(_) => Some(16),
            Self::Mxfp4 => Some(32),
        }
    }

    /// Returns the number of rows that share scales.
    fn unit(self) -> usize {
        if matches!(self, Self::Fp8Blocks(..)) { BLOCK } else { 1 }
    }

    fn four_bits(self) -> bool {
        matches!(self, Self::Nvfp4(_) | Self::Mxfp4)
    }

    /// Returns the dtype and shape of the tensor of codes.
    pub fn codes(self, rows: usize, row: usize) -> (FileDtype, Vec<usize>) {
        if self.four_bits() {
            (FileDtype::U8, vec![rows, row / 2])
        } else {
            (FileDtype::F8E4m3, vec![rows, row])
        }
    }

    /// Returns the dtype and shape of the tensor of scales; none if a matrix has no scales of its own.
    pub fn scales(self, rows: usize, row: usize) -> Option<(FileDtype, Vec<usize>)> {
        match self {
            Self::Fp8Rows(dtype) => Some((dtype, vec![rows, 1])),
            Self::Fp8Tensor(_) => None,
            Self::Fp8Blocks(scale) => {
                let narrow = scale == BlockScale::Bf16;
                let dtype = if narrow { FileDtype::Bf16 } else { FileDtype::F32 };
                Some((dtype, vec![rows.div_ceil(BLOCK), row.div_ceil(BLOCK)]))
            }
            Self::Nvfp4(_) => Some((FileDtype::F8E4m3, vec![rows, row / 16])),
            Self::Mxfp4 => Some((FileDtype::U8, vec![rows, row / 32])),
        }
    }

    /// Returns the reason why the shape does not fit the scheme; none if it does.
    pub fn refuses(self, rows: usize, row: usize) -> Option<String> {
        let run = self.run()?;
        let rows_fit = !matches!(self, Self::Fp8Blocks(..)) || rows.is_multiple_of(BLOCK);
        (!(row.is_multiple_of(run) && rows_fit))
            .then(|| format!("{rows}x{row} does not divide into blocks of {run}"))
    }

    /// Returns the stored bits and the value of a block's scale. `peak` is the largest absolute value of
    /// the block.
    fn scale(self, run: &[f32], peak: f32) -> (u32, f32) {
        match self {
            Self::Fp8Rows(FileDtype::Bf16) | Self::Fp8Blocks(BlockScale::Bf16) => {
                let bits = numbers::f32_to_bf16(numbers::f8_e4m3_scale(peak));
                (u32::from(bits), numbers::bf16_to_f32(bits))
            }
            Self::Fp8Rows(_) | Self::Fp8Blocks(BlockScale::F32) => {
                let scale = numbers::f8_e4m3_scale(peak);
                (scale.to_bits(), scale)
            }
            Self::Fp8Tensor(scale) => (scale.to_bits(), scale),
            Self::Fp8Blocks(BlockScale::Power) => {
                let scale = numbers::ceil_to_power(numbers::f8_e4m3_scale(peak));
                (scale.to_bits(), scale)
            }
            Self::Nvfp4(global) => {
                let bits = numbers::f32_to_f8_e4m3(peak / numbers::F4_E2M1_MAX * global);
                // A block that is not all zeros gets the smallest scale instead of zero.
                let bits = if peak > 0.0 { bits.max(1) } else { bits };
                (u32::from(bits), numbers::f8_e4m3_to_f32(bits) / global)
            }
            Self::Mxfp4 => {
                let bits = exponent(run, peak);
                (u32::from(bits), numbers::f8_e8m0_to_f32(bits))
            }
        }
    }
}

/// Chooses the exponent of a block. Of the two exponents that map its peak nearest to 6, the one with less
/// error is taken; on a tie, the smaller one.
fn exponent(run: &[f32], peak: f32) -> u8 {
    if peak == 0.0 {
        return 127;
    }
    let low = numbers::f32_to_f8_e8m0_floor(peak).saturating_sub(2);
    let high = low.saturating_add(1).min(254);
    if exponent_error(run, high) < exponent_error(run, low) { high } else { low }
}

/// Returns the error of a run with this exponent as its scale.
fn exponent_error(run: &[f32], bits: u8) -> f64 {
    numbers::f4_e2m1_error(run, numbers::f8_e8m0_to_f32(bits))
}

impl QuantizedEncoder {
    /// Calls `visit` with each scale (bits and value) and the rows and columns that it covers.
    fn each(
        &self,
        numbers: &[f32],
        row: usize,
        mut visit: impl FnMut((u32, f32), std::ops::Range<usize>, std::ops::Range<usize>),
    ) {
        let unit = self.scheme.unit();
        let run = self.scheme.run().unwrap_or(row).max(1);
        let rows = numbers.len() / row.max(1);
        for top in (0..rows).step_by(unit) {
            let bottom = (top + unit).min(rows);
            for left in (0..row).step_by(run) {
                let right = (left + run).min(row);
                let peak = (top..bottom)
                    .map(|r| numbers::largest_magnitude(&numbers[r * row + left..r * row + right]))
                    .fold(0.0, f32::max);
                let first = &numbers[top * row + left..top * row + right];
                visit(self.scheme.scale(first, peak), top..bottom, left..right);
            }
        }
    }
}

impl Encode for QuantizedEncoder {
    fn unit(&self) -> usize {
        self.scheme.unit()
    }

    fn bytes(&self, rows: usize, row: usize) -> usize {
        match self.part {
            QuantizedPart::Codes if self.scheme.four_bits() => rows * row / 2,
            QuantizedPart::Codes => rows * row,
            QuantizedPart::Scales => self
                .scheme
                .scales(rows, row)
                .map_or(0, |(dtype, shape)| dtype.size() * shape.iter().product::<usize>()),
        }
    }

    fn encode(
        &self,
        _first: usize,
        numbers: &[f32],
        row: usize,
        out: &mut [u8],
    ) -> Result<(), EncodeError> {
        let size = self.scheme.scales(1, row).map_or(0, |(dtype, _)| dtype.size());
        let mut at = 0;
        let part = self.part;
        self.each(numbers, row, |(bits, scale), rows, columns| match part {
            QuantizedPart::Scales => {
                out[at..at + size].copy_from_slice(&bits.to_le_bytes()[..size]);
                at += size;
            }
            QuantizedPart::Codes => {
                for r in rows {
                    let from = r * row + columns.start;
                    let numbers = &numbers[from..r * row + columns.end];
                    if self.scheme.four_bits() {
                        let to = &mut out[from / 2..from / 2 + numbers.len() / 2];
                        numbers::divide_to_f4_e2m1(numbers, scale, to);
                    } else {
                        let to = &mut out[from..from + numbers.len()];
                        numbers::divide_to_f8_e4m3(numbers, scale, to);
                    }
                }
            }
        });
        Ok(())
    }

    fn decode(
        &self,
        _first: usize,
        numbers: &[f32],
        bytes: &[u8],
        row: usize,
        out: &mut [f32],
    ) -> bool {
        if self.part == QuantizedPart::Scales {
            return false;
        }
        let four_bits = self.scheme.four_bits();
        self.each(numbers, row, |(_, scale), rows, columns| {
            for r in rows {
                let from = r * row + columns.start;
                let to = r * row + columns.end;
                if four_bits {
                    numbers::multiply_f4_e2m1(&bytes[from / 2..to / 2], scale, &mut out[from..to]);
                } else {
                    numbers::multiply_f8_e4m3(&bytes[from..to], scale, &mut out[from..to]);
                }
            }
        });
        true
    }
}

/// Returns the e4m3 scale for values up to `peak`, rounded to a dtype.
pub fn whole_scale(peak: f32, dtype: FileDtype) -> f32 {
    ScaleScheme::Fp8Rows(dtype).scale(&[], peak).1
}

/// Returns the NVFP4 factor that brings values up to `peak` into range.
pub fn global_scale(peak: f32) -> f32 {
    if peak == 0.0 {
        1.0
    } else {
        (numbers::F8_E4M3_MAX * numbers::F4_E2M1_MAX / peak).min(f32::MAX)
    }
}
