//! Attention to the last positions and to pooled keys of blocks before.

use super::{Infer, Input, OpRule, ParamKind, Signature, Trait};
use crate::eval::EvalError;
use crate::graph::{StateKind, show};

pub(super) fn rules() -> Vec<OpRule> {
    let pool = Signature::new()
        .needs("x", ParamKind::Value)
        .needs("P", ParamKind::Tensor)
        .needs("block", ParamKind::Dim)
        .needs("state", ParamKind::State)
        .flag("overlap", false);
    let attend = Signature::new()
        .needs("q", ParamKind::Value)
        .needs("k", ParamKind::Value)
        .needs("pooled", ParamKind::Value)
        .needs("state", ParamKind::State)
        .needs("scale", ParamKind::Float)
        .needs("window", ParamKind::Dim)
        .needs("block", ParamKind::Dim)
        .may("selected", ParamKind::Value)
        .may("sinks", ParamKind::Tensor);
    vec![
        OpRule::new("block_pool", pool, infer_pool)
            .is_a(&[Trait::KeepsState])
            .gives("`[c]`, or `[c / 2]`")
            .notes(
                "the weighted mean of the block of `block` positions that ends at the row; zeros where none \
                 ends. `x [2 * c]` has c numbers and then a gate for each. The weights of a number are the \
                 softmax over the positions of `gate + P[place in the block]`, `P [block, c]`, in f32, rounded; \
                 each product is rounded, the sum is f32 with one rounding. `overlap`: the second half of the \
                 numbers is pooled with the first half of those of the block before, where there is \
                 one. The state is a convolution, `[2 * c, block - 1]`, with overlap `[2 * c, 2 * block - 1]`",
            ),
        OpRule::new("attend_pooled", attend, infer_attend)
            .is_a(&[Trait::KeepsState, Trait::MultipliesWithin])
            .gives("`[heads * d]`")
            .notes(
                "attention of `q [heads, d]` to the keys `k [1, d]` of the last `window` positions, and behind \
                 them to one key of each complete block, the row of `pooled [1, d]` at the block's last \
                 position. Keys are values too. `selected` are numbers of blocks, as `index_topk` gives them; \
                 null for all. Roundings and `sinks` as in `attend`; the state is of kind `pooled`",
            ),
    ]
}

fn infer_pool(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let block = call.dim("block")?;
    let overlap = call.flag("overlap");
    let parts = if overlap { 4 } else { 2 };
    let numbers = match x.shape[..] {
        [width] if width.is_multiple_of(parts) => width / 2,
        _ => {
            return Err(call
                .error("x", "`block_pool` takes numbers and a gate for each, of one axis")
                .label(format!(
                    "`{}` is {}, expected [n] in {parts} equal parts",
                    x.name,
                    show(&x.shape)
                ))
                .into());
        }
    };
    let reach = block.saturating_mul(1 + usize::from(overlap)).saturating_sub(1);
    call.weight("position_bias", "P", "", &[block, numbers])?;
    call.state("state", StateKind::Conv, &[("conv", vec![2 * numbers, reach])])?;
    call.needs_dtype_of(&x);
    call.drop_defaults(&["overlap"]);
    call.output(vec![if overlap { numbers / 2 } else { numbers }], x.dtype);
    Ok(())
}

fn infer_attend(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let q = call.input("q")?;
    let k = call.input("k")?;
    let pooled = call.input("pooled")?;
    let &[heads, size] = q.shape.as_slice() else {
        return Err(call
            .error("q", "`attend_pooled` works on heads")
            .label(format!("`{}` is {}, expected [heads, size]", q.name, show(&q.shape)))
            .help("split the value first: `heads(x, n)`")
            .into());
    };
    for key in [&k, &pooled] {
        same_key(call, &q, key, size)?;
    }
    if k.dtype != pooled.dtype {
        return Err(call.misfit("keys and pooled keys differ in dtype", &k, &pooled).into());
    }
    if call.given("selected") {
        let selected = call.numbered_input("selected")?;
        if selected.shape.len() != 1 {
            return Err(call.misfit("all heads see the same blocks", &q, &selected).into());
        }
    } else {
        call.drop_attr("selected");
    }
    if call.given("sinks") {
        call.weight("sinks", "sinks", "", &[heads])?;
    }
    call.drop_attr("sinks");
    call.state("state", StateKind::Pooled, &[("k", k.shape), ("pooled", pooled.shape)])?;
    call.output(vec![heads * size], k.dtype);
    Ok(())
}

/// Checks that a key is the one that all heads share.
fn same_key(call: &Infer<'_>, q: &Input, key: &Input, size: usize) -> Result<(), EvalError> {
    if key.shape == [1, size] {
        return Ok(());
    }
    Err(call.misfit("queries are [heads, size] and the keys [1, size]", q, key).into())
}
