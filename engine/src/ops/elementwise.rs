//! Arithmetic number by number: `add sub mul div` of two values, `scale offset divide inverse`
//! with a number, `weight_scale`, `weight_add`, `softcap`, `clamp`, `cast`.

use registry::dtype::Dtype;

use super::{Ctx, rows};
use crate::Error;
use crate::kernels::round::{round, round1};

pub(super) fn of_two(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let (a, b) = (ctx.input(0)?, ctx.input(1)?);
    let f = operator(ctx.node().op.as_str());
    let dtype = ctx.output_dtype(0);
    if a.shape() == b.shape() {
        let b = b.view();
        let b: &[f32] = &b;
        let y = rows::pieces(&a.view(), |at, a, y| {
            apply(f, a, &b[at..at + a.len()], y);
            round(dtype, y);
        });
        return ctx.set(0, y);
    }
    // Otherwise one is broadcast to the other, by the rules of numpy within a row.
    let out = ctx.output_shape(0)?;
    let (at, bt) = (spread(out, &a.shape()[1..]), spread(out, &b.shape()[1..]));
    let (Some(at), Some(bt)) = (at, bt) else {
        return Err(ctx.error(format!("{:?} and {:?} do not fit", a.shape(), b.shape())));
    };
    let (aw, bw, width) = (a.width(), b.width(), at.len());
    let (av, bv) = (a.view(), b.view());
    let mut y = Vec::with_capacity(a.rows() * width);
    for row in 0..a.rows().min(b.rows()) {
        for n in 0..width {
            y.push(round1(dtype, f.of(av[row * aw + at[n]], bv[row * bw + bt[n]])));
        }
    }
    ctx.set(0, y)
}

/// `x * s`, `x + s`, `x / s`, `s / x`.
pub(super) fn with_number(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let dtype = ctx.output_dtype(0);
    let mut s = ctx.number("s")? as f32;
    let op = ctx.node().op.as_str();
    // torch adds a number to 16-bit values as one of their dtype, but multiplies by it in f32.
    if op == "offset" {
        s = round1(dtype, s);
    } else if ctx.text("round", "none") == "activation" {
        s = round1(ctx.activation(), s);
    }
    let y = rows::pieces(&x.view(), |_, x, y| {
        match op {
            "offset" => y.iter_mut().zip(x).for_each(|(y, x)| *y = x + s),
            "divide" => y.iter_mut().zip(x).for_each(|(y, x)| *y = x / s),
            "inverse" => y.iter_mut().zip(x).for_each(|(y, x)| *y = s / x),
            _ => y.iter_mut().zip(x).for_each(|(y, x)| *y = x * s),
        }
        round(dtype, y);
    });
    ctx.set(0, y)
}

pub(super) fn weight_scale(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    with_weight(ctx, |x, w| x * w)
}

pub(super) fn weight_add(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    with_weight(ctx, |x, w| x + w)
}

fn with_weight(ctx: &mut Ctx<'_>, f: impl Fn(f32, f32) -> f32 + Sync) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let dtype = ctx.output_dtype(0);
    let (Some((role, id)), 1) = (ctx.node().weights.first_key_value(), ctx.node().weights.len())
    else {
        return Err(ctx.error("it has one weight"));
    };
    let weight = ctx.need_vector(role)?;
    let shape = &ctx.graph.weights[id.0].shape;
    let at = spread(&x.shape()[1..], shape).ok_or_else(|| {
        ctx.error(format!("a weight {shape:?} does not fit {:?}", &x.shape()[1..]))
    })?;
    let y = rows::map(&x.view(), x.width(), x.width(), |_, x, y| {
        for ((y, x), at) in y.iter_mut().zip(x).zip(&at) {
            *y = f(*x, weight[*at]);
        }
        round(dtype, y);
    });
    ctx.set(0, y)
}

