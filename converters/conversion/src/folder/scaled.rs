//! Matrices in 8 or 4 bits with scales beside them, as bytes of two tensors.

use crate::work::Encode;
use formats::numbers;
use formats::safetensors::FileDtype;

/// The side of a square that shares a scale.
pub const BLOCK: usize = 128;

/// How a matrix is quantized.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scheme {
    /// e4m3, a scale for each row, kept in this dtype.
    Rows(FileDtype),
    /// e4m3, one scale that is known.
    Whole(f32),
    /// e4m3, a scale for each square of [`BLOCK`] numbers a side.
    Squares(SquareScale),
    /// e2m1, an e4m3 scale for 16 numbers of a row, times one scale that is known.
    Sixteens(f32),
    /// e2m1, a power of two for 32 numbers of a row.
    ThirtyTwos,
}

/// What the scale of a square is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SquareScale {
    /// f32.
    F32,
    /// A power of two, as f32.
    Power,
    /// bf16.
    Bf16,
}

/// Which of the tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The codes.
    Codes,
    /// The scales.
    Scales,
}

/// One tensor of a quantized matrix.
#[derive(Debug, Clone, Copy)]
pub struct Scaled {
    /// How.
    pub scheme: Scheme,
    /// Which.
    pub part: Part,
}

impl Scheme {
    /// Numbers of a row that share a scale; all of them if none.
    pub fn run(self) -> Option<usize> {
        match self {
            Self::Rows(_) | Self::Whole(_) => None,
            Self::Squares(..) => Some(BLOCK),
            Self::Sixteens(_) => Some(16),
            Self::ThirtyTwos => Some(32),
        }
    }

    /// Rows that share scales.
    fn unit(self) -> usize {
        if matches!(self, Self::Squares(..)) { BLOCK } else { 1 }
    }

    fn four_bits(self) -> bool {
        matches!(self, Self::Sixteens(_) | Self::ThirtyTwos)
    }

    /// The shape of the tensor of codes.
    pub fn codes(self, rows: usize, row: usize) -> Vec<usize> {
        vec![rows, if self.four_bits() { row / 2 } else { row }]
    }

    /// Dtype and shape of the tensor of scales; none if there is none for each matrix.
    pub fn scales(self, rows: usize, row: usize) -> Option<(FileDtype, Vec<usize>)> {
        match self {
            Self::Rows(dtype) => Some((dtype, vec![rows, 1])),
            Self::Whole(_) => None,
            Self::Squares(scale) => {
                let narrow = scale == SquareScale::Bf16;
                let dtype = if narrow { FileDtype::Bf16 } else { FileDtype::F32 };
                Some((dtype, vec![rows.div_ceil(BLOCK), row.div_ceil(BLOCK)]))
            }
            Self::Sixteens(_) => Some((FileDtype::F8E4m3, vec![rows, row / 16])),
            Self::ThirtyTwos => Some((FileDtype::U8, vec![rows, row / 32])),
        }
    }

    /// Why a matrix cannot be kept so.
    pub fn refuses(self, rows: usize, row: usize) -> Option<String> {
        let run = self.run()?;
        let rows_fit = !matches!(self, Self::Squares(..)) || rows.is_multiple_of(BLOCK);
        (!(row.is_multiple_of(run) && rows_fit))
            .then(|| format!("{rows}x{row} does not divide into blocks of {run}"))
    }

    /// What the scale of numbers whose largest is `peak` is kept as, and what it stands for.
    fn scale(self, run: &[f32], peak: f32) -> (u32, f32) {
        match self {
            Self::Rows(FileDtype::Bf16) | Self::Squares(SquareScale::Bf16) => {
                let bits = numbers::f32_to_bf16(numbers::f8_e4m3_scale(peak));
                (u32::from(bits), numbers::bf16_to_f32(bits))
            }
            Self::Rows(_) | Self::Squares(SquareScale::F32) => {
                let scale = numbers::f8_e4m3_scale(peak);
                (scale.to_bits(), scale)
            }
            Self::Whole(scale) => (scale.to_bits(), scale),
            Self::Squares(SquareScale::Power) => {
                let scale = numbers::ceil_to_power(numbers::f8_e4m3_scale(peak));
                (scale.to_bits(), scale)
            }
            Self::Sixteens(global) => {
                let bits = numbers::f32_to_f8_e4m3(peak / numbers::F4_E2M1_MAX * global);
                // The smallest scale is better than none where there is anything.
                let bits = if peak > 0.0 { bits.max(1) } else { bits };
                (u32::from(bits), numbers::f8_e4m3_to_f32(bits) / global)
            }
            Self::ThirtyTwos => {
                let bits = exponent(run, peak);
                (u32::from(bits), numbers::f8_e8m0_to_f32(bits))
            }
        }
    }
}

