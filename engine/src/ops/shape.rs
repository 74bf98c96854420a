//! `heads`, `merge`, `split`, `concat`, `slice`, `copies`, `regroup`: numbers move, none changes.

use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;
use crate::value::GraphValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.add("heads", reshape);
    kernels.add("merge", reshape);
    kernels.prepared("split", AxisSplit::prepare);
    kernels.prepared("concat", Concat::prepare);
    kernels.prepared("slice", Slice::prepare);
    kernels.prepared("copies", Copies::prepare);
    kernels.prepared("join_rows", JoinRows::prepare);
    kernels.prepared("regroup", Regroup::prepare);
}

/// Gives the numbers the output's shape.
pub(super) fn reshape(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let shape: Vec<usize> = [x.rows()].iter().chain(ctx.output_shape(0)?).copied().collect();
    let y = x.reshape(&shape)?;
    ctx.share(0, y)
}

/// Rows of a group side by side, at each of them.
struct JoinRows {
    /// Rows of a group.
    count: usize,
    /// Numbers of a row.
    width: usize,
    /// Rows before the first group.
    skip: usize,
}

impl JoinRows {
    fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let width = args.width(0)?;
        let count = args.count("n")?;
        if count == 0 {
            return Err(args.error("a group has at least one row"));
        }
        args.expect_output(count * width)?;
        let skip = args.count_or_null("skip")?.unwrap_or(0);
        Ok(Self { count, width, skip })
    }
}

impl Kernel for JoinRows {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let view = x.view();
        let size = self.count * self.width;
        let mut joined = vec![0.0; view.len() * self.count];
        for chunk in ctx.chunks() {
            if chunk.start > 0 || chunk.rows.end > x.rows() {
                return Err(ctx.error("its sequence is fed in several chunks; expected one"));
            }
            let first = (chunk.rows.start + self.skip).min(chunk.rows.end);
            let rows = &view[first * self.width..chunk.rows.end * self.width];
            let places = joined[first * size..].chunks_exact_mut(size * self.count);
            for (group, places) in rows.chunks_exact(size).zip(places) {
                places.chunks_exact_mut(size).for_each(|place| place.copy_from_slice(group));
            }
        }
        ctx.set(0, joined)
    }

    fn needs_whole_chunks(&self) -> bool {
        true
    }
}

/// Splits the last axis into pieces as long as the outputs' last axes.
pub(super) struct AxisSplit {
    /// First column and width of each output.
    pub(super) columns: Vec<(usize, usize)>,
}

impl AxisSplit {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let mut columns = Vec::new();
        let mut from = 0;
        for n in 0..args.node().outputs.len() {
            let width = last(args.output(n)?);
            columns.push((from, width));
            from += width;
        }
        expect_columns(args, from)?;
        Ok(Self { columns })
    }
}

impl Kernel for AxisSplit {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        for (n, &(from, width)) in self.columns.iter().enumerate() {
            ctx.set(n, columns(&x, from, width))?;
        }
        Ok(())
    }
}

/// Checks that the last axis has so many columns.
fn expect_columns(args: &Args<'_>, end: usize) -> Result<(), Error> {
    let axis = last(args.input(0)?);
    if end > axis {
        return Err(args.error(format!("columns up to {end} of {axis}")));
    }
    Ok(())
}

/// Some columns of the last axis.
pub(super) struct Slice {
    pub(super) from: usize,
    pub(super) width: usize,
}

impl Slice {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let from = args.count("from")?;
        let width = last(args.output(0)?);
        expect_columns(args, from.saturating_add(width))?;
        Ok(Self { from, width })
    }
}

impl Kernel for Slice {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        ctx.set(0, columns(&x, self.from, self.width))
    }
}

/// Repeats each row along a new first axis.
pub(super) struct Copies {
    pub(super) count: usize,
}

impl Copies {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let count = args.output(0)?.first().copied().unwrap_or(1);
        args.expect_output(count * args.width(0)?)?;
        Ok(Self { count })
    }
}

