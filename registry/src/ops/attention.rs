//! Rotation and attention.

use super::{Infer, Input, OpRule, ParamKind, Signature, Trait};
use crate::dtype::DtypeRule;
use crate::eval::EvalError;
use crate::graph::{StateKind, StatePart, show};
use crate::scalar::Scalar;

/// Words of `mask`: which tokens behind a query it sees.
const MASKS: [&str; 4] = ["causal", "prefix", "spans", "within"];

pub(super) fn rules() -> Vec<OpRule> {
    let rope = Signature::new()
        .needs("x", ParamKind::Value)
        .needs("table", ParamKind::Rope)
        .word("layout", &["half", "interleaved", "interleaved_to_half"])
        .word("compute", &["activation", "f32", "qk_f32"])
        .neutral()
        .flag("inverse", false)
        .may("stretch", ParamKind::Tensor);
    let attend = Signature::new()
        .needs("q", ParamKind::Value)
        .needs("k", ParamKind::Value)
        .needs("v", ParamKind::Value)
        .needs("state", ParamKind::State);
    let attend_to = Signature::new()
        .needs("q", ParamKind::Value)
        .needs("state", ParamKind::State)
        .needs("layer", ParamKind::Int);
    let differ = Signature::new()
        .needs("x", ParamKind::Value)
        .needs("P", ParamKind::Tensor)
        .needs("size", ParamKind::Dim)
        .needs("init", ParamKind::Float);
    vec![
        OpRule::new("rope", rope, infer_rope).gives("like x").notes(
            "`inverse` turns the other way; rotates the first `table.dim` of the last axis of \
                 `[heads, d]`; `layout='interleaved'`, or `'interleaved_to_half'`, which takes \
                 pairs that lie side by side and leaves them half a head apart; `compute`: \
                 `activation` (cos/sin rounded, each product and the sum rounded), `f32` (cos/sin \
                 stay f32, one rounding after), `qk_f32` (cos/sin rounded, arithmetic f32, one \
                 rounding); `stretch` `[dim / 2]`: a raw tensor whose exponentials multiply the \
                 frequencies",
        ),
        OpRule::new("attend", by_query(selective(scored(attend))), infer_attend)
            .is_a(&[Trait::KeepsState, Trait::MultipliesWithin, Trait::SeparatesDocuments])
            .gives("`[heads * v_dim]`")
            .notes(
                "causal, grouped; `mask='prefix'`: the tokens of the run's prefix see each other, \
                 whatever the window; `mask='spans'`: those of each span that a run gives see each other, as far back as the \
                 window reaches; `mask='within'`: a row of a span sees that span alone; `chunked`: positions are in chunks of `window`, and a query sees \
                 its own; scores rounded, then times scale rounded, (softcap rounded step by \
                 step), softmax f32, probabilities rounded, result rounded. `alibi`: a slope per \
                 head, times the key's position, is added. `scores`: `once` rounds after scale and \
                 (rounded) bias only, `f32` nowhere. `softmax='activation'` also rounds the differences from \
                 the largest score, `'unrounded'` rounds the result alone. `sink_form='gate'`: a sink scales the result \
                 by the sigmoid of how far it lies under the scores. `values='paired'`: key head j \
                 has the values j and j + half of the value heads side by side. `salience=P`: \
                 `exp(P.A * softplus(P.dt_proj · values))` of each key head is added to a key's \
                 scores, and the `keep` keys with the largest are seen. `selected` `[k]`, or `[n, k]` for \
                 n groups of key heads: the positions that a query sees, ascending, those below 0 are none; \
                 with `block` blocks of so many positions, as `index_blocks` gives them. `relative` \
                 `[heads, n]`: numbers of a query that are added to the scores of keys 0 to n - 1 positions \
                 before it, and rounded with the sum; `query_sinks` `[heads]`: sinks of the query itself",
            ),
        OpRule::new("attend_to", scored(attend_to), infer_attend_to)
            .is_a(&[Trait::MultipliesWithin, Trait::SeparatesDocuments])
            .gives("`[heads * v_dim]`")
            .notes("`attend` to what the earlier layer number `layer` keeps; adds nothing to it"),
        OpRule::new("differ", differ, infer_differ).gives("half the heads").notes(
            "the first half of the heads less a share of the second: `exp(q1 · k1) - exp(q2 · \
                 k2) + init` of the weights `P.lambda_q1 [size]` and so on",
        ),
    ]
}

/// Adds the parameters of attention scores to a signature.
fn scored(signature: Signature) -> Signature {
    signature
        .needs("scale", ParamKind::Float)
        .may("window", ParamKind::Dim)
        .may("softcap", ParamKind::Float)
        .may("sinks", ParamKind::Tensor)
        .word("softmax", &["f32", "activation", "unrounded"])
        .neutral()
        .may("alibi", ParamKind::Numbers)
        .word("scores", &["rounded", "once", "f32"])
        .neutral()
        .word("sink_form", &["column", "gate"])
        .word("values", &["own", "paired"])
        .may("salience", ParamKind::Tensor)
        .flag("salience_bias", false)
        .may("keep", ParamKind::Dim)
        .flag("chunked", false)
        .word("mask", &MASKS)
}

