//! Arithmetic number by number: `add sub mul div` of two values, `scale offset divide inverse`
//! with a number, `weight_scale`, `weight_add`, `weight_blend`, `softcap`, `clamp`, `cast`.

use registry::dtype::Dtype;

use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::round::{round, round1};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("softcap", Softcap::prepare);
    kernels.prepared("clamp", Clamp::prepare);
    kernels.add("cast", cast);
    kernels.prepared("scale", ScalarElementwise::scale);
    kernels.prepared("offset", ScalarElementwise::offset);
    kernels.prepared("divide", ScalarElementwise::divide);
    kernels.prepared("inverse", ScalarElementwise::inverse);
    kernels.add("weight_scale", weight_scale);
    kernels.add("weight_add", weight_add);
    kernels.add("weight_blend", weight_blend);
    kernels.add("add", BinaryElementwise { f: BinaryKind::Add });
    kernels.add("sub", BinaryElementwise { f: BinaryKind::Sub });
    kernels.add("mul", BinaryElementwise { f: BinaryKind::Mul });
    kernels.add("div", BinaryElementwise { f: BinaryKind::Div });
}

/// An operator between two values.
pub(super) struct BinaryElementwise {
    f: BinaryKind,
}

impl Kernel for BinaryElementwise {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let a = ctx.input(0)?;
        let b = ctx.input(1)?;
        let f = self.f;
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
        let at = spread(out, &a.shape()[1..]);
        let bt = spread(out, &b.shape()[1..]);
        let (Some(at), Some(bt)) = (at, bt) else {
            return Err(ctx.error(format!("{:?} and {:?} do not fit", a.shape(), b.shape())));
        };
        let aw = a.width();
        let bw = b.width();
        let width = at.len();
        let av = a.view();
        let bv = b.view();
        let mut y = Vec::with_capacity(a.rows() * width);
        for row in 0..a.rows().min(b.rows()) {
            for n in 0..width {
                y.push(round1(dtype, f.of(av[row * aw + at[n]], bv[row * bw + bt[n]])));
            }
        }
        ctx.set(0, y)
    }
}

/// The operation with a constant number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScalarKind {
    Scale,
    Offset,
    Divide,
    Inverse,
}

/// A value and a number: `x * s`, `x + s`, `x / s`, `s / x`.
pub(super) struct ScalarElementwise {
    pub(super) with: ScalarKind,
    pub(super) s: f32,
    pub(super) rounds: bool,
}

impl ScalarElementwise {
    pub(super) fn scale(args: &Args<'_>) -> Result<Self, Error> {
        let rounds = args.one_of("round", &[("none", false), ("activation", true)])?;
        Ok(Self { with: ScalarKind::Scale, s: args.number("s")?, rounds })
    }

    pub(super) fn offset(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self { with: ScalarKind::Offset, s: args.number("s")?, rounds: false })
    }

    pub(super) fn divide(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self { with: ScalarKind::Divide, s: args.number("s")?, rounds: false })
    }

    pub(super) fn inverse(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self { with: ScalarKind::Inverse, s: args.number("s")?, rounds: false })
    }
}

impl Kernel for ScalarElementwise {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let dtype = ctx.output_dtype(0);
        let &Self { with, mut s, rounds } = self;
        // torch adds a number to 16-bit values as one of their dtype, but multiplies by it in f32.
        if with == ScalarKind::Offset {
            s = round1(dtype, s);
        } else if rounds {
            s = round1(ctx.activation(), s);
        }
        let y = rows::pieces(&x.view(), |_, x, y| {
            match with {
                ScalarKind::Offset => y.iter_mut().zip(x).for_each(|(y, x)| *y = x + s),
                ScalarKind::Divide => y.iter_mut().zip(x).for_each(|(y, x)| *y = x / s),
                ScalarKind::Inverse => y.iter_mut().zip(x).for_each(|(y, x)| *y = s / x),
                ScalarKind::Scale => y.iter_mut().zip(x).for_each(|(y, x)| *y = x * s),
            }
            round(dtype, y);
        });
        ctx.set(0, y)
    }
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
    let PlacedWeight { weight, at } = PlacedWeight::of(ctx, x.shape())?;
    let y = rows::map(&x.view(), x.width(), x.width(), |_, x, y| {
        for ((y, x), at) in y.iter_mut().zip(x).zip(&at) {
            *y = f(*x, weight[*at]);
        }
        round(dtype, y);
    });
    ctx.set(0, y)
}

