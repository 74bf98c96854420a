//! Activations of one value.
//!
//! Most are one function in f32 and one rounding; those that transformers writes as several
//! tensor operations round after each of them.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for wide vectors")]

use registry::dtype::Dtype;

use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::math;
use crate::kernels::round::{round_inline, round1};
use crate::kernels::wide::{Wide, wide};

pub(super) fn kernels(kernels: &mut Kernels) {
    for (name, function) in FUNCTIONS {
        kernels.add(name, ActivationOp(function));
    }
}

/// Applies an activation in place and rounds to the dtype.
pub(super) type Activation = fn(Dtype, &mut [f32]);

/// The ops of this file.
const FUNCTIONS: [(&str, Activation); 14] = [
    ("silu", |d, y| each(d, y, math::silu)),
    ("gelu", |d, y| each(d, y, math::gelu)),
    ("gelu_tanh", |d, y| each(d, y, math::gelu_tanh)),
    ("gelu_new", |d, y| y.iter_mut().for_each(|x| *x = gelu_new(d, *x))),
    ("gelu_fast", |d, y| y.iter_mut().for_each(|x| *x = gelu_fast(d, *x))),
    ("relu", |d, y| each(d, y, relu)),
    // relu of a number of the dtype is one of the dtype, so only the square rounds.
    ("relu2", |d, y| each(d, y, |x| relu(x) * relu(x))),
    ("sigmoid", |d, y| each(d, y, math::sigmoid)),
    ("tanh", |d, y| each(d, y, f32::tanh)),
    ("softplus", |d, y| each(d, y, math::softplus)),
    ("quick_gelu", |d, y| y.iter_mut().for_each(|x| *x = quick_gelu(d, *x))),
    ("square_root", |d, y| each(d, y, f32::sqrt)),
    ("exp", |d, y| each(d, y, f32::exp)),
    ("sign", |d, y| each(d, y, sign)),
];

/// An activation function.
pub(super) struct ActivationOp(Activation);

impl Kernel for ActivationOp {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let dtype = ctx.output_dtype(0);
        let y = rows::pieces(&x.view(), |_, x, y| {
            y.copy_from_slice(x);
            (self.0)(dtype, y);
        });
        ctx.set(0, y)
    }
}

/// Reads an argument that names an activation.
pub(super) fn argument(args: &Args<'_>, name: &str) -> Result<Activation, Error> {
    let word = args.word_or_null(name)?.unwrap_or_default();
    by_name(word).ok_or_else(|| args.error(format!("no activation `{word}`")))
}

/// Finds a function by the name of its op.
pub(super) fn by_name(name: &str) -> Option<Activation> {
    FUNCTIONS.iter().find(|(known, _)| *known == name).map(|(_, function)| *function)
}

fn each(dtype: Dtype, y: &mut [f32], f: impl Fn(f32) -> f32) {
    wide(Each { dtype, y, f });
}

/// Applies a function to each number and rounds.
struct Each<'a, F> {
    dtype: Dtype,
    y: &'a mut [f32],
    f: F,
}

impl<F: Fn(f32) -> f32> Wide for Each<'_, F> {
    #[inline(always)]
    fn run(self) {
        for x in self.y.iter_mut() {
            *x = (self.f)(*x);
        }
        round_inline(self.dtype, self.y);
    }
}

fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// Returns the sign of a number, and 0 for 0 as torch does.
fn sign(x: f32) -> f32 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        0.0
    }
}

fn gelu_new(d: Dtype, x: f32) -> f32 {
    let r = |x| round1(d, x);
    // torch cubes bf16 by two rounded products, f16 and f32 by one function.
    let cube = if d == Dtype::Bf16 { r(r(x * x) * x) } else { r(x * x * x) };
    let inner = r(math::SQRT_2_OVER_PI * r(x + r(0.044_715 * cube)));
    r(r(0.5 * x) * r(1.0 + r(inner.tanh())))
}

/// Computes `FastGELUActivation` of transformers: the formula of the one above, in another order.
fn gelu_fast(d: Dtype, x: f32) -> f32 {
    let r = |x| round1(d, x);
    let bent = r(1.0 + r(r(0.044_715 * x) * x));
    let inner = r(r(x * 0.797_884_6) * bent);
    r(r(0.5 * x) * r(1.0 + r(inner.tanh())))
}

fn quick_gelu(d: Dtype, x: f32) -> f32 {
    round1(d, x * round1(d, math::sigmoid(round1(d, 1.702 * x))))
}
