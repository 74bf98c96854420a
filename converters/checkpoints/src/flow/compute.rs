//! Steps that change values. All of them compute in f32 and round once per step.

use formats::numbers::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use registry::dtype::Dtype;
use registry::weight_map::WeightStep;

use super::Error;

/// Step that changes values, for a tensor of known shape.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ValueStep {
    Add(f32),
    Mul(f32),
    Div(f32),
    /// `(end of the range in values, factor, divide)`.
    Rows(Vec<(usize, f32)>, bool),
    NegExp,
    LogNeg,
    /// To the nearest number of a dtype, as a class does when it loads a weight.
    Round(Dtype),
}

impl ValueStep {
    /// Returns the computation of a step, if it changes values and fits the shape.
    pub(crate) fn new(step: &WeightStep, shape: &[usize]) -> Result<Self, Error> {
        Ok(match step {
            WeightStep::Add(x) => Self::Add(*x as f32),
            WeightStep::Mul(x) => Self::Mul(*x as f32),
            WeightStep::Div(x) => Self::Div(*x as f32),
            WeightStep::MulRows(parts) => Self::Rows(ends(parts, shape)?, false),
            WeightStep::DivRows(parts) => Self::Rows(ends(parts, shape)?, true),
            WeightStep::NegExp => Self::NegExp,
            WeightStep::LogNeg => Self::LogNeg,
            _ => return Err(Error::OnlyMoves),
        })
    }

    /// Applies the step to values, the first of which has index `at` in the tensor.
    pub(crate) fn apply(&self, at: usize, numbers: &mut [f32]) {
        match self {
            Self::Add(x) => numbers.iter_mut().for_each(|n| *n += x),
            Self::Mul(x) => numbers.iter_mut().for_each(|n| *n *= x),
            Self::Div(x) => numbers.iter_mut().for_each(|n| *n /= x),
            Self::Rows(ends, divide) => {
                let mut from = at;
                let end = at + numbers.len();
                for &(stop, factor) in ends {
                    let stretch = from..stop.min(end);
                    if stretch.is_empty() {
                        continue;
                    }
                    for n in &mut numbers[stretch.start - at..stretch.end - at] {
                        *n = if *divide { *n / factor } else { *n * factor };
                    }
                    from = stretch.end;
                }
            }
            // Computed in f64 and rounded once: within half a unit in the last place.
            Self::NegExp => numbers.iter_mut().for_each(|n| *n = -(*n as f64).exp() as f32),
            Self::LogNeg => numbers.iter_mut().for_each(|n| *n = (-*n as f64).ln() as f32),
            Self::Round(Dtype::Bf16) => {
                for number in numbers {
                    *number = bf16_to_f32(f32_to_bf16(*number));
                }
            }
            Self::Round(Dtype::F16) => {
                for number in numbers {
                    *number = f16_to_f32(f32_to_f16(*number));
                }
            }
            Self::Round(Dtype::F32) => {}
        }
    }
}

/// Converts ranges of rows to ranges of values.
fn ends(parts: &[(usize, f64)], shape: &[usize]) -> Result<Vec<(usize, f32)>, Error> {
    let rows = shape.first().copied().unwrap_or(0);
    let row: usize = shape.iter().skip(1).product();
    let mut end = 0_usize;
    let mut ends = Vec::with_capacity(parts.len());
    for &(size, factor) in parts {
        end = end.checked_add(size).filter(|&end| end <= rows).unwrap_or(usize::MAX);
        if end == usize::MAX {
            break;
        }
        ends.push((end * row, factor as f32));
    }
    if end == rows { Ok(ends) } else { Err(Error::Stretches { rows, shape: shape.to_vec() }) }
}
