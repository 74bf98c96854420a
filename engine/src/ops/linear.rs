//! `linear`: a matrix, and a bias perhaps; one rounding after both. `linears` is several with
//! the same input, as a rewrite makes it.

use std::borrow::Cow;

use checkpoints::checkpoint::Rounding;

use super::{Ctx, Kernels};
use crate::Error;
use crate::kernels::matmul::{Linear, MatrixView, matmul, matmul_many};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.add("linear", run);
    kernels.add("linears", run_many);
}

pub(super) fn run(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let weight = ctx.matrix("weight")?;
    check(ctx, x.width(), 0, &weight)?;
    ctx.observe_product("weight", weight.inputs, &x.view());
    let mut y = vec![0.0; x.rows() * weight.outputs];
    let view = x.view();
    let data = ctx.rows_for("weight", weight.inputs, &view);
    matmul(&data, x.rows(), &weight, ctx.vector("bias"), ctx.output_dtype(0), &mut y);
    ctx.set(0, y)
}

/// Weights are `weight.0`, `bias.0`, `weight.1`, ... by output.
pub(super) fn run_many(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let view = x.view();
    let (rows, plain): (usize, &[f32]) = (x.rows(), &view);
    let count = ctx.node().outputs.len();
    let role = |n| format!("weight.{n}");
    // Those that round as the one before share its rows: most often all of them do.
    let mut rounded: Vec<(Option<Rounding>, Cow<'_, [f32]>)> = Vec::new();
    for role in (0..count).map(role) {
        let how = ctx.rounding(&role);
        if rounded.iter().all(|(other, _)| *other != how) {
            rounded.push((how, ctx.rows_for(&role, x.width(), plain)));
        }
    }
    let mut made = Vec::with_capacity(count);
    let mut jobs = Vec::with_capacity(count);
    for n in 0..count {
        let weight = ctx.matrix(&role(n))?;
        check(ctx, x.width(), n, &weight)?;
        made.push(vec![0.0; rows * weight.outputs]);
        let bias = ctx.vector(&format!("bias.{n}"));
        jobs.push((ctx.rounding(&role(n)), weight, bias, ctx.output_dtype(n)));
    }
    for (how, data) in &rounded {
        let alike = jobs.iter().zip(&mut made).filter(|((other, ..), _)| other == how);
        let linears = alike.map(|(&(_, weight, bias, round), y)| Linear { weight, bias, round, y });
        matmul_many(data, rows, &mut linears.collect::<Vec<_>>());
    }
    for (n, y) in made.into_iter().enumerate() {
        ctx.set(n, y)?;
    }
    Ok(())
}

fn check(ctx: &Ctx<'_>, width: usize, n: usize, weight: &MatrixView<'_>) -> Result<(), Error> {
    if weight.inputs == width && weight.outputs == ctx.output_width(n)? {
        return Ok(());
    }
    Err(ctx.error(format!(
        "a weight [{}, {}] does not take {width} numbers to {}",
        weight.outputs,
        weight.inputs,
        ctx.output_width(n)?
    )))
}
