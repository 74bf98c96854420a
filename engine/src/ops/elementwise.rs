//! Arithmetic number by number: `add sub mul div` of two values, `scale offset divide inverse`
//! with a number, `parameter`, `weight_scale`, `weight_add`, `weight_blend`, `softcap`, `clamp`, `cast`.

use std::borrow::Cow;

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
    kernels.prepared("parameter", Parameter::prepare);
    kernels.prepared("weight_scale", |args| WithWeight::prepare(args, BinaryKind::Mul));
    kernels.prepared("weight_add", |args| WithWeight::prepare(args, BinaryKind::Add));
    kernels.prepared("weight_blend", WeightBlend::prepare);
    kernels.prepared("add", |args| BinaryElementwise::prepare(args, BinaryKind::Add));
    kernels.prepared("sub", |args| BinaryElementwise::prepare(args, BinaryKind::Sub));
    kernels.prepared("mul", |args| BinaryElementwise::prepare(args, BinaryKind::Mul));
    kernels.prepared("div", |args| BinaryElementwise::prepare(args, BinaryKind::Div));
}

/// The number of an operand for each number of a row of the output; none if every number has its own.
pub(super) type OperandPlaces = Option<Vec<usize>>;

/// Returns the places of an operand, which is broadcast to the output by the rules of numpy within a row.
fn places(args: &Args<'_>, operand: &[usize]) -> Result<OperandPlaces, Error> {
    let row = args.output(0)?;
    if row == operand {
        return Ok(None);
    }
    let places = spread(row, operand);
    let places =
        places.ok_or_else(|| args.error(format!("numbers {operand:?} do not fit {row:?}")))?;
    Ok(Some(places))
}

/// Returns a row of an operand, broadcast to the output.
fn placed<'x>(places: &OperandPlaces, row: &'x [f32]) -> Cow<'x, [f32]> {
    match places {
        None => Cow::Borrowed(row),
        Some(places) => Cow::Owned(places.iter().map(|place| row[*place]).collect()),
    }
}

/// An operator between two values.
pub(super) struct BinaryElementwise {
    kind: BinaryKind,
    /// Places of both operands.
    pub(super) places: [OperandPlaces; 2],
}

impl BinaryElementwise {
    pub(super) fn prepare(args: &Args<'_>, kind: BinaryKind) -> Result<Self, Error> {
        let places = [places(args, args.input(0)?)?, places(args, args.input(1)?)?];
        Ok(Self { kind, places })
    }
}

impl Kernel for BinaryElementwise {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let a = ctx.input(0)?;
        let b = ctx.input(1)?;
        let kind = self.kind;
        let dtype = ctx.output_dtype(0);
        let second = b.view();
        let second: &[f32] = &second;
        let [first_places, second_places] = &self.places;
        let y = if let [None, None] = &self.places {
            rows::pieces(&a.view(), |at, a, y| {
                apply(kind, a, &second[at..at + a.len()], y);
                round(dtype, y);
            })
        } else {
            let width = b.width();
            rows::map(&a.view(), a.width(), ctx.output_width(0)?, |row, a, y| {
                let b = &second[row * width..][..width];
                apply(kind, &placed(first_places, a), &placed(second_places, b), y);
                round(dtype, y);
            })
        };
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

/// Returns the role of the one weight of a node.
fn only_weight(args: &Args<'_>) -> Result<String, Error> {
    let weights = &args.node().weights;
    match weights.keys().next() {
        Some(role) if weights.len() == 1 => Ok(role.clone()),
        _ => Err(args.error("it has one weight")),
    }
}

/// A raw tensor as the value of each row.
pub(super) struct Parameter {
    pub(super) role: String,
}

impl Parameter {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let role = only_weight(args)?;
        let width = args.weight(&role).unwrap_or_default().iter().product();
        args.expect_output(width)?;
        Ok(Self { role })
    }
}

impl Kernel for Parameter {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let row = ctx.need_vector(&self.role)?;
        ctx.set(0, row.repeat(ctx.input(0)?.rows()))
    }
}

/// The one weight of a node, broadcast to the rows of its input.
pub(super) struct PlacedWeight {
    pub(super) role: String,
    pub(super) places: OperandPlaces,
}

impl PlacedWeight {
    fn of(args: &Args<'_>) -> Result<Self, Error> {
        let role = only_weight(args)?;
        args.expect_output(args.width(0)?)?;
        let places = places(args, args.weight(&role).unwrap_or_default())?;
        Ok(Self { role, places })
    }

    /// Returns the numbers for a row.
    fn row<'x>(&self, ctx: &Ctx<'x>) -> Result<Cow<'x, [f32]>, Error> {
        Ok(placed(&self.places, ctx.need_vector(&self.role)?))
    }
}

/// An operator between a value and a weight.
pub(super) struct WithWeight {
    kind: BinaryKind,
    pub(super) weight: PlacedWeight,
}

impl WithWeight {
    pub(super) fn prepare(args: &Args<'_>, kind: BinaryKind) -> Result<Self, Error> {
        Ok(Self { kind, weight: PlacedWeight::of(args)? })
    }
}

impl Kernel for WithWeight {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let dtype = ctx.output_dtype(0);
        let weight = self.weight.row(ctx)?;
        let y = rows::map(&x.view(), x.width(), x.width(), |_, x, y| {
            apply(self.kind, x, &weight, y);
            round(dtype, y);
        });
        ctx.set(0, y)
    }
}

/// The sum of the shares of two values, `x * w + y * (1 - w)`, each step rounded.
pub(super) struct WeightBlend {
    pub(super) weight: PlacedWeight,
}

impl WeightBlend {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let shapes = [args.input(0)?, args.input(1)?];
        if shapes[0] != shapes[1] {
            return Err(args.error(format!("{:?} and {:?} do not fit", shapes[0], shapes[1])));
        }
        Ok(Self { weight: PlacedWeight::of(args)? })
    }
}

impl Kernel for WeightBlend {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let y = ctx.input(1)?;
        let dtype = ctx.output_dtype(0);
        let weight = self.weight.row(ctx)?;
        let complements: Vec<f32> = weight.iter().map(|w| round1(dtype, 1.0 - w)).collect();
        let width = x.width();
        let second = y.view();
        let second: &[f32] = &second;
        let blended = rows::map(&x.view(), width, width, |row, x, out| {
            let y = &second[row * width..][..width];
            let shares = weight.iter().zip(&complements);
            for (((out, x), y), (w, complement)) in out.iter_mut().zip(x).zip(y).zip(shares) {
                *out = round1(dtype, round1(dtype, x * w) + round1(dtype, y * complement));
            }
        });
        ctx.set(0, blended)
    }
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
pub(super) enum BinaryKind {
    Add,
    Sub,
    Mul,
    Div,
}

fn apply(kind: BinaryKind, a: &[f32], b: &[f32], y: &mut [f32]) {
    let all = y.iter_mut().zip(a).zip(b);
    match kind {
        BinaryKind::Add => all.for_each(|((y, a), b)| *y = a + b),
        BinaryKind::Sub => all.for_each(|((y, a), b)| *y = a - b),
        BinaryKind::Mul => all.for_each(|((y, a), b)| *y = a * b),
        BinaryKind::Div => all.for_each(|((y, a), b)| *y = a / b),
    }
}

/// Returns for each number of a row of shape `out` the index in `from` that is broadcast there.
fn spread(out: &[usize], from: &[usize]) -> Option<Vec<usize>> {
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
