//! Lightning attention: a linear attention that decays by a fixed slope per head.

use super::{Infer, OpRule, ParamKind, Signature, Trait};
use crate::eval::EvalError;
use crate::graph::StateKind;
use crate::graph::show;

pub(super) fn rules() -> Vec<OpRule> {
    let lightning = Signature::new()
        .needs("q", ParamKind::Value)
        .needs("k", ParamKind::Value)
        .needs("v", ParamKind::Value)
        .needs("P", ParamKind::Tensor)
        .needs("state", ParamKind::State)
        .needs("block", ParamKind::Dim);
    vec![
        OpRule::new("lightning", lightning, infer)
            .is_a(&[Trait::KeepsState])
            .gives("`[heads * d]`")
            .notes(
                "linear attention with a fixed decay per head, by the tensors `P.slope_rate \
                 [heads, 1, 1]`, `P.query_decay`, `P.key_decay [heads, block, 1]`, \
                 `P.diagonal_decay [1, heads, block, block]`; every step rounded; a sequence's \
                 first step goes by blocks, rows that continue one go singly",
            ),
    ]
}

fn infer(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let q = call.input("q")?;
    let k = call.input("k")?;
    let v = call.input("v")?;
    if q.shape.len() != 2 || k.shape != q.shape || v.shape.len() != 2 || v.shape[0] != q.shape[0] {
        return Err(call
            .misfit("queries, keys and values have the same heads", &q, &v)
            .label(format!("`{}` is {}, expected [heads, size]", k.name, show(&k.shape)))
            .into());
    }
    let heads = q.shape[0];
    let key = q.shape[1];
    let value = v.shape[1];
    let block = call.dim("block")?;
    call.weight("slope_rate", "P", "slope_rate", &[heads, 1, 1])?;
    call.weight("query_decay", "P", "query_decay", &[heads, block, 1])?;
    call.weight("key_decay", "P", "key_decay", &[heads, block, 1])?;
    call.weight("diagonal_decay", "P", "diagonal_decay", &[1, heads, block, block])?;
    call.state("state", StateKind::Recurrent, &[("recurrent", vec![heads, key, value])])?;
    call.output(vec![heads * value], v.dtype);
    Ok(())
}
