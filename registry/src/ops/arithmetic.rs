//! What `+ - * /` become: of two values, or of a value and a number.

use std::cmp::Ordering;

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
        Rule::new("offset", number().identity(&[("s", 0.0)]), same),
        Rule::new("divide", number().identity(&[("s", 1.0)]), divide),
        Rule::new("inverse", number(), same),
    ]
}

fn both(call: &mut Infer<'_>) -> Result<(), Fail> {
    let (x, y) = (call.input("x")?, call.input("y")?);
    let Some(shape) = broadcast(&x.shape, &y.shape) else {
        return Err(call.misfit("the two sides differ in shape", &x, &y).into());
    };
    call.output(shape, join(x.dtype, y.dtype));
    Ok(())
}

/// The shape of both together: equal axes, or one of them 1; `[1]` goes with any, and the last
/// axes of one with the other.
fn broadcast(x: &[usize], y: &[usize]) -> Option<Vec<usize>> {
    if x == [1] || y == [1] {
        return Some(if x == [1] { y } else { x }.to_vec());
    }
    let both = |(x, y): (&usize, &usize)| match (*x, *y) {
        (x, y) if x == y || y == 1 => Some(x),
        (1, y) => Some(y),
        _ => None,
    };
    match x.len().cmp(&y.len()) {
        Ordering::Equal => x.iter().zip(y).map(both).collect(),
        Ordering::Less => y.ends_with(x).then(|| y.to_vec()),
        Ordering::Greater => x.ends_with(y).then(|| x.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::broadcast;

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
