//! Reads the weights of a model from a GGUF file, applying the rules for writing it in reverse.
//!
//! A matrix stays in the file's blocks: in the memory map if its rows are contiguous, else in a buffer with
//! its rows in the model's order. A matrix whose rows are in blocks of several types stays in the parts of the file
//! ([`RowParts`]). Numbers that a matrix was multiplied by on writing become factors beside its blocks. Other steps
//! that changed values are inverted in f32.
//!
//! The rules are those that write a file ([decision 18](../../../docs/decisions/0018-reversible-gguf-rules.md)).

mod row_parts;

use std::collections::BTreeSet;
use std::sync::Arc;

use registry::gguf::{Gguf, TensorGroup, TensorGroupError};
use registry::graph::{Weight, WeightId};
use registry::weight_map::{StepError, WeightStep, inverse};

use crate::flow::{self, Flow, PlainValues, ValueReader};
use formats::codec::{self, BlockType};
use formats::gguf::companions::{self, SCALE, multiply};
use formats::gguf::{GgufFile, GgufTensor, scalars};
use formats::safetensors::FileDtype;
use formats::shown;
use row_parts::PartsOfFile;
pub use row_parts::{RowParts, RowRun};

/// Reason why a file does not hold a model.
#[derive(Debug, thiserror::Error)]
#[error("`{}` does not hold the model `{arch}`:\n  {}", file.display(), listed(faults))]
pub struct Error {
    /// Path of the file.
    pub file: std::path::PathBuf,
    /// Architecture of the model.
    pub arch: String,
    /// All mismatches that were found.
    pub faults: Vec<WeightFault>,
}

impl Error {
    /// Returns the error for a file that does not hold the model of `gguf`.
    pub(crate) fn of(file: &GgufFile, gguf: &Gguf, faults: Vec<WeightFault>) -> Self {
        let path = file.files().first().cloned().unwrap_or_default();
        Self { file: path, arch: gguf.arch.clone(), faults }
    }
}

