//! The weights of a model, found in a GGUF file: the same rules as for writing it, backwards.
//!
//! A matrix stays in the file's blocks, in the map where its rows lie in one piece, or with its
//! rows in the model's order in a buffer. What was computed on the way into the file is
//! computed back in f32.

use std::sync::Arc;

use registry::gguf::{Gguf, Group};
use registry::graph::{Weight, WeightId};
use registry::weight_map::{Step, inverse};

use super::{File, TensorInfo, scalars};
use crate::codec::{self, BlockType};
use crate::flow::{Flow, Numbers, Plain};
use crate::safetensors::FileDtype;
use crate::shown;

/// Why a file does not hold a model.
#[derive(Debug, thiserror::Error)]
#[error("`{}` does not hold the model `{arch}`:\n  {}", file.display(), faults.join("\n  "))]
pub struct Error {
    /// The file.
    pub file: std::path::PathBuf,
    /// The model's architecture.
    pub arch: String,
    /// Everything that is in the way.
    pub faults: Vec<String>,
}

/// A weight's numbers as the file keeps them.
#[derive(Debug, Clone, Copy)]
pub struct BlockView<'a> {
    /// The format.
    pub ty: BlockType,
    /// The shape in the model.
    pub shape: &'a [usize],
    /// Rows of blocks.
    pub bytes: &'a [u8],
}

/// All weights of a graph.
#[derive(Debug)]
pub struct GgufWeights {
    file: File,
    found: Vec<Found>,
}

#[derive(Debug)]
struct Found {
    ty: BlockType,
    shape: Vec<usize>,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    /// `begin..end` of a tensor's bytes.
    Tensor(String, usize, usize),
    Made(Vec<u8>),
}

impl GgufWeights {
    /// Finds every weight. `wanted` are the weights of the graph that `gguf` was resolved with.
    pub fn new(file: File, gguf: &Gguf, wanted: &[Weight]) -> Result<Self, Error> {
        let path = file.files().first().cloned().unwrap_or_default();
        let fail = |faults| Error { file: path.clone(), arch: gguf.arch.clone(), faults };
        let groups = gguf.groups(wanted).map_err(fail)?;
        let mut found: Vec<Option<Found>> = wanted.iter().map(|_| None).collect();
        let mut faults = Vec::new();
        for group in &groups {
            match open(&file, group, wanted) {
                Ok(made) => {
                    for (&n, one) in group.weights.iter().zip(made) {
                        found[n] = Some(one);
                    }
                }
                Err(fault) => faults.push(fault),
            }
        }
        for (key, places) in gguf.scalar_weights(wanted) {
            match scalars::read(file.metadata(), key, &places, wanted) {
                Ok(made) => {
                    for (&n, numbers) in places.iter().zip(made) {
                        let shape = wanted[n].shape.clone();
                        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
                        let bytes = Bytes::Made(bytes);
                        found[n] = Some(Found { ty: BlockType::F32, shape, bytes });
                    }
                }
                Err(fault) => faults.push(fault),
            }
        }
        for (weight, found) in wanted.iter().zip(&found) {
            if found.is_none() && faults.is_empty() {
                faults.push(format!("the file leaves out weight `{}`", shown(&weight.name)));
            }
        }
        if faults.is_empty() {
            Ok(Self { file, found: found.into_iter().flatten().collect() })
        } else {
            Err(fail(faults))
        }
    }

