//! Plans GGUF files: the type and offset of each tensor, computed from headers alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use registry::gguf::{Gguf, TensorGroupError, is_known, knows_tensor};
use registry::graph::Weight;
use registry::scalar::Scalar;

use super::work::BlockEncoder;
use super::{OutFile, Task, TaskTarget, Work};
use checkpoints::flow::{self, Flow, ValueReader};
use checkpoints::weights::WeightFlow;
use formats::codec::BlockType;
use formats::gguf::{
    DimsStyle, GgufLayout, GgufTensor, GgufTensorSpec, Metadata, MetadataArray, MetadataValue,
    scalars, split,
};
use formats::safetensors::FileDtype;

mod base;
mod factors;
mod sources;

pub use crate::factors::Factors;
pub use base::base_type;
pub use factors::{factors, ignored_factors, may_be_scaled, measure};
pub use sources::{Arithmetic, SourceBlocks};
use sources::{halved, in_half, packed};

/// Reason that a model does not become a GGUF file.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum TensorFault {
    #[error("{message}: {label}")]
    Unlike { message: String, label: String },
    #[error(transparent)]
    Group(#[from] TensorGroupError),
    #[error("`{tensor}`: there is no type `{ty}`")]
    NoType { tensor: String, ty: String },
    #[error("`{tensor}` cannot be made: {why}")]
    Steps { tensor: String, why: flow::Error },
    #[error("the weights of the key `{key}` have too many numbers for a key")]
    TooMany { key: String },
}

/// Tensor of a GGUF file, before its type is chosen.
#[derive(Clone)]
pub struct PlannedTensor<'a> {
    /// Name of the tensor.
    pub name: String,
    /// Values, with a row-major shape.
    pub flow: Flow<'a>,
    /// Place of the first source: file and offset.
    pub place: (usize, u64),
    /// Type that the tensor has in every file, whatever the target.
    pub fixed: Option<BlockType>,
    /// Block format that the source rows are stored in: kept, it loses nothing.
    pub packed: Option<SourceBlocks>,
}

/// Type of a tensor and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeChoice {
    /// Type of the tensor.
    pub ty: BlockType,
    /// Rule that chose the type, in a few words.
    pub why: String,
}

/// File to be written, or a set of files.
pub struct GgufOutput {
    /// Path of the file; for a set, the path without its `-00001-of-00002.gguf`.
    pub path: PathBuf,
    /// The type of each tensor, in order.
    pub choices: Vec<TypeChoice>,
    /// `general.file_type`.
    pub file_type: u32,
    /// Limit on the bytes of tensors per file; none for a single file.
    pub split: Option<u64>,
    /// Index of the only file of the set to write, counted from zero.
    pub shard: Option<usize>,
    /// Dtype that values are rounded to before quantization, as in programs that write an intermediate
    /// file.
    pub via: Option<FileDtype>,
    /// The form of shapes in the header.
    pub dims: DimsStyle,
    /// Error weights by tensor name: one list per matrix, with one value per column.
    pub importance: BTreeMap<String, Arc<Vec<f32>>>,
    /// Factors of block-quantized tensors, by tensor index. They are stored as tensors of their own, behind
    /// the others.
    pub factors: BTreeMap<usize, Factors>,
}

/// File of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufPlan {
    /// Path of the file.
    pub path: PathBuf,
    /// Header and offsets of the file.
    pub layout: GgufLayout,
}

