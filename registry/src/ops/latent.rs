//! Multi-head latent attention: keys and values are expanded from what is kept.

use super::{Infer, Input, OpRule, ParamKind, Signature, Trait};
use crate::dtype::{Dtype, DtypeRule};
use crate::eval::EvalError;
use crate::graph::StateKind;
use crate::graph::show;
use crate::scalar::Scalar;

/// The most positions that an index may select: each row has room for as many.
const MAX_TOPK: usize = 1 << 16;

pub(super) fn rules() -> Vec<OpRule> {
    let attend = Signature::new()
        .needs("q", ParamKind::Value)
        .needs("c", ParamKind::Value)
        .needs("r", ParamKind::Value)
        .needs("W", ParamKind::Module)
        .needs("state", ParamKind::State)
        .needs("scale", ParamKind::Float)
        .needs("v_dim", ParamKind::Dim)
        .may("selected", ParamKind::Value)
        .may("window", ParamKind::Dim)
        .may("sinks", ParamKind::Tensor);
    let index = Signature::new()
        .needs("q", ParamKind::Value)
        .needs("k", ParamKind::Value)
        .may("w", ParamKind::Value)
        .needs("state", ParamKind::State)
        .needs("topk", ParamKind::Dim)
        .needs("scale", ParamKind::Float)
        .takes("block", ParamKind::Dim, Scalar::Int(1))
        .flag("newest", false);
    let mean = Signature::new()
        .needs("x", ParamKind::Value)
        .needs("block", ParamKind::Dim)
        .needs("state", ParamKind::State);
    let blocks = Signature::new()
        .needs("q", ParamKind::Value)
        .needs("k", ParamKind::Value)
        .needs("state", ParamKind::State)
        .needs("topk", ParamKind::Dim)
        .needs("block", ParamKind::Dim)
        .takes("local", ParamKind::Int, Scalar::Int(0));
    vec![
        OpRule::new("latent_attend", attend, infer)
            .is_a(&[
                Trait::KeepsState,
                Trait::MultipliesWithin,
                Trait::ExpandsState,
                Trait::RoundsInputs,
                Trait::SeparatesDocuments,
            ])
            .gives("`[heads * v_dim]`")
            .notes(
                "multi-head latent attention: `W.weight [heads * (nope + v_dim), rank]` expands \
                 the latent `c [1, rank]` to the key part without rotation and the value of each \
                 head; `r [1, rotated]` is the key part that all heads share, and comes last in `q \
                 [heads, nope + rotated]`; roundings as in `linear` and `attend`; `selected` are \
                 the positions that a query sees, as `index_topk` gives them; `window` and `sinks` as \
                 in `attend`",
            ),
        OpRule::new("index_topk", index, infer_index)
            .is_a(&[Trait::KeepsState])
            .gives("`[topk]`, f32")
            .notes(
                "positions, ascending, of the `topk` keys whose scores `Σ w[h] * relu(scale * q[h] \
                 · k)` are largest, those at equal scores that come first; -1 where there are \
                 fewer; `q [heads, d]`, `k [1, d]`, `w [heads]` or null for 1; all in f32. `block`: numbers \
                 of complete blocks of so many positions instead, of which each has the key of its last \
                 position; `newest` adds the block that is not complete yet, `[topk + 1]`",
            ),
        OpRule::new("block_mean", mean, infer_mean)
            .is_a(&[Trait::KeepsState])
            .gives("like x")
            .notes(
                "the mean of the block of `block` positions that ends at the row, summed in f32, one \
                 rounding; zeros where none ends. `x [1, d]`; its state is an index",
            ),
        OpRule::new("index_blocks", blocks, infer_blocks)
            .is_a(&[Trait::KeepsState])
            .gives("`[heads, topk]`, f32")
            .notes(
                "numbers, ascending, of the `topk` blocks of `block` positions that each head of `q \
                 [heads, d]` likes best, -1 where there are fewer. A block counts its largest `q · k` of \
                 positions up to the query's; the last `local` blocks come before all others, and of equal \
                 ones the first; `k [1, d]`; all in f32",
            ),
    ]
}

/// Checks the query heads and the key of an index.
fn index_inputs(call: &mut Infer<'_>) -> Result<(Input, Input), EvalError> {
    let q = call.input("q")?;
    let k = call.input("k")?;
    if q.shape.len() != 2 || k.shape != [1, q.last()] {
        return Err(call.misfit("queries are [heads, size] and the key [1, size]", &q, &k).into());
    }
    Ok((q, k))
}

