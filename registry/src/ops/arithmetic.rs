//! What `+ - * /` become: of two values, or of a value and a number.

use super::infer::join;
use super::{Infer, Kind, Rule, Signature};
use crate::eval::Fail;

pub(super) fn rules() -> Vec<Rule> {
    let two = || Signature::new().needs("x", Kind::Value).needs("y", Kind::Value);
    let number = || Signature::new().needs("x", Kind::Value).needs("s", Kind::Float);
    let same = |call: &mut Infer<'_>| {
        let x = call.input("x")?;
        call.output(x.shape, x.dtype);
        Ok(())
    };
    let divide = |call: &mut Infer<'_>| {
        if call.float("s")? == 0.0 {
            return Err(call.error("s", "division by zero").into());
        }
        let x = call.input("x")?;
        call.output(x.shape, x.dtype);
        Ok(())
    };
    vec![
        Rule::new("add", two(), both),
        Rule::new("sub", two(), both),
        Rule::new("mul", two(), both),
        Rule::new("div", two(), both),
        Rule::new("offset", number(), same),
        Rule::new("divide", number(), divide),
        Rule::new("inverse", number(), same),
    ]
}

fn both(call: &mut Infer<'_>) -> Result<(), Fail> {
    let (x, y) = (call.input("x")?, call.input("y")?);
    let shape = if x.shape.ends_with(&y.shape) || y.shape == [1] {
        x.shape.clone()
    } else if y.shape.ends_with(&x.shape) || x.shape == [1] {
        y.shape.clone()
    } else {
        return Err(call.misfit("the two sides differ in shape", &x, &y).into());
    };
    call.output(shape, join(x.dtype, y.dtype));
    Ok(())
}