/// Returns the tensors of a GGUF file in file order. Computed tensors come first, then tensors of no layer,
/// then each layer by name. `gguf` is the section that was resolved with these weights.
pub fn tensors<'a>(
    gguf: &Gguf,
    model_weights: &[Weight],
    weights: &[WeightFlow<'a>],
    arithmetic: Arithmetic,
) -> Result<Vec<PlannedTensor<'a>>, Vec<TensorFault>> {
    if let Some(unlike) = &gguf.unlike {
        let message = unlike.message.clone();
        let label = unlike.label.clone();
        return Err(vec![TensorFault::Unlike { message, label }]);
    }
    let mut tensors: Vec<PlannedTensor<'a>> = Vec::new();
    let mut faults = Vec::new();
    let groups = gguf.groups(model_weights);
    let groups =
        groups.map_err(|all| all.into_iter().map(TensorFault::from).collect::<Vec<_>>())?;
    for group in groups {
        let flows = group.weights.iter().map(|&n| weights[n].flow.clone()).collect();
        let place = group.weights.iter().map(|&n| weights[n].place).min().unwrap_or_default();
        let fixed = group.ty.as_deref().and_then(BlockType::parse);
        if let Some(ty) = group.ty.clone().filter(|_| fixed.is_none()) {
            faults.push(TensorFault::NoType { tensor: group.tensors[0].0.clone(), ty });
        }
        let packed = packed(&group, weights);
        let half = arithmetic == Arithmetic::OfSource && in_half(&group, weights);
        match Flow::run(&group.steps, flows) {
            Ok(outputs) => {
                let named = group.tensors.iter().zip(outputs);
                tensors.extend(named.map(|((name, _), flow)| PlannedTensor {
                    name: name.clone(),
                    flow: if half { halved(flow) } else { flow },
                    place,
                    fixed,
                    packed: packed.clone(),
                }));
            }
            Err(why) => faults.push(TensorFault::Steps { tensor: group.tensors[0].0.clone(), why }),
        }
    }
    tensors.sort_by_cached_key(|tensor| order(&tensor.name));
    let computed = gguf.tensors.iter().map(|(name, numbers)| PlannedTensor {
        name: name.clone(),
        flow: Flow::new(&[numbers.len()], Arc::new(ConstantValues(numbers.clone()))),
        place: (0, 0),
        fixed: Some(BlockType::F32),
        packed: None,
    });
    tensors.splice(0..0, computed);
    if faults.is_empty() { Ok(tensors) } else { Err(faults) }
}