/// Mismatch between a file and a model. Names are escaped, ready to print.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum WeightFault {
    #[error(transparent)]
    Group(#[from] TensorGroupError),
    #[error(transparent)]
    Scalars(#[from] scalars::Error),
    #[error(transparent)]
    Scale(#[from] companions::Error),
    #[error(transparent)]
    Steps(#[from] flow::Error),
    #[error("the file leaves out weight `{weight}`")]
    LeftOut { weight: String },
    #[error("there is no tensor `{tensor}`")]
    NoTensor { tensor: String },
    #[error("`{tensor}` has no such part")]
    NoPart { tensor: String },
    #[error("tensor `{tensor}` has shape {found:?}; the model's is {expected:?}")]
    Shape { tensor: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("{count} numbers would have to be made anew")]
    TooMany { count: usize },
    #[error("two weights would be `{tensor}` in a checkpoint, one of them `{weight}`")]
    SameName { tensor: String, weight: String },
}

impl From<StepError> for WeightFault {
    fn from(why: StepError) -> Self {
        Self::Steps(why.into())
    }
}

/// Lists faults, but not all: a file of another model has one for each of its tensors.
fn listed(faults: &[WeightFault]) -> String {
    const MOST: usize = 12;
    let more = faults.len().saturating_sub(MOST);
    let limit = if more > 1 { MOST } else { faults.len() };
    let mut lines: Vec<String> = faults.iter().take(limit).map(ToString::to_string).collect();
    if more > 1 {
        lines.push(format!("and {more} more"));
    }
    lines.join("\n  ")
}

/// Values of a weight in the block format of the file.
#[derive(Debug, Clone, Copy)]
pub struct BlockView<'a> {
    /// Type of the blocks.
    pub ty: BlockType,
    /// Shape of the weight in the model.
    pub shape: &'a [usize],
    /// Rows of blocks.
    pub bytes: &'a [u8],
    /// Factor that the values in the blocks are multiplied by.
    pub factor: f32,
    /// Factor of each row, besides `factor`; empty if rows have none.
    pub row_factors: &'a [f32],
}

/// All weights of a graph.
#[derive(Debug)]
pub struct GgufWeights {
    file: GgufFile,
    found: Vec<BlockWeight>,
}

#[derive(Debug)]
struct BlockWeight {
    ty: BlockType,
    shape: Vec<usize>,
    bytes: BlockBytes,
    factor: f32,
    row_factors: Vec<f32>,
}

impl BlockWeight {
    /// Creates a weight without factors.
    fn plain(ty: BlockType, shape: Vec<usize>, bytes: BlockBytes) -> Self {
        Self { ty, shape, bytes, factor: 1.0, row_factors: Vec::new() }
    }

    fn view<'a>(&'a self, file: &'a GgufFile) -> BlockView<'a> {
        let bytes = match &self.bytes {
            BlockBytes::Tensor(name, begin, end) => {
                file.bytes(name).and_then(|bytes| bytes.get(*begin..*end)).unwrap_or_default()
            }
            BlockBytes::Computed(bytes) => bytes,
            BlockBytes::Parts(parts) => parts.decoded(file),
        };
        let ty = self.ty;
        let shape = &self.shape;
        let row_factors = &self.row_factors;
        BlockView { ty, shape, bytes, factor: self.factor, row_factors }
    }
}

#[derive(Debug)]
enum BlockBytes {
    /// Byte range of a tensor, `begin..end`.
    Tensor(String, usize, usize),
    Computed(Vec<u8>),
    Parts(PartsOfFile),
}

impl GgufWeights {
    /// Finds every weight. `weights` lists the weights of the graph that `gguf` was resolved with.
    pub fn new(file: GgufFile, gguf: &Gguf, weights: &[Weight]) -> Result<Self, Error> {
        let groups = gguf.groups(weights).map_err(|all| {
            Error::of(&file, gguf, all.into_iter().map(WeightFault::from).collect())
        })?;
        let mut opened: Vec<Option<BlockWeight>> = weights.iter().map(|_| None).collect();
        let mut faults: Vec<WeightFault> = Vec::new();
        let claimed: BTreeSet<&str> = groups
            .iter()
            .flat_map(|group| group.tensors.iter().map(|(name, _)| name.as_str()))
            .collect();
        for group in &groups {
            match open(&file, group, weights, &claimed) {
                Ok(blocks) => {
                    for (&n, one) in group.weights.iter().zip(blocks) {
                        opened[n] = Some(one);
                    }
                }
                Err(fault) => faults.push(fault),
            }
        }
        for (key, places) in gguf.scalar_weights(weights) {
            match scalars::read(file.metadata(), key, &places, weights) {
                Ok(lists) => {
                    for (&n, numbers) in places.iter().zip(lists) {
                        let shape = weights[n].shape.clone();
                        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
                        let bytes = BlockBytes::Computed(bytes);
                        opened[n] = Some(BlockWeight::plain(BlockType::F32, shape, bytes));
                    }
                }
                Err(fault) => faults.push(fault.into()),
            }
        }
        for (weight, blocks) in weights.iter().zip(&opened) {
            if blocks.is_none() && faults.is_empty() {
                faults.push(WeightFault::LeftOut { weight: shown(&weight.name) });
            }
        }
        if faults.is_empty() {
            Ok(Self { file, found: opened.into_iter().flatten().collect() })
        } else {
            Err(Error::of(&file, gguf, faults))
        }
    }

    /// Returns a weight.
    ///
    /// # Panics
    ///
    /// If the id is not of the graph whose weights were wanted.
    pub fn view(&self, id: WeightId) -> BlockView<'_> {
        self.found[id.0].view(&self.file)
    }

    /// Returns the parts of a weight whose rows are in blocks of several types. [`GgufWeights::view`] decodes it.
    ///
    /// # Panics
    ///
    /// If the id is not of the graph whose weights were wanted.
    pub fn row_parts(&self, id: WeightId) -> Option<RowParts<'_>> {
        let weight = &self.found[id.0];
        match &weight.bytes {
            BlockBytes::Parts(parts) => Some(parts.view(&self.file, &weight.shape)),
            BlockBytes::Tensor(..) | BlockBytes::Computed(_) => None,
        }
    }

    /// Returns the file.
    pub fn file(&self) -> &GgufFile {
        &self.file
    }
}

/// Tensor of the file, with its shape in the model.
struct ModelTensor<'f> {
    info: &'f GgufTensor,
    shape: &'f [usize],
    /// Factors of its matrices: one for all, or one each; empty if all are 1.
    factors: Vec<f32>,
    /// Step that takes a combined tensor apart, and the index of this part in it.
    cut: Option<(WeightStep, usize)>,
}