impl Kernel for Copies {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let view = x.view();
        let rows = view.chunks_exact(x.width().max(1));
        let y = rows.flat_map(|row| row.repeat(self.count)).collect();
        ctx.set(0, y)
    }
}

/// Groups of heads that change places with the heads of a group.
pub(super) struct Regroup {
    pub(super) groups: usize,
    /// Heads of a group.
    pub(super) size: usize,
    /// Numbers of a head.
    pub(super) dim: usize,
}

impl Regroup {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let &[heads, dim] = args.input(0)? else { return Err(args.error("it moves heads")) };
        let groups = args.count("n")?;
        if groups == 0 || heads % groups != 0 {
            return Err(args.error(format!("{heads} heads are no {groups} groups")));
        }
        args.expect_output(heads * dim)?;
        Ok(Self { groups, size: heads / groups, dim })
    }

    /// Returns for each place the head that goes there.
    fn heads(&self) -> Vec<usize> {
        let &Self { groups, size, .. } = self;
        (0..groups * size).map(|place| place % groups * size + place / groups).collect()
    }
}

impl Kernel for Regroup {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let heads = self.heads();
        let view = x.view();
        let mut y = Vec::with_capacity(view.len());
        for row in view.chunks_exact(x.width().max(1)) {
            for head in &heads {
                y.extend_from_slice(&row[head * self.dim..][..self.dim]);
            }
        }
        ctx.set(0, y)
    }
}

/// Inputs one after another along the last axis.
pub(super) struct Concat {
    /// Columns of each input.
    pub(super) widths: Vec<usize>,
}

impl Concat {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let output = args.output(0)?;
        let before = output.split_last().map_or(&[][..], |(_, before)| before);
        let mut widths = Vec::new();
        for n in 0..args.node().inputs.len() {
            let shape = args.input(n)?;
            if shape.split_last().map_or(&[][..], |(_, axes)| axes) != before {
                return Err(args.error("its inputs differ before the last axis"));
            }
            widths.push(last(shape));
        }
        args.expect_output(before.iter().product::<usize>() * widths.iter().sum::<usize>())?;
        Ok(Self { widths })
    }
}

impl Kernel for Concat {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let inputs = (0..self.widths.len()).map(|n| ctx.input(n));
        let inputs: Vec<GraphValue> = inputs.collect::<Result<_, _>>()?;
        let views: Vec<_> = inputs.iter().map(GraphValue::view).collect();
        let lines = views[0].len().checked_div(self.widths[0]).unwrap_or(0);
        let mut y = Vec::with_capacity(views.iter().map(|view| view.len()).sum());
        for line in 0..lines {
            for (width, x) in self.widths.iter().zip(&views) {
                y.extend_from_slice(&x[line * width..(line + 1) * width]);
            }
        }
        ctx.set(0, y)
    }
}

pub(super) fn last(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(1)
}

fn columns(x: &GraphValue, from: usize, width: usize) -> Vec<f32> {
    let axis = last(x.shape());
    let view = x.view();
    let mut y = Vec::with_capacity(view.len().checked_div(axis).unwrap_or(0) * width);
    for line in view.chunks_exact(axis.max(1)) {
        y.extend_from_slice(&line[from..from + width]);
    }
    y
}

#[cfg(test)]
mod tests {
    use super::Regroup;

    #[test]
    fn groups_change_places_with_heads() {
        assert_eq!(six_heads(2), [0, 3, 1, 4, 2, 5]);
        assert_eq!(six_heads(3), [0, 2, 4, 1, 3, 5]);
        let by_two = six_heads(2);
        let by_three = six_heads(3);
        assert!(by_three.iter().map(|place| by_two[*place]).eq(0..6), "the other number undoes it");
    }

    /// Returns the places of six heads in groups.
    fn six_heads(groups: usize) -> Vec<usize> {
        Regroup { groups, size: 6 / groups, dim: 4 }.heads()
    }
}
