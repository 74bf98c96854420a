//! Selective state spaces.

use super::{Infer, Input, OpRule, ParamKind, Signature, Trait};
use crate::dtype::{Dtype, DtypeRule};
use crate::eval::EvalError;
use crate::graph::StateKind;
use crate::graph::show;

pub(super) fn rules() -> Vec<OpRule> {
    let values = ["x", "dt", "b", "c"]
        .into_iter()
        .fold(Signature::new(), |signature, name| signature.needs(name, ParamKind::Value))
        .needs("P", ParamKind::Tensor)
        .needs("state", ParamKind::State);
    let ssd = values
        .clone()
        .may("dt_min", ParamKind::Float)
        .may("dt_max", ParamKind::Float)
        .flag("stepwise", false)
        .neutral();
    let ssm1 = values.may("dt_bias", ParamKind::Tensor).flag("stepwise", true).neutral();
    let lru = Signature::new()
        .needs("x", ParamKind::Value)
        .needs("input_gate", ParamKind::Value)
        .needs("recurrent_gate", ParamKind::Value)
        .needs("P", ParamKind::Tensor)
        .needs("state", ParamKind::State);
    let wkv = Signature::new()
        .needs("k", ParamKind::Value)
        .needs("v", ParamKind::Value)
        .needs("P", ParamKind::Tensor)
        .needs("state", ParamKind::State);
    let mlstm = ["q", "k", "v", "input_gate", "forget_gate"]
        .into_iter()
        .fold(Signature::new(), |signature, name| signature.needs(name, ParamKind::Value))
        .needs("state", ParamKind::State)
        .needs("scale", ParamKind::Float)
        .needs("eps", ParamKind::Float)
        .flag("stepwise", false)
        .neutral();
    vec![
        OpRule::new("mlstm", mlstm, infer_mlstm).is_a(&[Trait::KeepsState]).gives("like v").notes(
            "the matrix memory of xLSTM (Beck et al. 2024): per head of `v [heads, d]`, `C = f C + i k \
                 v` and `n = f n + i k` with `f = sigmoid(forget_gate)`, `i = exp(input_gate)`, `y = scale * \
                 q C / (max(|scale * q n|, 1) + eps)`; gates `[heads]`. `scale * q`, `k v`, logarithms of f, \
                 and both products with q are rounded, the state is f32 within a step; its part `recurrent \
                 [heads, size of k * (d + 1) + 1]` has lines of C with the number of n behind them, both \
                 divided by the exponential of the number at the end, before eps is added; `stepwise`: \
                 rows that continue a sequence round the state",
        ),
        OpRule::new("wkv", wkv, infer_wkv).is_a(&[Trait::KeepsState]).gives("like v").notes(
            "the WKV recurrence (Peng et al. 2023): a weighted mean of the values so far, where a \
                 value of `d` positions before has the weight `exp(k - (d - 1) * \
                 exp(P.time_decay))`, and that of the position `exp(k + P.time_first)`; all in f32, \
                 one rounding; k and v `[n]`; the state's part `recurrent [n, 3]` has sums of \
                 weighted values and of weights, and the logarithm that both are divided by",
        ),
        OpRule::new("ssd_scan", ssd, infer_ssd)
            .is_a(&[Trait::KeepsState])
            .gives("`[heads * size]`, f32")
            .notes(
                "state space duality: x `[heads, size]`, dt `[heads]`, b and c `[groups, n]`, \
                 weights `P.A_log`, `P.D`, `P.dt_bias`, all `[heads]`; the state's part \
                 `recurrent` is `[heads, size, n]`. dt gets bias, softplus and bounds, each \
                 rounded. All else is in f32; `stepwise`: rows that continue a sequence are \
                 rounded after each product, at the readout and at `D x`, the state is not",
            ),
        OpRule::new("ssm1_scan", ssm1, infer_ssm1)
            .is_a(&[Trait::KeepsState])
            .gives("`[channels]`, f32")
            .notes(
                "the selective scan: x and dt `[channels]`, b and c `[n]` (or all with a first \
                 axis of heads), weights `P.A_log [channels, n]`, `P.D [channels]`, and the tensor \
                 `dt_bias`; the state's part `recurrent` is as `A_log`. The state is rounded where \
                 it is read; `D x` is added in f32; `stepwise`: rows that continue a sequence add \
                 it in the activation dtype",
            ),
        OpRule::new("rg_lru", lru, infer_lru).is_a(&[Trait::KeepsState]).gives("like x").notes(
            "the linear unit of Griffin: gates before their sigmoids, the tensor \
                 `P.recurrent_param [n]` before its softplus; gates and decays are rounded at each \
                 step, the state's part `recurrent [n]` is added up in f32; a sequence begins \
                 without decay",
        ),
    ]
}

/// Says that an input is not of the shape that the op needs.
fn wrong(call: &Infer<'_>, param: &str, input: &Input, want: &str) -> EvalError {
    call.error(param, format!("`{param}` has to be {want}"))
        .label(format!("`{}` is {}", input.name, show(&input.shape)))
        .into()
}

