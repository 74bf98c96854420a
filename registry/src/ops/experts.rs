//! `experts`: the MLPs of a mixture, of which each row uses a few.

use super::pointwise::{CONFIG_NAMES, activation};
use super::{Infer, OpRule, ParamKind, Signature, Trait};
use crate::eval::EvalError;
use crate::scalar::Scalar;

/// The most experts of a layer.
const MAX_EXPERTS: usize = 1 << 14;

pub(super) fn rules() -> Vec<OpRule> {
    let experts = Signature::new()
        .needs("x", ParamKind::Value)
        .needs("chosen", ParamKind::Value)
        .needs("weights", ParamKind::Value)
        .needs("W", ParamKind::Module)
        .needs("n", ParamKind::Dim)
        .needs("ffn", ParamKind::Dim)
        .needs("act", ParamKind::Word(CONFIG_NAMES))
        .word("form", &["glu", "plain"])
        .flag("bias", false)
        .may("limit", ParamKind::Float)
        .may("alpha", ParamKind::Float)
        .word("weigh", &["output", "input"])
        .word("sum", &["each", "once"])
        .neutral()
        .word("inner", &["each", "once"])
        .neutral()
        .may("softcaps", ParamKind::Numbers)
        .takes("identities", ParamKind::Int, Scalar::Int(0));
    let linear = Signature::new()
        .needs("x", ParamKind::Value)
        .needs("chosen", ParamKind::Value)
        .needs("W", ParamKind::Module)
        .needs("n", ParamKind::Dim)
        .needs("out", ParamKind::Dim)
        .may("weights", ParamKind::Value);
    vec![
        OpRule::new("expert_linear", linear, infer_linear)
            .is_a(&[Trait::Experts, Trait::RoundsInputs])
            .gives("`[k, out]`, or `[out]`")
            .notes(
                "a matrix for each of the k choices of a row, read only when a row chose it: \
                 `W.{e}.weight [out, in]`; x is `[in]` for all choices, or `[k, in]`. With \
                 `weights` the sum of the results times their weights: each product and each sum \
                 is rounded, in the order of the experts",
            ),
        OpRule::new("experts", experts, infer_experts)
            .is_a(&[Trait::Experts, Trait::RoundsInputs])
            .gives("like x")
            .notes(
                "a mixture of MLPs, each read only when a row chose it: `W.{e}.gate_proj`, \
                 `up_proj` `[ffn, in]`, `down_proj` `[in, ffn]`, each a module; `form='plain'`: no \
                 gate. A rounding after each matrix, bias and product, results added in the order \
                 of the experts. `limit`: gate at most that, the other within plus and minus that; \
                 `alpha`: `(up + 1) * gate * sigmoid(alpha * gate)` instead of `act`; \
                 `weigh='input'`: the weight multiplies x; `sum='once'`: results times their \
                 weights are added in f32 and rounded once; `inner='once'`: the activation of the gate \
                 is not rounded before the product; `softcaps=[g, u]`: `g * tanh(gate / g) * \
                 sigmoid(gate) * u * tanh(up / u)` in f32 instead of `act`, one rounding; behind the n there \
                 are `identities` more that give back what they get",
            ),
    ]
}

/// Refuses more than the allowed experts with weights, and choices of more than there are with and without weights.
fn check_counts(call: &Infer<'_>, n: usize, all: usize, choices: usize) -> Result<(), EvalError> {
    if n > MAX_EXPERTS {
        return Err(call
            .error("n", format!("{n} experts, at most {MAX_EXPERTS} are allowed"))
            .into());
    }
    if choices > all {
        return Err(call.error("n", format!("{choices} of {all} experts cannot be chosen")).into());
    }
    Ok(())
}

