//! Shapes after conversion steps, and the steps that undo them.

use super::{HeadLayout, SplitSizes, WeightStep};

/// More parts than any tensor is made of.
const MAX_PARTS: usize = 1 << 16;

type Shape = Vec<usize>;

/// Reason that a step is impossible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum StepError {
    #[error("there are no tensors")]
    NoTensors,
    #[error("there is no tensor {number}: there are {found}, from 0")]
    NoTensor { number: usize, found: usize },
    #[error("{found} tensors, not {expected}")]
    Tensors { found: usize, expected: usize },
    #[error("runs of {runs:?} tensors, and there are {found}")]
    Runs { runs: Vec<usize>, found: usize },
    #[error("shape {shape:?} has no axis {axis}")]
    NoAxis { shape: Vec<usize>, axis: usize },
    #[error("a tensor of shape {shape:?} has no place for an axis {axis}")]
    AxisPosition { shape: Vec<usize>, axis: usize },
    #[error("axis {axis} of shape {shape:?} is not 1")]
    AxisNotOne { shape: Vec<usize>, axis: usize },
    #[error("the shapes {first:?} and {other:?} differ")]
    Differ { first: Vec<usize>, other: Vec<usize> },
    #[error("the shapes {first:?} and {other:?} differ beside axis {axis}")]
    DifferBeside { first: Vec<usize>, other: Vec<usize>, axis: usize },
    #[error("axes {axis} and {} differ between tensors that are flattened together", axis + 1)]
    DifferWithin { axis: usize },
    #[error("shape {shape:?} cannot be read as {to:?}")]
    Reshape { shape: Vec<usize>, to: Vec<usize> },
    #[error("axis {axis} of shape {shape:?} cannot be read as {sizes:?}")]
    Unflatten { shape: Vec<usize>, axis: usize, sizes: Vec<usize> },
    #[error("{rows} rows are not {heads} heads of an even size")]
    Heads { rows: usize, heads: usize },
    #[error("{size} does not split into {parts} equal parts")]
    Unequal { size: usize, parts: usize },
    #[error("the sizes {sizes:?} do not add up to {size}")]
    Sum { sizes: Vec<usize>, size: usize },
    #[error("{found} parts, at most {MAX_PARTS} are allowed")]
    Parts { found: usize },
    #[error("the sizes do not fit")]
    Overflow,
    #[error("blocks and scales are two tensors, and there are {found}")]
    NotBlocks { found: usize },
    #[error("blocks {blocks:?} of 16 bytes do not fit scales {scales:?}")]
    Blocks { blocks: Vec<usize>, scales: Vec<usize> },
    #[error("this step takes no tensor by itself")]
    NotPerTensor,
    #[error("{found} tensors are cut at once, which cannot be undone")]
    SeveralCuts { found: usize },
    #[error("numbers are not made 4-bit blocks again")]
    Decoded,
}

/// Returns the shapes after all steps. The error is the reason that a step is impossible.
pub fn shapes(steps: &[WeightStep], mut inputs: Vec<Shape>) -> Result<Vec<Shape>, StepError> {
    for step in steps {
        inputs = step_shapes(step, &inputs)?;
    }
    Ok(inputs)
}

/// Returns the steps that turn the outputs of `steps` back into inputs of these shapes.
pub fn inverse(steps: &[WeightStep], mut inputs: Vec<Shape>) -> Result<Vec<WeightStep>, StepError> {
    let mut back = Vec::new();
    for step in steps {
        let outputs = step_shapes(step, &inputs)?;
        back.push(inverse_step(step, &inputs)?);
        inputs = outputs;
    }
    back.reverse();
    Ok(back)
}