/// Returns the role and the shape of the one weight of the node.
pub(super) fn one_weight<'a>(ctx: &Ctx<'a>) -> Result<(&'a str, &'a [usize]), Error> {
    let weights = &ctx.node().weights;
    let (Some((role, id)), 1) = (weights.first_key_value(), weights.len()) else {
        return Err(ctx.error("it has one weight"));
    };
    Ok((role, &ctx.graph.weights[id.0].shape))
}

/// The one weight of a node, broadcast to the rows of a value.
struct PlacedWeight<'a> {
    weight: &'a [f32],
    /// The place in the weight for each number of a row.
    at: Vec<usize>,
}

impl<'a> PlacedWeight<'a> {
    /// Broadcasts the weight to a value of shape `x`.
    fn of(ctx: &Ctx<'a>, x: &[usize]) -> Result<Self, Error> {
        let (role, shape) = one_weight(ctx)?;
        let weight = ctx.need_vector(role)?;
        let row = x.get(1..).unwrap_or_default();
        let at = spread(row, shape)
            .ok_or_else(|| ctx.error(format!("a weight {shape:?} does not fit {row:?}")))?;
        Ok(Self { weight, at })
    }
}

/// Adds the shares of two values, `x * w + y * (1 - w)`, each step rounded.
pub(super) fn weight_blend(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let y = ctx.input(1)?;
    if x.shape() != y.shape() {
        return Err(ctx.error(format!("{:?} and {:?} do not fit", x.shape(), y.shape())));
    }
    let dtype = ctx.output_dtype(0);
    let PlacedWeight { weight, at } = PlacedWeight::of(ctx, x.shape())?;
    let complements: Vec<f32> = weight.iter().map(|w| round1(dtype, 1.0 - w)).collect();
    let width = x.width();
    let second = y.view();
    let second: &[f32] = &second;
    let blended = rows::map(&x.view(), width, width, |row, x, out| {
        let y = &second[row * width..][..width];
        for (((out, x), y), at) in out.iter_mut().zip(x).zip(y).zip(&at) {
            *out =
                round1(dtype, round1(dtype, x * weight[*at]) + round1(dtype, y * complements[*at]));
        }
    });
    ctx.set(0, blended)
}

/// `c * tanh(x / c)`, each step rounded.
pub(super) struct Softcap {
    pub(super) c: f32,
}

impl Softcap {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self { c: args.number("c")? })
    }
}

impl Kernel for Softcap {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let dtype = ctx.output_dtype(0);
        let c = self.c;
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
}

/// The bounds of each number.
pub(super) struct Clamp {
    pub(super) low: f32,
    pub(super) high: f32,
}

impl Clamp {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self {
            low: args.number_or_null("lo")?.unwrap_or(f32::NEG_INFINITY),
            high: args.number_or_null("hi")?.unwrap_or(f32::INFINITY),
        })
    }
}

impl Kernel for Clamp {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let dtype = ctx.output_dtype(0);
        let &Self { low, high } = self;
        let y = rows::pieces(&x.view(), |_, x, y| {
            y.iter_mut().zip(x).for_each(|(y, x)| *y = x.max(low).min(high));
            y.iter_mut().zip(x).filter(|(_, x)| x.is_nan()).for_each(|(y, _)| *y = f32::NAN);
            round(dtype, y);
        });
        ctx.set(0, y)
    }
}

/// Casts to the dtype that the graph gives the output.
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
enum BinaryKind {
    Add,
    Sub,
    Mul,
    Div,
}

impl BinaryKind {
    fn of(self, a: f32, b: f32) -> f32 {
        match self {
            Self::Add => a + b,
            Self::Sub => a - b,
            Self::Mul => a * b,
            Self::Div => a / b,
        }
    }
}

fn apply(f: BinaryKind, a: &[f32], b: &[f32], y: &mut [f32]) {
    let all = y.iter_mut().zip(a).zip(b);
    match f {
        BinaryKind::Add => all.for_each(|((y, a), b)| *y = a + b),
        BinaryKind::Sub => all.for_each(|((y, a), b)| *y = a - b),
        BinaryKind::Mul => all.for_each(|((y, a), b)| *y = a * b),
        BinaryKind::Div => all.for_each(|((y, a), b)| *y = a / b),
    }
}

/// Returns for each number of a row of shape `out` the index in `from` that is broadcast there.
pub(super) fn spread(out: &[usize], from: &[usize]) -> Option<Vec<usize>> {
    let lead = out.len().checked_sub(from.len())?;
    let mut at = vec![0];
    for (n, &size) in out.iter().enumerate() {
        let from_size = n.checked_sub(lead).map_or(1, |n| from[n]);
        if from_size != size && from_size != 1 {
            return None;
        }
        at = at
            .into_iter()
            .flat_map(|base| {
                (0..size).map(move |i| base * from_size + if from_size == 1 { 0 } else { i })
            })
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
