//! Ops that routers are made of: scores, the choice of a few, and their weights.
//!
//! A router is a short program of these (`registry/lib/moe.yaml`): what differs between
//! families is which score, in which dtype, chosen and shared out how.
//!
//! A new router needs no Rust ([decision 11](../../../docs/decisions/0011-routers-from-small-ops.md)).

use super::arithmetic::raw_weight;
use super::infer::join;
use super::{Infer, OpRule, ParamKind, Signature, Trait, takes_x};
use crate::dtype::{Dtype, DtypeRule};
use crate::eval::EvalError;
use crate::graph::show;

/// The role of a weight that may be stored as integers.
pub const INTEGERS: &str = "integers";

/// A value plus a raw tensor.
pub const WEIGHT_ADD: &str = "weight_add";

pub(super) fn rules() -> Vec<OpRule> {
    let choose = takes_x()
        .needs("k", ParamKind::Dim)
        .may("groups", ParamKind::Dim)
        .may("keep", ParamKind::Dim)
        .word("by", &["top2", "max"])
        .word("mask", &["lowest", "zero"]);
    let norm = takes_x()
        .needs("p", ParamKind::Float)
        .word("of", &["row", "heads"])
        .word("least", &["none", "epsilon"]);
    let by_token = Signature::new()
        .needs("tokens", ParamKind::Tokens)
        .needs("P", ParamKind::Tensor)
        .needs("n", ParamKind::Dim)
        .needs("k", ParamKind::Dim)
        .needs("of", ParamKind::Dim);
    vec![
        OpRule::new("softmax", takes_x(), infer_softmax)
            .is_a(&[Trait::RowFunction])
            .gives("like x")
            .notes("over the last axis, f32 inside, one rounding"),
        OpRule::new("total", takes_x().word("of", &["row", "heads"]), infer_total)
            .gives("`[1]`, or last axis 1")
            .notes("the sum of all numbers of a row, f32 inside, one rounding; `of='heads'`: of the last axis"),
        OpRule::new("p_norm", norm, infer_p_norm).gives("`[1]`, or last axis 1").notes(
            "the p-norm of all numbers of a row, f32 inside, one rounding; `of='heads'`: of the \
                 last axis; `least='epsilon'`: at least the epsilon of its dtype",
        ),
        OpRule::new("choose", choose, infer_choose).is_a(&[Trait::Chooses]).gives("`[k]`").notes(
            "the places of the k largest of `[n]`, the largest first, of equal ones the first. \
                 With `groups` only those in the best `keep` groups count (a group counts the sum \
                 of its two best, or `by='max'` its best); `mask='zero'`: the others' numbers \
                 become 0 and can be chosen",
        ),
        OpRule::new("choose_by_token", by_token, infer_by_token)
            .is_a(&[Trait::FromTokens])
            .gives("`[k]`")
            .notes(
                "row `token` of the integers `P [n, k]`, which are below `of`; NaN for numbers that are no \
                 such integers. P is `kept` in f32, and may be stored as integers",
            ),
        OpRule::new("pick", takes_x().needs("chosen", ParamKind::Value), infer_pick)
            .gives("like chosen")
            .notes("the numbers of `[n]` at the places that `choose` gave"),
        OpRule::new(
            "near_shares",
            takes_x().needs("chosen", ParamKind::Value).needs("margin", ParamKind::Float),
            infer_near_shares,
        )
        .gives("like chosen")
        .notes(
            "for each choice its softmax among the scores that were not chosen before it and \
                 are nearly as large: `(best - score) / max(abs(score), best)` is not above the \
                 margin; every step rounded",
        ),
        OpRule::new(
            WEIGHT_ADD,
            takes_x()
                .needs("P", ParamKind::Tensor)
                .needs("shape", ParamKind::Shape)
                .may("tap", ParamKind::Module),
            infer_weight_add,
        )
        .gives("like x")
        .notes(
            "plus a raw tensor; f32 after adding one that is `kept` so; `tap` is the module \
                 that gives the sum",
        ),
        OpRule::new(
            "weight_blend",
            takes_x()
                .needs("y", ParamKind::Value)
                .needs("P", ParamKind::Tensor)
                .needs("shape", ParamKind::Shape),
            infer_weight_blend,
        )
        .gives("like x")
        .notes("`x * P + y * (1 - P)` of a raw tensor, a rounding after every step"),
    ]
}

