//! Causal depthwise convolution.

use super::infer::{join, show};
use super::pointwise::{CONFIG_NAMES, activation};
use super::{Infer, Kind, Rule, Signature};
use crate::eval::Fail;
use crate::graph::StateKind;
use crate::scalar::Scalar;

pub(super) fn rules() -> Vec<Rule> {
    let conv = Signature::new()
        .needs("x", Kind::Value)
        .needs("W", Kind::Module)
        .needs("width", Kind::Dim)
        .needs("state", Kind::State)
        .flag("bias", false)
        .flag("stepwise", false)
        .neutral()
        .may("activation", Kind::Word(CONFIG_NAMES));
    vec![Rule::new("causal_conv", conv, infer)]
}

fn infer(call: &mut Infer<'_>) -> Result<(), Fail> {
    let x = call.input("x")?;
    let width = call.dim("width")?;
    let &[channels] = x.shape.as_slice() else {
        return Err(call
            .error("x", "`causal_conv` needs one axis of channels")
            .label(format!("`{}` is {}", x.name, show(&x.shape)))
            .into());
    };
    call.weight("weight", "W", "weight", &[channels, 1, width])?;
    if call.flag("bias") {
        call.weight("bias", "W", "bias", &[channels])?;
    }
    call.state("state", StateKind::Conv, &[("conv", vec![channels, width - 1])])?;
    call.needs_dtype_of(&x);
    // The module's own output is what comes before the activation.
    match call.word("activation").map(activation) {
        None => call.tap("W"),
        Some(op) => call.set_attr("activation", Scalar::Str(op.to_owned())),
    }
    // Kernels that loading does not round leave what they make unrounded, too.
    let made = join(x.dtype, call.weight_dtype("weight"));
    call.output(x.shape, made);
    Ok(())
}
