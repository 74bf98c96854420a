//! Ops on each number by itself.

use super::infer::show;
use super::{Infer, Kind, Rule, Signature};
use crate::dtype::{Dtype, DtypeRule};
use crate::eval::Fail;

const ACTIVATIONS: &[&str] = &[
    "silu",
    "gelu",
    "gelu_tanh",
    "gelu_new",
    "gelu_fast",
    "relu",
    "relu2",
    "sigmoid",
    "tanh",
    "softplus",
    "quick_gelu",
    "square_root",
];

/// What configs call activations, and the op each is.
const NAMES: &[(&str, &str)] = &[
    ("silu", "silu"),
    ("swish", "silu"),
    ("gelu", "gelu"),
    ("gelu_new", "gelu_new"),
    ("gelu_fast", "gelu_fast"),
    ("gelu_tanh", "gelu_tanh"),
    ("gelu_pytorch_tanh", "gelu_tanh"),
    ("relu", "relu"),
    ("relu2", "relu2"),
    ("quick_gelu", "quick_gelu"),
    ("sigmoid", "sigmoid"),
    ("tanh", "tanh"),
];

pub(super) const CONFIG_NAMES: &[&str] = &[
    "silu",
    "swish",
    "gelu",
    "gelu_new",
    "gelu_fast",
    "gelu_tanh",
    "gelu_pytorch_tanh",
    "relu",
    "relu2",
    "quick_gelu",
    "sigmoid",
    "tanh",
];

pub(super) fn rules() -> Vec<Rule> {
    let x = || Signature::new().needs("x", Kind::Value);
    let mut rules: Vec<Rule> = ACTIVATIONS.iter().map(|name| Rule::new(name, x(), same)).collect();
    rules.extend([
        Rule::new("act", x().needs("name", Kind::Word(CONFIG_NAMES)), infer_act),
        Rule::new("xielu", x().needs("P", Kind::Tensor), infer_xielu),
        Rule::new("softcap", x().needs("c", Kind::Float), infer_softcap),
        Rule::new("clamp", x().may("lo", Kind::Float).may("hi", Kind::Float), infer_clamp),
        Rule::new(
            "cast",
            x().needs("to", Kind::Word(&["f32", "activation", "f32_in_f16"]))
                .neutral()
                .identity(&[]),
            infer_cast,
        ),
        Rule::new(
            "scale",
            x().needs("s", Kind::Float)
                .identity(&[("s", 1.0)])
                .word("round", &["none", "activation"])
                .neutral(),
            same,
        ),
        Rule::new(
            "weight_scale",
            x().needs("P", Kind::Tensor).needs("shape", Kind::Shape),
            infer_weight_scale,
        ),
        Rule::new("gaussian_topk", x().needs("sparsity", Kind::Float), infer_gaussian),
    ]);
    rules
}

fn same(call: &mut Infer<'_>) -> Result<(), Fail> {
    let x = call.input("x")?;
    call.output(x.shape, x.dtype);
    Ok(())
}

/// The op that a config calls by this name.
pub(super) fn activation(name: &str) -> &'static str {
    NAMES.iter().find(|(known, _)| *known == name).map_or("silu", |(_, op)| op)
}

fn infer_act(call: &mut Infer<'_>) -> Result<(), Fail> {
    let op = call.word("name").map_or("silu", activation);
    call.rename(op);
    call.drop_attr("name");
    same(call)
}

fn infer_xielu(call: &mut Infer<'_>) -> Result<(), Fail> {
    for (tensor, shape) in [("alpha_p", &[1][..]), ("alpha_n", &[1]), ("beta", &[]), ("eps", &[])] {
        call.weight(tensor, "P", tensor, shape)?;
    }
    call.tap("P");
    same(call)
}

fn infer_softcap(call: &mut Infer<'_>) -> Result<(), Fail> {
    if call.float("c")? <= 0.0 {
        return Err(call.error("c", "a soft cap is above 0").into());
    }
    same(call)
}

fn infer_gaussian(call: &mut Infer<'_>) -> Result<(), Fail> {
    let sparsity = call.float("sparsity")?;
    if !(sparsity > 0.0 && sparsity < 1.0) {
        return Err(call
            .error("sparsity", "a share is between 0 and 1")
            .label(format!("this is {sparsity}"))
            .into());
    }
    same(call)
}

fn infer_clamp(call: &mut Infer<'_>) -> Result<(), Fail> {
    if call.given("lo") && call.given("hi") && call.float("lo")? > call.float("hi")? {
        return Err(call.error("lo", "the lower bound is above the upper bound").into());
    }
    same(call)
}

fn infer_cast(call: &mut Infer<'_>) -> Result<(), Fail> {
    let x = call.input("x")?;
    let dtype = match call.word("to") {
        Some("f32") => DtypeRule::Fixed(Dtype::F32),
        Some("f32_in_f16") => DtypeRule::WideInF16,
        _ => DtypeRule::Activation,
    };
    call.output(x.shape, dtype);
    Ok(())
}

fn infer_weight_scale(call: &mut Infer<'_>) -> Result<(), Fail> {
    let x = call.input("x")?;
    let shape = call.dims("shape")?;
    let numbers: usize = shape.iter().product();
    if numbers != 1 && !x.shape.ends_with(&shape) {
        return Err(call
            .error(
                "shape",
                format!("a weight of {} does not fit a value of {}", show(&shape), show(&x.shape)),
            )
            .label("expected the value's last axes, or [1]")
            .into());
    }
    call.weight("weight", "P", "", &shape)?;
    call.output(x.shape, x.dtype);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_config_name_is_an_op() {
        assert!(NAMES.iter().map(|(name, _)| name).eq(CONFIG_NAMES));
        assert!(NAMES.iter().all(|(_, op)| ACTIVATIONS.contains(op)));
    }
}
