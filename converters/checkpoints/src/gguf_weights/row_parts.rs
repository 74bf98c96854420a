//! Matrices whose rows lie in tensors of several types.
//!
//! Each part is multiplied in its type ([decision 96](../../../../docs/decisions/0096-matrices-in-parts-of-several-types.md)).

use std::sync::{Arc, OnceLock};

use registry::weight_map::WeightStep;

use super::{BlockBytes, BlockView, BlockWeight, ModelTensor, WeightFault};
use crate::flow::{Flow, PlainValues};
use formats::codec::{self, BlockType};
use formats::gguf::GgufFile;
use formats::safetensors::FileDtype;

/// Consecutive rows of a matrix that lie in one part, one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRun {
    /// Index of the part.
    pub part: usize,
    /// First row in the part.
    pub first: usize,
    /// Number of rows.
    pub count: usize,
}

/// Matrix whose rows are in blocks of several types: all rows of each part, in another order.
#[derive(Debug, Clone)]
pub struct RowParts<'a> {
    /// Shape of the weight in the model, of two dimensions.
    pub shape: &'a [usize],
    /// Parts, each of one type and as wide as the matrix.
    pub parts: Vec<BlockView<'a>>,
    /// Origin of the matrix' rows, from the first to the last.
    pub runs: &'a [RowRun],
}

/// Parts of a matrix in a file.
#[derive(Debug)]
pub(super) struct PartsOfFile {
    parts: Vec<BlockWeight>,
    runs: Vec<RowRun>,
    /// Values of the matrix as f32, for readers of one type.
    decoded: OnceLock<Vec<u8>>,
}

impl PartsOfFile {
    pub(super) fn view<'a>(&'a self, file: &'a GgufFile, shape: &'a [usize]) -> RowParts<'a> {
        let parts = self.parts.iter().map(|part| part.view(file)).collect();
        RowParts { shape, parts, runs: &self.runs }
    }

    pub(super) fn decoded(&self, file: &GgufFile) -> &[u8] {
        self.decoded.get_or_init(|| {
            let mut out = Vec::new();
            for run in &self.runs {
                let part = self.parts[run.part].view(file);
                let width = part.shape.last().copied().unwrap_or(0);
                let size = part.ty.row_bytes(width).unwrap_or(0);
                let rows = part.bytes.chunks_exact(size.max(1)).skip(run.first).take(run.count);
                let mut numbers = vec![0.0; width];
                for row in rows {
                    if codec::decode(part.ty, row, &mut numbers).is_err() {
                        numbers.fill(f32::NAN);
                    }
                    out.extend(numbers.iter().flat_map(|x| (x * part.factor).to_le_bytes()));
                }
            }
            out
        })
    }
}

/// Returns the one matrix that steps make of the rows of all parts; none if they do more than move rows, or if a factor
/// cannot stand beside its blocks.
pub(super) fn find(
    moves: &[WeightStep],
    factor: f32,
    parts: &[ModelTensor<'_>],
    shapes: &[Vec<usize>],
) -> Result<Option<BlockWeight>, WeightFault> {
    let [shape] = shapes else { return Ok(None) };
    let &[outputs, inputs] = shape.as_slice() else { return Ok(None) };
    let all: usize = parts.iter().map(rows_of).sum();
    let fit = parts.iter().all(|part| has_inputs(part, inputs));
    if !fit || inputs == 0 || all != outputs || u32::try_from(all).is_err() {
        return Ok(None);
    }
    let mut blocks = Vec::with_capacity(parts.len());
    for part in parts {
        let factor = part.factors.first().copied().unwrap_or(1.0) * factor;
        if factor != 1.0 && !part.info.ty.is_quantized() {
            return Ok(None);
        }
        let bytes = BlockBytes::Tensor(part.info.name.clone(), 0, part.info.bytes as usize);
        let ty = part.info.ty;
        let shape = vec![rows_of(part), inputs];
        blocks.push(BlockWeight { factor, ..BlockWeight::plain(ty, shape, bytes) });
    }
    // Every row is its own number, counted through all parts: the steps move four bytes.
    let numbers: Vec<u8> = (0..all as u32).flat_map(u32::to_le_bytes).collect();
    let mut at = 0;
    let mut flows = Vec::with_capacity(parts.len());
    for part in parts {
        let end = at + rows_of(part) * 4;
        let mut shape = part.shape.to_vec();
        shape.pop();
        shape.push(4);
        let values = PlainValues { dtype: FileDtype::U8, bytes: &numbers[at..end] };
        flows.push(Flow::new(&shape, Arc::new(values)));
        at = end;
    }
    let moved = Flow::run(moves, flows)?;
    let [moved] = moved.as_slice() else { return Ok(None) };
    let mut order = vec![0; moved.len()];
    moved.copy(FileDtype::U8, 0, &mut order);
    let mut runs: Vec<RowRun> = Vec::new();
    for number in order.chunks_exact(4) {
        let mut row = u32::from_le_bytes([number[0], number[1], number[2], number[3]]) as usize;
        let mut part = 0;
        while row >= blocks[part].shape[0] {
            row -= blocks[part].shape[0];
            part += 1;
        }
        match runs.last_mut() {
            Some(run) if run.part == part && run.first + run.count == row => run.count += 1,
            _ => runs.push(RowRun { part, first: row, count: 1 }),
        }
    }
    let parts = PartsOfFile { parts: blocks, runs, decoded: OnceLock::new() };
    Ok(Some(BlockWeight::plain(BlockType::F32, shape.clone(), BlockBytes::Parts(parts))))
}

/// Returns the number of rows of a tensor.
fn rows_of(part: &ModelTensor<'_>) -> usize {
    part.shape.iter().rev().skip(1).product()
}

/// True if a tensor is a whole matrix with this many inputs and at most one factor.
fn has_inputs(part: &ModelTensor<'_>, inputs: usize) -> bool {
    part.cut.is_none()
        && part.shape.len() > 1
        && part.shape.last() == Some(&inputs)
        && part.info.ty.row_bytes(inputs).is_some()
        && part.factors.len() < 2
}