/// Checks state space duality: a decay per head, `b` and `c` per group of heads.
fn infer_ssd(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let dt = call.input("dt")?;
    let b = call.input("b")?;
    let c = call.input("c")?;
    let &[heads, dim] = x.shape.as_slice() else {
        return Err(wrong(call, "x", &x, "[heads, size]"));
    };
    if dt.shape != [heads] {
        return Err(wrong(call, "dt", &dt, &format!("[{heads}], a step per head")));
    }
    let &[groups, size] = b.shape.as_slice() else {
        return Err(wrong(call, "b", &b, "[groups, size]"));
    };
    if groups == 0 || heads % groups != 0 {
        return Err(wrong(call, "b", &b, &format!("of groups that share {heads} heads")));
    }
    if c.shape != b.shape {
        return Err(call.misfit("`b` and `c` differ in shape", &b, &c).into());
    }
    if call.given("dt_min")
        && call.given("dt_max")
        && call.float("dt_min")? > call.float("dt_max")?
    {
        return Err(call.error("dt_min", "the lower bound is above the upper bound").into());
    }
    for role in ["A_log", "D", "dt_bias"] {
        call.weight(role, "P", role, &[heads])?;
    }
    call.state("state", StateKind::Recurrent, &[("recurrent", vec![heads, dim, size])])?;
    // A sequence's first step stays in f32; stepwise, rows that continue it are rounded.
    call.output(vec![heads * dim], DtypeRule::Fixed(Dtype::F32));
    Ok(())
}

/// Checks the selective scan: a decay per channel and state number; with heads, `b` and `c` per head.
fn infer_ssm1(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let dt = call.input("dt")?;
    let b = call.input("b")?;
    let c = call.input("c")?;
    if x.shape.is_empty() || x.shape.len() > 2 {
        return Err(wrong(call, "x", &x, "[channels] or [heads, channels]"));
    }
    if dt.shape != x.shape {
        return Err(call.misfit("`x` and `dt` differ in shape", &x, &dt).into());
    }
    let lead = &x.shape[..x.shape.len() - 1];
    if b.shape.len() != x.shape.len() || !b.shape.starts_with(lead) {
        return Err(wrong(call, "b", &b, "[size], or [heads, size] where `x` has heads"));
    }
    if c.shape != b.shape {
        return Err(call.misfit("`b` and `c` differ in shape", &b, &c).into());
    }
    let mut a = x.shape.clone();
    a.push(b.last());
    call.weight("A_log", "P", "A_log", &a)?;
    call.weight("D", "P", "D", &x.shape)?;
    if call.given("dt_bias") {
        call.weight("dt_bias", "dt_bias", "", &x.shape)?;
    }
    call.drop_attr("dt_bias");
    call.state("state", StateKind::Recurrent, &[("recurrent", a)])?;
    call.output(vec![x.numbers()], DtypeRule::Fixed(Dtype::F32));
    Ok(())
}

/// Checks the matrix memory with a pair of gates per head.
fn infer_mlstm(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let q = call.input("q")?;
    let k = call.input("k")?;
    let v = call.input("v")?;
    let &[heads, key] = k.shape.as_slice() else {
        return Err(wrong(call, "k", &k, "[heads, size]"));
    };
    let &[value_heads, value] = v.shape.as_slice() else {
        return Err(wrong(call, "v", &v, "[heads, size]"));
    };
    if q.shape != k.shape || value_heads != heads {
        return Err(call.misfit("queries, keys and values have the same heads", &q, &v).into());
    }
    for name in ["input_gate", "forget_gate"] {
        let gate = call.input(name)?;
        if gate.shape != [heads] {
            return Err(call.misfit("each head has one gate", &k, &gate).into());
        }
    }
    let block = vec![heads, key * (value + 1) + 1];
    call.state("state", StateKind::Recurrent, &[("recurrent", block)])?;
    call.output(v.shape, v.dtype);
    Ok(())
}

/// Checks the weighted mean of values with a decay per channel.
fn infer_wkv(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let k = call.input("k")?;
    let v = call.input("v")?;
    let &[channels] = k.shape.as_slice() else {
        return Err(wrong(call, "k", &k, "[channels]"));
    };
    if v.shape != k.shape {
        return Err(call.misfit("there are not as many keys as values", &k, &v).into());
    }
    for role in ["time_decay", "time_first"] {
        call.weight(role, "P", role, &[channels])?;
    }
    call.state("state", StateKind::Recurrent, &[("recurrent", vec![channels, 3])])?;
    call.output(v.shape, v.dtype);
    Ok(())
}

/// Checks the gated linear recurrence with a decay per channel that its gate sharpens.
fn infer_lru(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    for gate in ["input_gate", "recurrent_gate"] {
        let gate = call.input(gate)?;
        if gate.numbers() != x.numbers() {
            return Err(call.misfit("a gate is not as large as the value", &x, &gate).into());
        }
    }
    call.weight("recurrent_param", "P", "recurrent_param", &[x.numbers()])?;
    call.state("state", StateKind::Recurrent, &[("recurrent", vec![x.numbers()])])?;
    call.tap("P");
    call.output(x.shape, x.dtype);
    Ok(())
}
