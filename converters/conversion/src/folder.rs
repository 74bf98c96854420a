//! Plans folders of safetensors: checkpoints of plain numbers, or of 8 or 4 bits with scales.
//!
//! A tensor of the old checkpoint is copied, cast, or becomes codes and scales. Every shape and so
//! every offset is known from headers; only where matrices share a scale are they read once more.

use std::sync::Arc;

use registry::graph::WeightId;

use super::work::{Blocks, Encode};
use checkpoints::flow::{Flow, Numbers};
use formats::codec::BlockType;
use formats::safetensors::{Declared, FileDtype};

pub mod calibrated;
pub mod config;
mod files;
pub mod format;
pub mod peaks;
pub mod scaled;
mod tensors;

pub use calibrated::Scales;
pub use files::{Planned, even_limit, index, lay_out, work};
pub use format::Format;
pub use tensors::{Wanted, tensors};

use scaled::{Part, Scaled, Scheme};

/// A tensor, before it has a format.
#[derive(Clone)]
pub struct Tensor<'a> {
    /// Its name.
    pub name: String,
    /// Its numbers, or its bytes where they are no floating-point numbers.
    pub flow: Flow<'a>,
    /// Where the first of its sources lies.
    pub place: (usize, u64),
    /// What it is kept in where nothing changes it.
    pub dtype: FileDtype,
    /// True if the reference keeps it in f32 whatever the model runs in.
    pub always_wide: bool,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The model's name for it, where it is one weight of the model; its own where not.
    pub weight: String,
    /// The weights of the model that lie in it.
    pub weights: Vec<WeightId>,
    /// The mixture that it is a matrix of: all of those are quantized, or none.
    pub mixture: Option<usize>,
    /// Whether it may be quantized; or why not.
    pub matrix: Result<(), String>,
}

/// What becomes of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// What it is kept in; none if it is quantized.
    pub kept: Option<FileDtype>,
    /// Why it is not quantized.
    pub why: String,
}

/// One tensor of the new checkpoint.
#[derive(Clone)]
pub struct Out {
    /// Name, dtype, shape.
    pub declared: Declared,
    encode: Arc<dyn Encode>,
}

/// Tensors that are made of one source and lie in one file.
#[derive(Clone)]
pub struct Item<'a> {
    /// What they are made of.
    pub flow: Flow<'a>,
    /// Where that lies.
    pub place: (usize, u64),
    /// What they are.
    pub outs: Vec<Out>,
}

/// What the tensors become; `peaks` are the largest numbers of those that share scales, if known.
/// Behind them come the `scales` that a run has told.
pub fn items<'a>(
    format: Format,
    tensors: &[Tensor<'a>],
    choices: &[Choice],
    peaks: Option<&[f32]>,
    scales: &Scales,
) -> Vec<Item<'a>> {
    let mut items = Vec::with_capacity(tensors.len());
    for (n, (tensor, choice)) in tensors.iter().zip(choices).enumerate() {
        let item = |outs| Item { flow: tensor.flow.clone(), place: tensor.place, outs };
        if let Some(dtype) = choice.kept {
            items.push(item(vec![kept(tensor, dtype)]));
            continue;
        }
        let peak = peaks.and_then(|peaks| peaks.get(n)).copied().unwrap_or(1.0);
        let shared = match format {
            Format::Nvfp4 => scaled::global_scale(peak),
            _ => scaled::whole_scale(peak, calibrated::dtype(format)),
        };
        let (Some(scheme), &[rows, row]) = (format.scheme(shared), &tensor.shape[..]) else {
            continue;
        };
        let names = config::names(format);
        let module = tensor.name.strip_suffix("weight").unwrap_or(&tensor.name);
        let out = |end: &str, dtype, shape, part| Out {
            declared: Declared { name: format!("{module}{end}"), dtype, shape },
            encode: Arc::new(Scaled { scheme, part }),
        };
        let codes = match scheme {
            Scheme::Sixteens(_) | Scheme::ThirtyTwos => FileDtype::U8,
            _ => FileDtype::F8E4m3,
        };
        let mut outs = vec![out(names.codes, codes, scheme.codes(rows, row), Part::Codes)];
        if let Some((dtype, shape)) = scheme.scales(rows, row) {
            outs.push(out(names.scales, dtype, shape, Part::Scales));
        }
        items.push(item(outs));
        if format.shares() {
            let (end, dtype) = match format {
                Format::Nvfp4 => (names.global, FileDtype::F32),
                _ => (names.scales, calibrated::dtype(format)),
            };
            items.push(known(format!("{module}{end}"), dtype, format.one(), shared));
        }
    }
    items.extend(scales.items(format));
    items
}

/// A tensor that is copied or cast.
fn kept(tensor: &Tensor<'_>, dtype: FileDtype) -> Out {
    let declared = Declared { name: tensor.name.clone(), dtype, shape: tensor.shape.clone() };
    let ty = match dtype {
        FileDtype::F32 => Some(BlockType::F32),
        FileDtype::F16 => Some(BlockType::F16),
        FileDtype::Bf16 => Some(BlockType::Bf16),
        _ => None,
    };
    let encode: Arc<dyn Encode> = match ty {
        Some(ty) => Arc::new(Blocks::plain(ty)),
        None => Arc::new(Verbatim(tensor.flow.dtype().unwrap_or(FileDtype::U8))),
    };
    Out { declared, encode }
}

/// A tensor of one number.
fn known<'a>(name: String, dtype: FileDtype, shape: Vec<usize>, number: f32) -> Item<'a> {
    let ty = if dtype == FileDtype::F32 { BlockType::F32 } else { BlockType::Bf16 };
    let encode = Arc::new(Blocks::plain(ty));
    let declared = Declared { name, dtype, shape };
    let flow = Flow::new(&[1], Arc::new(One(number)));
    Item { flow, place: (0, 0), outs: vec![Out { declared, encode }] }
}

struct One(f32);

impl Numbers for One {
    fn read(&self, _at: usize, out: &mut [f32]) {
        out.fill(self.0);
    }
}

/// Bytes as they are.
struct Verbatim(FileDtype);

impl Encode for Verbatim {
    fn elementwise(&self) -> bool {
        true
    }

    fn bytes(&self, rows: usize, row: usize) -> usize {
        rows * row * self.0.size()
    }

    fn encode(&self, _: usize, _: &[f32], _: usize, _: &mut [u8]) -> Result<(), String> {
        Err(format!("its numbers of dtype {} cannot be copied", self.0))
    }

    fn decode(&self, _: usize, _: &[f32], _: &[u8], _: usize, _: &mut [f32]) -> bool {
        false
    }

    fn plain(&self) -> Option<FileDtype> {
        Some(self.0)
    }
}
