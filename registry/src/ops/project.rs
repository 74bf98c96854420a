//! `embed` and `linear`.

use super::{Infer, OpRule, ParamKind, Signature, Trait};
use crate::dtype::DtypeRule;
use crate::eval::EvalError;
use crate::graph::StateKind;

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
    let ngrams = Signature::new()
        .needs("tokens", ParamKind::Tokens)
        .needs("W", ParamKind::Module)
        .needs("n", ParamKind::Dim)
        .needs("d", ParamKind::Dim)
        .needs("sizes", ParamKind::Shape)
        .needs("longest", ParamKind::Dim)
        .needs("seed", ParamKind::Int)
        .needs("vocab", ParamKind::Dim)
        .needs("end", ParamKind::Int)
        .needs("state", ParamKind::State);
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
        .word("layout", &["out_in", "in_out"]);
    vec![
        OpRule::new("embed", embed, infer_embed)
            .is_a(&[Trait::LooksUp, Trait::FromTokens])
            .gives("`[d]`")
            .notes(
                "`W.weight [n, d]`; `outside='first'` gives a token that is not below n the first \
                 row; `scale` is rounded to the activation dtype (`round='none'`: is not), then \
                 multiplies, then rounds again",
            ),
        OpRule::new("ngram_embed", ngrams, infer_ngrams)
            .is_a(&[Trait::LooksUp, Trait::FromTokens, Trait::KeepsState])
            .gives("`[d]`")
            .notes(
                "rows of `W.weight [n, d / len(sizes)]` side by side, one for each hash of the last tokens. \
                 Equal shares of the hashes take 2, 3, up to `longest` tokens: hash h is the exclusive or \
                 of `token * factor`, modulo `sizes[h]`, and counts from the sum of the sizes before. Odd \
                 factors, one for each token back, are drawn by SplitMix64 from `seed` for a vocabulary of \
                 `vocab`. Tokens before an `end`, and before the first, count as `end`. The state is an index \
                 `[1, 1]` in f32",
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
                 one rounding after the bias",
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

fn infer_ngrams(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let _tokens = call.input("tokens")?;
    let n = call.dim("n")?;
    let d = call.dim("d")?;
    let sizes = call.dims("sizes")?;
    let longest = call.dim("longest")?;
    let hashes = sizes.len();
    if longest < 2 || hashes == 0 || hashes % (longest - 1) != 0 {
        return Err(call
            .error("sizes", "each length from 2 to `longest` needs as many hashes")
            .label(format!("{hashes} sizes, and the longest takes {longest} tokens"))
            .into());
    }
    if d % hashes != 0 {
        return Err(call.error("d", format!("{d} numbers do not make {hashes} rows")).into());
    }
    let total = sizes.iter().try_fold(0_usize, |total, size| total.checked_add(*size));
    if sizes.contains(&0) || total.is_none_or(|total| total > n) {
        return Err(call
            .error("sizes", format!("hashes of these sizes do not fit {n} rows"))
            .help("sizes are above 0, and their sum is at most `n`")
            .into());
    }
    // Tokens are kept in f32, which holds integers up to 2^24.
    if call.dim("vocab")? > 1 << 24 || !(0..1 << 24).contains(&call.int("end")?) {
        return Err(call.error("vocab", "tokens are below 2^24").into());
    }
    call.weight("weight", "W", "weight", &[n, d / hashes])?;
    call.state("state", StateKind::Index, &[("index", vec![1, 1])])?;
    call.needs_f32_state("tokens")?;
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
    call.weight("weight", "P", "", &[heads, sides[0], sides[1]])?;
    if call.given("bias") {
        call.weight("bias", "bias", "", &[heads, out])?;
    }
    call.drop_attr("bias");
    call.output(vec![heads, out], x.dtype);
    Ok(())
}
