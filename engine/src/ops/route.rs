//! Ops that routers are made of: `softmax`, `total`, `p_norm`, `choose`, `choose_by_token`, `pick`, `near_shares`.

use registry::dtype::Dtype;
use registry::ops::INTEGERS;

use super::shape::last;
use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::choose::TopK;
use crate::kernels::math::{exp, sum};
use crate::kernels::round::round;
use crate::kernels::tokens::epsilon;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.add("softmax", softmax);
    kernels.prepared("total", Total::prepare);
    kernels.prepared("p_norm", PNorm::prepare);
    kernels.prepared("choose", Choose::prepare);
    kernels.prepared("choose_by_token", ChooseByToken::prepare);
    kernels.prepared("pick", PickChosen::prepare);
    kernels.prepared("near_shares", NearShares::prepare);
}

/// Computes the softmax over the last axis, in f32 with one rounding at the end.
pub(super) fn softmax(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let dtype = ctx.output_dtype(0);
    let last = x.shape().last().copied().unwrap_or(1);
    let y = rows::map(&x.view(), last, last, |_, x, y| {
        let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        y.iter_mut().zip(x).for_each(|(y, x)| *y = exp(x - largest));
        let total = sum(y);
        for y in y.iter_mut() {
            *y /= total;
        }
        round(dtype, y);
    });
    ctx.set(0, y)
}

/// Returns the numbers that make one number of the output: those of the row, or of its last axis.
fn summed_size(args: &Args<'_>) -> Result<usize, Error> {
    let width = args.width(0)?;
    let of_heads = args.one_of("of", &[("row", false), ("heads", true)])?;
    let size = if of_heads { last(args.input(0)?) } else { width }.max(1);
    args.expect_output(width / size)?;
    Ok(size)
}

/// The sum of a row, in f32 with one rounding at the end.
pub(super) struct Total {
    /// Numbers of a sum: those of the row, or of its last axis.
    pub(super) size: usize,
}

impl Total {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self { size: summed_size(args)? })
    }
}

impl Kernel for Total {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let dtype = ctx.output_dtype(0);
        let y = rows::map(&x.view(), self.size, 1, |_, x, y| {
            y[0] = x.iter().sum();
            round(dtype, y);
        });
        ctx.set(0, y)
    }
}

/// `(sum |x|^p)^(1/p)`, f32 inside, one rounding.
pub(super) struct PNorm {
    pub(super) p: f32,
    /// Numbers of a norm: those of the row, or of its last axis.
    pub(super) size: usize,
    /// True if a norm is at least the epsilon of its dtype.
    bounded: bool,
}

impl PNorm {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self {
            p: args.number("p")?,
            size: summed_size(args)?,
            bounded: args.one_of("least", &[("none", false), ("epsilon", true)])?,
        })
    }

    /// Returns the least norm in a dtype.
    pub(super) fn least(&self, dtype: Dtype) -> f32 {
        if self.bounded { epsilon(dtype) } else { 0.0 }
    }
}

impl Kernel for PNorm {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let dtype = ctx.output_dtype(0);
        let p = self.p;
        let least = self.least(dtype);
        let y = rows::map(&x.view(), self.size, 1, |_, x, y| {
            let norm = x.iter().map(|x| x.abs().powf(p)).sum::<f32>().powf(1.0 / p);
            y[0] = if norm < least { least } else { norm };
            round(dtype, y);
        });
        ctx.set(0, y)
    }
}

/// The places of the largest numbers of a row, best first. Of a row with NaN every place is NaN, which the weights
/// and outputs of experts take over: scores that are none would choose some expert without a word.
pub(super) struct Choose {
    pub(super) choice: TopK,
    pub(super) width: usize,
}

impl Choose {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let choice = TopK::of_node(args.node());
        let choice = choice.ok_or_else(|| args.error("it does not say how many"))?;
        let width = args.width(0)?;
        if choice.k > width {
            return Err(args.error(format!("{} cannot be chosen among {width}", choice.k)));
        }
        args.expect_output(choice.k)?;
        Ok(Self { choice, width })
    }
}

impl Kernel for Choose {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let choice = &self.choice;
        let y = rows::map(&x.view(), self.width, choice.k, |_, x, y| {
            if x.iter().any(|x| x.is_nan()) {
                return y.fill(f32::NAN);
            }
            y.iter_mut().zip(choice.select(x)).for_each(|(y, at)| *y = at as f32);
        });
        ctx.set(0, y)
    }
}

/// Choices that are listed for each token; NaN for a number that is no place.
pub(super) struct ChooseByToken {
    /// Tokens that have choices.
    pub(super) tokens: usize,
    /// Choices of a token.
    pub(super) k: usize,
    /// Places to choose among.
    pub(super) of: usize,
}

