//! `expert_linear`: a matrix for each choice of a row. Rows are gathered by expert, so that a weight is read once in a
//! step and only if a row wants it.

use rayon::prelude::*;

use super::experts::{ExpertUses, expect_matrices, expert_product};
use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;
use crate::kernels::round::round1;
use crate::value::GraphValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("expert_linear", ExpertLinear::prepare);
}

/// Sizes of the matrices and of the choices.
pub(super) struct ExpertLinear {
    pub(super) n: usize,
    pub(super) outputs: usize,
    /// Numbers that a matrix is multiplied with.
    pub(super) inputs: usize,
    /// Choices of a row.
    pub(super) k: usize,
    /// Choices that share a row of the input.
    pub(super) share: usize,
    /// True if the products of a row are added, each with a weight.
    pub(super) is_summed: bool,
}

impl ExpertLinear {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let n = args.count("n")?;
        let outputs = args.count("out")?;
        let chosen = args.input(1)?;
        let &[k] = chosen else {
            return Err(args.error(format!("choices {chosen:?} are no rows of choices")));
        };
        let (inputs, share) = match *args.input(0)? {
            [inputs] => (inputs, k),
            [count, inputs] if count == k => (inputs, 1),
            ref x => return Err(args.error(format!("choices {chosen:?} do not fit {x:?}"))),
        };
        let is_summed = args.node().inputs.len() > 2;
        if k == 0 || (is_summed && args.input(2)? != chosen) {
            return Err(args.error(format!("its weights do not fit choices {chosen:?}")));
        }
        expect_matrices(args, "up", n, [outputs, inputs])?;
        args.expect_output(if is_summed { outputs } else { k * outputs })?;
        Ok(Self { n, outputs, inputs, k, share, is_summed })
    }
}

impl Kernel for ExpertLinear {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let chosen = ctx.input(1)?;
        let weights = self.is_summed.then(|| ctx.input(2)).transpose()?;
        let &Self { outputs, inputs, k, share, .. } = self;
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
