//! Tiny engine with optional faults, and dumps written by its correct form.
//!
//! It has two layers: a gated short convolution of width 3, and attention over a window of 4. The reference
//! sums in the other direction, so that two correct runs differ by rounding.

#![allow(clippy::allow_attributes_without_reason, unreachable_pub, dead_code)]

use engine::{Engine, Error, ModelSource, Session, SessionOptions};
use registry::dtype::Dtype;
use registry::model::Model;

mod dump;
mod graph;
mod layers;
mod session;

pub use dump::write_dump;
pub use graph::model;

pub const VOCAB: usize = 23;
const H: usize = 16;
const WIDTH: usize = 3;
const WINDOW: usize = 4;
const HEADS: usize = 2;
const D: usize = H / HEADS;

/// Fault of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The conv state is stored in bf16, whatever the run's dtype.
    NarrowState,
    /// An epsilon is 1e-5 instead of 1e-6.
    Epsilon,
    /// The window is one too long.
    Window,
    /// The weight of one norm is offset by 1.
    PlusOne,
    /// Attention's scale is wrong by 3 in 1000.
    Scale,
    /// A reused slot is not cleared.
    StaleSlot,
    /// A chunk shorter than the kernel drops the positions before it.
    ShortChunk,
    /// Forks share their conv state's newest column.
    ForkLeaks,
    /// Truncation drops positions but not the conv state.
    HalfTruncate,
    /// Slots are mixed up when their order changes.
    BatchOrder,
    /// The second norm is never computed.
    MissingNorm,
    /// Logits turn to NaN in decode.
    NotANumber,
}

#[derive(Debug, Clone, Copy)]
pub struct Fake {
    pub fault: Fault,
    /// True to sum from the other end.
    pub reversed: bool,
    /// True to expose neither taps nor states.
    pub blind: bool,
}

pub fn round(dtype: Dtype, x: f32) -> f32 {
    match dtype {
        Dtype::F32 => x,
        Dtype::Bf16 => half::bf16::from_f32(x).to_f32(),
        Dtype::F16 => half::f16::from_f32(x).to_f32(),
    }
}

/// Returns a weight on the bf16 grid, so that it is exact in every dtype.
fn weight(seed: usize, n: usize) -> f32 {
    let mut z = (seed as u64 * 1_000_003 + n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let unit = ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32;
    round(Dtype::Bf16, unit * 2.0 - 1.0)
}

#[derive(Debug, Clone)]
struct Slot {
    tokens: Vec<u32>,
    /// Columns of the conv state, oldest first, for every position so far (`WIDTH - 1` zeros first).
    columns: Vec<[f32; H]>,
    keys: Vec<[f32; H]>,
    values: Vec<[f32; H]>,
}

impl Slot {
    fn empty() -> Self {
        Self { tokens: vec![], columns: vec![[0.0; H]; WIDTH - 1], keys: vec![], values: vec![] }
    }
}

pub struct FakeSession {
    model: Model,
    dtype: Dtype,
    fake: Fake,
    slots: Vec<Option<Slot>>,
    released: Vec<Slot>,
}

impl Engine for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn open(
        &self,
        source: &ModelSource<'_>,
        options: &SessionOptions,
    ) -> Result<Box<dyn Session>, Error> {
        Ok(Box::new(FakeSession {
            model: (*source.model).clone(),
            dtype: options.dtype,
            fake: *self,
            slots: vec![],
            released: vec![],
        }))
    }
}