fn step_shapes(step: &WeightStep, inputs: &[Shape]) -> Result<Vec<Shape>, StepError> {
    match step {
        WeightStep::Concat(axis) => concat(*axis, inputs).map(|shape| vec![shape]),
        WeightStep::Stack(axis) => {
            let first = common_shape(inputs)?;
            let mut shape = first.clone();
            if *axis > shape.len() {
                return Err(StepError::AxisPosition { shape, axis: *axis });
            }
            shape.insert(*axis, inputs.len());
            Ok(vec![shape])
        }
        WeightStep::Mxfp4 => match inputs {
            [blocks, scales] => mxfp4(blocks, scales).map(|shape| vec![shape]),
            _ => Err(StepError::NotBlocks { found: inputs.len() }),
        },
        WeightStep::Split { axis, sizes } => per_tensor(inputs, |shape| {
            let sizes = cut(at(shape, *axis)?, sizes)?;
            Ok(sizes.into_iter().map(|size| replaced(shape, *axis, size)).collect())
        }),
        WeightStep::Unstack(axis) => per_tensor(inputs, |shape| {
            let parts = at(shape, *axis)?;
            check_parts(parts)?;
            let mut part = shape.clone();
            part.remove(*axis);
            Ok(vec![part; parts])
        }),
        WeightStep::ConcatRuns { axis, runs } => {
            let mut remaining = inputs;
            let mut outputs = Vec::with_capacity(runs.len());
            for &run in runs {
                let (now, later) =
                    remaining.split_at_checked(run).ok_or_else(|| uneven(runs, inputs))?;
                outputs.push(concat(*axis, now)?);
                remaining = later;
            }
            if remaining.is_empty() { Ok(outputs) } else { Err(uneven(runs, inputs)) }
        }
        WeightStep::SplitRuns { axis, sizes } => {
            if sizes.len() != inputs.len() {
                return Err(StepError::Tensors { found: inputs.len(), expected: sizes.len() });
            }
            let mut outputs = Vec::new();
            for (shape, sizes) in inputs.iter().zip(sizes) {
                let sizes = cut(at(shape, *axis)?, &SplitSizes::Each(sizes.clone()))?;
                outputs.extend(sizes.into_iter().map(|size| replaced(shape, *axis, size)));
            }
            check_parts(outputs.len())?;
            Ok(outputs)
        }
        WeightStep::At(n, step) => {
            let mut outputs = inputs.to_vec();
            let shape = outputs.get_mut(*n).ok_or_else(|| none_such(*n, inputs))?;
            *shape = each(step, shape)?;
            Ok(outputs)
        }
        alone => inputs.iter().map(|shape| each(alone, shape)).collect(),
    }
}

/// Returns the shape of decoded MXFP4: `[.., n, 16]` bytes of two numbers each and `[.., n]` scales give
/// `[.., 32 n]` numbers.
fn mxfp4(blocks: &Shape, scales: &Shape) -> Result<Shape, StepError> {
    let [outer @ .., n, 16] = blocks.as_slice() else { return Err(misfit(blocks, scales)) };
    if scales.split_last() != Some((n, outer)) {
        return Err(misfit(blocks, scales));
    }
    let numbers = n.checked_mul(32).ok_or_else(|| misfit(blocks, scales))?;
    Ok(outer.iter().copied().chain([numbers]).collect())
}

/// Returns the error of blocks that do not fit their scales.
fn misfit(blocks: &Shape, scales: &Shape) -> StepError {
    StepError::Blocks { blocks: blocks.clone(), scales: scales.clone() }
}

fn uneven(runs: &[usize], inputs: &[Shape]) -> StepError {
    StepError::Runs { runs: runs.to_vec(), found: inputs.len() }
}

fn none_such(number: usize, inputs: &[Shape]) -> StepError {
    StepError::NoTensor { number, found: inputs.len() }
}

fn each(step: &WeightStep, shape: &Shape) -> Result<Shape, StepError> {
    let mut output = shape.clone();
    match step {
        WeightStep::Transpose(a, b) => {
            let _longer = at(shape, *a.max(b))?;
            output.swap(*a, *b);
        }
        WeightStep::Reverse(axis) => {
            // It is read in as many parts.
            check_parts(at(shape, *axis)?)?;
        }
        WeightStep::Squeeze(axis) => {
            if at(shape, *axis)? != 1 {
                return Err(StepError::AxisNotOne { shape: output, axis: *axis });
            }
            output.remove(*axis);
        }
        WeightStep::Unsqueeze(axis) => {
            if *axis > shape.len() {
                return Err(StepError::AxisPosition { shape: output, axis: *axis });
            }
            output.insert(*axis, 1);
        }
        WeightStep::Reshape(to) => {
            let count = element_count(to);
            if count.is_none() || count != element_count(shape) {
                return Err(StepError::Reshape { shape: output, to: to.clone() });
            }
            output.clone_from(to);
        }
        WeightStep::PermuteHeads { heads, .. } => {
            let rows = at(shape, 0)?;
            if *heads == 0 || rows % heads != 0 || !(rows / heads).is_multiple_of(2) {
                return Err(StepError::Heads { rows, heads: *heads });
            }
        }
        WeightStep::Flatten(axis) => {
            let first = at(shape, *axis)?;
            let second = at(shape, axis.saturating_add(1))?;
            output[*axis] = first.checked_mul(second).ok_or(StepError::Overflow)?;
            output.remove(axis + 1);
        }
        WeightStep::Unflatten { axis, sizes } => {
            let sizes = inferred(at(shape, *axis)?, sizes).ok_or_else(|| {
                let shape = shape.clone();
                let sizes = sizes.clone();
                StepError::Unflatten { shape, axis: *axis, sizes }
            })?;
            output.splice(*axis..=*axis, sizes);
        }
        WeightStep::Resize(rows) => {
            let _first = at(shape, 0)?;
            output[0] = *rows;
        }
        WeightStep::MulRows(parts) | WeightStep::DivRows(parts) => {
            let sizes: Vec<usize> = parts.iter().map(|part| part.0).collect();
            cut(at(shape, 0)?, &SplitSizes::Each(sizes))?;
        }
        WeightStep::Add(_)
        | WeightStep::Mul(_)
        | WeightStep::Div(_)
        | WeightStep::NegExp
        | WeightStep::LogNeg => {}
        WeightStep::Split { .. }
        | WeightStep::Unstack(_)
        | WeightStep::Concat(_)
        | WeightStep::Stack(_)
        | WeightStep::ConcatRuns { .. }
        | WeightStep::SplitRuns { .. }
        | WeightStep::Mxfp4
        | WeightStep::At(..) => return Err(StepError::NotPerTensor),
    }
    Ok(output)
}

