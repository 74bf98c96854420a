//! Ops that depend on a row's position alone: `position_embed`, `sinusoid`, `temperature`, `zero_first`.

use super::embed::Table;
use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::round::{round, round1};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("position_embed", PositionEmbed::prepare);
    kernels.prepared("sinusoid", Sinusoid::prepare);
    kernels.prepared("temperature", Temperature::prepare);
    kernels.prepared("zero_first", ZeroFirst::prepare);
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
pub(super) struct ZeroFirst {
    pub(super) width: usize,
}

impl ZeroFirst {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let width = args.width(0)?;
        args.expect_output(width)?;
        Ok(Self { width })
    }

    /// Returns the first rows of sequences among `rows` of the step.
    pub(super) fn first_rows(ctx: &Ctx<'_>, rows: usize) -> Result<Vec<usize>, Error> {
        if ctx.chunks().iter().map(|chunk| chunk.rows.end).max() != Some(rows) {
            return Err(ctx.error("it stands where rows of the step are left out"));
        }
        let begun = ctx.chunks().iter().filter(|chunk| chunk.start == 0);
        Ok(begun.map(|chunk| chunk.rows.start).collect())
    }
}

impl Kernel for ZeroFirst {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let mut data = x.to_vec();
        for row in Self::first_rows(ctx, x.rows())? {
            data[row * self.width..][..self.width].fill(0.0);
        }
        ctx.set(0, data)
    }
}

/// One row of a matrix per position.
pub(super) struct PositionEmbed {
    table: Table,
    offset: usize,
}

impl PositionEmbed {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self { table: Table::of(args)?, offset: args.count("offset")? })
    }

    /// Returns the row of each position of the step.
    pub(super) fn places(&self, ctx: &Ctx<'_>) -> Result<Vec<usize>, Error> {
        let places = positions(ctx).into_iter().map(|position| {
            let place = position.saturating_add(self.offset);
            let past = || {
                ctx.error(format!(
                    "position {position} is past the last that the model has learned"
                ))
            };
            (place < self.table.rows).then_some(place).ok_or_else(past)
        });
        places.collect()
    }
}

impl Kernel for PositionEmbed {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let matrix = ctx.matrix("weight")?;
        let weight = matrix.view();
        let width = self.table.width;
        let dtype = ctx.output_dtype(0);
        let places = self.places(ctx)?;
        let mut data = vec![0.0; places.len() * width];
        for (place, row) in places.into_iter().zip(data.chunks_exact_mut(width)) {
            weight.widen_row(place, row);
            round(dtype, row);
        }
        ctx.set(0, data)
    }
}

/// Sines of all frequencies, then cosines.
pub(super) struct Sinusoid {
    frequencies: Vec<f32>,
    offset: usize,
    width: usize,
}

impl Sinusoid {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let width = args.output(0)?.iter().product();
        let frequencies = args.numbers_or_null("frequencies")?.unwrap_or_default();
        if width == 0 || frequencies.len() != width / 2 {
            return Err(args.error(format!("it needs {} frequencies", width / 2)));
        }
        Ok(Self { frequencies, offset: args.count("offset")?, width })
    }

    /// Computes the rows of the step.
    pub(super) fn rows(&self, ctx: &Ctx<'_>) -> Vec<f32> {
        let &Self { ref frequencies, offset, width } = self;
        let half = width / 2;
        let dtype = ctx.output_dtype(0);
        let positions = positions(ctx);
        let mut data = vec![0.0; positions.len() * width];
        for (position, row) in positions.into_iter().zip(data.chunks_exact_mut(width)) {
            let position = position.saturating_add(offset) as f32;
            for (n, frequency) in frequencies.iter().enumerate() {
                let angle = position * frequency;
                row[n] = angle.sin();
                row[half + n] = angle.cos();
            }
            round(dtype, row);
        }
        data
    }
}

impl Kernel for Sinusoid {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let data = self.rows(ctx);
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
        args.expect_output(args.width(0)?)?;
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
