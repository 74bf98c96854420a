//! `embed` and `linear`.

use super::{Infer, Kind, Rule, Signature};
use crate::dtype::DtypeRule;
use crate::eval::Fail;
use crate::scalar::Scalar;

pub(super) fn rules() -> Vec<Rule> {
    let embed = Signature::new()
        .needs("tokens", Kind::Tokens)
        .needs("W", Kind::Module)
        .needs("n", Kind::Dim)
        .needs("d", Kind::Dim)
        .may("scale", Kind::Float)
        .word("round", &["activation", "none"])
        .word("outside", &["error", "first"]);
    let linear = Signature::new()
        .needs("x", Kind::Value)
        .needs("W", Kind::Module)
        .needs("out", Kind::Dim)
        .flag("bias", false)
        .may("tied", Kind::Module);
    vec![Rule::new("embed", embed, infer_embed), Rule::new("linear", linear, infer_linear)]
}

fn infer_embed(call: &mut Infer<'_>) -> Result<(), Fail> {
    let _tokens = call.input("tokens")?;
    let (n, d) = (call.dim("n")?, call.dim("d")?);
    call.weight("weight", "W", "weight", &[n, d])?;
    let word = |text: &str| Scalar::Str(text.to_owned());
    call.drop_defaults(&[("round", word("activation")), ("outside", word("error"))]);
    call.tap("W");
    call.output(vec![d], DtypeRule::Activation);
    Ok(())
}

fn infer_linear(call: &mut Infer<'_>) -> Result<(), Fail> {
    let x = call.input("x")?;
    let (out, within) = (call.dim("out")?, x.numbers());
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
    call.tap("W");
    call.output(vec![out], x.dtype);
    Ok(())
}
