//! Properties that a tensor takes over from its sources: their block format and their compute dtype.

use std::sync::Arc;

use registry::gguf::TensorGroup;
use registry::weight_map::WeightStep;

use checkpoints::checkpoint::BlockEncoding;
use checkpoints::flow::{Flow, ValueReader};
use checkpoints::weights::WeightFlow;
use formats::codec::BlockType;
use formats::safetensors::FileDtype;

/// Compute dtype of steps that change values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// f32, the most precise.
    Wide,
    /// f16 for f16 checkpoints, as in llama.cpp's converter; f32 for any other.
    OfSource,
}

/// True if a group's steps change values and all its weights are f16.
pub(super) fn in_half(group: &TensorGroup, weights: &[WeightFlow<'_>]) -> bool {
    group.steps.iter().any(WeightStep::computes)
        && group.weights.iter().all(|n: &usize| weights[*n].flow.dtype() == Some(FileDtype::F16))
}

/// Values rounded to f16.
struct F16Values<'a>(Flow<'a>);

impl ValueReader for F16Values<'_> {
    fn read(&self, at: usize, out: &mut [f32]) {
        self.0.read(at, out);
        for x in out {
            *x = half::f16::from_f32(*x).to_f32();
        }
    }
}

pub(super) fn halved(flow: Flow<'_>) -> Flow<'_> {
    let shape = flow.shape().to_vec();
    Flow::new(&shape, Arc::new(F16Values(flow)))
}

/// Block format of a tensor's rows on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceBlocks {
    /// Type of the blocks: kept, it loses nothing.
    pub ty: BlockType,
    /// Factors of the blocks: one for all, or one per matrix.
    pub factors: Vec<f32>,
}

/// Returns the block format that all sources of a group share, if its steps keep rows whole.
pub(super) fn packed(group: &TensorGroup, weights: &[WeightFlow<'_>]) -> Option<SourceBlocks> {
    let sources: Option<Vec<BlockEncoding>> =
        group.weights.iter().map(|n| weights[*n].packed).collect();
    let sources = sources?;
    let first = *sources.first()?;
    let same = sources.iter().all(|source| source.ty == first.ty);
    if !same || !group.steps.iter().all(moves_rows) {
        return None;
    }
    let alike = sources.iter().all(|source| source.factor == first.factor);
    let factors = match group.steps[..] {
        _ if alike => vec![first.factor],
        [WeightStep::Stack(0)] => sources.iter().map(|source| source.factor).collect(),
        _ => return None,
    };
    Some(SourceBlocks { ty: first.ty, factors })
}

/// True if a step moves whole rows, without a change of their bytes.
fn moves_rows(step: &WeightStep) -> bool {
    matches!(
        step,
        WeightStep::Stack(0)
            | WeightStep::Unstack(0)
            | WeightStep::Split { axis: 0, .. }
            | WeightStep::PermuteHeads { .. }
    )
}
