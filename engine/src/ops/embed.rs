//! `embed`: one row of a matrix per token.

use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;
use crate::kernels::round::{round, round1};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("embed", Embed::prepare);
}

/// The rows of a matrix, one per token.
pub(super) struct Embed {
    table: Table,
    pub(super) scale: Option<f32>,
    pub(super) rounds: bool,
    pub(super) first: bool,
}

impl Embed {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self {
            table: Table::of(args)?,
            scale: args.number_or_null("scale")?,
            rounds: args.one_of("round", &[("activation", true), ("none", false)])?,
            first: args.one_of("outside", &[("error", false), ("first", true)])?,
        })
    }

    /// Returns the row of each token of the step.
    pub(super) fn places(&self, ctx: &Ctx<'_>) -> Result<Vec<u32>, Error> {
        let rows = self.table.rows;
        let places = ctx.tokens().iter().map(|&token| match token as usize {
            at if at < rows => Ok(token),
            _ if self.first => Ok(0),
            _ => Err(ctx.error(format!("token {token} is not below {rows}"))),
        });
        places.collect()
    }
}

/// Sizes of a matrix whose rows are looked up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    pub(super) rows: usize,
    pub(super) width: usize,
}

impl Table {
    pub(super) fn of(args: &Args<'_>) -> Result<Self, Error> {
        let Some(&[rows, width]) = args.weight("weight") else {
            return Err(args.error("its weight is no matrix"));
        };
        args.expect_output(width)?;
        Ok(Self { rows, width })
    }
}

impl Kernel for Embed {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let matrix = ctx.matrix("weight")?;
        let weight = matrix.view();
        let width = self.table.width;
        let dtype = ctx.output_dtype(0);
        // The factor may itself be a number of the activation dtype.
        let scale =
            self.scale.map(|s: f32| if self.rounds { round1(ctx.activation(), s) } else { s });
        let places = self.places(ctx)?;
        let mut data = vec![0.0; places.len() * width];
        for (place, row) in places.into_iter().zip(data.chunks_exact_mut(width)) {
            weight.widen_row(place as usize, row);
            round(dtype, row);
            if let Some(scale) = scale {
                for x in row.iter_mut() {
                    *x *= scale;
                }
                round(dtype, row);
            }
        }
        ctx.set(0, data)
    }
}