/// Adds to the section's keys the values of weights that a file stores as keys.
pub fn with_scalars(
    mut gguf: Gguf,
    model_weights: &[Weight],
    weights: &[WeightFlow<'_>],
) -> Result<Gguf, Vec<TensorFault>> {
    let mut keys = Vec::new();
    let mut faults = Vec::new();
    for (key, places) in gguf.scalar_weights(model_weights) {
        if scalars::count(&places, model_weights).is_none() {
            faults.push(TensorFault::TooMany { key: key.to_owned() });
            continue;
        }
        let mut list = Vec::new();
        for &place in &places {
            let mut numbers = vec![0.0; weights[place].flow.len()];
            weights[place].flow.read(0, &mut numbers);
            list.extend(numbers.into_iter().map(|x| Scalar::Float(f64::from(x))));
        }
        // An empty list is not a valid value.
        if !list.is_empty() {
            keys.push((key.to_owned(), Scalar::List(list)));
        }
    }
    gguf.metadata.extend(keys);
    if faults.is_empty() { Ok(gguf) } else { Err(faults) }
}

/// Returns warnings about everything in the file that stock llama.cpp does not support.
pub fn unknown(gguf: &Gguf, tensors: &[PlannedTensor<'_>]) -> Vec<String> {
    if !is_known(&gguf.arch) {
        return vec![format!(
            "llama.cpp does not know the architecture `{}`: the file is for this program alone, with the spec that it is made with",
            gguf.arch
        )];
    }
    let names = tensors.iter().map(|tensor| tensor.name.as_str());
    let strange: Vec<&str> = names.filter(|name| !knows_tensor(&gguf.arch, name)).collect();
    match strange[..] {
        [] => vec![],
        [first, ..] => vec![format!(
            "llama.cpp does not know {} tensors of `{}`, the first is `{first}`",
            strange.len(),
            gguf.arch
        )],
    }
}

/// Returns the metadata of a file: the keys of the model, of the tokenizer and of the types.
pub fn keys(gguf: &Gguf, name: &str, tokenizer: &Metadata, file_type: u32) -> Metadata {
    let mut keys = Metadata::new();
    keys.set("general.architecture", gguf.arch.as_str());
    keys.set("general.type", "model");
    if !name.is_empty() {
        keys.set("general.name", name);
    }
    for (key, scalar) in &gguf.metadata {
        let wide = gguf.wide.contains(key).then(|| wide_list(scalar)).flatten();
        if let Some(value) = wide.or_else(|| value(scalar)) {
            keys.set(key.as_str(), value);
        }
    }
    for (key, value) in tokenizer.iter() {
        keys.set(key, value.clone());
    }
    keys.set("general.quantization_version", QUANTIZATION_VERSION);
    keys.set("general.file_type", file_type);
    keys
}

/// Version of the block formats.
const QUANTIZATION_VERSION: u32 = 2;

/// Converts a computed value to the type that llama.cpp's own writer would give it. Returns none for a
/// value that no key can hold.
fn value(scalar: &Scalar) -> Option<MetadataValue> {
    Some(match scalar {
        Scalar::Bool(b) => MetadataValue::Bool(*b),
        Scalar::Int(n) => u32::try_from(*n).map_or(MetadataValue::I64(*n), MetadataValue::U32),
        Scalar::Float(x) => MetadataValue::F32(*x as f32),
        Scalar::Str(text) => MetadataValue::String(text.clone()),
        Scalar::List(items) => MetadataValue::Array(array(items)?),
        Scalar::Null | Scalar::Map(_) => return None,
    })
}

/// Returns a list of integers with 64 bits each; none of other values, which are written as they are elsewhere.
fn wide_list(scalar: &Scalar) -> Option<MetadataValue> {
    let Scalar::List(items) = scalar else { return None };
    let numbers = items.iter().map(|item| match item {
        Scalar::Int(n) => u64::try_from(*n).ok(),
        _ => None,
    });
    Some(MetadataValue::Array(MetadataArray::U64(numbers.collect::<Option<_>>()?)))
}

fn array(items: &[Scalar]) -> Option<MetadataArray> {
    if let Some(list) = items
        .iter()
        .map(|item: &Scalar| match item {
            Scalar::Int(n) => i32::try_from(*n).ok(),
            _ => None,
        })
        .collect()
    {
        return Some(MetadataArray::I32(list));
    }
    if let Some(list) = items
        .iter()
        .map(|item: &Scalar| match item {
            Scalar::Bool(b) => Some(*b),
            _ => None,
        })
        .collect()
    {
        return Some(MetadataArray::Bool(list));
    }
    if let Some(list) = items
        .iter()
        .map(|item: &Scalar| match item {
            Scalar::Str(text) => Some(text.clone()),
            _ => None,
        })
        .collect()
    {
        return Some(MetadataArray::String(list));
    }
    items
        .iter()
        .map(|x| x.as_f64().map(|x| x as f32))
        .collect::<Option<_>>()
        .map(MetadataArray::F32)
}

/// Lays out the files of one output.
pub fn lay_out(
    output: &GgufOutput,
    keys: &Metadata,
    tensors: &[PlannedTensor<'_>],
) -> Result<Vec<GgufPlan>, formats::gguf::Error> {
    let declared = declared(output, tensors);
    let files = match output.split {
        None => {
            let layout = GgufLayout::new(&output.path, keys, &declared, output.dims)?;
            vec![(output.path.clone(), layout)]
        }
        Some(limit) => split::layouts(&prefix(&output.path), keys, &declared, limit, output.dims)?,
    };
    Ok(files.into_iter().map(|(path, layout)| GgufPlan { path, layout }).collect())
}

/// Returns the file size limit that splits an output into at most `count` files of similar size.
pub fn even_limit(
    output: &GgufOutput,
    keys: &Metadata,
    tensors: &[PlannedTensor<'_>],
    count: usize,
) -> Result<u64, formats::gguf::Error> {
    split::even_limit(&output.path, keys, &declared(output, tensors), count)
}

fn declared(output: &GgufOutput, tensors: &[PlannedTensor<'_>]) -> Vec<GgufTensorSpec> {
    let chosen = tensors.iter().zip(&output.choices);
    let chosen = chosen.map(|(tensor, choice)| GgufTensorSpec {
        name: tensor.name.clone(),
        shape: tensor.flow.shape().to_vec(),
        ty: choice.ty,
    });
    chosen.chain(factors::declared(output, tensors)).collect()
}

/// Returns the name of a set: the path without `.gguf`.
pub fn prefix(path: &Path) -> PathBuf {
    if path.extension().is_some_and(|end| end == "gguf") {
        path.with_extension("")
    } else {
        path.to_owned()
    }
}

/// Returns the work of several outputs, with each tensor read once.
pub fn work<'a>(
    tensors: &[PlannedTensor<'a>],
    outputs: &[(GgufOutput, Vec<GgufPlan>)],
    fingerprint: String,
) -> Work<'a> {
    let mut files = Vec::new();
    let mut targets: Vec<Vec<TaskTarget>> = vec![Vec::new(); tensors.len()];
    let mut behind = Vec::new();
    for (output, planned) in outputs {
        let mut tensor = 0;
        let mut factors = output.factors.iter();
        for (no, plan) in planned.iter().enumerate() {
            let is_written = output.shard.is_none_or(|shard| shard == no);
            for info in &plan.layout.tensors {
                let factors = if tensor < tensors.len() { None } else { factors.next() };
                match factors {
                    _ if !is_written => {}
                    Some((_, factors)) => behind.push(beside(factors, info, files.len())),
                    None => {
                        if let Some(targets) = targets.get_mut(tensor) {
                            targets.push(target(
                                output,
                                tensor,
                                &tensors[tensor],
                                info,
                                files.len(),
                            ));
                        }
                    }
                }
                tensor += 1;
            }
            if is_written {
                let header = plan.layout.header.clone();
                let len = plan.layout.file_len;
                files.push(OutFile { path: plan.path.clone(), header, len });
            }
        }
    }
    let tasks = tensors.iter().zip(targets).filter(|(_, targets)| !targets.is_empty());
    let tasks = tasks
        .map(|(tensor, targets)| Task { flow: tensor.flow.clone(), targets, place: tensor.place })
        .chain(behind)
        .collect();
    // Readers open a set by its first file.
    let sets =
        outputs.iter().filter(|(output, planned)| output.shard.is_none() && planned.len() > 1);
    let gates = sets.map(|(_, planned)| planned[0].path.clone()).collect();
    Work { files, tasks, fingerprint, gates, ..Work::default() }
}

/// Returns the task that writes a tensor of factors.
fn beside<'a>(factors: &Factors, info: &GgufTensor, file: usize) -> Task<'a> {
    let blocks = BlockEncoder::plain(BlockType::F32);
    let name = info.name.clone();
    let offset = info.offset;
    let flow = Flow::new(&info.shape, Arc::new(factors::FactorEncoder(factors.clone())));
    let targets = vec![TaskTarget { file, name, offset, encode: Arc::new(blocks) }];
    Task { flow, targets, place: (usize::MAX, 0) }
}

fn target(
    output: &GgufOutput,
    place: usize,
    tensor: &PlannedTensor<'_>,
    info: &GgufTensor,
    file: usize,
) -> TaskTarget {
    let shape = tensor.flow.shape();
    let matrix = if shape.len() >= 2 { shape[shape.len() - 2] } else { 1 };
    let factors = output.factors.get(&place).cloned();
    let quantized = info.ty.is_quantized();
    let importance = output.importance.get(&tensor.name).filter(|_| quantized).cloned();
    // Tensors that are f32 in the file are f32 in an intermediate file too. Rounding first would change
    // codes that are copied.
    let via = output.via.filter(|_| info.ty != BlockType::F32 && factors.is_none());
    let encode = Arc::new(BlockEncoder { ty: info.ty, importance, matrix, via, factors });
    TaskTarget { file, name: tensor.name.clone(), offset: info.offset, encode }
}

/// Values computed by a spec.
struct ConstantValues(Vec<f32>);

impl ValueReader for ConstantValues {
    fn read(&self, at: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.0[at..at + out.len()]);
    }
}

/// Returns the sort key of a tensor: layer, then name, with tensors of no layer first. llama.cpp's own
/// quantizer counts layers in this order.
fn order(name: &str) -> (i64, String) {
    let layer = name.strip_prefix("blk.").and_then(|suffix| suffix.split('.').next()?.parse().ok());
    (layer.unwrap_or(-1), name.to_owned())
}