    /// A weight.
    ///
    /// # Panics
    ///
    /// If the id is not of the graph whose weights were wanted.
    pub fn view(&self, id: WeightId) -> BlockView<'_> {
        let found = &self.found[id.0];
        let bytes = match &found.bytes {
            Bytes::Tensor(name, begin, end) => {
                self.file.bytes(name).and_then(|bytes| bytes.get(*begin..*end)).unwrap_or_default()
            }
            Bytes::Made(bytes) => bytes,
        };
        BlockView { ty: found.ty, shape: &found.shape, bytes }
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// The weights of a group, in its order.
fn open(file: &File, group: &Group, wanted: &[Weight]) -> Result<Vec<Found>, String> {
    let mut infos = Vec::with_capacity(group.tensors.len());
    for (name, shape) in &group.tensors {
        let info =
            file.info(name).ok_or_else(|| format!("there is no tensor `{}`", shown(name)))?;
        // Outer ones may be left out of the file.
        let trimmed = |shape: &[usize]| {
            let ones = shape.iter().take_while(|&&dim| dim == 1).count();
            shape[ones..].to_vec()
        };
        if trimmed(&info.shape) != trimmed(shape) {
            return Err(format!(
                "tensor `{}` has shape {:?}; the model's is {shape:?}",
                shown(name),
                info.shape
            ));
        }
        infos.push((info, shape));
    }
    let shapes: Vec<_> = group.weights.iter().map(|&n| wanted[n].shape.clone()).collect();
    let back = inverse(&group.steps, shapes.clone())?;
    let ty = infos[0].0.ty;
    let rows = infos.iter().all(|(info, _)| info.ty == ty) && moves_rows(&back, &infos);
    let flows = infos.iter().map(|(info, shape)| {
        if rows { row_flow(file, info, shape) } else { number_flow(file, info, shape) }
    });
    let flows = Flow::run(&back, flows.collect())?;
    let mut found = Vec::with_capacity(flows.len());
    for (flow, shape) in flows.iter().zip(shapes) {
        let (ty, bytes) =
            if rows { (ty, locate(file, flow, &infos)) } else { (BlockType::F32, numbers(flow)?) };
        found.push(Found { ty, shape, bytes });
    }
    Ok(found)
}

/// Whether steps only move whole rows: rows of blocks can then be moved as bytes.
fn moves_rows(steps: &[Step], infos: &[(&TensorInfo, &Vec<usize>)]) -> bool {
    let axes = infos.iter().map(|(_, shape)| shape.len()).min().unwrap_or(0);
    let outer = |axis: &usize| axis + 1 < axes;
    steps.iter().all(|step| match step {
        Step::PermuteHeads { .. } => axes >= 2,
        Step::Split { axis, .. }
        | Step::SplitRuns { axis, .. }
        | Step::ConcatRuns { axis, .. }
        | Step::Concat(axis)
        | Step::Unstack(axis)
        | Step::Stack(axis) => outer(axis),
        _ => false,
    })
}

/// A tensor as rows of bytes.
fn row_flow<'f>(file: &'f File, info: &TensorInfo, shape: &[usize]) -> Flow<'f> {
    let bytes = file.bytes(&info.name).unwrap_or_default();
    let mut shape = shape.to_vec();
    if let Some(row) = shape.last_mut() {
        *row = info.ty.row_bytes(*row).unwrap_or(0);
    }
    Flow::new(&shape, Arc::new(Plain { dtype: FileDtype::U8, bytes }))
}

/// A tensor as numbers.
fn number_flow<'f>(file: &'f File, info: &TensorInfo, shape: &[usize]) -> Flow<'f> {
    let bytes = file.bytes(&info.name).unwrap_or_default();
    Flow::new(shape, Arc::new(Decoded { ty: info.ty, bytes }))
}

/// Blocks, read as numbers.
struct Decoded<'f> {
    ty: BlockType,
    bytes: &'f [u8],
}

impl Numbers for Decoded<'_> {
    fn read(&self, at: usize, out: &mut [f32]) {
        let (block, size) = (self.ty.elements(), self.ty.bytes());
        let (first, end) = (at / block, (at + out.len()).div_ceil(block));
        let mut numbers = vec![0.0; (end - first) * block];
        let bytes = self.bytes.get(first * size..end * size).unwrap_or_default();
        if codec::decode(self.ty, bytes, &mut numbers).is_err() {
            numbers.fill(f32::NAN);
        }
        let skip = at - first * block;
        out.copy_from_slice(&numbers[skip..skip + out.len()]);
    }
}

/// Where the bytes of a flow of rows lie: in one stretch of a tensor, or in a buffer.
fn locate(file: &File, flow: &Flow<'_>, infos: &[(&TensorInfo, &Vec<usize>)]) -> Bytes {
    if let Some(stretch) = flow.stretch() {
        for (info, _) in infos {
            let whole = file.bytes(&info.name).unwrap_or_default().as_ptr_range();
            let part = stretch.as_ptr_range();
            if whole.start <= part.start && part.end <= whole.end {
                let begin = part.start.addr() - whole.start.addr();
                return Bytes::Tensor(info.name.clone(), begin, begin + stretch.len());
            }
        }
    }
    let mut bytes = vec![0; flow.len()];
    flow.copy(FileDtype::U8, 0, &mut bytes);
    Bytes::Made(bytes)
}

/// The most numbers that are made anew for one weight: nothing this large is computed on its way.
const MOST: usize = 1 << 32;

fn numbers(flow: &Flow<'_>) -> Result<Bytes, String> {
    let count = flow.len();
    if count > MOST {
        return Err(format!("{count} numbers would have to be made anew"));
    }
    let mut numbers = vec![0.0; count];
    flow.read(0, &mut numbers);
    Ok(Bytes::Made(numbers.iter().flat_map(|x| x.to_le_bytes()).collect()))
}