impl ModelTensor<'_> {
    /// Returns the shape of the tensor in the file.
    fn whole(&self) -> &[usize] {
        if self.cut.is_some() { &self.info.shape } else { self.shape }
    }

    /// Returns this part of the tensor in the file.
    fn taken<'f>(&self, flow: Flow<'f>) -> Result<Flow<'f>, WeightFault> {
        let Some((step, part)) = &self.cut else { return Ok(flow) };
        let taken = Flow::run(std::slice::from_ref(step), vec![flow])?;
        taken
            .into_iter()
            .nth(*part)
            .ok_or_else(|| WeightFault::NoPart { tensor: shown(&self.info.name) })
    }
}

/// Returns the tensors of a group, in its order. `claimed` holds the names of the model's own tensors.
fn group_tensors<'f>(
    file: &'f GgufFile,
    group: &'f TensorGroup,
    claimed: &BTreeSet<&str>,
) -> Result<Vec<ModelTensor<'f>>, WeightFault> {
    let mut parts = Vec::with_capacity(group.tensors.len());
    for (name, shape) in &group.tensors {
        let cut = if file.info(name).is_some() { None } else { file.cut(name) };
        let (info, file_shape) = match (&cut, file.info(name)) {
            (Some(cut), _) => (cut.whole, &cut.shape),
            (None, Some(info)) => (info, &info.shape),
            (None, None) => return Err(WeightFault::NoTensor { tensor: shown(name) }),
        };
        // Outer dimensions of 1 may be left out of the file.
        if trimmed(file_shape) != trimmed(shape) {
            let tensor = shown(name);
            let expected = shape.clone();
            return Err(WeightFault::Shape { tensor, found: file_shape.clone(), expected });
        }
        let stem = info.name.strip_suffix(".weight").unwrap_or(&info.name);
        // Some models have a weight with that name, which then is not a factor.
        let claimed = claimed.contains(format!("{stem}{SCALE}").as_str());
        let factors = if claimed { None } else { file.factors(info)? };
        let cut = cut.map(|cut| (cut.step, cut.part));
        parts.push(ModelTensor { info, shape, factors: factors.unwrap_or_default(), cut });
    }
    Ok(parts)
}

/// Returns a shape without its outer dimensions of 1.
fn trimmed(shape: &[usize]) -> &[usize] {
    let ones = shape.iter().take_while(|&&dim| dim == 1).count();
    &shape[ones..]
}

/// Returns the weights of a group as lazy flows, in its order. Nothing is decoded before it is read.
pub(crate) fn lazy_flows<'f>(
    file: &'f GgufFile,
    group: &'f TensorGroup,
    weights: &[Weight],
    claimed: &BTreeSet<&str>,
) -> Result<Vec<Flow<'f>>, WeightFault> {
    let parts = group_tensors(file, group, claimed)?;
    let shapes = group.weights.iter().map(|&n| weights[n].shape.clone()).collect();
    let back = inverse(&group.steps, shapes)?;
    let flows: Result<Vec<_>, WeightFault> =
        parts.iter().map(|part| value_flow(file, part)).collect();
    Ok(Flow::run(&back, flows?)?)
}

/// Opens the weights of a group, in its order. `claimed` holds the names of the model's own tensors.
fn open(
    file: &GgufFile,
    group: &TensorGroup,
    weights: &[Weight],
    claimed: &BTreeSet<&str>,
) -> Result<Vec<BlockWeight>, WeightFault> {
    let parts = group_tensors(file, group, claimed)?;
    let shapes: Vec<_> = group.weights.iter().map(|&n| weights[n].shape.clone()).collect();
    let back = inverse(&group.steps, shapes.clone())?;
    let ty = parts[0].info.ty;
    let (moves, scales) = BlockScales::of(&back, &parts);
    // A number without dimensions is in no row.
    let rows_move = parts.iter().all(|part: &ModelTensor<'_>| {
        !part.shape.is_empty() && (part.cut.is_none() || part.shape.len() > 1)
    }) && moves_rows(&moves, &parts);
    if rows_move && parts.iter().any(|part| part.info.ty != ty) {
        if let Some(matrix) = row_parts::find(&moves, scales.factor, &parts, &shapes)? {
            return Ok(vec![matrix]);
        }
    } else if rows_move {
        let flows: Result<Vec<_>, WeightFault> =
            parts.iter().map(|part| row_flow(file, part)).collect();
        let flows = Flow::run(&moves, flows?)?;
        let moved_weights = flows.iter().zip(&shapes).map(|(flow, shape)| {
            let bytes = locate(file, flow, &parts);
            let factor = factor(&bytes, &parts)? * scales.factor;
            let row_factors = scales.rows.clone();
            Some(BlockWeight { ty, shape: shape.clone(), bytes, factor, row_factors })
        });
        if let Some(moved) = moved_weights.collect() {
            return Ok(moved);
        }
    }
    let flows: Result<Vec<_>, WeightFault> =
        parts.iter().map(|part| number_flow(file, part)).collect();
    let flows = Flow::run(&back, flows?)?;
    let decoded_weights = flows
        .iter()
        .zip(shapes)
        .map(|(flow, shape)| Ok(BlockWeight::plain(BlockType::F32, shape, numbers(flow)?)));
    decoded_weights.collect()
}