/// The exponent of a block: of the two under which its largest number is nearest to 6, the one
/// that leaves less error; the smaller one where both leave the same.
fn exponent(run: &[f32], peak: f32) -> u8 {
    if peak == 0.0 {
        return 127;
    }
    let low = numbers::f32_to_f8_e8m0_floor(peak).saturating_sub(2);
    let high = low.saturating_add(1).min(254);
    let error = |bits: u8| -> f64 {
        let scale = numbers::f8_e8m0_to_f32(bits);
        let off = |x: &f32| {
            let seen = numbers::f4_e2m1_to_f32(numbers::f32_to_f4_e2m1(x / scale)) * scale;
            f64::from(seen - x) * f64::from(seen - x)
        };
        run.iter().map(off).sum()
    };
    if error(high) < error(low) { high } else { low }
}

fn peak(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0, |most, x| most.max(x.abs()))
}

impl Scaled {
    /// Calls `visit` with each scale (bits and value) and the numbers it is for: which rows and
    /// columns.
    fn each(
        &self,
        numbers: &[f32],
        row: usize,
        mut visit: impl FnMut((u32, f32), std::ops::Range<usize>, std::ops::Range<usize>),
    ) {
        let (unit, run) = (self.scheme.unit(), self.scheme.run().unwrap_or(row).max(1));
        let rows = numbers.len() / row.max(1);
        for top in (0..rows).step_by(unit) {
            let bottom = (top + unit).min(rows);
            for left in (0..row).step_by(run) {
                let right = (left + run).min(row);
                let peak = (top..bottom)
                    .map(|r| peak(&numbers[r * row + left..r * row + right]))
                    .fold(0.0, f32::max);
                let first = &numbers[top * row + left..top * row + right];
                visit(self.scheme.scale(first, peak), top..bottom, left..right);
            }
        }
    }
}

impl Encode for Scaled {
    fn unit(&self) -> usize {
        self.scheme.unit()
    }

    fn bytes(&self, rows: usize, row: usize) -> usize {
        match self.part {
            Part::Codes if self.scheme.four_bits() => rows * row / 2,
            Part::Codes => rows * row,
            Part::Scales => self
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
    ) -> Result<(), String> {
        let size = self.scheme.scales(1, row).map_or(0, |(dtype, _)| dtype.size());
        let mut at = 0;
        let part = self.part;
        self.each(numbers, row, |(bits, scale), rows, columns| match part {
            Part::Scales => {
                out[at..at + size].copy_from_slice(&bits.to_le_bytes()[..size]);
                at += size;
            }
            Part::Codes => {
                for r in rows {
                    let from = r * row + columns.start;
                    let numbers = &numbers[from..r * row + columns.end];
                    if self.scheme.four_bits() {
                        let to = &mut out[from / 2..from / 2 + numbers.len() / 2];
                        for (byte, pair) in to.iter_mut().zip(numbers.as_chunks::<2>().0) {
                            let [low, high] = pair.map(|x| four(x, scale));
                            *byte = low | high << 4;
                        }
                    } else {
                        let to = &mut out[from..from + numbers.len()];
                        for (byte, x) in to.iter_mut().zip(numbers) {
                            *byte = numbers::f32_to_f8_e4m3(x / scale);
                        }
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
        if self.part == Part::Scales {
            return false;
        }
        let four_bits = self.scheme.four_bits();
        self.each(numbers, row, |(_, scale), rows, columns| {
            for r in rows {
                for at in r * row + columns.start..r * row + columns.end {
                    out[at] = scale
                        * if four_bits {
                            numbers::f4_e2m1_to_f32(bytes[at / 2] >> (at % 2 * 4))
                        } else {
                            numbers::f8_e4m3_to_f32(bytes[at])
                        };
                }
            }
        });
        true
    }
}

/// A block of zeros may have a scale of zero.
fn four(x: f32, scale: f32) -> u8 {
    if scale == 0.0 { 0 } else { numbers::f32_to_f4_e2m1(x / scale) }
}

/// The one scale of e4m3 for numbers up to `peak`, on the grid of a dtype.
pub fn whole_scale(peak: f32, dtype: FileDtype) -> f32 {
    Scheme::Rows(dtype).scale(&[], peak).1
}

/// The scale that brings numbers up to `peak` into the range of NVFP4: what they are multiplied by.
pub fn global_scale(peak: f32) -> f32 {
    if peak == 0.0 {
        1.0
    } else {
        (numbers::F8_E4M3_MAX * numbers::F4_E2M1_MAX / peak).min(f32::MAX)
    }
}
