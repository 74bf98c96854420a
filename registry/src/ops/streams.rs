//! Ops on several residual streams side by side, and the mean of an axis.

use super::{Infer, OpRule, ParamKind, takes_x};
use crate::eval::EvalError;
use crate::graph::show;

pub(super) fn rules() -> Vec<OpRule> {
    let two = takes_x().needs("coefficients", ParamKind::Value);
    let sinkhorn = takes_x().needs("iterations", ParamKind::Dim).needs("eps", ParamKind::Float);
    vec![
        OpRule::new("mix_streams", two.clone(), infer_mix)
            .gives("`[m, d]`")
            .notes("`x [n, d]` by a matrix `[m, n]` of the same row, one rounding"),
        OpRule::new("outer", two, infer_outer)
            .gives("`[n, d]`")
            .notes("`x [d]` times each of n coefficients"),
        OpRule::new("sinkhorn", sinkhorn, infer_sinkhorn).gives("like x").notes(
            "Sinkhorn-Knopp normalization of `x [n, n]`: divided by the sums of its columns, each plus `eps`, \
             then in all `iterations` but the first by the sums of its rows and again of its columns; f32 \
             inside, one rounding",
        ),
        OpRule::new("mean", takes_x().word("over", &["numbers", "heads"]), infer_mean)
            .gives("last axis 1")
            .notes(
                "of the last axis, summed in f32; `over='heads'`: of the axis before the last, \
                 `[.., n, d]` gives `[.., d]`",
            ),
    ]
}

fn infer_mix(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let c = call.input("coefficients")?;
    let (&[from, width], &[to, inner]) = (x.shape.as_slice(), c.shape.as_slice()) else {
        return Err(call
            .misfit("`mix_streams` takes [streams, width] and a matrix", &x, &c)
            .into());
    };
    if inner != from {
        return Err(call.misfit("each row of the matrix has a number per stream", &x, &c).into());
    }
    call.output(vec![to, width], x.dtype);
    Ok(())
}

fn infer_outer(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let c = call.input("coefficients")?;
    let (&[width], &[streams]) = (x.shape.as_slice(), c.shape.as_slice()) else {
        return Err(call.misfit("`outer` takes two values of one axis", &x, &c).into());
    };
    call.output(vec![streams, width], x.dtype);
    Ok(())
}

fn infer_sinkhorn(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    match x.shape[..] {
        [rows, columns] if rows == columns => {}
        _ => {
            return Err(call
                .error("x", "`sinkhorn` takes a square matrix")
                .label(format!("`{}` is {}, expected [n, n]", x.name, show(&x.shape)))
                .into());
        }
    }
    call.dim("iterations")?;
    call.output(x.shape, x.dtype);
    Ok(())
}

fn infer_mean(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    call.drop_defaults(&["over"]);
    let shape = match (call.word("over"), x.shape.as_slice()) {
        (Some("heads"), [outer @ .., _, size]) => [outer, &[*size]].concat(),
        (Some("heads"), _) => {
            return Err(call
                .error("x", "the mean over heads needs an axis before the last")
                .label(format!("`{}` is {}", x.name, show(&x.shape)))
                .help("split the value first: `heads(x, n)`")
                .into());
        }
        (_, [outer @ .., _]) => [outer, &[1]].concat(),
        (_, []) => Vec::new(),
    };
    call.output(shape, x.dtype);
    Ok(())
}
