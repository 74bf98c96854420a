//! Rules of `+ - * /`, between two values or between a value and a number.

use std::cmp::Ordering;

use super::infer::join;
use super::{Infer, OpRule, ParamKind, Trait, takes_x};
use crate::eval::EvalError;
use crate::graph::show;
use crate::syntax::BinaryOp;

/// A value plus a number.
pub const OFFSET: &str = "offset";
/// A value by a number.
pub const DIVIDE: &str = "divide";
/// A number by a value.
pub const INVERSE: &str = "inverse";

/// Returns the op of an operator between two values.
pub fn of_values(operator: BinaryOp) -> &'static str {
    match operator {
        BinaryOp::Add => "add",
        BinaryOp::Sub => "sub",
        BinaryOp::Mul => "mul",
        _ => "div",
    }
}

pub(super) fn rules() -> Vec<OpRule> {
    let two = takes_x().needs("y", ParamKind::Value);
    let number = takes_x().needs("s", ParamKind::Float);
    vec![
        OpRule::new("add", two.clone(), both)
            .is_a(&[Trait::Adds, Trait::Combines, Trait::Commutes])
            .gives("like the larger of the two")
            .notes("`x + y`; axes are equal, or one of them is 1"),
        OpRule::new("sub", two.clone(), both)
            .is_a(&[Trait::Combines])
            .gives("like the larger of the two")
            .notes("`x - y`; axes are equal, or one of them is 1"),
        OpRule::new("mul", two.clone(), both)
            .is_a(&[Trait::Multiplies, Trait::Combines, Trait::Commutes])
            .gives("like the larger of the two")
            .notes("`x * y`; axes are equal, or one of them is 1"),
        OpRule::new("div", two, both)
            .is_a(&[Trait::Combines])
            .gives("like the larger of the two")
            .notes("`x / y`; axes are equal, or one of them is 1"),
        OpRule::new(OFFSET, number.clone().identity(&[("s", 0.0)]), same)
            .gives("like x")
            .notes("`x + s`; s is rounded to the dtype of x first"),
        OpRule::new(DIVIDE, number.clone().identity(&[("s", 1.0)]), infer_divide)
            .gives("like x")
            .notes("`x / s`, in f32, one rounding"),
        OpRule::new(INVERSE, number, same).gives("like x").notes("`s / x`, in f32, one rounding"),
    ]
}

/// Checks that the number is not 0; the result is like x.
fn infer_divide(call: &mut Infer<'_>) -> Result<(), EvalError> {
    if call.float("s")? == 0.0 {
        return Err(call.error("s", "division by zero").into());
    }
    same(call)
}

/// Gives a result like x.
fn same(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    call.output(x.shape, x.dtype);
    Ok(())
}

fn both(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    let y = call.input("y")?;
    let Some(shape) = broadcast(&x.shape, &y.shape) else {
        return Err(call.misfit("the two sides differ in shape", &x, &y).into());
    };
    call.output(shape, join(x.dtype, y.dtype));
    Ok(())
}

/// Broadcasts two shapes: axes are equal, or one of them is 1. `[1]` goes with any shape, and a shape with
/// the last axes of a longer one.
fn broadcast(x: &[usize], y: &[usize]) -> Option<Vec<usize>> {
    if x == [1] || y == [1] {
        return Some(if x == [1] { y } else { x }.to_vec());
    }
    match x.len().cmp(&y.len()) {
        Ordering::Equal => x.iter().zip(y).map(|(&x, &y)| common_size(x, y)).collect(),
        Ordering::Less => y.ends_with(x).then(|| y.to_vec()),
        Ordering::Greater => x.ends_with(y).then(|| x.to_vec()),
    }
}

/// Takes the raw tensor `P` of a given `shape`, which is repeated to the shape of a value.
pub(super) fn raw_weight(call: &mut Infer<'_>, value: &[usize]) -> Result<(), EvalError> {
    let shape = call.dims("shape")?;
    if !spreads(&shape, value) {
        return Err(call
            .error(
                "shape",
                format!("a weight of {} does not fit a value of {}", show(&shape), show(value)),
            )
            .label("expected the value's last axes, some of which may be 1, or [1]")
            .into());
    }
    call.weight("weight", "P", "", &shape)
}

/// True if a weight can be repeated to the shape of a value: its axes are the last ones, or 1.
fn spreads(weight: &[usize], value: &[usize]) -> bool {
    let axes = weight.iter().rev().zip(value.iter().rev());
    weight.len() <= value.len() && axes.into_iter().all(|(w, v)| w == v || *w == 1)
}

/// Returns the size of an axis of the result; none if the sizes differ and neither is 1.
fn common_size(x: usize, y: usize) -> Option<usize> {
    match (x, y) {
        (x, y) if x == y || y == 1 => Some(x),
        (1, y) => Some(y),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{broadcast, spreads};

    #[test]
    fn weights_are_repeated_along_axes_of_one() {
        for (weight, value, want) in [
            (&[3][..], &[2, 3][..], true),
            (&[2, 1], &[2, 3], true),
            (&[1], &[2, 3], true),
            (&[1, 1, 1], &[2, 3], false),
            (&[2], &[2, 3], false),
            (&[1, 2, 3], &[2, 3], false),
        ] {
            assert_eq!(spreads(weight, value), want, "{weight:?} {value:?}");
        }
    }

    #[test]
    fn axes_of_one_go_with_any() {
        for (x, y, want) in [
            (&[2, 3][..], &[2, 3][..], Some(vec![2, 3])),
            (&[2, 3], &[1], Some(vec![2, 3])),
            (&[1], &[2, 3], Some(vec![2, 3])),
            (&[2, 1], &[2, 3], Some(vec![2, 3])),
            (&[2, 3], &[2, 1], Some(vec![2, 3])),
            (&[2, 1], &[1, 3], Some(vec![2, 3])),
            (&[2, 3], &[3], Some(vec![2, 3])),
            (&[3], &[2, 3], Some(vec![2, 3])),
            (&[2, 3], &[2], None),
            (&[2, 3], &[3, 3], None),
        ] {
            assert_eq!(broadcast(x, y), want, "{x:?} {y:?}");
        }
    }
}
