//! Applies the steps of a rule to tensors.
//!
//! A step that only renames or cuts the first axis keeps a range of the file; the others copy.

use std::borrow::Cow;

use registry::weight_map::{HeadLayout, Sizes, Step, shapes};

use crate::flow::{Computed, Flow};
use formats::numbers;
use formats::safetensors::FileDtype;

/// Intermediate tensor between disk and model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor<'a> {
    pub(super) dtype: FileDtype,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Cow<'a, [u8]>,
}

/// Limit on the bytes of a padded tensor.
const MOST_RESIZED: usize = 1 << 36;

/// Limit on equal parts, more than the experts of any layer.
const MOST_PARTS: usize = 1 << 16;

type Tensors<'a> = Vec<Tensor<'a>>;

/// Applies all steps. `Err` says why a step cannot be applied.
pub(super) fn run<'a>(steps: &[Step], mut tensors: Tensors<'a>) -> Result<Tensors<'a>, String> {
    for step in steps {
        tensors = match step {
            Step::Concat(axis) => vec![concat(*axis, tensors)?],
            Step::Stack(axis) => {
                let unsqueezed: Result<_, _> =
                    tensors.into_iter().map(|tensor| unsqueeze(*axis, tensor)).collect();
                vec![concat(*axis, unsqueezed?)?]
            }
            Step::Mxfp4 => vec![mxfp4(&tensors)?],
            Step::Split { axis, sizes } => spread(tensors, |tensor| split(*axis, sizes, &tensor))?,
            Step::Unstack(axis) => spread(tensors, |tensor| {
                let parts = split(*axis, &Sizes::Equal(dim(&tensor, *axis)?), &tensor)?;
                parts.into_iter().map(|part| squeeze(*axis, part)).collect()
            })?,
            Step::ConcatRuns { axis, runs } => {
                if runs.iter().try_fold(0_usize, |n, &run| n.checked_add(run))
                    != Some(tensors.len())
                {
                    return Err(format!(
                        "runs of {runs:?} tensors, and there are {}",
                        tensors.len()
                    ));
                }
                let mut rest = tensors.into_iter();
                runs.iter()
                    .map(|&run| concat(*axis, rest.by_ref().take(run).collect()))
                    .collect::<Result<_, _>>()?
            }
            Step::SplitRuns { axis, sizes } => {
                if sizes.len() != tensors.len() {
                    return Err(format!("{} tensors, not {}", tensors.len(), sizes.len()));
                }
                let mut all = Vec::new();
                for (tensor, sizes) in tensors.iter().zip(sizes) {
                    all.extend(split(*axis, &Sizes::Each(sizes.clone()), tensor)?);
                }
                all
            }
            Step::At(n, step) => {
                if *n >= tensors.len() {
                    return Err(format!(
                        "there is no tensor {n}: there are {}, from 0",
                        tensors.len()
                    ));
                }
                let one = each(step, tensors.remove(*n))?;
                tensors.insert(*n, one);
                tensors
            }
            one => tensors.into_iter().map(|tensor| each(one, tensor)).collect::<Result<_, _>>()?,
        };
    }
    Ok(tensors)
}

/// Decodes blocks and scales through a flow, like every other reader of them.
fn mxfp4<'a>(tensors: &[Tensor<'_>]) -> Result<Tensor<'a>, String> {
    let flows = tensors.iter().map(|t| Flow::raw(&t.shape, t.dtype, &t.bytes));
    let flows = Flow::run(&[Step::Mxfp4], flows.collect::<Result<_, _>>()?)?;
    let flow = flows.first().ok_or("there are no blocks")?;
    let mut numbers = vec![0.0; flow.len()];
    flow.read(0, &mut numbers);
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    Ok(Tensor { dtype: FileDtype::F32, shape: flow.shape().to_vec(), bytes: bytes.into() })
}

fn each<'a>(step: &Step, mut tensor: Tensor<'a>) -> Result<Tensor<'a>, String> {
    match step {
        Step::Transpose(a, b) => transpose(*a, *b, &tensor),
        Step::Squeeze(axis) => squeeze(*axis, tensor),
        Step::Unsqueeze(axis) => unsqueeze(*axis, tensor),
        Step::Reshape(shape) => {
            let count = |dims: &[usize]| dims.iter().try_fold(1_usize, |n, &d| n.checked_mul(d));
            if count(shape) != count(&tensor.shape) {
                return Err(format!("shape {:?} cannot be read as {shape:?}", tensor.shape));
            }
            tensor.shape.clone_from(shape);
            Ok(tensor)
        }
        Step::PermuteHeads { heads, to } => permute_heads(*heads, *to, &tensor),
        Step::Flatten(_) | Step::Unflatten { .. } => {
            let after = shapes(std::slice::from_ref(step), vec![tensor.shape]);
            tensor.shape = after.map_err(|e| e.to_string())?.swap_remove(0);
            Ok(tensor)
        }
        Step::Resize(rows) => resize(*rows, tensor),
        computing if computing.computes() => compute(computing, &tensor),
        Step::Split { .. }
        | Step::Unstack(_)
        | Step::Concat(_)
        | Step::Stack(_)
        | Step::ConcatRuns { .. }
        | Step::SplitRuns { .. }
        | Step::At(..)
        | Step::Add(_)
        | Step::Mul(_)
        | Step::Div(_)
        | Step::MulRows(_)
        | Step::DivRows(_)
        | Step::NegExp
        | Step::LogNeg
        | Step::Mxfp4 => Err("this step takes no tensor by itself".to_owned()),
    }
}

