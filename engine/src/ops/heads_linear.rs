//! `heads_linear`: a small matrix for each head, and a bias perhaps; one rounding after both.

use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::math::dot;
use crate::kernels::round::round;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("heads_linear", HeadsLinear::prepare);
}

/// The order of the axes of the matrices, and whether there is one for all heads.
pub(super) struct HeadsLinear {
    pub(super) turned: bool,
    pub(super) shared: bool,
}

impl HeadsLinear {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self {
            turned: args.one_of("layout", &[("out_in", false), ("in_out", true)])?,
            shared: args.flag("shared")?,
        })
    }

    /// Returns the number of matrices for so many heads.
    pub(super) fn matrices(&self, heads: usize) -> usize {
        if self.shared { 1 } else { heads }
    }
}

impl Kernel for HeadsLinear {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let (&[_, heads, size], &[_, out]) = (x.shape(), ctx.output_shape(0)?) else {
            return Err(ctx.error("it works on heads"));
        };
        let weight = ctx.need_vector("weight")?;
        let bias = ctx.vector("bias");
        let matrices = self.matrices(heads);
        if size == 0
            || weight.len() != matrices * out * size
            || bias.is_some_and(|b| b.len() != heads * out)
        {
            return Err(ctx.error(format!(
                "a weight of {} numbers does not take {heads} heads of {size} to {out}",
                weight.len()
            )));
        }
        // [matrix][out][in], so that each output is a product of two lines.
        let turned: Vec<f32> = if self.turned {
            let lines = (0..matrices * out).map(|line| (line / out * size, line % out));
            lines
                .flat_map(|(first, o)| (first..first + size).map(move |i| weight[i * out + o]))
                .collect()
        } else {
            weight.to_vec()
        };
        let dtype = ctx.output_dtype(0);
        let y = rows::map(&x.view(), heads * size, heads * out, |_, x, y| {
            // A matrix of all heads comes again for each.
            let lines = turned.chunks_exact(size).cycle();
            for (n, (y, line)) in y.iter_mut().zip(lines).enumerate() {
                *y = dot(&x[n / out * size..][..size], line) + bias.map_or(0.0, |b| b[n]);
            }
            round(dtype, y);
        });
        ctx.set(0, y)
    }
}
