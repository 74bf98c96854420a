//! The declaration of an op that this program does not have.

use registry::ops::{OpRule, ParamKind, Signature};
use registry::scalar::Scalar;

pub(super) fn rule() -> OpRule {
    let signature = Signature::new().needs("x", ParamKind::Value).takes(
        "by",
        ParamKind::Float,
        Scalar::Float(0.5),
    );
    OpRule::new("shrink", signature, |call| {
        let x = call.input("x")?;
        call.output(x.shape, x.dtype);
        Ok(())
    })
    .gives("like x")
    .notes("x times `by`")
}
