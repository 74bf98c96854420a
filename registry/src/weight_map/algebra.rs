//! Shapes after conversion steps, and the steps that undo them.

use super::{HeadLayout, Sizes, Step};

/// More parts than any tensor is made of.
const MAX_PARTS: usize = 1 << 16;

type Shape = Vec<usize>;

/// Returns the shapes after all steps. The error is the reason that a step is impossible.
pub fn shapes(steps: &[Step], mut inputs: Vec<Shape>) -> Result<Vec<Shape>, String> {
    for step in steps {
        inputs = one(step, &inputs)?;
    }
    Ok(inputs)
}

/// Returns the steps that turn the outputs of `steps` back into inputs of these shapes.
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
        Step::Mxfp4 => match inputs {
            [blocks, scales] => mxfp4(blocks, scales).map(|shape| vec![shape]),
            _ => Err(format!("blocks and scales are two tensors, and there are {}", inputs.len())),
        },
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
        Step::ConcatRuns { axis, runs } => {
            let mut rest = inputs;
            let mut made = Vec::with_capacity(runs.len());
            for &run in runs {
                let (now, later) =
                    rest.split_at_checked(run).ok_or_else(|| uneven(runs, inputs))?;
                made.push(concat(*axis, now)?);
                rest = later;
            }
            if rest.is_empty() { Ok(made) } else { Err(uneven(runs, inputs)) }
        }
        Step::SplitRuns { axis, sizes } => {
            if sizes.len() != inputs.len() {
                return Err(format!("{} tensors, not {}", inputs.len(), sizes.len()));
            }
            let mut made = Vec::new();
            for (shape, sizes) in inputs.iter().zip(sizes) {
                let sizes = cut(at(shape, *axis)?, &Sizes::Each(sizes.clone()))?;
                made.extend(sizes.into_iter().map(|size| replaced(shape, *axis, size)));
            }
            few(made.len())?;
            Ok(made)
        }
        Step::At(n, step) => {
            let mut made = inputs.to_vec();
            let shape = made.get_mut(*n).ok_or_else(|| none_such(*n, inputs))?;
            *shape = each(step, shape)?;
            Ok(made)
        }
        alone => inputs.iter().map(|shape| each(alone, shape)).collect(),
    }
}

/// Returns the shape of decoded MXFP4: `[.., n, 16]` bytes of two numbers each and `[.., n]` scales give
/// `[.., 32 n]` numbers.
fn mxfp4(blocks: &Shape, scales: &Shape) -> Result<Shape, String> {
    let wrong = || format!("blocks {blocks:?} of 16 bytes do not fit scales {scales:?}");
    let [rest @ .., n, 16] = blocks.as_slice() else { return Err(wrong()) };
    if scales.split_last() != Some((n, rest)) {
        return Err(wrong());
    }
    let numbers = n.checked_mul(32).ok_or_else(wrong)?;
    Ok(rest.iter().copied().chain([numbers]).collect())
}

fn uneven(runs: &[usize], inputs: &[Shape]) -> String {
    format!("runs of {runs:?} tensors, and there are {}", inputs.len())
}

fn none_such(n: usize, inputs: &[Shape]) -> String {
    format!("there is no tensor {n}: there are {}, from 0", inputs.len())
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
        Step::Flatten(axis) => {
            let (first, second) = (at(shape, *axis)?, at(shape, axis.saturating_add(1))?);
            made[*axis] = first.checked_mul(second).ok_or("the sizes do not fit")?;
            made.remove(axis + 1);
        }
        Step::Unflatten { axis, sizes } => {
            let sizes = inferred(at(shape, *axis)?, sizes).ok_or_else(|| {
                format!("axis {axis} of shape {shape:?} cannot be read as {sizes:?}")
            })?;
            made.splice(*axis..=*axis, sizes);
        }
        Step::Resize(rows) => {
            let _first = at(shape, 0)?;
            made[0] = *rows;
        }
        Step::MulRows(parts) | Step::DivRows(parts) => {
            let sizes: Vec<usize> = parts.iter().map(|part| part.0).collect();
            cut(at(shape, 0)?, &Sizes::Each(sizes))?;
        }
        Step::Add(_) | Step::Mul(_) | Step::Div(_) | Step::NegExp | Step::LogNeg => {}
        Step::Split { .. }
        | Step::Unstack(_)
        | Step::Concat(_)
        | Step::Stack(_)
        | Step::ConcatRuns { .. }
        | Step::SplitRuns { .. }
        | Step::Mxfp4
        | Step::At(..) => return Err("this step takes no tensor by itself".to_owned()),
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
        Step::Flatten(axis) => {
            let first = inputs.first().ok_or("there are no tensors")?;
            let (outer, inner) = (at(first, *axis)?, at(first, axis.saturating_add(1))?);
            let all = |at: usize, size| inputs.iter().all(|shape| shape.get(at) == Some(&size));
            let sizes = if all(*axis, outer) {
                vec![outer, 0]
            } else if all(axis + 1, inner) {
                vec![0, inner]
            } else {
                return Err(format!(
                    "axes {axis} and {} differ between tensors that are flattened together",
                    axis + 1
                ));
            };
            Step::Unflatten { axis: *axis, sizes }
        }
        Step::Unflatten { axis, sizes } => {
            let shape = same(inputs)?;
            if let [_, _] = sizes[..] { Step::Flatten(*axis) } else { Step::Reshape(shape.clone()) }
        }
        Step::Resize(_) => Step::Resize(at(same(inputs)?, 0)?),
        Step::Add(x) => Step::Add(-x),
        Step::Mul(x) => Step::Div(*x),
        Step::Div(x) => Step::Mul(*x),
        Step::MulRows(parts) => Step::DivRows(parts.clone()),
        Step::DivRows(parts) => Step::MulRows(parts.clone()),
        Step::Mxfp4 => return Err("numbers are not made 4-bit blocks again".to_owned()),
        Step::NegExp => Step::LogNeg,
        Step::LogNeg => Step::NegExp,
        Step::At(n, step) => {
            let shape = inputs.get(*n).ok_or_else(|| none_such(*n, inputs))?;
            Step::At(*n, Box::new(undo(step, std::slice::from_ref(shape))?))
        }
        Step::ConcatRuns { axis, runs } => {
            let mut rest = inputs;
            let mut sizes = Vec::with_capacity(runs.len());
            for &run in runs {
                let (now, later) =
                    rest.split_at_checked(run).ok_or_else(|| uneven(runs, inputs))?;
                sizes.push(now.iter().map(|shape| at(shape, *axis)).collect::<Result<_, _>>()?);
                rest = later;
            }
            Step::SplitRuns { axis: *axis, sizes }
        }
        Step::SplitRuns { axis, sizes } => {
            Step::ConcatRuns { axis: *axis, runs: sizes.iter().map(Vec::len).collect() }
        }
    })
}

/// Replaces a zero among sizes by the remainder of the whole.
fn inferred(whole: usize, sizes: &[usize]) -> Option<Vec<usize>> {
    let known =
        sizes.iter().filter(|&&size| size > 0).try_fold(1_usize, |n, d| n.checked_mul(*d))?;
    let open = sizes.iter().filter(|&&size| size == 0).count();
    let fits = if open == 0 { known == whole } else { open == 1 && whole.is_multiple_of(known) };
    fits.then(|| sizes.iter().map(|&size| if size == 0 { whole / known } else { size }).collect())
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

/// Returns the sizes that an axis is cut into.
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