/// Adds the parameters of selected keys to a signature.
fn selective(signature: Signature) -> Signature {
    signature.may("selected", ParamKind::Value).takes("block", ParamKind::Dim, Scalar::Int(1))
}

/// Adds the parameters of scores that each query brings to a signature.
fn by_query(signature: Signature) -> Signature {
    signature.may("relative", ParamKind::Value).may("query_sinks", ParamKind::Value)
}

fn infer_rope(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let table = call.rope("table")?;
    let name = table.name.clone();
    let dim = table.dim;
    let varies = table.long.is_some() || table.dynamic.is_some();
    if x.shape.len() != 2 {
        return Err(call
            .error("x", "`rope` rotates heads")
            .label(format!("`{}` is {}, expected [heads, size]", x.name, show(&x.shape)))
            .help("split the value first: `heads(x, n)`")
            .into());
    }
    if dim > x.last() {
        return Err(call
            .error(
                "table",
                format!("the table `{name}` rotates {dim} numbers of a head that has {}", x.last()),
            )
            .label(format!("`{}` is {}", x.name, show(&x.shape)))
            .into());
    }
    call.drop_defaults(&["inverse"]);
    if call.given("stretch") {
        if varies {
            return Err(call
                .error("stretch", format!("frequencies of `{name}` depend on the length"))
                .help("no known model stretches those; leave out `stretch`")
                .into());
        }
        call.weight("stretch", "stretch", "", &[dim / 2])?;
    }
    call.drop_attr("stretch");
    call.output(x.shape, x.dtype);
    Ok(())
}

fn infer_attend(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let q = call.input("q")?;
    let k = call.input("k")?;
    let v = call.input("v")?;
    for (param, value) in [("q", &q), ("k", &k), ("v", &v)] {
        heads(call, param, value)?;
    }
    if q.shape[1] != k.shape[1] {
        return Err(call.misfit("queries and keys differ in size", &q, &k).into());
    }
    if k.shape[0] != v.shape[0] {
        return Err(call.misfit("there are not as many keys as values", &k, &v).into());
    }
    if q.shape[0] % k.shape[0] != 0 {
        return Err(call.misfit("query heads are not a multiple of key heads", &q, &k).into());
    }
    if call.flag("chunked") && !call.given("window") {
        return Err(call
            .error("chunked", "chunks are as long as the window, and there is none")
            .into());
    }
    selection(call, &k)?;
    query_scores(call, &q)?;
    call.state("state", StateKind::Attention, &[("k", k.shape), ("v", v.shape.clone())])?;
    let shape = v.shape;
    let dtype = v.dtype;
    attention_result(call, &q, &shape, dtype)
}

/// Checks the positions that queries see, if not all earlier ones are seen.
fn selection(call: &mut Infer<'_>, k: &Input) -> Result<(), EvalError> {
    if !call.given("selected") {
        if call.dim("block")? != 1 {
            return Err(call
                .error("block", "there are no `selected` blocks of this size")
                .help("give `selected`, or leave out `block`")
                .into());
        }
        call.drop_attr("selected");
        call.drop_defaults(&["block"]);
        return Ok(());
    }
    let selected = call.numbered_input("selected")?;
    let groups = match selected.shape[..] {
        [_] => 1,
        [groups, _] => groups,
        _ => {
            return Err(call
                .error("selected", "selected positions have at most two axes")
                .label(format!(
                    "`{}` is {}, expected [k] or [n, k]",
                    selected.name,
                    show(&selected.shape)
                ))
                .into());
        }
    };
    if groups == 0 || !k.shape[0].is_multiple_of(groups) {
        return Err(call.misfit("key heads do not divide into these groups", k, &selected).into());
    }
    let given = ["window", "alibi", "salience", "sinks", "relative", "query_sinks"]
        .into_iter()
        .find(|name| call.given(name));
    let prefix = (call.word("mask") != Some("causal")).then_some("mask");
    let paired = (call.word("values") == Some("paired")).then_some("values");
    if let Some(name) = given.or(prefix).or(paired) {
        return Err(call
            .error(name, format!("there is no attention with `{name}` to selected positions"))
            .help(format!("no known model has both; leave out `{name}` or `selected`"))
            .into());
    }
    call.drop_defaults(&["block"]);
    Ok(())
}