fn infer_weight_blend(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let y = call.input("y")?;
    if x.shape != y.shape {
        return Err(call.misfit("the two sides differ in shape", &x, &y).into());
    }
    raw_weight(call, &x.shape)?;
    call.output(x.shape, join(x.dtype, y.dtype));
    Ok(())
}

fn infer_softmax(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    call.output(x.shape, x.dtype);
    Ok(())
}

fn infer_total(call: &mut Infer<'_>) -> Result<(), EvalError> {
    call.drop_defaults(&["of"]);
    let x = call.input("x")?;
    let shape = match (call.word("of"), x.shape.as_slice()) {
        (Some("heads"), [outer @ .., _]) => [outer, &[1]].concat(),
        _ => vec![1],
    };
    call.output(shape, x.dtype);
    Ok(())
}

fn infer_p_norm(call: &mut Infer<'_>) -> Result<(), EvalError> {
    if call.float("p")? <= 0.0 {
        return Err(call.error("p", "the order of a norm is above 0").into());
    }
    call.drop_defaults(&["least"]);
    infer_total(call)
}

fn infer_choose(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let [n] = x.shape[..] else {
        return Err(call
            .error("x", "a choice is made among numbers of one axis")
            .label(format!("`{}` is {}", x.name, show(&x.shape)))
            .into());
    };
    let k = call.dim("k")?;
    let mut among = n;
    if call.given("groups") || call.given("keep") {
        if !(call.given("groups") && call.given("keep")) {
            return Err(call
                .error("groups", "`groups` says how many there are, and `keep` how many are kept")
                .label("one of the two is missing")
                .into());
        }
        let groups = call.dim("groups")?;
        let keep = call.dim("keep")?;
        let size = n / groups;
        let least = if call.word("by") == Some("max") { 1 } else { 2 };
        if n % groups != 0 || size < least || keep > groups {
            return Err(call
                .error(
                    "groups",
                    format!("{n} numbers do not make {groups} groups of which {keep} are kept"),
                )
                .label(format!(
                    "equal groups of at least {least} are needed, and no more kept than there are"
                ))
                .into());
        }
        // With a mask of zero the others can still be chosen.
        if call.word("mask") != Some("zero") {
            among = size * keep;
        }
    }
    if k > among {
        return Err(call
            .error("k", format!("{k} cannot be chosen among {among}"))
            .label(format!("`{}` is {}", x.name, show(&x.shape)))
            .into());
    }
    // Integers below 2^24, which f32 holds.
    call.output(vec![k], DtypeRule::Fixed(Dtype::F32));
    Ok(())
}

fn infer_by_token(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let _tokens = call.input("tokens")?;
    let n = call.dim("n")?;
    let k = call.dim("k")?;
    call.dim("of")?;
    call.weight(INTEGERS, "P", "", &[n, k])?;
    if call.weight_dtype(INTEGERS) != DtypeRule::Fixed(Dtype::F32) {
        return Err(call
            .error("P", "integers are kept in f32, which holds all below 2^24")
            .help("add the tensor to `f32` of `kept:`")
            .into());
    }
    call.output(vec![k], DtypeRule::Fixed(Dtype::F32));
    Ok(())
}

fn infer_pick(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let chosen = call.input("chosen")?;
    if x.shape.len() != 1 || chosen.shape.len() != 1 {
        return Err(call
            .misfit("numbers of one axis are picked by others of one axis", &x, &chosen)
            .into());
    }
    call.output(chosen.shape, x.dtype);
    Ok(())
}

fn infer_near_shares(call: &mut Infer<'_>) -> Result<(), EvalError> {
    if call.float("margin")? < 0.0 {
        return Err(call.error("margin", "a margin is not below 0").into());
    }
    infer_pick(call)
}

fn infer_weight_add(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    raw_weight(call, &x.shape)?;
    let weight_dtype = call.weight_dtype("weight");
    call.tap("tap");
    call.drop_attr("tap");
    call.output(x.shape, join(x.dtype, weight_dtype));
    Ok(())
}
