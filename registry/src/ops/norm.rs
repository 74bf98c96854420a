//! Norms over the last axis.

use super::{Infer, Input, OpRule, ParamKind, Signature};
use crate::eval::EvalError;
use crate::scalar::Scalar;

pub(super) fn rules() -> Vec<OpRule> {
    let rms = Signature::new()
        .needs("x", ParamKind::Value)
        .needs("W", ParamKind::Module)
        .needs("eps", ParamKind::Float)
        .word("cast", &["before", "after"])
        .neutral()
        .flag("plus_one", false)
        .flag("weight", true)
        .flag("per_head", false);
    let layer = Signature::new()
        .needs("x", ParamKind::Value)
        .needs("W", ParamKind::Module)
        .needs("eps", ParamKind::Float)
        .flag("bias", true)
        .flag("weight", true)
        .word("cast", &["after", "before"])
        .neutral()
        .flag("per_head", false)
        .takes("each", ParamKind::Word(&["norms"]), Scalar::Null)
        .flag("plus_one", false);
    let gated = Signature::new()
        .needs("x", ParamKind::Value)
        .needs("gate", ParamKind::Value)
        .needs("W", ParamKind::Module)
        .needs("eps", ParamKind::Float)
        .word("order", &["gate_first", "norm_first"])
        .takes("groups", ParamKind::Dim, Scalar::Int(1))
        .word("activation", &["silu", "sigmoid"])
        .word("cast", &["before", "after"])
        .neutral()
        .flag("stepwise", false)
        .neutral();
    let l2 = Signature::new().needs("x", ParamKind::Value).needs("eps", ParamKind::Float);
    vec![
        OpRule::new("rms_norm", rms, infer_rms).gives("like x").notes(
            "over the last axis, statistics in f32. `cast='before'`: round(w * round(x^)); \
                 `'after'`: round(w * x^); `plus_one`: (1 + w); `per_head`: the weight has a part for each \
                 head, `[heads * size]`",
        ),
        OpRule::new("layer_norm", layer, infer_layer).gives("like x").notes(
            "mean and variance in f32 over the last axis. `cast='after'`: round(w * x^ + b); \
                 `'before'`: x^ is rounded first, as in `rms_norm`; `plus_one`: 1 + w, rounded; \
                 `per_head`: weight has x's full shape; `each='norms'`: head h has its own \
                 `W.norms.{h}.weight`",
        ),
        OpRule::new("gated_norm", gated, infer_gated).gives("like x").notes(
            "root mean square per group of the last axis; `order='norm_first'` multiplies by \
                 the gate after the weight; the gate's activation (`silu`, `sigmoid`) stays f32. \
                 `cast` as in `rms_norm`; `stepwise`: x is f32, but in rows that continue a \
                 sequence it counts as of the activation dtype",
        ),
        OpRule::new("l2_norm", l2, |call| {
            let x = normed(call)?;
            call.output(x.shape, x.dtype);
            Ok(())
        })
        .gives("like x")
        .notes(
            "`x / sqrt(mean(x * x) + eps)` over the last axis, as `rms_norm` without a weight: \
                 f32 inside, one rounding. `F.normalize` divides by the root of the sum instead: \
                 scale by `dim ** -0.5`",
        ),
    ]
}

/// Takes the value, and checks the range of the epsilon.
fn normed(call: &mut Infer<'_>) -> Result<Input, EvalError> {
    let x = call.input("x")?;
    let eps = call.float("eps")?;
    if !(0.0..1.0).contains(&eps) {
        return Err(call
            .error("eps", "an epsilon is a small number, 0 or above")
            .label(format!("this is {eps}"))
            .into());
    }
    Ok(x)
}

fn infer_rms(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = normed(call)?;
    if call.flag("weight") {
        let size = if call.flag("per_head") { x.numbers() } else { x.last() };
        call.weight("weight", "W", "weight", &[size])?;
    }
    call.drop_defaults(&["per_head"]);
    call.tap("W");
    call.output(x.shape, x.dtype);
    Ok(())
}

/// Checks a root-mean-square norm with a gate. The weight spans the last axis, or all of the row if the value
/// has heads.
fn infer_gated(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = normed(call)?;
    let gate = call.input("gate")?;
    if gate.numbers() != x.numbers() {
        return Err(call.misfit("the gate is not as large as the value", &x, &gate).into());
    }
    let groups = call.dim("groups")?;
    if groups == 0 || x.last() % groups != 0 {
        return Err(call
            .error("groups", format!("{} numbers do not make {groups} groups", x.last()))
            .into());
    }
    call.weight("weight", "W", "weight", &[x.last()])?;
    call.tap("W");
    call.output(x.shape, x.dtype);
    Ok(())
}

fn infer_layer(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = normed(call)?;
    let parts: Vec<&str> = [("weight", "weight"), ("bias", "bias")]
        .iter()
        .filter(|(_, flag)| call.flag(flag))
        .map(|(p, _)| *p)
        .collect();
    let each = call.word("each").map(str::to_owned);
    if (each.is_some() || call.flag("per_head")) && x.shape.len() != 2 {
        return Err(call
            .error("x", "a norm with weights of each head needs heads")
            .label(format!("this is {}, expected [heads, size]", crate::graph::show(&x.shape)))
            .help("split the value first: `heads(x, n)`")
            .into());
    }
    for part in parts {
        match &each {
            Some(list) => {
                for head in 0..x.shape[0] {
                    call.weight(
                        &format!("{part}.{head}"),
                        "W",
                        &format!("{list}.{head}.{part}"),
                        &[x.last()],
                    )?;
                }
            }
            None if call.flag("per_head") => call.weight(part, "W", part, &x.shape)?,
            None => call.weight(part, "W", part, &[x.last()])?,
        }
    }
    call.drop_defaults(&["plus_one"]);
    call.tap("W");
    call.output(x.shape, x.dtype);
    Ok(())
}
