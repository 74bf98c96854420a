//! `delta_rule`: a matrix per head that decays, forgets what it held for a key and learns what
//! comes in its place. `log_decay` makes the logarithm of the decay.
//!
//! The recurrence of `torch_recurrent_gated_delta_rule` (transformers), in f32, one position
//! after another. The reference computes prefills in chunks by a triangular solve, which is the
//! same in exact arithmetic.

use super::scan::{scan_rows, walk};
use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::delta::{DeltaRow, DeltaRows, delta_rows};
use crate::kernels::math;
use crate::kernels::round::round;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("log_decay", LogDecay::prepare);
    kernels.prepared("delta_rule", DeltaRule::prepare);
}

/// `-exp(A) * softplus(x + dt)`, or with a floor `floor * sigmoid(exp(A) * (x + dt))`.
pub(super) struct LogDecay {
    pub(super) floor: Option<f32>,
    pub(super) width: usize,
    /// Numbers that share a rate.
    pub(super) per_head: usize,
}

impl LogDecay {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let width = args.width(0)?;
        let rates = args.numbers("A");
        let offsets = args.numbers("dt");
        if offsets != width || rates == 0 || width % rates != 0 {
            return Err(args.error(format!("{rates} rates and {offsets} offsets for {width}")));
        }
        args.expect_output(width)?;
        Ok(Self { floor: args.number_or_null("floor")?, width, per_head: width / rates })
    }
}

impl Kernel for LogDecay {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let a = ctx.need_vector("A")?;
        let dt = ctx.need_vector("dt")?;
        let &Self { floor, width, per_head } = self;
        let rates: Vec<f32> = a.iter().map(|a| a.exp()).collect();
        let dtype = ctx.output_dtype(0);
        let y = rows::map(&x.view(), width, width, |_, x, y| {
            for (n, ((y, x), dt)) in y.iter_mut().zip(x).zip(dt).enumerate() {
                let rate = rates[n / per_head];
                let x = x + dt;
                *y = match floor {
                    Some(floor) => floor * math::sigmoid(rate * x),
                    None => -rate * math::softplus(x),
                };
            }
            round(dtype, y);
        });
        ctx.set(0, y)
    }
}

/// Sizes of the matrices of a state.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeltaSizes {
    pub(super) key_heads: usize,
    pub(super) key: usize,
    pub(super) heads: usize,
    pub(super) value: usize,
    /// Numbers of a head's decay: one, or one for each channel of the keys.
    pub(super) channels: usize,
}

impl DeltaSizes {
    fn of(args: &Args<'_>) -> Result<Self, Error> {
        let (&[key_heads, key], &[heads, value]) = (args.input(1)?, args.input(2)?) else {
            return Err(args.error("keys and values have two axes each, heads and head size"));
        };
        let decays = args.width(3)?;
        let fits = key_heads > 0
            && heads > 0
            && heads % key_heads == 0
            && args.width(0)? == key_heads * key
            && args.width(4)? == heads
            && (decays == heads || decays == heads * key)
            && args.state_width()? == heads * key * value;
        if !fits {
            return Err(args.error("its inputs and its state do not fit"));
        }
        args.expect_output(heads * value)?;
        Ok(Self { key_heads, key, heads, value, channels: decays / heads })
    }
}

/// Sizes, the norm of queries and keys, and the factor on queries.
pub(super) struct DeltaRule {
    pub(super) sizes: DeltaSizes,
    pub(super) eps: Option<f32>,
    pub(super) divides: bool,
    pub(super) scale: f32,
}

impl DeltaRule {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self {
            sizes: DeltaSizes::of(args)?,
            eps: args.number_or_null("eps")?,
            divides: args.one_of("norm", &[("multiply", false), ("divide", true)])?,
            scale: args.number("scale")?,
        })
    }
}

impl Kernel for DeltaRule {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let q = ctx.input(0)?;
        let k = ctx.input(1)?;
        let v = ctx.input(2)?;
        let g = ctx.input(3)?;
        let beta = ctx.input(4)?;
        let &Self { sizes, eps, divides, scale } = self;
        let DeltaSizes { key_heads, key, heads, value, channels } = sizes;
        // Once for all value heads that share them.
        let mut q = normed(&q.view(), key, eps, divides);
        let k = normed(&k.view(), key, eps, divides);
        for q in &mut q {
            *q *= scale;
        }
        let decay: Vec<f32> = g.view().iter().map(|g| g.exp()).collect();
        let v = v.view();
        let v: &[f32] = &v;
        let beta = beta.view();
        let beta: &[f32] = &beta;
        let q: &[f32] = &q;
        let k: &[f32] = &k;
        let decay: &[f32] = &decay;
        let shared_by = heads / key_heads;
        let row_of = |row: usize, head: usize| {
            let place = row * heads + head;
            let shared = (row * key_heads + head / shared_by) * key;
            DeltaRow {
                decay: &decay[place * channels..][..channels],
                q: &q[shared..][..key],
                k: &k[shared..][..key],
                v: &v[place * value..][..value],
                beta: beta[place],
            }
        };
        let mut y = scan_rows(ctx, heads, value, |at, before, after, y| {
            if at.count == 1 {
                walk(at, before, after, y, &|at, before, after, y| {
                    row_of(at.row, at.unit).run(before, after, y);
                });
            } else {
                let rows: Vec<DeltaRow<'_>> =
                    (at.first..at.first + at.count).map(|row| row_of(row, at.unit)).collect();
                delta_rows(DeltaRows { rows: &rows, before, after, y });
            }
        })?;
        round(ctx.output_dtype(0), &mut y);
        ctx.set(0, y)
    }
}

/// Normalises each head to length 1, if there is an eps.
fn normed(x: &[f32], head: usize, eps: Option<f32>, divides: bool) -> Vec<f32> {
    let mut y = x.to_vec();
    let Some(eps) = eps else { return y };
    for y in y.chunks_exact_mut(head.max(1)) {
        let length = (math::fold(y, |x| x * x) + eps).sqrt();
        let inverse = 1.0 / length;
        for y in y {
            *y = if divides { *y / length } else { *y * inverse };
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_of_heads() {
        let x = [3.0, 4.0, 0.0, 0.0];
        assert_eq!(normed(&x, 2, Some(0.0), true)[..2], [0.6, 0.8]);
        assert_eq!(normed(&x, 2, Some(1e-6), false)[2..], [0.0, 0.0]);
        assert_eq!(normed(&x, 2, None, false), x);
    }
}