fn infer_linear(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let chosen = call.input("chosen")?;
    let n = call.dim("n")?;
    let out = call.dim("out")?;
    let choices = chosen.last();
    let fits = match x.shape.as_slice() {
        [_] => true,
        [each, _] => *each == choices,
        _ => false,
    };
    if chosen.shape.len() != 1 || !fits {
        return Err(call
            .misfit("a row is [in] for all of its choices, or [choices, in]", &x, &chosen)
            .into());
    }
    check_counts(call, n, n, choices)?;
    let weighted = call.given("weights");
    if weighted {
        let weights = call.input("weights")?;
        if weights.shape != chosen.shape {
            return Err(call
                .misfit("every expert that is chosen needs a weight", &chosen, &weights)
                .into());
        }
    }
    call.drop_attr("weights");
    for expert in 0..n {
        let role = format!("up.{expert}");
        call.weight(&role, "W", &format!("{expert}.weight"), &[out, x.last()])?;
    }
    call.tap_choice("chosen", "W")?;
    call.output(if weighted { vec![out] } else { vec![choices, out] }, x.dtype);
    Ok(())
}

/// Checks the soft caps of a gate and what it multiplies.
fn softcaps(call: &Infer<'_>) -> Result<(), EvalError> {
    let Some(count) = call.length("softcaps") else { return Ok(()) };
    if count != 2 {
        return Err(call.error("softcaps", format!("{count} soft caps, expected 2")).into());
    }
    let plain = (call.word("form") == Some("plain")).then_some("form");
    let fine = (call.word("inner") == Some("once")).then_some("inner");
    let given = ["limit", "alpha"].into_iter().find(|name| call.given(name));
    match given.or(plain).or(fine) {
        None => Ok(()),
        Some(name) => Err(call
            .error(name, format!("there are no experts with `{name}` and soft caps"))
            .help(format!("no known model has both; leave out `{name}` or `softcaps`"))
            .into()),
    }
}

fn infer_experts(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let chosen = call.input("chosen")?;
    let weights = call.input("weights")?;
    if chosen.shape != weights.shape || chosen.shape.len() != 1 {
        return Err(call
            .misfit("every expert that is chosen needs a weight", &chosen, &weights)
            .into());
    }
    let n = call.dim("n")?;
    let ffn = call.dim("ffn")?;
    let hidden = x.numbers();
    let identities = usize::try_from(call.int("identities")?).unwrap_or(usize::MAX);
    if identities > MAX_EXPERTS {
        return Err(call
            .error("identities", format!("0 to {MAX_EXPERTS} of them are allowed"))
            .into());
    }
    check_counts(call, n, n + identities, chosen.last())?;
    if call.given("alpha") && call.word("form") == Some("plain") {
        return Err(call.error("alpha", "an MLP without a gate has no use for it").into());
    }
    if call.word("inner") == Some("once")
        && (call.given("alpha") || call.word("form") == Some("plain"))
    {
        return Err(call
            .error("inner", "there is no product of an activation to round once")
            .help("leave out `inner`, or `alpha` and `form`")
            .into());
    }
    softcaps(call)?;
    if call.given("limit") && call.float("limit")? <= 0.0 {
        return Err(call.error("limit", "a limit is above 0").into());
    }
    let parts: &[(&str, usize, usize)] = match call.word("form") {
        Some("plain") => &[("up", ffn, hidden), ("down", hidden, ffn)],
        _ => &[("gate", ffn, hidden), ("up", ffn, hidden), ("down", hidden, ffn)],
    };
    let bias = call.flag("bias");
    for expert in 0..n {
        for &(part, out, within) in parts {
            let module = format!("{expert}.{part}_proj");
            let role = format!("{part}.{expert}");
            call.weight(&role, "W", &format!("{module}.weight"), &[out, within])?;
            if bias {
                let role = format!("bias.{part}.{expert}");
                call.weight(&role, "W", &format!("{module}.bias"), &[out])?;
            }
        }
    }
    call.drop_defaults(&["inner", "softcaps"]);
    let act = call.word("act").map_or("silu", activation).to_owned();
    call.set_attr("act", Scalar::Str(act));
    call.tap("W");
    call.tap_choice("chosen", "W")?;
    call.output(x.shape, x.dtype);
    Ok(())
}
