//! `heads`, `merge`, `split`, `concat`, `slice`, `copies`, `regroup`: numbers move, none changes.

use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;
use crate::value::GraphValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.add("heads", reshape);
    kernels.add("merge", reshape);
    kernels.add("split", split);
    kernels.add("concat", concat);
    kernels.prepared("slice", Slice::prepare);
    kernels.add("copies", copies);
    kernels.prepared("regroup", Regroup::prepare);
}

/// Gives the numbers the output's shape.
pub(super) fn reshape(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let shape: Vec<usize> = [x.rows()].iter().chain(ctx.output_shape(0)?).copied().collect();
    let y = x.reshape(&shape)?;
    ctx.share(0, y)
}

/// Splits the last axis into pieces as long as the outputs' last axes.
pub(super) fn split(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let mut from = 0;
    for n in 0..ctx.node().outputs.len() {
        let width = last(ctx.output_shape(n)?);
        let piece = columns(ctx, &x, from, width)?;
        ctx.set(n, piece)?;
        from += width;
    }
    Ok(())
}

/// Columns `from..to` of the last axis.
pub(super) struct Slice {
    pub(super) from: usize,
}

impl Slice {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self { from: args.count("from")? })
    }
}

impl Kernel for Slice {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let width = last(ctx.output_shape(0)?);
        let piece = columns(ctx, &x, self.from, width)?;
        ctx.set(0, piece)
    }
}

/// Repeats each row along a new first axis.
pub(super) fn copies(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let n = ctx.output_shape(0)?.first().copied().unwrap_or(1);
    let view = x.view();
    let rows = view.chunks_exact(x.width().max(1));
    let y = rows.flat_map(|row| row.repeat(n)).collect();
    ctx.set(0, y)
}

/// Groups of heads that change places with the heads of a group.
pub(super) struct Regroup {
    pub(super) groups: usize,
}

impl Regroup {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self { groups: args.count("n")? })
    }

    /// Returns the heads of a group.
    pub(super) fn size(&self, shape: &[usize]) -> Result<usize, String> {
        let &[_, heads, _] = shape else { return Err("it moves heads".to_owned()) };
        let groups = self.groups;
        if groups == 0 || heads % groups != 0 {
            return Err(format!("{heads} heads are no {groups} groups"));
        }
        Ok(heads / groups)
    }

    /// Returns for each place the head that goes there.
    fn heads(&self, shape: &[usize]) -> Result<Vec<usize>, String> {
        let size = self.size(shape)?;
        let groups = self.groups;
        Ok((0..groups * size).map(|place| place % groups * size + place / groups).collect())
    }
}

impl Kernel for Regroup {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let heads = self.heads(x.shape()).map_err(|why| ctx.error(why))?;
        let size = last(x.shape());
        let view = x.view();
        let mut y = Vec::with_capacity(view.len());
        for row in view.chunks_exact(x.width().max(1)) {
            for head in &heads {
                y.extend_from_slice(&row[head * size..][..size]);
            }
        }
        ctx.set(0, y)
    }
}

/// Inputs one after another along the last axis.
pub(super) fn concat(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let inputs: Vec<GraphValue> =
        (0..ctx.node().inputs.len()).map(|n| ctx.input(n)).collect::<Result<_, _>>()?;
    let views: Vec<_> = inputs.iter().map(|x| (last(x.shape()), x.view())).collect();
    let lines = views.first().map_or(0, |(w, x)| x.len().checked_div(*w).unwrap_or(0));
    if views.iter().any(|(w, x)| w * lines != x.len()) {
        return Err(ctx.error("its inputs differ before the last axis"));
    }
    let mut y = Vec::with_capacity(views.iter().map(|(_, x)| x.len()).sum());
    for line in 0..lines {
        for (width, x) in &views {
            y.extend_from_slice(&x[line * width..(line + 1) * width]);
        }
    }
    ctx.set(0, y)
}

pub(super) fn last(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(1)
}

fn columns(ctx: &Ctx<'_>, x: &GraphValue, from: usize, width: usize) -> Result<Vec<f32>, Error> {
    let axis = last(x.shape());
    if from + width > axis {
        return Err(ctx.error(format!("columns {from}..{} of {axis}", from + width)));
    }
    let view = x.view();
    let mut y = Vec::with_capacity(view.len().checked_div(axis).unwrap_or(0) * width);
    for line in view.chunks_exact(axis.max(1)) {
        y.extend_from_slice(&line[from..from + width]);
    }
    Ok(y)
}

#[cfg(test)]
mod tests {
    use super::Regroup;

    #[test]
    fn groups_change_places_with_heads() {
        assert_eq!(six_heads(2), Ok(vec![0, 3, 1, 4, 2, 5]));
        assert_eq!(six_heads(3), Ok(vec![0, 2, 4, 1, 3, 5]));
        assert!(six_heads(4).is_err() && six_heads(0).is_err());
        let by_two = six_heads(2).unwrap();
        let by_three = six_heads(3).unwrap();
        assert!(by_three.iter().map(|place| by_two[*place]).eq(0..6), "the other number undoes it");
    }

    /// Returns the places of six heads in groups.
    fn six_heads(groups: usize) -> Result<Vec<usize>, String> {
        Regroup { groups }.heads(&[1, 6, 4])
    }
}