/// Multiplies the sizes of a shape; none if the product does not fit.
fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |n, d| n.checked_mul(*d))
}

fn inverse_step(step: &WeightStep, inputs: &[Shape]) -> Result<WeightStep, StepError> {
    Ok(match step {
        WeightStep::Transpose(a, b) => WeightStep::Transpose(*a, *b),
        WeightStep::Reverse(axis) => WeightStep::Reverse(*axis),
        WeightStep::Squeeze(axis) => WeightStep::Unsqueeze(*axis),
        WeightStep::Unsqueeze(axis) => WeightStep::Squeeze(*axis),
        WeightStep::Reshape(_) => WeightStep::Reshape(common_shape(inputs)?.clone()),
        WeightStep::PermuteHeads { heads, to } => {
            let to =
                if *to == HeadLayout::Half { HeadLayout::Interleaved } else { HeadLayout::Half };
            WeightStep::PermuteHeads { heads: *heads, to }
        }
        WeightStep::Split { axis, .. } => {
            require_single(inputs)?;
            WeightStep::Concat(*axis)
        }
        WeightStep::Unstack(axis) => {
            require_single(inputs)?;
            WeightStep::Stack(*axis)
        }
        WeightStep::Concat(axis) => {
            let sizes = inputs.iter().map(|shape| at(shape, *axis)).collect::<Result<_, _>>()?;
            WeightStep::Split { axis: *axis, sizes: SplitSizes::Each(sizes) }
        }
        WeightStep::Stack(axis) => WeightStep::Unstack(*axis),
        WeightStep::Flatten(axis) => {
            let first = inputs.first().ok_or(StepError::NoTensors)?;
            let outer = at(first, *axis)?;
            let inner = at(first, axis.saturating_add(1))?;
            let sizes = if all_have(inputs, *axis, outer) {
                vec![outer, 0]
            } else if all_have(inputs, axis + 1, inner) {
                vec![0, inner]
            } else {
                return Err(StepError::DifferWithin { axis: *axis });
            };
            WeightStep::Unflatten { axis: *axis, sizes }
        }
        WeightStep::Unflatten { axis, sizes } => {
            let shape = common_shape(inputs)?;
            if let [_, _] = sizes[..] {
                WeightStep::Flatten(*axis)
            } else {
                WeightStep::Reshape(shape.clone())
            }
        }
        WeightStep::Resize(_) => WeightStep::Resize(at(common_shape(inputs)?, 0)?),
        WeightStep::Add(x) => WeightStep::Add(-x),
        WeightStep::Mul(x) => WeightStep::Div(*x),
        WeightStep::Div(x) => WeightStep::Mul(*x),
        WeightStep::MulRows(parts) => WeightStep::DivRows(parts.clone()),
        WeightStep::DivRows(parts) => WeightStep::MulRows(parts.clone()),
        WeightStep::Mxfp4 => return Err(StepError::Decoded),
        WeightStep::NegExp => WeightStep::LogNeg,
        WeightStep::LogNeg => WeightStep::NegExp,
        WeightStep::At(n, step) => {
            let shape = inputs.get(*n).ok_or_else(|| none_such(*n, inputs))?;
            WeightStep::At(*n, Box::new(inverse_step(step, std::slice::from_ref(shape))?))
        }
        WeightStep::ConcatRuns { axis, runs } => {
            let mut remaining = inputs;
            let mut sizes = Vec::with_capacity(runs.len());
            for &run in runs {
                let (now, later) =
                    remaining.split_at_checked(run).ok_or_else(|| uneven(runs, inputs))?;
                sizes.push(now.iter().map(|shape| at(shape, *axis)).collect::<Result<_, _>>()?);
                remaining = later;
            }
            WeightStep::SplitRuns { axis: *axis, sizes }
        }
        WeightStep::SplitRuns { axis, sizes } => {
            WeightStep::ConcatRuns { axis: *axis, runs: sizes.iter().map(Vec::len).collect() }
        }
    })
}

