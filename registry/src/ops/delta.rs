//! The gated delta rule and its decay.

use super::{Infer, OpRule, ParamKind, Signature, Trait};
use crate::dtype::{Dtype, DtypeRule};
use crate::eval::EvalError;
use crate::graph::StateKind;
use crate::graph::show;

/// The logarithm of a decay.
pub const LOG_DECAY: &str = "log_decay";

pub(super) fn rules() -> Vec<OpRule> {
    let decay = Signature::new()
        .needs("x", ParamKind::Value)
        .needs("A", ParamKind::Tensor)
        .needs("dt", ParamKind::Tensor)
        .may("floor", ParamKind::Float);
    let rule = Signature::new()
        .needs("q", ParamKind::Value)
        .needs("k", ParamKind::Value)
        .needs("v", ParamKind::Value)
        .needs("g", ParamKind::Value)
        .needs("beta", ParamKind::Value)
        .needs("state", ParamKind::State)
        .needs("scale", ParamKind::Float)
        .may("eps", ParamKind::Float)
        .word("norm", &["multiply", "divide"]);
    vec![
        OpRule::new(LOG_DECAY, decay, infer_decay).gives("like x, f32").notes(
            "raw tensors `A [heads]`, `dt` of x's size: `-exp(A) * softplus(x + dt)`, or \
                 `floor * sigmoid(exp(A) * (x + dt))`, in f32",
        ),
        OpRule::new("delta_rule", rule, infer_rule)
            .is_a(&[Trait::KeepsState])
            .gives("like v")
            .notes(
                "gated delta rule, f32 inside, one rounding: per head of `v [heads, d]`, `S = \
                 exp(g) * S`, `S += k * (beta * (v - k S))`, `y = scale * q S`; `g` is `[heads]` \
                 or `[heads, size of k]`; several value heads may share a head of q and k; with \
                 `eps` q and k are first divided by `sqrt(sum of squares + eps)`, or \
                 (`'multiply'`) multiplied by its inverse",
            ),
    ]
}

fn infer_decay(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let (&[heads] | &[heads, _]) = x.shape.as_slice() else {
        return Err(call
            .error("x", "a decay is one number per head, or one per channel of each head")
            .label(format!("`{}` is {}", x.name, show(&x.shape)))
            .into());
    };
    if call.given("floor") && call.float("floor")? >= 0.0 {
        return Err(call.error("floor", "the floor of a decay's logarithm is below 0").into());
    }
    call.weight("A", "A", "", &[heads])?;
    call.weight("dt", "dt", "", &[x.numbers()])?;
    call.output(x.shape, DtypeRule::Fixed(Dtype::F32));
    Ok(())
}

fn infer_rule(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let q = call.input("q")?;
    let k = call.input("k")?;
    let v = call.input("v")?;
    let g = call.input("g")?;
    let beta = call.input("beta")?;
    for (param, value) in [("q", &q), ("k", &k), ("v", &v)] {
        if value.shape.len() != 2 {
            return Err(call
                .error(param, "`delta_rule` works on heads")
                .label(format!(
                    "`{}` is {}, expected [heads, size]",
                    value.name,
                    show(&value.shape)
                ))
                .help("split the value first: `heads(x, n)`")
                .into());
        }
    }
    if q.shape != k.shape {
        return Err(call.misfit("queries and keys differ in shape", &q, &k).into());
    }
    let heads = v.shape[0];
    let key = k.shape[1];
    let value = v.shape[1];
    if heads % k.shape[0] != 0 {
        return Err(call.misfit("value heads are not a multiple of key heads", &k, &v).into());
    }
    if g.shape != [heads] && g.shape != [heads, key] {
        return Err(call
            .misfit("a decay is one number per head, or one per channel of its keys", &g, &v)
            .into());
    }
    if beta.shape != [heads] {
        return Err(call.misfit("each value head has one `beta`", &beta, &v).into());
    }
    call.state("state", StateKind::Recurrent, &[("recurrent", vec![heads, key, value])])?;
    call.output(v.shape, v.dtype);
    Ok(())
}
