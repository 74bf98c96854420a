//! `embed` and `linear`.

use super::{Infer, OpRule, ParamKind, Signature, Trait};
use crate::dtype::DtypeRule;
use crate::eval::EvalError;

pub(super) fn rules() -> Vec<OpRule> {
    let embed = Signature::new()
        .needs("tokens", ParamKind::Tokens)
        .needs("W", ParamKind::Module)
        .needs("n", ParamKind::Dim)
        .needs("d", ParamKind::Dim)
        .may("scale", ParamKind::Float)
        .word("round", &["activation", "none"])
        .neutral()
        .word("outside", &["error", "first"]);
    let linear = Signature::new()
        .needs("x", ParamKind::Value)
        .needs("W", ParamKind::Module)
        .needs("out", ParamKind::Dim)
        .flag("bias", false)
        .may("tied", ParamKind::Module)
        .flag("tap", true);
    let heads = Signature::new()
        .needs("x", ParamKind::Value)
        .needs("P", ParamKind::Tensor)
        .needs("out", ParamKind::Dim)
        .may("bias", ParamKind::Tensor)
        .word("layout", &["out_in", "in_out"])
        .flag("shared", false);
    vec![
        OpRule::new("embed", embed, infer_embed)
            .is_a(&[Trait::LooksUp, Trait::FromTokens])
            .gives("`[d]`")
            .notes(
                "`W.weight [n, d]`; `outside='first'` gives a token that is not below n the first \
                 row; `scale` is rounded to the activation dtype (`round='none'`: is not), then \
                 multiplies, then rounds again",
            ),
        OpRule::new("linear", linear, infer_linear)
            .is_a(&[Trait::Projects, Trait::RoundsInputs, Trait::Joins])
            .gives("`[out]`")
            .notes(
                "x is flattened to one axis; `W.weight [out, in]`; `tied` names the module whose \
                 weight is used; one rounding after the bias; `tap=false` where the reference's \
                 module gives something else",
            ),
        OpRule::new("heads_linear", heads, infer_heads)
            .is_a(&[Trait::ProjectsHeads])
            .gives("`[heads, out]`")
            .notes(
                "a matrix for each head of x `[heads, in]`: the tensor P is `[heads, out, in]`, or \
                 with `layout='in_out'` `[heads, in, out]`; the tensor `bias` is `[heads, out]`; \
                 one rounding after the bias; `shared`: P without its first axis is the matrix of all heads",
            ),
    ]
}

fn infer_embed(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let _tokens = call.input("tokens")?;
    let n = call.dim("n")?;
    let d = call.dim("d")?;
    call.weight("weight", "W", "weight", &[n, d])?;
    call.drop_defaults(&["round", "outside"]);
    call.tap("W");
    call.output(vec![d], DtypeRule::Activation);
    Ok(())
}

fn infer_linear(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let out = call.dim("out")?;
    let within = x.numbers();
    if call.given("tied") {
        call.weight("weight", "tied", "weight", &[out, within])?;
        call.tie("W", "tied", "weight")?;
    } else {
        call.weight("weight", "W", "weight", &[out, within])?;
    }
    if call.flag("bias") {
        call.weight("bias", "W", "bias", &[out])?;
    }
    // Null when not tied; which weight it is stands in the node's weights.
    call.drop_attr("tied");
    if call.flag("tap") {
        call.tap("W");
    }
    call.drop_attr("tap");
    call.output(vec![out], x.dtype);
    Ok(())
}

/// Checks a projection with a matrix for each head.
fn infer_heads(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let out = call.dim("out")?;
    let &[heads, size] = x.shape.as_slice() else {
        return Err(call
            .error("x", "`heads_linear` works on heads")
            .label(format!("this is {}, expected [heads, size]", crate::graph::show(&x.shape)))
            .help("split the value first: `heads(x, n)`")
            .into());
    };
    let sides = if call.word("layout") == Some("in_out") { [size, out] } else { [out, size] };
    let of_each = [heads, sides[0], sides[1]];
    call.weight("weight", "P", "", if call.flag("shared") { &sides[..] } else { &of_each })?;
    if call.given("bias") {
        call.weight("bias", "bias", "", &[heads, out])?;
    }
    call.drop_attr("bias");
    call.drop_defaults(&["shared"]);
    call.output(vec![heads, out], x.dtype);
    Ok(())
}
