//! What a tensor takes over from its sources: the blocks they lie in, the dtype they compute in.

use std::sync::Arc;

use registry::gguf::Group;
use registry::weight_map::Step;

use crate::codec::BlockType;
use crate::flow::{Flow, Numbers};
use crate::safetensors::FileDtype;
use crate::weights::Sourced;

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

/// The blocks that all sources of a group lie in, if its steps leave rows whole.
pub(super) fn packed(group: &Group, weights: &[Sourced<'_>]) -> Option<BlockType> {
    let of = |n: &usize| weights[*n].packed;
    let first = group.weights.first().and_then(of)?;
    let rows = |step: &Step| {
        matches!(step, Step::Stack(0) | Step::Unstack(0) | Step::Split { axis: 0, .. })
    };
    let same = group.weights.iter().all(|n| of(n) == Some(first));
    (same && group.steps.iter().all(rows)).then_some(first)
}