/// True if an axis has the same size in all shapes.
fn all_have(shapes: &[Shape], axis: usize, size: usize) -> bool {
    shapes.iter().all(|shape| shape.get(axis) == Some(&size))
}

/// Replaces a zero among sizes by the remainder of the whole.
fn inferred(total: usize, sizes: &[usize]) -> Option<Vec<usize>> {
    let known =
        sizes.iter().filter(|&&size| size > 0).try_fold(1_usize, |n, d| n.checked_mul(*d))?;
    let open = sizes.iter().filter(|&&size| size == 0).count();
    let fits = if open == 0 { known == total } else { open == 1 && total.is_multiple_of(known) };
    fits.then(|| sizes.iter().map(|&size| if size == 0 { total / known } else { size }).collect())
}

fn require_single(inputs: &[Shape]) -> Result<(), StepError> {
    match inputs {
        [_] => Ok(()),
        many => Err(StepError::SeveralCuts { found: many.len() }),
    }
}

fn common_shape(inputs: &[Shape]) -> Result<&Shape, StepError> {
    let first = inputs.first().ok_or(StepError::NoTensors)?;
    match inputs.iter().find(|shape| *shape != first) {
        Some(other) => Err(StepError::Differ { first: first.clone(), other: other.clone() }),
        None => Ok(first),
    }
}

fn concat(axis: usize, inputs: &[Shape]) -> Result<Shape, StepError> {
    let first = inputs.first().ok_or(StepError::NoTensors)?;
    let mut sum = 0_usize;
    for shape in inputs {
        sum = sum.checked_add(at(shape, axis)?).ok_or(StepError::Overflow)?;
        if replaced(shape, axis, 0) != replaced(first, axis, 0) {
            let first = first.clone();
            let other = shape.clone();
            return Err(StepError::DifferBeside { first, other, axis });
        }
    }
    Ok(replaced(first, axis, sum))
}

fn per_tensor(
    inputs: &[Shape],
    cut: impl Fn(&Shape) -> Result<Vec<Shape>, StepError>,
) -> Result<Vec<Shape>, StepError> {
    let mut all = Vec::new();
    for shape in inputs {
        all.extend(cut(shape)?);
        check_parts(all.len())?;
    }
    Ok(all)
}

fn check_parts(count: usize) -> Result<(), StepError> {
    if count > MAX_PARTS { Err(StepError::Parts { found: count }) } else { Ok(()) }
}

/// Returns the sizes that an axis is cut into.
pub(super) fn cut(size: usize, sizes: &SplitSizes) -> Result<Vec<usize>, StepError> {
    match sizes {
        SplitSizes::Equal(parts) if *parts > 0 && size.is_multiple_of(*parts) => {
            check_parts(*parts)?;
            Ok(vec![size / parts; *parts])
        }
        SplitSizes::Equal(parts) => Err(StepError::Unequal { size, parts: *parts }),
        SplitSizes::Each(each) => {
            let sum = each.iter().try_fold(0_usize, |sum, size| sum.checked_add(*size));
            if sum == Some(size) {
                Ok(each.clone())
            } else {
                Err(StepError::Sum { sizes: each.clone(), size })
            }
        }
    }
}

fn at(shape: &[usize], axis: usize) -> Result<usize, StepError> {
    shape.get(axis).copied().ok_or_else(|| StepError::NoAxis { shape: shape.to_vec(), axis })
}

fn replaced(shape: &Shape, axis: usize, size: usize) -> Shape {
    let mut shape = shape.clone();
    shape[axis] = size;
    shape
}

#[cfg(test)]
mod tests;