/// `c * tanh(x / c)`, each step rounded.
pub(super) fn softcap(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let dtype = ctx.output_dtype(0);
    let c = ctx.number("c")? as f32;
    let y = rows::pieces(&x.view(), |_, x, y| {
        y.iter_mut().zip(x).for_each(|(y, x)| *y = x / c);
        round(dtype, y);
        for y in y.iter_mut() {
            *y = y.tanh();
        }
        round(dtype, y);
        for y in y.iter_mut() {
            *y *= c;
        }
        round(dtype, y);
    });
    ctx.set(0, y)
}

pub(super) fn clamp(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let dtype = ctx.output_dtype(0);
    let low = ctx.number_or_null("lo")?.map_or(f32::NEG_INFINITY, |x| x as f32);
    let high = ctx.number_or_null("hi")?.map_or(f32::INFINITY, |x| x as f32);
    let y = rows::pieces(&x.view(), |_, x, y| {
        y.iter_mut().zip(x).for_each(|(y, x)| *y = x.max(low).min(high));
        y.iter_mut().zip(x).filter(|(_, x)| x.is_nan()).for_each(|(y, _)| *y = f32::NAN);
        round(dtype, y);
    });
    ctx.set(0, y)
}

/// To the dtype that the graph gives the output.
pub(super) fn cast(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let dtype = ctx.output_dtype(0);
    if dtype == Dtype::F32 {
        return ctx.share(0, x);
    }
    let y = rows::pieces(&x.view(), |_, x, y| {
        y.copy_from_slice(x);
        round(dtype, y);
    });
    ctx.set(0, y)
}

#[derive(Debug, Clone, Copy)]
enum Operator {
    Add,
    Sub,
    Mul,
    Div,
}

impl Operator {
    fn of(self, a: f32, b: f32) -> f32 {
        match self {
            Self::Add => a + b,
            Self::Sub => a - b,
            Self::Mul => a * b,
            Self::Div => a / b,
        }
    }
}

fn operator(op: &str) -> Operator {
    match op {
        "add" => Operator::Add,
        "sub" => Operator::Sub,
        "mul" => Operator::Mul,
        _ => Operator::Div,
    }
}

fn apply(f: Operator, a: &[f32], b: &[f32], y: &mut [f32]) {
    let all = y.iter_mut().zip(a).zip(b);
    match f {
        Operator::Add => all.for_each(|((y, a), b)| *y = a + b),
        Operator::Sub => all.for_each(|((y, a), b)| *y = a - b),
        Operator::Mul => all.for_each(|((y, a), b)| *y = a * b),
        Operator::Div => all.for_each(|((y, a), b)| *y = a / b),
    }
}

/// For each number of a row of shape `out`, the one of `from` that is broadcast there.
fn spread(out: &[usize], from: &[usize]) -> Option<Vec<usize>> {
    let lead = out.len().checked_sub(from.len())?;
    let mut at = vec![0];
    for (n, &size) in out.iter().enumerate() {
        let own = n.checked_sub(lead).map_or(1, |n| from[n]);
        if own != size && own != 1 {
            return None;
        }
        at = at
            .into_iter()
            .flat_map(|base| (0..size).map(move |i| base * own + if own == 1 { 0 } else { i }))
            .collect();
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::spread;

    #[test]
    fn broadcasting_follows_the_last_axes() {
        for (out, from, want) in [
            (&[2, 3][..], &[2, 3][..], Some(vec![0, 1, 2, 3, 4, 5])),
            (&[2, 3], &[3], Some(vec![0, 1, 2, 0, 1, 2])),
            (&[2, 3], &[2, 1], Some(vec![0, 0, 0, 1, 1, 1])),
            (&[2, 3], &[1], Some(vec![0; 6])),
            (&[2, 3], &[], Some(vec![0; 6])),
            (&[2, 3], &[2], None),
            (&[3], &[2, 3], None),
        ] {
            assert_eq!(spread(out, from), want, "{out:?} {from:?}");
        }
    }
}