impl ChooseByToken {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let Some(&[tokens, k]) = args.weight(INTEGERS) else {
            return Err(args.error("it has no list for each token"));
        };
        args.expect_output(k)?;
        Ok(Self { tokens, k, of: args.count("of")? })
    }

    /// Returns the tokens of the step, which have to have lists.
    pub(super) fn known_tokens<'a>(&self, ctx: &Ctx<'a>) -> Result<&'a [u32], Error> {
        let tokens = ctx.tokens();
        match tokens.iter().find(|token| **token as usize >= self.tokens) {
            Some(token) => {
                Err(ctx.error(format!("token {token} has no list; there are {}", self.tokens)))
            }
            None => Ok(tokens),
        }
    }

    /// Returns the place that a number names.
    fn place(&self, number: f32) -> f32 {
        index(number, self.of).map_or(f32::NAN, |at| at as f32)
    }
}

impl Kernel for ChooseByToken {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let lists = ctx.need_vector(INTEGERS)?;
        let tokens = self.known_tokens(ctx)?.iter();
        let numbers = tokens.flat_map(|token| &lists[*token as usize * self.k..][..self.k]);
        let y = numbers.map(|number| self.place(*number)).collect();
        ctx.set(0, y)
    }
}

/// The numbers at the chosen indices.
pub(super) struct PickChosen;

impl PickChosen {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        args.expect_output(args.width(1)?)?;
        Ok(Self)
    }
}

impl Kernel for PickChosen {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let chosen = ctx.input(1)?;
        let width = x.width();
        let k = chosen.width();
        let xs = x.view();
        let places = chosen.view();
        let mut y = Vec::with_capacity(places.len());
        for (n, place) in places.iter().enumerate() {
            if place.is_nan() {
                y.push(f32::NAN);
                continue;
            }
            let at = index(*place, width).ok_or_else(|| ctx.error(format!("no place {place}")))?;
            y.push(xs[n / k.max(1) * width + at]);
        }
        drop((xs, places));
        ctx.set(0, y)
    }
}

/// For each choice its softmax among the scores that are left and nearly as large, all steps rounded
/// (SparseMixer, arXiv 2409.12136, without the noise of training; it chooses as it goes).
pub(super) struct NearShares {
    pub(super) margin: f32,
}

impl NearShares {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        args.expect_output(args.width(1)?)?;
        Ok(Self { margin: args.number("margin")? })
    }
}

impl Kernel for NearShares {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let chosen = ctx.input(1)?;
        let dtype = ctx.output_dtype(0);
        let width = x.width();
        let k = chosen.width();
        // The reference compares in the dtype of the scores.
        let mut margin = [self.margin];
        round(dtype, &mut margin);
        let xs = x.view();
        let places = chosen.view();
        let mut y = Vec::with_capacity(places.len());
        for (row, places) in xs.chunks(width.max(1)).zip(places.chunks(k.max(1))) {
            let mut left = vec![true; row.len()];
            for place in places {
                if place.is_nan() {
                    y.push(f32::NAN);
                    continue;
                }
                let at =
                    index(*place, width).ok_or_else(|| ctx.error(format!("no place {place}")))?;
                let best = row[at];
                let total: f32 = (0..row.len())
                    .filter(|n| left[*n] && is_near(row[*n], best, margin[0], dtype))
                    .map(|n| exp(row[n] - best))
                    .sum();
                y.push(1.0 / total);
                left[at] = false;
            }
        }
        drop((xs, places));
        round(dtype, &mut y);
        ctx.set(0, y)
    }
}

/// True if a score differs from the best one by at most the share `margin` of the larger of the two, each step rounded.
fn is_near(score: f32, best: f32, margin: f32, dtype: Dtype) -> bool {
    let mut apart = [best - score];
    round(dtype, &mut apart);
    apart[0] /= score.abs().max(best);
    round(dtype, &mut apart);
    // If both are 0 the quotient is NaN, and the score stays.
    apart[0].is_nan() || apart[0] <= margin
}

/// Checks a chosen index, which may come from outside the engine.
pub(super) fn index(place: f32, count: usize) -> Option<usize> {
    let at = place as usize;
    (place >= 0.0 && at as f32 == place && at < count).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::index;

    #[test]
    fn places_are_whole_numbers_that_are_there() {
        for (place, want) in [
            (0.0, Some(0)),
            (3.0, Some(3)),
            (4.0, None),
            (-1.0, None),
            (0.5, None),
            (f32::NAN, None),
            (f32::INFINITY, None),
        ] {
            assert_eq!(index(place, 4), want, "{place}");
        }
    }
}
