//! Plans folders of safetensors: unquantized checkpoints, or checkpoints of 8 or 4 bits with scales.
//!
//! A tensor of the source checkpoint is copied, cast, or quantized to codes and scales. Headers alone
//! determine every shape and offset. Only matrices that share a scale are read an extra time.

use std::sync::Arc;

use registry::graph::WeightId;

use super::work::{BlockEncoder, Encode, EncodeError};
use checkpoints::flow::{Flow, ValueReader};
use formats::codec::BlockType;
use formats::safetensors::{FileDtype, TensorSpec};

pub mod calibrated;
mod config;
mod declarations;
mod files;
pub mod format;
pub mod peaks;
pub mod scaled;
mod tensors;

pub use calibrated::CalibratedScales;
pub use config::ScaleKinds;
pub use declarations::{FolderFormat, NoInputs};
pub use files::{FolderFile, even_limit, index, lay_out, limit_of, work};
pub use tensors::{Error as TensorsError, ListingOptions, Unquantized, tensors};

use declarations::SharedScale;
use scaled::{QuantizedEncoder, QuantizedPart};

/// Tensor of the source, before a format is chosen for it.
#[derive(Clone)]
pub struct FolderTensor<'a> {
    /// Name of the tensor.
    pub name: String,
    /// Values, or raw bytes if the dtype is not floating point.
    pub flow: Flow<'a>,
    /// Place of the first source: file and offset.
    pub place: (usize, u64),
    /// Dtype that the tensor keeps if nothing converts it.
    pub dtype: FileDtype,
    /// True if the reference keeps the tensor in f32 in every dtype of the model.
    pub always_wide: bool,
    /// Shape of the tensor.
    pub shape: Vec<usize>,
    /// The model's name for the weight, or the tensor's own name if it is not exactly one weight.
    pub weight: String,
    /// Weights of the model that the tensor contains.
    pub weights: Vec<WeightId>,
    /// Mixture that the matrix belongs to: either all matrices of a mixture are quantized, or none.
    pub mixture: Option<usize>,
    /// `Ok` if the tensor may be quantized, else the reason why not.
    pub matrix: Result<(), Unquantized>,
}

/// Decision about one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DtypeChoice {
    /// Dtype of an unquantized tensor; none if the tensor is quantized.
    pub kept: Option<FileDtype>,
    /// Reason for leaving the tensor unquantized.
    pub why: String,
}

/// Tensor of the new checkpoint.
#[derive(Clone)]
pub struct OutTensor {
    /// Name, dtype and shape.
    pub declared: TensorSpec,
    encode: Arc<dyn Encode>,
}

/// Tensors that are made of one source and stored in one file.
#[derive(Clone)]
pub struct FolderItem<'a> {
    /// Values of the source.
    pub flow: Flow<'a>,
    /// Place of the source: file and offset.
    pub place: (usize, u64),
    /// Tensors made of the source.
    pub outs: Vec<OutTensor>,
}

/// Returns the items that the tensors become, followed by the calibrated `scales`. `peaks` holds the
/// largest absolute value of each tensor that shares a scale, if known.
pub fn items<'a>(
    format: FolderFormat,
    tensors: &[FolderTensor<'a>],
    choices: &[DtypeChoice],
    peaks: Option<&[f32]>,
    scales: &CalibratedScales,
) -> Vec<FolderItem<'a>> {
    let mut items = Vec::with_capacity(tensors.len());
    for (n, (tensor, choice)) in tensors.iter().zip(choices).enumerate() {
        if let Some(dtype) = choice.kept {
            items.push(item_of(tensor, vec![unquantized(tensor, dtype)]));
            continue;
        }
        let peak = peaks.and_then(|peaks| peaks.get(n)).copied().unwrap_or(1.0);
        let declared = format.declaration();
        let shared = declared.shared.map_or(1.0, |shared| (shared.scale)(peak));
        let (Some(scheme), &[rows, row]) = (format.scheme(shared), &tensor.shape[..]) else {
            continue;
        };
        let module = tensor.name.strip_suffix("weight").unwrap_or(&tensor.name);
        let out = |end: &str, dtype, shape, part| OutTensor {
            declared: TensorSpec { name: format!("{module}{end}"), dtype, shape },
            encode: Arc::new(QuantizedEncoder { scheme, part }),
        };
        let (dtype, shape) = scheme.codes(rows, row);
        let mut outs = vec![out(declared.codes, dtype, shape, QuantizedPart::Codes)];
        if let Some((dtype, shape)) = scheme.scales(rows, row) {
            outs.push(out(declared.scales, dtype, shape, QuantizedPart::Scales));
        }
        items.push(item_of(tensor, outs));
        if let Some(SharedScale { name, dtype, .. }) = declared.shared {
            items.push(known(format!("{module}{name}"), dtype, format.single().1, shared));
        }
    }
    items.extend(scales.items(format));
    items
}

/// Returns the item that makes these tensors of a tensor.
fn item_of<'a>(tensor: &FolderTensor<'a>, outs: Vec<OutTensor>) -> FolderItem<'a> {
    FolderItem { flow: tensor.flow.clone(), place: tensor.place, outs }
}

/// Returns the output tensor of a copy or a cast.
fn unquantized(tensor: &FolderTensor<'_>, dtype: FileDtype) -> OutTensor {
    let declared = TensorSpec { name: tensor.name.clone(), dtype, shape: tensor.shape.clone() };
    let encode: Arc<dyn Encode> = match dtype.run() {
        Some(dtype) => Arc::new(BlockEncoder::plain(BlockType::of_dtype(dtype))),
        None => Arc::new(CopyEncoder(tensor.flow.dtype().unwrap_or(FileDtype::U8))),
    };
    OutTensor { declared, encode }
}

/// Returns the item of a tensor filled with one known value.
fn known<'a>(name: String, dtype: FileDtype, shape: Vec<usize>, number: f32) -> FolderItem<'a> {
    let ty = if dtype == FileDtype::F32 { BlockType::F32 } else { BlockType::Bf16 };
    let encode = Arc::new(BlockEncoder::plain(ty));
    let declared = TensorSpec { name, dtype, shape };
    let flow = Flow::new(&[1], Arc::new(ScalarEncoder(number)));
    FolderItem { flow, place: (0, 0), outs: vec![OutTensor { declared, encode }] }
}

struct ScalarEncoder(f32);

impl ValueReader for ScalarEncoder {
    fn read(&self, _at: usize, out: &mut [f32]) {
        out.fill(self.0);
    }
}

/// Encodes bytes by copying them.
struct CopyEncoder(FileDtype);

impl Encode for CopyEncoder {
    fn elementwise(&self) -> bool {
        true
    }

    fn bytes(&self, rows: usize, row: usize) -> usize {
        rows * row * self.0.size()
    }

    fn encode(&self, _: usize, _: &[f32], _: usize, _: &mut [u8]) -> Result<(), EncodeError> {
        Err(EncodeError::Verbatim { dtype: self.0 })
    }

    fn decode(&self, _: usize, _: &[f32], _: &[u8], _: usize, _: &mut [f32]) -> bool {
        false
    }

    fn plain(&self) -> Option<FileDtype> {
        Some(self.0)
    }
}
