//! Finds weights that a checkpoint stores as codes and scales, using its config, and decodes them piece by
//! piece.
//!
//! Readers see the weights that they encode ([decision 31](../../../../docs/decisions/0031-quantized-tensors-as-weights.md)).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use self::checks::SchemeResult;
use self::inputs::InputScheme;
use self::integers::IntegerLayout;
use self::quant_config::QuantConfig;
use super::Checkpoint;
use formats::FileDtype;
use formats::codec::BlockType;

mod auto_round;
mod awq;
mod checks;
mod floats;
mod gptq;
mod inputs;
mod integer_config;
mod integers;
mod packed;
mod quant_config;
mod read;
mod scale_tensor;
mod scheme;
mod section;
mod words;

pub use inputs::{CodeType, Rounding, ScaleSharing};
pub(super) use read::flow;

/// Encoding of a quantized weight.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Encoding {
    /// 8-bit codes times the scale of their block: `(rows, columns)` of a block.
    Fp8(usize, usize),
    /// 4-bit e2m1 codes times a scale per group of values of a row.
    Fp4(usize, GlobalScale),
    /// Integers with scales and zero points.
    Integers(IntegerLayout),
}

/// Global scale, applied to the block scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GlobalScale {
    None,
    /// Scales are divided by the global scale.
    Divides,
    /// Scales are multiplied by the global scale.
    Multiplies,
}

/// Weight that is stored as codes and scales.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct QuantizedWeight {
    pub(super) kind: Encoding,
    pub(super) shape: Vec<usize>,
    /// Names of the stored tensors, in the order in which the kind reads them.
    pub(super) parts: Vec<String>,
    /// Quantization of the rows that the weight multiplies.
    pub(super) inputs: InputScheme,
}

impl QuantizedWeight {
    /// Returns a weight whose input rows are not quantized.
    fn new(kind: Encoding, shape: Vec<usize>, parts: Vec<String>) -> Self {
        Self { kind, shape, parts, inputs: InputScheme::None }
    }
}

/// GGUF block format that can hold codes from disk unchanged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockEncoding {
    /// Type of the blocks.
    pub ty: BlockType,
    /// Factor of the whole tensor.
    pub factor: f32,
}

/// Returns the GGUF block format that can hold a weight unchanged, if there is one.
pub(super) fn packed_in(
    checkpoint: &Checkpoint,
    weight: &QuantizedWeight,
) -> Option<BlockEncoding> {
    let Encoding::Fp4(group, how) = weight.kind else { return None };
    let ty = BlockType::of_e2m1(group)?;
    let factor = match how {
        GlobalScale::None => 1.0,
        _ if !ty.has_factor() => return None,
        GlobalScale::Divides => 1.0 / usable_global(checkpoint, weight)?,
        GlobalScale::Multiplies => usable_global(checkpoint, weight)?,
    };
    Some(BlockEncoding { ty, factor })
}

/// Returns the global scale of a weight, if it is a finite number above 0.
fn usable_global(checkpoint: &Checkpoint, weight: &QuantizedWeight) -> Option<f32> {
    read::global(checkpoint, weight).filter(|x| x.is_finite() && *x > 0.0)
}

/// Suffixes of tensors of a module that do not affect its weight.
const BESIDE: [&str; 12] = [
    "activation_scale",
    "input_scale",
    "input_scale_ub",
    "input_zero_point",
    "input_global_scale",
    "output_scale",
    "weight_shape",
    "weight_g_idx",
    "weight_zero_point",
    "g_idx",
    "k_scale",
    "v_scale",
];

/// Reader of a tensor: returns the weight whose codes the tensor has, if any.
type SchemeReader = fn(&Checkpoint, &str, &QuantConfig) -> SchemeResult<NamedWeight>;

/// Supported method of quantization.
struct QuantMethod {
    /// Values of `quant_method`; messages list the first.
    names: &'static [&'static str],
    /// Readers of tensors, tried in order.
    find: &'static [SchemeReader],
}