/// Applies a step that changes values, computing in f32 for any dtype.
fn compute<'a>(step: &Step, tensor: &Tensor<'a>) -> Result<Tensor<'a>, String> {
    let count = tensor.bytes.len() / tensor.dtype.size().max(1);
    let mut numbers = vec![0.0; count];
    numbers::to_f32(tensor.dtype, &tensor.bytes, &mut numbers).map_err(|e| e.to_string())?;
    let computed = Computed::new(step, &tensor.shape)?;
    computed.apply(0, &mut numbers);
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    Ok(Tensor { dtype: FileDtype::F32, shape: tensor.shape.clone(), bytes: bytes.into() })
}

fn resize(rows: usize, mut tensor: Tensor<'_>) -> Result<Tensor<'_>, String> {
    dim(&tensor, 0)?;
    let bytes = rows.checked_mul(inner(&tensor, 0)).filter(|&bytes| bytes <= MOST_RESIZED);
    let bytes = bytes.ok_or_else(|| format!("{rows} rows are more than are made"))?;
    tensor.shape[0] = rows;
    tensor.bytes = match tensor.bytes {
        Cow::Borrowed(old) if bytes <= old.len() => Cow::Borrowed(&old[..bytes]),
        old => {
            let mut old = old.into_owned();
            old.resize(bytes, 0);
            Cow::Owned(old)
        }
    };
    Ok(tensor)
}

fn spread<'a>(
    tensors: Tensors<'a>,
    cut: impl Fn(Tensor<'a>) -> Result<Tensors<'a>, String>,
) -> Result<Tensors<'a>, String> {
    let mut all = Vec::new();
    for tensor in tensors {
        all.extend(cut(tensor)?);
    }
    Ok(all)
}

fn dim(tensor: &Tensor<'_>, axis: usize) -> Result<usize, String> {
    let dim = tensor.shape.get(axis).copied();
    dim.ok_or_else(|| format!("shape {:?} has no axis {axis}", tensor.shape))
}

fn squeeze(axis: usize, mut tensor: Tensor<'_>) -> Result<Tensor<'_>, String> {
    if dim(&tensor, axis)? != 1 {
        return Err(format!("axis {axis} of shape {:?} is not 1", tensor.shape));
    }
    tensor.shape.remove(axis);
    Ok(tensor)
}

fn unsqueeze(axis: usize, mut tensor: Tensor<'_>) -> Result<Tensor<'_>, String> {
    if axis > tensor.shape.len() {
        return Err(format!("shape {:?} has no place for an axis {axis}", tensor.shape));
    }
    tensor.shape.insert(axis, 1);
    Ok(tensor)
}

/// Returns the bytes per index of an axis: the product of the axes after it.
fn inner(tensor: &Tensor<'_>, axis: usize) -> usize {
    // No overflow: over all axes, the product is the length of `bytes`, unless that is zero.
    let rest = tensor.shape[axis + 1..].iter().fold(1_usize, |n, &dim| n.saturating_mul(dim));
    rest.saturating_mul(tensor.dtype.size())
}

fn transpose<'a>(a: usize, b: usize, tensor: &Tensor<'a>) -> Result<Tensor<'a>, String> {
    dim(tensor, a.max(b))?;
    let size = tensor.dtype.size();
    let mut shape = tensor.shape.clone();
    shape.swap(a, b);
    let mut strides: Vec<usize> = (0..shape.len()).map(|axis| inner(tensor, axis)).collect();
    strides.swap(a, b);
    let mut bytes = Vec::with_capacity(tensor.bytes.len());
    let mut index = vec![0; shape.len()];
    while bytes.len() < tensor.bytes.len() {
        let at: usize = index.iter().zip(&strides).map(|(i, stride)| i * stride).sum();
        bytes.extend_from_slice(&tensor.bytes[at..at + size]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    Ok(Tensor { dtype: tensor.dtype, shape, bytes: bytes.into() })
}

fn permute_heads<'a>(
    heads: usize,
    to: HeadLayout,
    tensor: &Tensor<'a>,
) -> Result<Tensor<'a>, String> {
    let rows = dim(tensor, 0)?;
    if heads == 0 || !rows.is_multiple_of(heads) || !(rows / heads).is_multiple_of(2) {
        return Err(format!("{rows} rows are not {heads} heads of an even number of rows"));
    }
    let (row, half) = (inner(tensor, 0), rows / heads / 2);
    let mut bytes = Vec::with_capacity(tensor.bytes.len());
    for head in 0..heads {
        for r in 0..2 * half {
            let from = match to {
                HeadLayout::Interleaved => r / 2 + r % 2 * half,
                HeadLayout::Half => r % half * 2 + r / half,
            };
            let at = (head * 2 * half + from) * row;
            bytes.extend_from_slice(&tensor.bytes[at..at + row]);
        }
    }
    Ok(Tensor { dtype: tensor.dtype, shape: tensor.shape.clone(), bytes: bytes.into() })
}

