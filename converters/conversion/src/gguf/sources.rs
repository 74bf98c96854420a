//! What a tensor takes over from its sources: the blocks they lie in, the dtype they compute in.

use std::sync::Arc;

use registry::gguf::Group;
use registry::weight_map::Step;

use checkpoints::checkpoint::Packed;
use checkpoints::flow::{Flow, Numbers};
use checkpoints::weights::Sourced;
use formats::codec::BlockType;
use formats::safetensors::FileDtype;

/// What steps that change numbers compute in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// f32, which loses least.
    Wide,
    /// The dtype of f16 checkpoints, as llama.cpp's converter does; f32 for any other.
    OfSource,
}

/// Whether a group's numbers change and all of them are f16.
pub(super) fn in_half(group: &Group, weights: &[Sourced<'_>]) -> bool {
    let half = |n: &usize| weights[*n].flow.dtype() == Some(FileDtype::F16);
    group.steps.iter().any(Step::computes) && group.weights.iter().all(half)
}

/// Numbers rounded to f16.
struct Halved<'a>(Flow<'a>);

impl Numbers for Halved<'_> {
    fn read(&self, at: usize, out: &mut [f32]) {
        self.0.read(at, out);
        for x in out {
            *x = half::f16::from_f32(*x).to_f32();
        }
    }
}

pub(super) fn halved(flow: Flow<'_>) -> Flow<'_> {
    let shape = flow.shape().to_vec();
    Flow::new(&shape, Arc::new(Halved(flow)))
}

/// The blocks that a tensor's rows lie in on the disk.
#[derive(Debug, Clone, PartialEq)]
pub struct InBlocks {
    /// Their format: in these the tensor loses nothing.
    pub ty: BlockType,
    /// What they are multiplied by: one number for all, or one for each matrix.
    pub factors: Vec<f32>,
}

/// The blocks that all sources of a group lie in, if its steps leave rows whole.
pub(super) fn packed(group: &Group, weights: &[Sourced<'_>]) -> Option<InBlocks> {
    let sources: Option<Vec<Packed>> = group.weights.iter().map(|n| weights[*n].packed).collect();
    let sources = sources?;
    let first = *sources.first()?;
    let rows = |step: &Step| {
        matches!(
            step,
            Step::Stack(0)
                | Step::Unstack(0)
                | Step::Split { axis: 0, .. }
                | Step::PermuteHeads { .. }
        )
    };
    let same = sources.iter().all(|source| source.ty == first.ty);
    if !same || !group.steps.iter().all(rows) {
        return None;
    }
    let alike = sources.iter().all(|source| source.factor == first.factor);
    let factors = match group.steps[..] {
        _ if alike => vec![first.factor],
        [Step::Stack(0)] => sources.iter().map(|source| source.factor).collect(),
        _ => return None,
    };
    Some(InBlocks { ty: first.ty, factors })
}
