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
        .takes("identities", ParamKind::Int, Scalar::Int(0));
    vec![
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
                 weights are added in f32 and rounded once; behind the n there are `identities` \
                 more that give back what they get",
            ),
    ]
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
    if n > MAX_EXPERTS {
        return Err(call
            .error("n", format!("{n} experts, at most {MAX_EXPERTS} are allowed"))
            .into());
    }
    let identities = usize::try_from(call.int("identities")?).unwrap_or(usize::MAX);
    if identities > MAX_EXPERTS {
        return Err(call
            .error("identities", format!("0 to {MAX_EXPERTS} of them are allowed"))
            .into());
    }
    if chosen.last() > n + identities {
        return Err(call
            .error("n", format!("{} of {n} experts cannot be chosen", chosen.last()))
            .into());
    }
    if call.given("alpha") && call.word("form") == Some("plain") {
        return Err(call.error("alpha", "an MLP without a gate has no use for it").into());
    }
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
    let act = call.word("act").map_or("silu", activation).to_owned();
    call.set_attr("act", Scalar::Str(act));
    call.tap("W");
    call.tap_choice("chosen", "W")?;
    call.output(x.shape, x.dtype);
    Ok(())
}