fn split<'a>(axis: usize, sizes: &Sizes, tensor: &Tensor<'a>) -> Result<Tensors<'a>, String> {
    let whole = dim(tensor, axis)?;
    // An axis of an empty tensor can have any length.
    if let Sizes::Equal(n) = sizes
        && *n > MOST_PARTS
    {
        return Err(format!("{n} parts are more than the {MOST_PARTS} that are made"));
    }
    let sizes = match sizes {
        Sizes::Equal(0) => vec![],
        Sizes::Equal(n) if whole.is_multiple_of(*n) => vec![whole / n; *n],
        Sizes::Equal(n) => {
            return Err(format!("axis {axis} of shape {:?} has no {n} equal parts", tensor.shape));
        }
        Sizes::Each(sizes) => sizes.clone(),
    };
    if sizes.iter().try_fold(0_usize, |n, &size| n.checked_add(size)) != Some(whole) {
        return Err(format!("parts {sizes:?} do not add up to axis {axis} of {:?}", tensor.shape));
    }
    let inner = inner(tensor, axis);
    let row = whole.saturating_mul(inner);
    let outer = tensor.bytes.len().checked_div(row).unwrap_or(0);
    let mut parts = Vec::with_capacity(sizes.len());
    let mut from = 0;
    for size in sizes {
        let mut shape = tensor.shape.clone();
        shape[axis] = size;
        let stretch = |row_at: usize| row_at + from * inner..row_at + (from + size) * inner;
        let bytes = match &tensor.bytes {
            _ if outer == 0 => Cow::Borrowed(&[][..]),
            Cow::Borrowed(bytes) if outer == 1 => Cow::Borrowed(&bytes[stretch(0)]),
            bytes => {
                let pieces: Vec<&[u8]> = (0..outer).map(|o| &bytes[stretch(o * row)]).collect();
                Cow::Owned(pieces.concat())
            }
        };
        parts.push(Tensor { dtype: tensor.dtype, shape, bytes });
        from += size;
    }
    Ok(parts)
}