/// Checks the numbers that queries bring to their scores: by distance, and sinks.
fn query_scores(call: &mut Infer<'_>, q: &Input) -> Result<(), EvalError> {
    if call.given("relative") {
        let relative = call.numbered_input("relative")?;
        if relative.shape.len() != 2 || relative.shape[0] != q.shape[0] {
            return Err(call.misfit("each query head has a row of numbers", q, &relative).into());
        }
        let prefix = (call.word("mask") != Some("causal")).then_some("mask");
        let once = (call.word("scores") == Some("once")).then_some("scores");
        let alibi = call.given("alibi").then_some("alibi");
        if let Some(name) = alibi.or(prefix).or(once) {
            return Err(call
                .error(name, format!("there is no attention with `{name}` to relative positions"))
                .help(format!("no known model has both; leave out `{name}` or `relative`"))
                .into());
        }
    } else {
        call.drop_attr("relative");
    }
    if !call.given("query_sinks") {
        call.drop_attr("query_sinks");
        return Ok(());
    }
    let sinks = call.numbered_input("query_sinks")?;
    if sinks.shape != q.shape[..1] {
        return Err(call.misfit("each query head has a sink", q, &sinks).into());
    }
    let gate = (call.word("sink_form") == Some("gate")).then_some("sink_form");
    if let Some(name) = call.given("sinks").then_some("sinks").or(gate) {
        return Err(call
            .error(name, format!("there are no sinks of queries with `{name}`"))
            .help(format!("no known model has both; leave out `{name}` or `query_sinks`"))
            .into());
    }
    Ok(())
}

/// Checks attention to the state of an earlier layer.
fn infer_attend_to(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let q = call.input("q")?;
    heads(call, "q", &q)?;
    let (parts, state_window, dtype) = call.state_of("state", "layer", StateKind::Attention)?;
    let (Some(k), Some(v)) = (part_shape(&parts, "k"), part_shape(&parts, "v")) else {
        return Err(call.error("state", "that state has no keys and values").into());
    };
    if k.len() != 2 || v.len() != 2 || q.shape[1] != k[1] || q.shape[0] % k[0] != 0 {
        return Err(call
            .error("q", "the queries do not fit the keys of that layer")
            .label(format!("`{}` is {}, the keys are {}", q.name, show(&q.shape), show(&k)))
            .into());
    }
    let window = if call.given("window") { Some(call.dim("window")?) } else { None };
    if state_window
        .is_some_and(|kept_positions| window.is_none_or(|window| window > kept_positions))
    {
        return Err(call
            .error("window", "that layer does not keep as many positions as this one sees")
            .into());
    }
    attention_result(call, &q, &v, dtype)
}

/// Returns the shape of a part of a state.
fn part_shape(parts: &[StatePart], name: &str) -> Option<Vec<usize>> {
    parts.iter().find(|part| part.name == name).map(|part| part.shape.clone())
}

fn heads(call: &Infer<'_>, param: &str, value: &Input) -> Result<(), EvalError> {
    if value.shape.len() == 2 {
        return Ok(());
    }
    Err(call
        .error(param, "`attend` works on heads")
        .label(format!("`{}` is {}, expected [heads, size]", value.name, show(&value.shape)))
        .help("split the value first: `heads(x, n)`")
        .into())
}

/// Checks the arguments that all attention ops share, and gives the result. `v` is the shape of the stored
/// values, and the result has their dtype.
fn attention_result(
    call: &mut Infer<'_>,
    q: &Input,
    v: &[usize],
    dtype: DtypeRule,
) -> Result<(), EvalError> {
    if call.given("sinks") {
        call.weight("sinks", "sinks", "", &[q.shape[0]])?;
    }
    call.drop_attr("sinks");
    let slopes = call.length("alibi");
    if slopes.is_some_and(|slopes| slopes != q.shape[0]) {
        return Err(call.error("alibi", "each query head has one slope").into());
    }
    if call.given("salience") {
        let heads = v[0];
        let width = v.iter().product();
        call.weight("A", "salience", "A", &[heads])?;
        call.weight("weight", "salience", "dt_proj.weight", &[heads, width])?;
        if call.flag("salience_bias") {
            call.weight("bias", "salience", "dt_proj.bias", &[heads])?;
        }
        if !call.given("keep") {
            return Err(call.error("salience", "how many keys to `keep` is not said").into());
        }
        if call.word("mask") != Some("causal") {
            return Err(call
                .error("mask", "keys with a salience have no bidirectional prefix and no spans")
                .help("no known model has both; write `mask='causal'`")
                .into());
        }
    }
    if matches!(call.word("mask"), Some("spans" | "within")) && call.flag("chunked") {
        return Err(call
            .error("mask", "tokens that see each other do not stay in chunks of positions")
            .help("no known model has both; write `mask='causal'`, or leave out `chunked`")
            .into());
    }
    call.drop_attr("salience");
    call.drop_attr("salience_bias");
    call.drop_defaults(&["alibi", "keep", "scores", "sink_form", "values", "chunked", "mask"]);
    let paired = call.word("values") == Some("paired");
    if paired && !v[0].is_multiple_of(2) {
        return Err(call.error("values", "an odd number of value heads has no pairs").into());
    }
    call.output(vec![q.shape[0] * v[1] * (1 + usize::from(paired))], dtype);
    Ok(())
}

fn infer_differ(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let size = call.dim("size")?;
    let [heads, width] = x.shape[..] else {
        return Err(call
            .error("x", "`differ` works on heads")
            .label(format!("`{}` is {}, expected [heads, size]", x.name, show(&x.shape)))
            .into());
    };
    if !heads.is_multiple_of(2) {
        return Err(call.error("x", "an odd number of heads has no halves").into());
    }
    for name in ["lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"] {
        call.weight(name, "P", name, &[size])?;
    }
    call.output(vec![heads / 2, width], x.dtype);
    Ok(())
}
