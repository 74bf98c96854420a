//! Ops on each number by itself.

use super::arithmetic::raw_weight;
use super::{Infer, OpRule, ParamKind, Trait, takes_x};
use crate::dtype::{Dtype, DtypeRule};
use crate::eval::EvalError;

/// A value times a number.
pub const SCALE: &str = "scale";

/// A value times a raw tensor.
pub const WEIGHT_SCALE: &str = "weight_scale";

/// A function of each number whose product with another value runs in one pass.
const GATE: &[Trait] = &[Trait::Function, Trait::Gates];
/// A function of each number.
const PLAIN: &[Trait] = &[Trait::Function];

/// Activation functions: name, traits, documentation.
const ACTIVATIONS: &[(&str, &[Trait], &str)] = &[
    ("silu", GATE, "f32 inside, one rounding"),
    ("gelu", GATE, "f32 inside, one rounding"),
    ("gelu_tanh", GATE, "f32 inside, one rounding"),
    ("gelu_new", GATE, "the formula of `gelu_tanh`, a rounding after every step"),
    ("gelu_fast", GATE, "the formula of `gelu_tanh` in another order, a rounding after every step"),
    ("relu", GATE, "f32 inside, one rounding"),
    ("relu2", GATE, "f32 inside, rounded after relu and after the square"),
    ("sigmoid", GATE, "f32 inside, one rounding"),
    ("tanh", PLAIN, "f32 inside, one rounding"),
    ("softplus", PLAIN, "f32 inside, one rounding"),
    ("quick_gelu", GATE, "f32 inside, one rounding"),
    ("square_root", PLAIN, "f32 inside, one rounding"),
    ("exp", PLAIN, "f32 inside, one rounding"),
    ("sign", PLAIN, "1, -1, or 0 for 0; `x * sign(x)` is the absolute value"),
];

/// Names of the functions with [`Trait::Gates`].
pub(super) const GATES: &[&str] = &[
    "silu",
    "gelu",
    "gelu_new",
    "gelu_fast",
    "gelu_tanh",
    "relu",
    "relu2",
    "sigmoid",
    "quick_gelu",
];

/// Activation functions that differ enough for a mix-up of two of them to show.
pub const DISTINCT: [&str; 6] = ["silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh"];

/// The names of activations in configs, and the op of each.
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

pub(super) fn rules() -> Vec<OpRule> {
    let mut rules: Vec<OpRule> = ACTIVATIONS
        .iter()
        .map(|(name, traits, notes): &(&'static str, &'static [Trait], &'static str)| {
            OpRule::new(name, takes_x(), same).is_a(traits).gives("like x").notes(notes)
        })
        .collect();
    rules.extend([
        OpRule::new("act", takes_x().needs("name", ParamKind::Word(CONFIG_NAMES)), infer_act)
            .gives("like x")
            .notes(
                "the activation that a config names: `silu`/`swish`, `gelu`, `gelu_new`, \
                 `gelu_fast`, `gelu_pytorch_tanh`, `relu`, `relu2`, `quick_gelu`, `sigmoid`, \
                 `tanh`",
            )
            .renamed(),
        OpRule::new("xielu", takes_x().needs("P", ParamKind::Tensor), infer_xielu)
            .gives("like x")
            .notes(
                "learned `P.alpha_p [1]`, `P.alpha_n [1]`, scalars `P.beta []`, `P.eps []`; a \
                 rounding after every step",
            ),
        OpRule::new("softcap", takes_x().needs("c", ParamKind::Float), infer_softcap)
            .gives("like x")
            .notes("`c * tanh(x / c)`, each step rounded"),
        OpRule::new(
            "clamp",
            takes_x().may("lo", ParamKind::Float).may("hi", ParamKind::Float),
            infer_clamp,
        )
        .gives("like x")
        .notes("at least `lo`, at most `hi`; null is no bound"),
        OpRule::new(
            "cast",
            takes_x()
                .needs("to", ParamKind::Word(&["f32", "activation", "f32_in_f16"]))
                .neutral()
                .may("tap", ParamKind::Module)
                .identity(&[]),
            infer_cast,
        )
        .gives("like x")
        .notes(
            "`to='f32'`, `'activation'`, or `'f32_in_f16'`: f32 in f16 runs, else the \
                 activation dtype; `tap` is the module that gives the result",
        ),
        OpRule::new(
            SCALE,
            takes_x()
                .needs("s", ParamKind::Float)
                .identity(&[("s", 1.0)])
                .word("round", &["none", "activation"])
                .neutral(),
            same,
        )
        .gives("like x")
        .notes("`round='activation'`: s itself is rounded first"),
        OpRule::new(
            WEIGHT_SCALE,
            takes_x().needs("P", ParamKind::Tensor).needs("shape", ParamKind::Shape),
            infer_weight_scale,
        )
        .gives("like x")
        .notes("times a raw tensor"),
        OpRule::new(
            "parameter",
            takes_x().needs("P", ParamKind::Tensor).needs("shape", ParamKind::Shape),
            infer_parameter,
        )
        .gives("`shape`")
        .notes("a raw tensor, the same for each row of x; f32 if it is `kept` so"),
    ]);
    rules
}

fn same(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    call.output(x.shape, x.dtype);
    Ok(())
}

/// Returns the op that a config calls by this name.
pub(super) fn activation(name: &str) -> &'static str {
    activation_op(name).unwrap_or("silu")
}

/// Returns the op that a config calls by this name, if there is one.
pub fn activation_op(name: &str) -> Option<&'static str> {
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, op)| *op)
}

fn infer_act(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let op = call.word("name").map_or("silu", activation);
    call.rename(op);
    call.drop_attr("name");
    same(call)
}

fn infer_xielu(call: &mut Infer<'_>) -> Result<(), EvalError> {
    for (tensor, shape) in [("alpha_p", &[1][..]), ("alpha_n", &[1]), ("beta", &[]), ("eps", &[])] {
        call.weight(tensor, "P", tensor, shape)?;
    }
    call.tap("P");
    same(call)
}

fn infer_softcap(call: &mut Infer<'_>) -> Result<(), EvalError> {
    if call.float("c")? <= 0.0 {
        return Err(call.error("c", "a soft cap is above 0").into());
    }
    same(call)
}

fn infer_clamp(call: &mut Infer<'_>) -> Result<(), EvalError> {
    if call.given("lo") && call.given("hi") && call.float("lo")? > call.float("hi")? {
        return Err(call.error("lo", "the lower bound is above the upper bound").into());
    }
    same(call)
}

fn infer_cast(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let dtype = match call.word("to") {
        Some("f32") => DtypeRule::Fixed(Dtype::F32),
        Some("f32_in_f16") => DtypeRule::WideInF16,
        _ => DtypeRule::Activation,
    };
    call.tap("tap");
    call.drop_attr("tap");
    call.output(x.shape, dtype);
    Ok(())
}

fn infer_weight_scale(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    raw_weight(call, &x.shape)?;
    call.output(x.shape, x.dtype);
    Ok(())
}

fn infer_parameter(call: &mut Infer<'_>) -> Result<(), EvalError> {
    call.input("x")?;
    let shape = call.dims("shape")?;
    call.weight("weight", "P", "", &shape)?;
    let dtype = call.weight_dtype("weight");
    call.output(shape, dtype);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_config_name_is_an_op() {
        assert!(NAMES.iter().map(|(name, _)| name).eq(CONFIG_NAMES));
        assert!(NAMES.iter().all(|(_, op)| ACTIVATIONS.iter().any(|(name, ..)| name == op)));
    }
}