fn concat(axis: usize, mut tensors: Tensors<'_>) -> Result<Tensor<'_>, String> {
    let [first, rest @ ..] = tensors.as_slice() else {
        return Err("there is nothing to join".into());
    };
    let mut shape = first.shape.clone();
    dim(first, axis)?;
    for tensor in rest {
        let mut like = tensor.shape.clone();
        let more = dim(tensor, axis)?;
        like[axis] = first.shape[axis];
        if like != first.shape || tensor.dtype != first.dtype {
            return Err(format!(
                "{} {:?} and {} {:?} cannot be joined along axis {axis}",
                first.dtype, first.shape, tensor.dtype, tensor.shape
            ));
        }
        shape[axis] = shape[axis].saturating_add(more);
    }
    if rest.is_empty() {
        return Ok(tensors.remove(0));
    }
    let rows: Vec<usize> =
        tensors.iter().map(|t| t.shape[axis].saturating_mul(inner(t, axis))).collect();
    let total = tensors.iter().map(|tensor| tensor.bytes.len()).sum();
    let mut bytes = Vec::with_capacity(total);
    let mut outer = 0;
    while bytes.len() < total {
        for (tensor, &row) in tensors.iter().zip(&rows) {
            bytes.extend_from_slice(&tensor.bytes[outer * row..(outer + 1) * row]);
        }
        outer += 1;
    }
    Ok(Tensor { dtype: tensors[0].dtype, shape, bytes: bytes.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a tensor `[2, 4, 3]` of bytes 0..24.
    fn cube() -> Tensor<'static> {
        static BYTES: [u8; 24] = {
            let mut bytes = [0; 24];
            let mut i = 0;
            while i < 24 {
                bytes[i] = i as u8;
                i += 1;
            }
            bytes
        };
        Tensor { dtype: FileDtype::U8, shape: vec![2, 4, 3], bytes: Cow::Borrowed(&BYTES) }
    }

    fn one(steps: &[Step], tensor: Tensor<'static>) -> Tensor<'static> {
        let mut all = run(steps, vec![tensor]).unwrap();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    #[test]
    fn steps_and_their_inverses_cancel() {
        let pairs: [(&[Step], &[Step]); 7] = [
            (&[Step::Transpose(0, 2)], &[Step::Transpose(0, 2)]),
            (&[Step::Transpose(1, 2)], &[Step::Transpose(1, 2)]),
            (&[Step::Unsqueeze(1)], &[Step::Squeeze(1)]),
            (&[Step::Reshape(vec![24])], &[Step::Reshape(vec![2, 4, 3])]),
            (&[Step::Unstack(1)], &[Step::Stack(1)]),
            (&[Step::Unstack(2)], &[Step::Stack(2)]),
            (&[Step::Split { axis: 1, sizes: Sizes::Each(vec![1, 3]) }], &[Step::Concat(1)]),
        ];
        for (there, back) in pairs {
            assert_eq!(one(&[there, back].concat(), cube()), cube(), "{there:?}");
        }
        let flat = one(&[Step::Reshape(vec![8, 3])], cube());
        let steps = [HeadLayout::Interleaved, HeadLayout::Half]
            .map(|to| Step::PermuteHeads { heads: 2, to });
        assert_ne!(one(&steps[..1], flat.clone()), flat);
        assert_eq!(one(&steps, flat.clone()), flat);
    }

    #[test]
    fn numbers_land_where_they_should() {
        let matrix = one(&[Step::Reshape(vec![4, 6]), Step::Transpose(0, 1)], cube());
        assert_eq!(matrix.shape, [6, 4]);
        assert_eq!(matrix.bytes[..4], [0, 6, 12, 18]);
        let heads = Step::PermuteHeads { heads: 1, to: HeadLayout::Interleaved };
        let rows = one(&[Step::Reshape(vec![8, 3]), heads], cube());
        let firsts: Vec<u8> = rows.bytes.iter().step_by(3).copied().collect();
        assert_eq!(firsts, [0, 12, 3, 15, 6, 18, 9, 21]);
        let split = Step::Split { axis: 0, sizes: Sizes::Equal(2) };
        let parts = run(&[split], vec![cube()]).unwrap();
        assert!(parts.iter().all(|part| matches!(part.bytes, Cow::Borrowed(_))));
        assert_eq!(parts[1].bytes[..], (12..24).collect::<Vec<u8>>());
        let parts = run(&[Step::Unstack(1)], vec![cube()]).unwrap();
        assert_eq!((parts.len(), &parts[1].bytes[..]), (4, &[3, 4, 5, 15, 16, 17][..]));
    }

    #[test]
    fn steps_that_do_not_fit_say_why() {
        let why = |step: Step| run(&[step], vec![cube(), cube()]).unwrap_err();
        assert!(why(Step::Transpose(0, 3)).contains("no axis 3"));
        assert!(why(Step::Squeeze(0)).contains("is not 1"));
        assert!(why(Step::Unsqueeze(4)).contains("no place"));
        assert!(why(Step::Reshape(vec![usize::MAX, 2])).contains("cannot be read as"));
        assert!(why(Step::Concat(3)).contains("no axis 3"));
        let sizes = Sizes::Equal(3);
        assert!(why(Step::Split { axis: 1, sizes }).contains("no 3 equal parts"));
        let sizes = Sizes::Each(vec![usize::MAX, 5]);
        assert!(why(Step::Split { axis: 1, sizes }).contains("do not add up"));
        let to = HeadLayout::Half;
        assert!(why(Step::PermuteHeads { heads: 0, to }).contains("0 heads"));
        assert!(run(&[Step::Concat(0)], vec![]).unwrap_err().contains("nothing to join"));
        let other = Tensor { dtype: FileDtype::I8, ..cube() };
        assert!(run(&[Step::Concat(0)], vec![cube(), other]).unwrap_err().contains("joined"));
    }

    #[test]
    fn tensors_without_numbers_pass_through() {
        let none = Tensor { dtype: FileDtype::F32, shape: vec![0, 4], bytes: Cow::Borrowed(&[]) };
        let steps =
            [Step::Transpose(0, 1), Step::Unstack(0), Step::Stack(1), Step::Transpose(0, 1)];
        assert_eq!(one(&steps, none.clone()).shape, [4, 0]);
        let split = Step::Split { axis: 1, sizes: Sizes::Equal(2) };
        assert_eq!(run(&[split], vec![none.clone()]).unwrap()[1].shape, [0, 2]);
        let wide = Tensor { shape: vec![usize::MAX, 0], ..none };
        assert!(run(&[Step::Unstack(0)], vec![wide]).unwrap_err().contains("more than"));
    }
}