/// Returns the common factor of some bytes; none if the parts have different factors.
fn factor(bytes: &BlockBytes, parts: &[ModelTensor<'_>]) -> Option<f32> {
    let first = parts.first().and_then(|part| part.factors.first()).copied().unwrap_or(1.0);
    if parts.iter().all(|part| match part.factors[..] {
        [] => first == 1.0,
        [one] => one == first,
        _ => false,
    }) {
        return Some(first);
    }
    let BlockBytes::Tensor(name, begin, end) = bytes else { return None };
    let part = parts.iter().find(|part| part.info.name == *name)?;
    match part.factors[..] {
        [] => Some(1.0),
        [one] => Some(one),
        _ => {
            let matrix = part.info.bytes as usize / part.factors.len();
            let first = begin.checked_div(matrix)?;
            let last = end.checked_sub(1)? / matrix;
            part.factors.get(first).copied().filter(|_| first == last)
        }
    }
}

/// Factors that steps multiply blocks by.
struct BlockScales {
    factor: f32,
    /// Of each row; empty if rows have none.
    rows: Vec<f32>,
}

impl BlockScales {
    /// Separates steps into those that multiply blocks and the others. All are others where factors cannot stand
    /// beside the blocks: in plain numbers, which kernels multiply as they are, and where rows have factors but move.
    fn of(steps: &[WeightStep], parts: &[ModelTensor<'_>]) -> (Vec<WeightStep>, Self) {
        let mut factor = 1.0_f64;
        let mut rows = Vec::<f64>::new();
        let mut moves = Vec::new();
        for step in steps {
            let (stretches, divides) = match step {
                WeightStep::Mul(by) => {
                    factor *= by;
                    continue;
                }
                WeightStep::Div(by) => {
                    factor /= by;
                    continue;
                }
                WeightStep::MulRows(stretches) => (stretches, false),
                WeightStep::DivRows(stretches) => (stretches, true),
                other => {
                    moves.push(other.clone());
                    continue;
                }
            };
            let by = stretches.iter().flat_map(|&(count, by)| {
                std::iter::repeat_n(if divides { 1.0 / by } else { by }, count)
            });
            let by: Vec<f64> = by.collect();
            if rows.is_empty() {
                rows = by;
            } else {
                rows.iter_mut().zip(by).for_each(|(row, by)| *row *= by);
            }
        }
        let fits = match parts {
            [part] => part.shape.len() == 2 && part.shape[0] == rows.len() && moves.is_empty(),
            _ => false,
        };
        let quantized = parts.iter().all(|part| part.info.ty.is_quantized());
        let usable = quantized && is_normal_f32(factor) && rows.iter().all(|&x| is_normal_f32(x));
        if !usable || !(rows.is_empty() || fits) {
            return (steps.to_vec(), Self { factor: 1.0, rows: Vec::new() });
        }
        let rows = rows.into_iter().map(|x| x as f32).collect();
        (moves, Self { factor: factor as f32, rows })
    }
}

/// True if a number is normal when it is rounded to f32.
fn is_normal_f32(x: f64) -> bool {
    (x as f32).is_normal()
}

/// True if steps only move whole rows: rows of blocks can then be moved as bytes.
fn moves_rows(steps: &[WeightStep], parts: &[ModelTensor<'_>]) -> bool {
    let mut axes = parts.iter().map(|part| part.shape.len()).min().unwrap_or(0);
    steps.iter().all(|step| {
        let moves = match step {
            WeightStep::PermuteHeads { .. } => axes >= 2,
            WeightStep::Split { axis, .. }
            | WeightStep::SplitRuns { axis, .. }
            | WeightStep::ConcatRuns { axis, .. }
            | WeightStep::Concat(axis)
            | WeightStep::Unstack(axis)
            | WeightStep::Stack(axis)
            | WeightStep::Unflatten { axis, .. } => axis + 1 < axes,
            WeightStep::Flatten(axis) => axis + 2 < axes,
            _ => false,
        };
        match step {
            WeightStep::Unflatten { sizes, .. } => axes += sizes.len().saturating_sub(1),
            WeightStep::Flatten(_) | WeightStep::Unstack(_) => axes = axes.saturating_sub(1),
            WeightStep::Stack(_) => axes += 1,
            _ => {}
        }
        moves
    })
}

/// Returns a tensor as rows of bytes.
fn row_flow<'f>(file: &'f GgufFile, part: &ModelTensor<'_>) -> Result<Flow<'f>, WeightFault> {
    let bytes = file.bytes(&part.info.name).unwrap_or_default();
    let mut shape = part.whole().to_vec();
    if let Some(row) = shape.last_mut() {
        *row = part.info.ty.row_bytes(*row).unwrap_or(0);
    }
    part.taken(Flow::new(&shape, Arc::new(PlainValues { dtype: FileDtype::U8, bytes })))
}

/// Returns a tensor as decoded values.
fn number_flow<'f>(file: &'f GgufFile, part: &ModelTensor<'_>) -> Result<Flow<'f>, WeightFault> {
    let bytes = file.bytes(&part.info.name).unwrap_or_default();
    let matrix = part.whole().iter().rev().take(2).product();
    let ty = part.info.ty;
    let factors = part.factors.clone();
    part.taken(Flow::new(part.whole(), Arc::new(BlockDecoder { ty, bytes, factors, matrix })))
}

/// Returns a tensor as values: plain ones in their own dtype, blocks decoded.
fn value_flow<'f>(file: &'f GgufFile, part: &ModelTensor<'_>) -> Result<Flow<'f>, WeightFault> {
    let Some(dtype) = part.info.ty.plain().filter(|_| part.factors.is_empty()) else {
        return number_flow(file, part);
    };
    let bytes = file.bytes(&part.info.name).unwrap_or_default();
    part.taken(Flow::stored(part.whole(), dtype.into(), bytes)?)
}

/// Block-quantized source that is decoded on reading.
struct BlockDecoder<'f> {
    ty: BlockType,
    bytes: &'f [u8],
    factors: Vec<f32>,
    /// Number of values in a matrix; each matrix has its own factor if there are several.
    matrix: usize,
}

impl ValueReader for BlockDecoder<'_> {
    fn read(&self, at: usize, out: &mut [f32]) {
        let block = self.ty.elements();
        let size = self.ty.bytes();
        let first = at / block;
        let end = (at + out.len()).div_ceil(block);
        let mut numbers = vec![0.0; (end - first) * block];
        let bytes = self.bytes.get(first * size..end * size).unwrap_or_default();
        if codec::decode(self.ty, bytes, &mut numbers).is_err() {
            numbers.fill(f32::NAN);
        }
        let skip = at - first * block;
        out.copy_from_slice(&numbers[skip..skip + out.len()]);
        if !self.factors.is_empty() {
            multiply(&self.factors, self.matrix, at, out);
        }
    }
}

/// Locates the bytes of a flow of rows: one range of a tensor, or a new buffer.
fn locate(file: &GgufFile, flow: &Flow<'_>, parts: &[ModelTensor<'_>]) -> BlockBytes {
    if let Some(stretch) = flow.stretch() {
        for ModelTensor { info, .. } in parts {
            let tensor_range = file.bytes(&info.name).unwrap_or_default().as_ptr_range();
            let part = stretch.as_ptr_range();
            if tensor_range.start <= part.start && part.end <= tensor_range.end {
                let begin = part.start.addr() - tensor_range.start.addr();
                return BlockBytes::Tensor(info.name.clone(), begin, begin + stretch.len());
            }
        }
    }
    let mut bytes = vec![0; flow.len()];
    flow.copy(FileDtype::U8, 0, &mut bytes);
    BlockBytes::Computed(bytes)
}

/// Limit on the values that are computed for one weight, larger than any legitimate intermediate result.
const MOST: usize = 1 << 32;

fn numbers(flow: &Flow<'_>) -> Result<BlockBytes, WeightFault> {
    let count = flow.len();
    if count > MOST {
        return Err(WeightFault::TooMany { count });
    }
    let mut numbers = vec![0.0; count];
    flow.read(0, &mut numbers);
    Ok(BlockBytes::Computed(numbers.iter().flat_map(|x| x.to_le_bytes()).collect()))
}
