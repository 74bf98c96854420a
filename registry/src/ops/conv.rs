//! Causal convolutions, depthwise and by groups, and rows of the position before.

use super::infer::join;
use super::pointwise::{CONFIG_NAMES, activation};
use super::{Infer, OpRule, ParamKind, Signature, Trait};
use crate::eval::EvalError;
use crate::graph::StateKind;
use crate::graph::show;
use crate::scalar::Scalar;

pub(super) fn rules() -> Vec<OpRule> {
    let conv = Signature::new()
        .needs("x", ParamKind::Value)
        .needs("W", ParamKind::Module)
        .needs("width", ParamKind::Dim)
        .needs("state", ParamKind::State)
        .flag("bias", false)
        .flag("stepwise", false)
        .neutral()
        .may("activation", ParamKind::Word(CONFIG_NAMES))
        .may("taps", ParamKind::Value);
    let grouped = Signature::new()
        .needs("x", ParamKind::Value)
        .needs("W", ParamKind::Module)
        .needs("V", ParamKind::Module)
        .needs("width", ParamKind::Dim)
        .needs("second", ParamKind::Dim)
        .needs("groups", ParamKind::Dim)
        .needs("state", ParamKind::State);
    let previous = Signature::new().needs("x", ParamKind::Value).needs("state", ParamKind::State);
    vec![
        OpRule::new("causal_conv", conv, infer).is_a(&[Trait::KeepsState]).gives("like x").notes(
            "`stepwise`: in rows that continue a sequence each product, the sum and the bias \
                 are rounded; depthwise, `W.weight [c, 1, width]`; accumulates f32, one rounding \
                 (and one more after the activation), none if the kernel is `kept` in f32; `taps` \
                 `[heads, width]`: numbers of each row that are added to the kernel of all channels of \
                 a head, that for the row itself first",
        ),
        OpRule::new("grouped_conv", grouped, infer_grouped)
            .is_a(&[Trait::KeepsState])
            .gives("like x")
            .notes(
                "a depthwise convolution, `W.weight [c, 1, width]`, and behind it one by groups, \
                 `V.weight [c, c / groups, second]`, both with a bias; each accumulates f32 and \
                 rounds once. Inputs before the first position are 0, so the second one sees the \
                 bias of the first there. The state has inputs of both: `shape: [c, width + second - 2]`",
            ),
        OpRule::new("previous", previous, infer_previous)
            .is_a(&[Trait::KeepsState])
            .gives("like x")
            .notes(
                "the row of the position before, zeros at the first; its state is a convolution \
                 of width 2, `shape: [c, 1]`, or a recurrence, `shape: [c]`",
            ),
    ]
}

fn infer_previous(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    if call.state_kind("state") == Some(StateKind::Recurrent) {
        call.state("state", StateKind::Recurrent, &[("recurrent", vec![x.numbers()])])?;
    } else {
        call.state("state", StateKind::Conv, &[("conv", vec![x.numbers(), 1])])?;
    }
    call.needs_dtype_of(&x);
    call.output(x.shape, x.dtype);
    Ok(())
}

fn infer_grouped(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let width = call.dim("width")?;
    let second = call.dim("second")?;
    let groups = call.dim("groups")?;
    let &[channels] = x.shape.as_slice() else {
        return Err(call
            .error("x", "`grouped_conv` needs one axis of channels")
            .label(format!("`{}` is {}", x.name, show(&x.shape)))
            .into());
    };
    if groups == 0 || channels % groups != 0 {
        return Err(call
            .error("groups", format!("{channels} channels do not divide into {groups} groups"))
            .into());
    }
    if width == 0 || second == 0 {
        let param = if width == 0 { "width" } else { "second" };
        return Err(call.error(param, "a kernel has a width of at least 1").into());
    }
    call.weight("weight", "W", "weight", &[channels, 1, width])?;
    call.weight("bias", "W", "bias", &[channels])?;
    call.weight("grouped", "V", "weight", &[channels, channels / groups, second])?;
    call.weight("grouped_bias", "V", "bias", &[channels])?;
    call.state("state", StateKind::Conv, &[("conv", vec![channels, width + second - 2])])?;
    call.needs_dtype_of(&x);
    call.tap("V");
    call.output(x.shape, x.dtype);
    Ok(())
}

fn infer(call: &mut Infer<'_>) -> Result<(), EvalError> {
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
    if call.given("taps") {
        let taps = call.numbered_input("taps")?;
        let fits = matches!(taps.shape[..], [heads, size] if heads > 0 && channels % heads == 0 && size == width);
        if !fits {
            let message =
                format!("taps are [heads, {width}], where heads divide {channels} channels");
            let label = format!("`{}` is {}", taps.name, show(&taps.shape));
            return Err(call.error("taps", message).label(label).into());
        }
        if call.flag("stepwise") {
            return Err(call
                .error("stepwise", "the products of a kernel of each row are not rounded")
                .help("no known model has both; leave out `stepwise` or `taps`")
                .into());
        }
    } else {
        call.drop_attr("taps");
    }
    // The module's own output is what comes before the activation.
    match call.word("activation").map(activation) {
        None => call.tap("W"),
        Some(op) => call.set_attr("activation", Scalar::Str(op.to_owned())),
    }
    // Kernels that loading does not round leave what they make unrounded, too.
    let dtype = join(x.dtype, call.weight_dtype("weight"));
    call.output(x.shape, dtype);
    Ok(())
}
