//! `expert_linear`: a matrix for each choice of a row. Rows are gathered by expert, so that a weight is read once in a
//! step and only if a row wants it.

use rayon::prelude::*;

use super::experts::{ExpertUses, expert_product};
use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;
use crate::kernels::round::round1;
use crate::value::GraphValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("expert_linear", ExpertLinear::prepare);
}

/// The sizes of the matrices.
pub(super) struct ExpertLinear {
    pub(super) n: usize,
    pub(super) outputs: usize,
}

/// The sizes of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExpertLinearSizes {
    /// Choices of a row.
    pub(super) k: usize,
    /// Numbers that a matrix is multiplied with.
    pub(super) inputs: usize,
    /// Choices that share a row of the input.
    pub(super) share: usize,
}

impl ExpertLinear {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self { n: args.count("n")?, outputs: args.count("out")? })
    }

    /// Returns the sizes for an input and choices of these shapes, and the shape of the weights of a sum.
    pub(super) fn sizes(
        x: &[usize],
        chosen: &[usize],
        weights: Option<&[usize]>,
    ) -> Result<ExpertLinearSizes, String> {
        let &[rows, k] = chosen else {
            return Err(format!("choices {chosen:?} are no rows of choices"));
        };
        let &[x_rows, .., inputs] = x else {
            return Err(format!("values {x:?} are no rows"));
        };
        let is_per_choice = x.len() == 3 && x[1] == k;
        if rows != x_rows || k == 0 || (x.len() != 2 && !is_per_choice) {
            return Err(format!("choices {chosen:?} do not fit {x:?}"));
        }
        if weights.is_some_and(|weights| weights != chosen) {
            return Err(format!("weights {weights:?} do not fit choices {chosen:?}"));
        }
        Ok(ExpertLinearSizes { k, inputs, share: if is_per_choice { 1 } else { k } })
    }
}

impl Kernel for ExpertLinear {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let chosen = ctx.input(1)?;
        let weights = (ctx.node().inputs.len() > 2).then(|| ctx.input(2)).transpose()?;
        let shape = weights.as_ref().map(GraphValue::shape);
        let sizes = Self::sizes(x.shape(), chosen.shape(), shape).map_err(|why| ctx.error(why))?;
        let ExpertLinearSizes { k, inputs, share } = sizes;
        let outputs = self.outputs;
        let dtype = ctx.output_dtype(0);
        let ExpertUses { uses, lost } = ExpertUses::of(ctx, &chosen.view(), k, self.n)?;
        let view = x.view();
        let rows: &[f32] = &view;
        let here = &*ctx;
        let products: Vec<Vec<f32>> = uses
            .par_iter()
            .map(|(expert, uses)| {
                let pairs = uses.iter().map(|(_, at)| &rows[at / share * inputs..][..inputs]);
                let gathered = pairs.collect::<Vec<_>>().concat();
                expert_product(here, ("up", *expert), [outputs, inputs], &gathered, dtype)
            })
            .collect::<Result<_, Error>>()?;
        let factors = weights.as_ref().map(GraphValue::view);
        let results = if factors.is_some() { chosen.rows() } else { chosen.rows() * k };
        let mut out = vec![0.0; results * outputs];
        for ((_, uses), products) in uses.iter().zip(&products) {
            for (&(row, at), y) in uses.iter().zip(products.chunks_exact(outputs)) {
                match &factors {
                    None => out[at * outputs..][..outputs].copy_from_slice(y),
                    Some(factors) => {
                        let sums = &mut out[row * outputs..][..outputs];
                        for (sum, y) in sums.iter_mut().zip(y) {
                            *sum = round1(dtype, *sum + round1(dtype, y * factors[at]));
                        }
                    }
                }
            }
        }
        let width = results / chosen.rows().max(1) * outputs;
        for row in lost {
            out[row * width..(row + 1) * width].fill(f32::NAN);
        }
        ctx.set(0, out)
    }
}
