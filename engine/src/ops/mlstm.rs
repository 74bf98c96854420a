//! `mlstm` (Beck et al. 2024): a matrix per head that gates of exponential form decay and add to.
//!
//! The exponent of the gates is kept apart, as their largest one so far. A unit's part of the state is `[key, value + 1]`,
//! whose last column has the sums of keys, and the exponent behind it.

use registry::dtype::Dtype;

use super::scan::scan;
use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;
use crate::kernels::round::{round, round1};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("mlstm", Mlstm::prepare);
}

/// The factor of queries, and what is added to the sums that outputs are divided by.
pub(super) struct Mlstm {
    pub(super) scale: f32,
    pub(super) eps: f32,
    /// True if rows that continue a sequence round the state.
    pub(super) stepwise: bool,
}

impl Mlstm {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self {
            scale: args.number("scale")?,
            eps: args.number("eps")?,
            stepwise: args.flag("stepwise")?,
        })
    }
}

/// Queries, keys and values of one head at one position.
struct HeadInputs<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    input_gate: f32,
    forget_gate: f32,
}

/// Computes the logarithm of the sigmoid.
fn log_sigmoid(x: f32) -> f32 {
    x.min(0.0) - (-x.abs()).exp().ln_1p()
}

impl Mlstm {
    /// Computes one position of one head.
    fn step(
        &self,
        dtype: Dtype,
        x: &HeadInputs<'_>,
        before: &[f32],
        after: &mut [f32],
        y: &mut [f32],
    ) {
        let r = |x: f32| round1(dtype, x);
        let columns = x.v.len() + 1;
        let last = before.len() - 1;
        let faded = r(log_sigmoid(x.forget_gate)) + before[last];
        let top = faded.max(x.input_gate);
        let keep = (faded - top).exp();
        let add = (x.input_gate - top).exp();
        y.fill(0.0);
        let mut total = 0.0;
        let lines = before.chunks_exact(columns).zip(after.chunks_exact_mut(columns));
        for (((before, after), k), q) in lines.zip(x.k).zip(x.q) {
            let q = r(q * self.scale);
            for (n, v) in x.v.iter().enumerate() {
                after[n] = keep * before[n] + add * r(k * v);
                y[n] += q * r(after[n]);
            }
            after[columns - 1] = keep * before[columns - 1] + add * k;
            total += q * r(after[columns - 1]);
        }
        after[last] = top;
        let divisor = r(total).abs().max((-top).exp()) + self.eps;
        y.iter_mut().for_each(|y| *y = r(r(*y) / divisor));
    }
}

impl Kernel for Mlstm {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let q = ctx.input(0)?;
        let k = ctx.input(1)?;
        let v = ctx.input(2)?;
        let input_gate = ctx.input(3)?;
        let forget_gate = ctx.input(4)?;
        let (&[_, heads, key], &[_, _, value]) = (k.shape(), v.shape()) else {
            return Err(ctx.error("keys and values have two axes each, heads and head size"));
        };
        if q.width() != heads * key
            || v.width() != heads * value
            || input_gate.width() != heads
            || forget_gate.width() != heads
        {
            return Err(ctx.error("its queries, keys, values and gates do not fit"));
        }
        let dtype = ctx.output_dtype(0);
        let qs = q.view();
        let qs: &[f32] = &qs;
        let ks = k.view();
        let ks: &[f32] = &ks;
        let vs = v.view();
        let vs: &[f32] = &vs;
        let gates = [input_gate.to_vec(), forget_gate.to_vec()];
        let y = scan(ctx, heads, value, |at, before, after, y| {
            let head = at.row * heads + at.unit;
            let x = HeadInputs {
                q: &qs[head * key..][..key],
                k: &ks[head * key..][..key],
                v: &vs[head * value..][..value],
                input_gate: gates[0][head],
                forget_gate: gates[1][head],
            };
            self.step(dtype, &x, before, after, y);
            if self.stepwise && at.continued {
                round(dtype, after);
            }
        })?;
        ctx.set(0, y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps by the sums of the paper, without the exponent that is kept apart.
    #[test]
    fn outputs_are_weighted_means_of_values() {
        let mlstm = Mlstm { scale: 0.5, eps: 0.0, stepwise: false };
        let mut state = vec![0.0; 2 * 2 + 1];
        let rows =
            [([1.0, 2.0], [0.5, -1.0], 3.0, -0.5, 1.5), ([2.0, -1.0], [1.0, 2.0], -2.0, 0.7, -0.3)];
        let mut matrix = [0.0_f64; 2];
        let mut sums = [0.0_f64; 2];
        for (q, k, v, input_gate, forget_gate) in rows {
            let x = HeadInputs { q: &q, k: &k, v: &[v], input_gate, forget_gate };
            let mut after = state.clone();
            let mut y = [0.0];
            mlstm.step(Dtype::F32, &x, &state, &mut after, &mut y);
            state = after;
            let keep = 1.0 / (1.0 + (-f64::from(forget_gate)).exp());
            let add = f64::from(input_gate).exp();
            for n in 0..2 {
                matrix[n] = keep * matrix[n] + add * f64::from(k[n] * v);
                sums[n] = keep * sums[n] + add * f64::from(k[n]);
            }
            let product =
                |sums: &[f64; 2]| 0.5 * (f64::from(q[0]) * sums[0] + f64::from(q[1]) * sums[1]);
            let expected = product(&matrix) / product(&sums).abs().max(1.0);
            assert!((f64::from(y[0]) - expected).abs() < 1e-5, "{} {expected}", y[0]);
        }
    }

    #[test]
    fn logarithms_of_sigmoids_hold_far_out() {
        for (x, expected) in [(0.0, -std::f32::consts::LN_2), (-200.0, -200.0), (200.0, 0.0)] {
            assert!((log_sigmoid(x) - expected).abs() < 1e-6, "{x}");
        }
    }
}
