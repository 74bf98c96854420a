//! Ops that only move numbers.

use super::infer::join;
use super::{Infer, OpRule, ParamKind, Signature, takes_x};
use crate::eval::EvalError;
use crate::graph::show;
use crate::scalar::Scalar;

/// Values one after another along the last axis.
pub const CONCAT: &str = "concat";
/// The last axis as heads.
pub const HEADS: &str = "heads";
/// The last two axes as one.
pub const MERGE: &str = "merge";

pub(super) fn rules() -> Vec<OpRule> {
    let join = takes_x().needs("n", ParamKind::Dim).takes("skip", ParamKind::Int, Scalar::Int(0));
    vec![
        OpRule::new(HEADS, takes_x().needs("n", ParamKind::Dim), infer_heads)
            .gives("`[n, d]`")
            .notes("reshape of the last axis; `merge` undoes it"),
        OpRule::new(MERGE, takes_x(), infer_merge)
            .gives("`[n * d]`")
            .notes("the last two axes as one; undoes `heads`"),
        OpRule::new("split", takes_x().needs("sizes", ParamKind::Sizes), infer_split)
            .gives("several")
            .notes(
                "along the last axis: `split(x, n)` into n equal parts, `split(x, [a, b])` into \
                 these sizes",
            ),
        OpRule::new(CONCAT, Signature::new().needs("parts", ParamKind::Values), infer_concat)
            .gives("the sum of the last axes")
            .notes("along the last axis; all other axes are equal"),
        OpRule::new(
            "slice",
            takes_x().needs("from", ParamKind::Int).needs("to", ParamKind::Int),
            infer_slice,
        )
        .gives("`[to - from]`")
        .notes("along the last axis, `to` not included"),
        OpRule::new("copies", takes_x().needs("n", ParamKind::Dim), infer_copies)
            .gives("`[n, ..]`")
            .notes("x n times, along a new first axis"),
        OpRule::new("join_rows", join, infer_join)
            .gives("`[n, ..]`")
            .notes(
                "all rows of the group of n rows that a row belongs to, along a new first axis. The first \
                 `skip` rows of the sequence belong to no group, and get zeros. A sequence is fed in one \
                 chunk",
            ),
        OpRule::new("regroup", takes_x().needs("n", ParamKind::Dim), infer_regroup)
            .gives("like x")
            .notes(
                "`[n * m, d]` is n groups of m heads and becomes m groups of n: head `i * m + j` \
                 goes to place `j * n + i`; with the number m it is undone",
            ),
    ]
}

fn infer_heads(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let n = call.dim("n")?;
    let last = x.last();
    if last % n != 0 {
        return Err(call
            .error("n", format!("{last} numbers do not divide into {n} heads"))
            .label(format!("`{}` is {}", x.name, show(&x.shape)))
            .into());
    }
    let mut shape = x.shape;
    shape.pop();
    shape.extend([n, last / n]);
    call.output(shape, x.dtype);
    Ok(())
}

/// The most numbers that copies of a row may have.
const MAX_COPIED: usize = 1 << 24;

fn infer_join(call: &mut Infer<'_>) -> Result<(), EvalError> {
    if call.int("skip")? < 0 {
        return Err(call.error("skip", "a number of rows is 0 or above").into());
    }
    call.drop_defaults(&["skip"]);
    infer_copies(call)
}

fn infer_copies(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let n = call.dim("n")?;
    if x.numbers().checked_mul(n).is_none_or(|numbers| numbers > MAX_COPIED) {
        return Err(call
            .error("n", format!("copies have at most {MAX_COPIED} numbers"))
            .label(format!("{n} times {}", show(&x.shape)))
            .into());
    }
    call.output([&[n][..], &x.shape].concat(), x.dtype);
    Ok(())
}

fn infer_regroup(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let n = call.dim("n")?;
    let [heads, _] = x.shape[..] else {
        return Err(call
            .error("x", "`regroup` moves heads")
            .label(format!("`{}` is {}, expected [heads, size]", x.name, show(&x.shape)))
            .help("split the value first: `heads(x, n)`")
            .into());
    };
    if n == 0 || heads % n != 0 {
        return Err(call.error("n", format!("{heads} heads are no {n} groups")).into());
    }
    call.output(x.shape, x.dtype);
    Ok(())
}

fn infer_merge(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let [outer @ .., n, d] = x.shape.as_slice() else {
        return Err(call
            .error("x", "there are no two axes to merge")
            .label(format!("`{}` is {}", x.name, show(&x.shape)))
            .into());
    };
    let shape = outer.iter().copied().chain([n * d]).collect();
    call.output(shape, x.dtype);
    Ok(())
}

fn infer_split(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let last = x.last();
    let sizes = if call.is_list("sizes") {
        let sizes = call.dims("sizes")?;
        let sum = sizes.iter().fold(0, |sum: usize, size| sum.saturating_add(*size));
        if sum != last {
            return Err(call
                .error("sizes", format!("the sizes add up to {sum}, and `{}` has {last}", x.name))
                .label(show(&sizes))
                .into());
        }
        sizes
    } else {
        let n = call.dim("sizes")?;
        if last % n != 0 {
            return Err(call
                .error("sizes", format!("{last} numbers do not split into {n} equal parts"))
                .label(format!("`{}` is {}", x.name, show(&x.shape)))
                .into());
        }
        vec![last / n; n]
    };
    call.set_attr(
        "sizes",
        Scalar::List(sizes.iter().map(|size| Scalar::Int(*size as i64)).collect()),
    );
    for size in sizes {
        let mut shape = x.shape.clone();
        shape.pop();
        shape.push(size);
        call.output(shape, x.dtype);
    }
    Ok(())
}

fn infer_concat(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let parts = call.inputs("parts")?;
    let Some((first, remaining)) = parts.split_first() else {
        return Err(call.error("parts", "there is nothing to concatenate").into());
    };
    let mut shape = first.shape.clone();
    let mut dtype = first.dtype;
    for part in remaining {
        let axes = shape.len();
        if part.shape.len() != axes || axes == 0 || part.shape[..axes - 1] != shape[..axes - 1] {
            return Err(call
                .misfit("only the last axis may differ in `concat`", first, part)
                .into());
        }
        shape[axes - 1] += part.last();
        dtype = join(dtype, part.dtype);
    }
    call.output(shape, dtype);
    Ok(())
}

fn infer_slice(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let from = call.int("from")?;
    let to = call.int("to")?;
    let last = x.last() as i64;
    if !(0 <= from && from < to && to <= last) {
        return Err(call
            .error("to", format!("the slice {from} to {to} is not within 0 to {last}"))
            .label(format!("`{}` is {}", x.name, show(&x.shape)))
            .into());
    }
    let mut shape = x.shape;
    shape.pop();
    shape.push((to - from) as usize);
    call.output(shape, x.dtype);
    Ok(())
}