/// Supported methods, by name.
const METHODS: [QuantMethod; 8] = [
    // The codes are those of GPTQ or AWQ.
    QuantMethod { names: &auto_round::METHODS, find: &[] },
    QuantMethod { names: &["awq"], find: &[awq::find] },
    QuantMethod { names: &["compressed-tensors"], find: &[packed::find, floats::find] },
    QuantMethod { names: &["fbgemm_fp8"], find: &[floats::find] },
    QuantMethod { names: &["fp8"], find: &[floats::find] },
    QuantMethod { names: &["gptq"], find: &[gptq::find] },
    QuantMethod { names: &["modelopt"], find: &[floats::find] },
    // Read by the rules of specs.
    QuantMethod { names: &["mxfp4"], find: &[] },
];

fn method(name: &str) -> Option<&'static QuantMethod> {
    METHODS.iter().find(|method| method.names.contains(&name))
}

/// Lists the supported methods.
pub(super) fn methods() -> impl Iterator<Item = &'static str> {
    METHODS.iter().map(|method| method.names[0])
}

/// Returns the `quant_method` of a folder if it is unsupported.
pub(super) fn unsupported_method(folder: &Path) -> Option<String> {
    if section::is_mlx(folder) {
        return Some("mlx".to_owned());
    }
    let (section, _) = section::section(folder)?;
    let name = section.get("quant_method")?.as_str()?;
    method(name).is_none().then(|| name.to_owned())
}

/// Name and description of a quantized weight, if a tensor holds its codes.
type NamedWeight = Option<(String, QuantizedWeight)>;

/// Returns the quantized weights by name, and the names of the tensors that are only parts of them.
pub(super) fn find(
    checkpoint: &Checkpoint,
) -> SchemeResult<(BTreeMap<String, QuantizedWeight>, BTreeSet<String>)> {
    let mut weights = BTreeMap::new();
    let mut parts = BTreeSet::new();
    let stored = &checkpoint.stored;
    let Some(config) = QuantConfig::of(checkpoint)? else {
        let mut coded = stored
            .iter()
            .filter(|(_, info)| matches!(info.dtype, FileDtype::F8E4m3 | FileDtype::F8E5m2))
            .map(|(name, _)| name);
        return match coded.find(|name| floats::scale_of(name, stored).is_some()) {
            // An unsupported method is reported later, with the unmatched tensors.
            Some(name) if unsupported_method(checkpoint.root()).is_none() => {
                let actual = "codes of 8 bits, with scales beside them".to_owned();
                let expected = "a `quantization_config` in config.json that says what they are";
                Err(checkpoint.coded(name, actual, expected.to_owned()))
            }
            _ => Ok((weights, parts)),
        };
    };
    let readers = method(&config.method).map_or(&[][..], |method| method.find);
    for name in stored.keys() {
        let weight = readers.iter().find_map(|find| find(checkpoint, name, &config).transpose());
        let Some((weight, quantized)) = weight.transpose()? else { continue };
        let module = weight.strip_suffix("weight").unwrap_or(&weight).to_owned();
        if weights.contains_key(&weight) || (stored.contains_key(&weight) && *name != weight) {
            let actual = format!("codes, and so has `{}`", formats::shown(&weight));
            return Err(checkpoint.coded(name, actual, "one of them".to_owned()));
        }
        parts.extend(quantized.parts.iter().filter(|part| **part != weight).cloned());
        let beside = BESIDE.iter().map(|end| format!("{module}{end}"));
        parts.extend(beside.filter(|part| stored.contains_key(part)));
        weights.insert(weight, quantized);
    }
    if !weights.is_empty() {
        parts.extend(
            stored
                .keys()
                .filter(|name: &&String| {
                    [".k_scale", ".v_scale", ".q_scale", ".kv_scale"]
                        .iter()
                        .any(|end| name.ends_with(end))
                })
                .cloned(),
        );
    }
    Ok((weights, parts))
}
