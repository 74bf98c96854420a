//! `linear`: a matrix, and a bias perhaps; one rounding after both. `linears` is several with
//! the same input, as a rewrite makes it.

use std::borrow::Cow;

use checkpoints::checkpoint::Rounding;
use rayon::prelude::*;
use registry::dtype::Dtype;

use super::{Args, Ctx, Kernels};
use crate::Error;
use crate::kernels::matmul::{Linear, MatrixView, matmul, matmul_many};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("linear", |args| {
        expect_product(args, 0, "weight", "bias")?;
        Ok(run as Run)
    });
    kernels.prepared("linears", |args| {
        expect_products(args)?;
        Ok(run_many as Run)
    });
}

/// A kernel that reads nothing but its context.
type Run = fn(&mut Ctx<'_>) -> Result<(), Error>;

/// Checks the matrix and the bias of an output.
pub(super) fn expect_product(
    args: &Args<'_>,
    n: usize,
    weight: &str,
    bias: &str,
) -> Result<(), Error> {
    let inputs = args.width(0)?;
    let outputs: usize = args.output(n)?.iter().product();
    let shape = args.weight(weight).unwrap_or_default();
    if shape != [outputs, inputs] {
        return Err(
            args.error(format!("a weight {shape:?} does not take {inputs} numbers to {outputs}"))
        );
    }
    if !args.may_have(bias, outputs) {
        let numbers = args.numbers(bias);
        return Err(args.error(format!("a bias of {numbers} numbers for {outputs} outputs")));
    }
    Ok(())
}

/// Checks the matrices and biases of all outputs, which are `weight.0`, `bias.0`, `weight.1`, ...
pub(super) fn expect_products(args: &Args<'_>) -> Result<(), Error> {
    (0..args.node().outputs.len())
        .try_for_each(|n| expect_product(args, n, &format!("weight.{n}"), &format!("bias.{n}")))
}

fn run(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let matrix = ctx.matrix("weight")?;
    let weight = matrix.view();
    ctx.observe_product("weight", weight.inputs, &x.view());
    let mut y = vec![0.0; x.rows() * weight.outputs];
    let view = x.view();
    let data = ctx.rows_for("weight", weight.inputs, &view);
    matmul(&data, x.rows(), &weight, ctx.vector("bias"), ctx.output_dtype(0), &mut y);
    ctx.set(0, y)
}

/// One output of a joined op: a matrix, its bias, and the grid of the results.
struct LinearOutput<'a> {
    n: usize,
    weight: MatrixView<'a>,
    bias: Option<&'a [f32]>,
    round: Dtype,
}

/// Weights are `weight.0`, `bias.0`, `weight.1`, ... by output.
fn run_many(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let view = x.view();
    let plain: &[f32] = &view;
    let rows = x.rows();
    let roles: Vec<String> = (0..ctx.node().outputs.len()).map(|n| format!("weight.{n}")).collect();
    // Those that round as the one before share its rows: most often all of them do.
    let mut rounded: Vec<(Option<Rounding>, Cow<'_, [f32]>)> = Vec::new();
    for role in &roles {
        let how = ctx.rounding(role);
        if rounded.iter().all(|(other, _)| *other != how) {
            rounded.push((how, ctx.rows_for(role, x.width(), plain)));
        }
    }
    // Products in integers share the codes of their rows; others run side by side.
    let matrices = roles.iter().map(|role| ctx.matrix(role)).collect::<Result<Vec<_>, _>>()?;
    let mut calls: Vec<(Option<Rounding>, Vec<LinearOutput<'_>>)> = Vec::new();
    for (n, matrix) in matrices.iter().enumerate() {
        let weight = matrix.view();
        let how = ctx.rounding(&roles[n]);
        let bias = ctx.vector(&format!("bias.{n}"));
        let output = LinearOutput { n, weight, bias, round: ctx.output_dtype(n) };
        let call = calls.iter_mut().find(|(other, outputs)| {
            *other == how
                && weight.is_packed()
                && outputs.iter().all(|output| output.weight.is_packed())
        });
        match call {
            Some((_, outputs)) => outputs.push(output),
            None => calls.push((how, vec![output])),
        }
    }
    // Each thread clears its own results: for a long prompt that takes as long as a product of few rows.
    let results: Vec<Vec<Vec<f32>>> = calls
        .par_iter()
        .map(|(how, outputs)| {
            let data = rounded.iter().find(|(other, _)| other == how);
            let mut results: Vec<Vec<f32>> =
                outputs.iter().map(|output| vec![0.0; rows * output.weight.outputs]).collect();
            let linears = outputs.iter().zip(&mut results).map(|(output, y)| {
                let LinearOutput { weight, bias, round, .. } = *output;
                Linear { weight, bias, round, y }
            });
            matmul_many(
                data.map_or(plain, |(_, rows)| rows),
                rows,
                &mut linears.collect::<Vec<_>>(),
            );
            results
        })
        .collect();
    let outputs = calls.iter().flat_map(|(_, outputs)| outputs);
    for (output, y) in outputs.zip(results.into_iter().flatten()) {
        ctx.set(output.n, y)?;
    }
    Ok(())
}