fn infer_blocks(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let (q, k) = index_inputs(call)?;
    let topk = call.dim("topk")?;
    let heads = q.shape[0];
    call.dim("block")?;
    if heads.saturating_mul(topk) > MAX_TOPK {
        return Err(call
            .error(
                "topk",
                format!(
                    "{heads} heads with {topk} blocks, at most {MAX_TOPK} are allowed together"
                ),
            )
            .into());
    }
    if call.int("local")? < 0 {
        return Err(call.error("local", "the number of last blocks is 0 or above").into());
    }
    call.drop_defaults(&["local"]);
    call.state("state", StateKind::Index, &[("index", k.shape)])?;
    // Numbers of blocks are integers below 2^24, which f32 holds.
    call.output(vec![heads, topk], DtypeRule::Fixed(Dtype::F32));
    Ok(())
}

fn infer_mean(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    call.dim("block")?;
    let &[1, _] = x.shape.as_slice() else {
        return Err(call
            .error("x", "`block_mean` needs one key")
            .label(format!("`{}` is {}, expected [1, size]", x.name, show(&x.shape)))
            .help("split the value first: `heads(x, 1)`")
            .into());
    };
    call.state("state", StateKind::Index, &[("index", x.shape.clone())])?;
    call.needs_dtype_of(&x);
    call.output(x.shape, x.dtype);
    Ok(())
}

fn infer_index(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let (q, k) = index_inputs(call)?;
    if call.given("w") {
        let w = call.input("w")?;
        if w.shape != [q.shape[0]] {
            return Err(call.misfit("each head of an index has one weight", &q, &w).into());
        }
    }
    call.drop_attr("w");
    let block = call.dim("block")?;
    let newest = call.flag("newest");
    if newest && block == 1 {
        return Err(call
            .error("newest", "a block of one position is always complete")
            .help("give `block`, or leave out `newest`")
            .into());
    }
    call.drop_defaults(&["block", "newest"]);
    let topk = call.dim("topk")?;
    if topk > MAX_TOPK {
        return Err(call
            .error("topk", format!("{topk} positions, at most {MAX_TOPK} are allowed"))
            .into());
    }
    call.state("state", StateKind::Index, &[("index", k.shape)])?;
    // Positions are integers below 2^24, which f32 holds.
    call.output(vec![topk + usize::from(newest)], DtypeRule::Fixed(Dtype::F32));
    Ok(())
}

fn infer(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let q = call.input("q")?;
    let c = call.input("c")?;
    let r = call.input("r")?;
    let v_dim = call.dim("v_dim")?;
    for (param, value, one) in [("q", &q, false), ("c", &c, true), ("r", &r, true)] {
        if value.shape.len() != 2 || (one && value.shape[0] != 1) {
            let expected = if one { "[1, size]" } else { "[heads, size]" };
            return Err(call
                .error(param, "`latent_attend` works on heads, and all share one latent")
                .label(format!("`{}` is {}, expected {expected}", value.name, show(&value.shape)))
                .help("split the value first: `heads(x, n)`")
                .into());
        }
    }
    let heads = q.shape[0];
    let size = q.shape[1];
    let rank = c.shape[1];
    let shared = r.shape[1];
    let Some(nope) = size.checked_sub(shared) else {
        return Err(call
            .misfit("the shared part of the key is larger than a query", &q, &r)
            .into());
    };
    let rows = nope.checked_add(v_dim).and_then(|n| n.checked_mul(heads));
    let Some(rows) = rows else {
        return Err(call.error("v_dim", "heads of this size are out of range").into());
    };
    if call.given("selected") {
        let selected = call.input("selected")?;
        if selected.shape.len() != 1 {
            return Err(call
                .error("selected", "positions have one axis")
                .label(format!("`{}` is {}", selected.name, show(&selected.shape)))
                .into());
        }
        if call.given("window") {
            return Err(call
                .error("window", "selected positions have no window")
                .help("no known model has both; leave out `window` or `selected`")
                .into());
        }
    }
    call.drop_attr("selected");
    if call.given("sinks") {
        call.weight("sinks", "sinks", "", &[heads])?;
    }
    call.drop_attr("sinks");
    call.drop_defaults(&["window"]);
    call.weight("weight", "W", "weight", &[rows, rank])?;
    call.state("state", StateKind::Latent, &[("k", c.shape), ("v", r.shape)])?;
    call.output(vec![heads * v_dim], q.dtype);
    Ok(())
}
