//! `heads_linear`: a small matrix for each head, and a bias perhaps; one rounding after both.

use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::math::dot;
use crate::kernels::round::round;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("heads_linear", HeadsLinear::prepare);
}

/// Sizes and the order of the axes of the matrices.
pub(super) struct HeadsLinear {
    pub(super) heads: usize,
    pub(super) size: usize,
    /// Outputs of a head.
    pub(super) out: usize,
    pub(super) turned: bool,
    /// True if all heads have the same matrix.
    pub(super) shared: bool,
}

impl HeadsLinear {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let (&[heads, size], &[out_heads, out]) = (args.input(0)?, args.output(0)?) else {
            return Err(args.error("it works on heads"));
        };
        let shared = args.flag("shared")?;
        let matrices = if shared { 1 } else { heads };
        let numbers = args.numbers("weight");
        if size == 0
            || out_heads != heads
            || numbers != matrices * out * size
            || !args.may_have("bias", heads * out)
        {
            return Err(args.error(format!(
                "a weight of {numbers} numbers does not take {heads} heads of {size} to {out}"
            )));
        }
        let turned = args.one_of("layout", &[("out_in", false), ("in_out", true)])?;
        Ok(Self { heads, size, out, turned, shared })
    }
}

impl Kernel for HeadsLinear {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let &Self { heads, size, out, turned, .. } = self;
        let weight = ctx.need_vector("weight")?;
        let bias = ctx.vector("bias");
        // [matrix][out][in], so that each output is a product of two lines.
        let matrices: Vec<f32> = if turned {
            let lines = (0..weight.len() / size).map(|line| (line / out * size, line % out));
            lines
                .flat_map(|(first, o)| (first..first + size).map(move |i| weight[i * out + o]))
                .collect()
        } else {
            weight.to_vec()
        };
        let dtype = ctx.output_dtype(0);
        let y = rows::map(&x.view(), heads * size, heads * out, |_, x, y| {
            // A matrix of all heads comes again for each.
            let lines = matrices.chunks_exact(size).cycle();
            for (n, (y, line)) in y.iter_mut().zip(lines).enumerate() {
                *y = dot(&x[n / out * size..][..size], line) + bias.map_or(0.0, |b| b[n]);
            }
            round(dtype, y);
        });
        ctx.set(0, y)
    }
}
