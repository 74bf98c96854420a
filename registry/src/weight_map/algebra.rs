//! What steps do to shapes, and the steps that undo them.

use super::{HeadLayout, Sizes, Step};

/// More parts than any tensor is made of.
const MAX_PARTS: usize = 1 << 16;

type Shape = Vec<usize>;

/// The shapes after all steps. `Err` says why a step cannot be.
pub fn shapes(steps: &[Step], mut inputs: Vec<Shape>) -> Result<Vec<Shape>, String> {
    for step in steps {
        inputs = one(step, &inputs)?;
    }
    Ok(inputs)
}

/// The steps from what `steps` give back to inputs of these shapes.
pub fn inverse(steps: &[Step], mut inputs: Vec<Shape>) -> Result<Vec<Step>, String> {
    let mut back = Vec::new();
    for step in steps {
        let outputs = one(step, &inputs)?;
        back.push(undo(step, &inputs)?);
        inputs = outputs;
    }
    back.reverse();
    Ok(back)
}

fn one(step: &Step, inputs: &[Shape]) -> Result<Vec<Shape>, String> {
    match step {
        Step::Concat(axis) => concat(*axis, inputs).map(|shape| vec![shape]),
        Step::Stack(axis) => {
            let first = same(inputs)?;
            let mut shape = first.clone();
            if *axis > shape.len() {
                return Err(format!("a tensor of shape {first:?} has no place for an axis {axis}"));
            }
            shape.insert(*axis, inputs.len());
            Ok(vec![shape])
        }
        Step::Split { axis, sizes } => spread(inputs, |shape| {
            let sizes = cut(at(shape, *axis)?, sizes)?;
            Ok(sizes.into_iter().map(|size| replaced(shape, *axis, size)).collect())
        }),
        Step::Unstack(axis) => spread(inputs, |shape| {
            let parts = at(shape, *axis)?;
            few(parts)?;
            let mut rest = shape.clone();
            rest.remove(*axis);
            Ok(vec![rest; parts])
        }),
        alone => inputs.iter().map(|shape| each(alone, shape)).collect(),
    }
}

fn each(step: &Step, shape: &Shape) -> Result<Shape, String> {
    let mut made = shape.clone();
    match step {
        Step::Transpose(a, b) => {
            let _longer = at(shape, *a.max(b))?;
            made.swap(*a, *b);
        }
        Step::Squeeze(axis) => {
            if at(shape, *axis)? != 1 {
                return Err(format!("axis {axis} of shape {shape:?} is not 1"));
            }
            made.remove(*axis);
        }
        Step::Unsqueeze(axis) => {
            if *axis > shape.len() {
                return Err(format!("a tensor of shape {shape:?} has no place for an axis {axis}"));
            }
            made.insert(*axis, 1);
        }
        Step::Reshape(to) => {
            let count = |shape: &[usize]| shape.iter().try_fold(1_usize, |n, d| n.checked_mul(*d));
            if count(to).is_none() || count(to) != count(shape) {
                return Err(format!("shape {shape:?} cannot be read as {to:?}"));
            }
            made.clone_from(to);
        }
        Step::PermuteHeads { heads, .. } => {
            let rows = at(shape, 0)?;
            if *heads == 0 || rows % heads != 0 || !(rows / heads).is_multiple_of(2) {
                return Err(format!("{rows} rows are not {heads} heads of an even size"));
            }
        }
        Step::Split { .. } | Step::Unstack(_) | Step::Concat(_) | Step::Stack(_) => {}
    }
    Ok(made)
}

fn undo(step: &Step, inputs: &[Shape]) -> Result<Step, String> {
    Ok(match step {
        Step::Transpose(a, b) => Step::Transpose(*a, *b),
        Step::Squeeze(axis) => Step::Unsqueeze(*axis),
        Step::Unsqueeze(axis) => Step::Squeeze(*axis),
        Step::Reshape(_) => Step::Reshape(same(inputs)?.clone()),
        Step::PermuteHeads { heads, to } => {
            let to =
                if *to == HeadLayout::Half { HeadLayout::Interleaved } else { HeadLayout::Half };
            Step::PermuteHeads { heads: *heads, to }
        }
        Step::Split { axis, .. } => {
            lone(inputs)?;
            Step::Concat(*axis)
        }
        Step::Unstack(axis) => {
            lone(inputs)?;
            Step::Stack(*axis)
        }
        Step::Concat(axis) => {
            let sizes = inputs.iter().map(|shape| at(shape, *axis)).collect::<Result<_, _>>()?;
            Step::Split { axis: *axis, sizes: Sizes::Each(sizes) }
        }
        Step::Stack(axis) => Step::Unstack(*axis),
    })
}

fn lone(inputs: &[Shape]) -> Result<(), String> {
    match inputs {
        [_] => Ok(()),
        many => Err(format!("{} tensors are cut at once, which cannot be undone", many.len())),
    }
}

fn same(inputs: &[Shape]) -> Result<&Shape, String> {
    let first = inputs.first().ok_or("there are no tensors")?;
    match inputs.iter().find(|shape| *shape != first) {
        Some(other) => Err(format!("the shapes {first:?} and {other:?} differ")),
        None => Ok(first),
    }
}

fn concat(axis: usize, inputs: &[Shape]) -> Result<Shape, String> {
    let first = inputs.first().ok_or("there are no tensors")?;
    let mut sum = 0_usize;
    for shape in inputs {
        sum = sum.checked_add(at(shape, axis)?).ok_or("the sizes do not fit")?;
        if replaced(shape, axis, 0) != replaced(first, axis, 0) {
            return Err(format!("the shapes {first:?} and {shape:?} differ beside axis {axis}"));
        }
    }
    Ok(replaced(first, axis, sum))
}

fn spread(
    inputs: &[Shape],
    cut: impl Fn(&Shape) -> Result<Vec<Shape>, String>,
) -> Result<Vec<Shape>, String> {
    let mut all = Vec::new();
    for shape in inputs {
        all.extend(cut(shape)?);
        few(all.len())?;
    }
    Ok(all)
}

fn few(parts: usize) -> Result<(), String> {
    if parts > MAX_PARTS {
        Err(format!("{parts} parts, at most {MAX_PARTS} are allowed"))
    } else {
        Ok(())
    }
}

/// The sizes that an axis is cut into.
pub(super) fn cut(size: usize, sizes: &Sizes) -> Result<Vec<usize>, String> {
    match sizes {
        Sizes::Equal(parts) if *parts > 0 && size.is_multiple_of(*parts) => {
            few(*parts)?;
            Ok(vec![size / parts; *parts])
        }
        Sizes::Equal(parts) => Err(format!("{size} does not split into {parts} equal parts")),
        Sizes::Each(each) => {
            let sum = each.iter().try_fold(0_usize, |sum, size| sum.checked_add(*size));
            if sum == Some(size) {
                Ok(each.clone())
            } else {
                Err(format!("the sizes {each:?} do not add up to {size}"))
            }
        }
    }
}

fn at(shape: &[usize], axis: usize) -> Result<usize, String> {
    shape.get(axis).copied().ok_or_else(|| format!("shape {shape:?} has no axis {axis}"))
}

fn replaced(shape: &Shape, axis: usize, size: usize) -> Shape {
    let mut shape = shape.clone();
    shape[axis] = size;
    shape
}

#[cfg(test)]
mod tests;
