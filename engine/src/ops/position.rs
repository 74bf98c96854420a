//! Ops that depend on a row's position alone: `position_embed`, `sinusoid`, `temperature`, `zero_first`.

use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::round::{round, round1};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("position_embed", PositionEmbed::prepare);
    kernels.prepared("sinusoid", Sinusoid::prepare);
    kernels.prepared("temperature", Temperature::prepare);
    kernels.add("zero_first", zero_first);
}

/// Returns the position of every row of the step.
pub(super) fn positions(ctx: &Ctx<'_>) -> Vec<usize> {
    let rows = ctx.chunks().iter().map(|c| c.rows.end).max().unwrap_or(0);
    let mut positions = vec![0; rows];
    let first = ctx.first_position();
    for chunk in ctx.chunks() {
        for (row, position) in chunk.rows.clone().zip(chunk.positions().flatten()) {
            positions[row] = first + position;
        }
    }
    positions
}

/// Sets the first row of each sequence to 0.
pub(super) fn zero_first(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let width = x.width();
    let mut data = x.to_vec();
    if ctx.chunks().iter().map(|chunk| chunk.rows.end).max() != Some(x.rows()) {
        return Err(ctx.error("it stands where rows of the step are left out"));
    }
    for chunk in ctx.chunks().iter().filter(|chunk| chunk.start == 0) {
        let at = chunk.rows.start * width;
        data[at..at + width].fill(0.0);
    }
    ctx.set(0, data)
}

/// One row of a matrix per position.
pub(super) struct PositionEmbed {
    pub(super) offset: usize,
}

impl PositionEmbed {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self { offset: args.count("offset")? })
    }
}

impl Kernel for PositionEmbed {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let matrix = ctx.matrix("weight")?;
        let weight = matrix.view();
        let width = ctx.output_width(0)?;
        if weight.inputs != width {
            return Err(ctx.error(format!("its weight has rows of {}, not {width}", weight.inputs)));
        }
        let offset = self.offset;
        let dtype = ctx.output_dtype(0);
        let positions = positions(ctx);
        let mut data = vec![0.0; positions.len() * width];
        for (position, row) in positions.into_iter().zip(data.chunks_exact_mut(width)) {
            let at = position.saturating_add(offset);
            if at >= weight.outputs {
                return Err(ctx.error(format!(
                    "position {position} is past the last that the model has learned"
                )));
            }
            weight.widen_row(at, row);
            round(dtype, row);
        }
        ctx.set(0, data)
    }
}

/// Sines of all frequencies, then cosines.
pub(super) struct Sinusoid {
    frequencies: Vec<f32>,
    offset: usize,
}

impl Sinusoid {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let frequencies = args.numbers_or_null("frequencies")?;
        Ok(Self {
            frequencies: frequencies.ok_or_else(|| args.error("it has no frequencies"))?,
            offset: args.count("offset")?,
        })
    }
}

impl Sinusoid {
    /// Computes the rows of the step.
    pub(super) fn rows(&self, ctx: &Ctx<'_>) -> Result<Vec<f32>, Error> {
        let width = ctx.output_width(0)?;
        let half = width / 2;
        let Self { frequencies, offset } = self;
        if frequencies.len() != half {
            return Err(ctx.error(format!("it needs {half} frequencies")));
        }
        let dtype = ctx.output_dtype(0);
        let positions = positions(ctx);
        let mut data = vec![0.0; positions.len() * width];
        for (position, row) in positions.into_iter().zip(data.chunks_exact_mut(width.max(1))) {
            let position = position.saturating_add(*offset) as f32;
            for (n, frequency) in frequencies.iter().enumerate() {
                let angle = position * frequency;
                row[n] = angle.sin();
                row[half + n] = angle.cos();
            }
            round(dtype, row);
        }
        Ok(data)
    }
}

impl Kernel for Sinusoid {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let data = self.rows(ctx)?;
        ctx.set(0, data)
    }
}

/// The growth of a factor with positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    /// `1 + scale * ln(1 + floor((position + shift) / every))`.
    Log,
    /// `(1 + (position + shift) / every) ** scale`.
    Power,
    /// `1 + scale * ln(max((position + shift) / every, 1))`.
    LogRatio,
}

/// A value times a factor that grows with the position: queries far along are sharper.
pub(super) struct Temperature {
    scale: f32,
    every: f32,
    shift: f32,
    wide: bool,
    growth: Growth,
}

impl Temperature {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self {
            scale: args.number("scale")?,
            every: args.number("every")?,
            shift: args.number("shift")?,
            wide: args.one_of("factor", &[("rounded", false), ("f32", true)])?,
            growth: args.one_of(
                "form",
                &[("log", Growth::Log), ("power", Growth::Power), ("log_ratio", Growth::LogRatio)],
            )?,
        })
    }

    /// Computes the factor of a position.
    fn factor(&self, position: usize) -> f32 {
        let ratio = (position as f32 + self.shift) / self.every;
        match self.growth {
            Growth::Log => 1.0 + self.scale * (1.0 + ratio.floor()).ln(),
            // As the reference computes the power; `powf` rounds otherwise.
            Growth::Power => (self.scale * ratio.ln_1p()).exp(),
            Growth::LogRatio => 1.0 + self.scale * ratio.max(1.0).ln(),
        }
    }

    /// Computes the factors of the step's rows, of which there are `rows`.
    pub(super) fn factors(&self, ctx: &Ctx<'_>, rows: usize) -> Result<Vec<f32>, Error> {
        let grid = if self.wide { registry::dtype::Dtype::F32 } else { ctx.output_dtype(0) };
        let positions = positions(ctx);
        let factors: Vec<f32> =
            positions.into_iter().map(|position| round1(grid, self.factor(position))).collect();
        if factors.len() == rows {
            return Ok(factors);
        }
        Err(ctx.error("it stands where rows of the step are left out"))
    }
}

impl Kernel for Temperature {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let dtype = ctx.output_dtype(0);
        let factors = self.factors(ctx, x.rows())?;
        let y = rows::map(&x.view(), x.width(), x.width(), |row, x, y| {
            y.iter_mut().zip(x).for_each(|(y, x)| *y = x * factors[row]);
            round(dtype, y);
        });
        ctx.set(0, y)
    }
}

#[cfg(test)]
mod tests {
    use super::{Growth, Temperature};

    #[test]
    fn factors_grow_with_positions() {
        let log =
            Temperature { scale: 0.5, every: 4.0, shift: 0.0, wide: true, growth: Growth::Log };
        assert_eq!([0, 3, 4].map(|at| log.factor(at)), [1.0, 1.0, 1.0 + 0.5 * 2.0_f32.ln()]);
        let power = Temperature { shift: 1.0, growth: Growth::Power, ..log };
        for (at, want) in [(0, 1.25_f32.sqrt()), (2, 1.75_f32.sqrt()), (3, 2.0_f32.sqrt())] {
            assert!((power.factor(at) - want).abs() < 1e-6, "{at}");
        }
        let ratio = Temperature { shift: 1.0, growth: Growth::LogRatio, ..log };
        assert_eq!([0, 3, 9].map(|at| ratio.factor(at)), [1.0, 1.0, 1.0 + 0.5 * 2.5_f32.ln()]);
    }
}
