//! Ops that no spec calls: rewrites of engines put them in the place of others.

use super::pointwise::GATES;
use super::{Infer, OpRule, ParamKind, Signature, Trait};
use crate::eval::EvalError;

/// A function of the first value, times the second.
pub const GLU: &str = "glu";
/// Several matrices that multiply one value.
pub const LINEARS: &str = "linears";

pub(super) fn rules() -> Vec<OpRule> {
    let glu = Signature::new()
        .needs("x", ParamKind::Value)
        .needs("y", ParamKind::Value)
        .needs("activation", ParamKind::Word(GATES));
    let linears = Signature::new().needs("x", ParamKind::Value);
    vec![
        OpRule::new(GLU, glu, refuse_call),
        OpRule::new(LINEARS, linears, refuse_call).is_a(&[Trait::Projects, Trait::RoundsInputs]),
    ]
}

fn refuse_call(call: &mut Infer<'_>) -> Result<(), EvalError> {
    Err(crate::diag::Finding::error(call.at(), "no spec calls this op; a rewrite makes it").into())
}
