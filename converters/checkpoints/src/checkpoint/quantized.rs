//! Finds weights that a checkpoint stores as codes and scales, using its config, and decodes them piece by
//! piece.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use self::inputs::Inputs;
use self::integers::Plan;
use self::look::Looked;
use self::said::Said;
use super::Checkpoint;
use formats::FileDtype;
use formats::codec::BlockType;

mod auto_round;
mod awq;
mod floats;
mod gptq;
mod inputs;
mod integers;
mod look;
mod packed;
mod read;
mod said;
mod scheme;
mod words;

pub use inputs::{Codes, Rounding, Shared};
pub(super) use read::flow;

/// Encoding of a quantized weight.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// 8-bit codes times the scale of their block: `(rows, columns)` of a block.
    Eight(usize, usize),
    /// 4-bit e2m1 codes times a scale per group of values of a row.
    Four(usize, Global),
    /// Integers with scales and zero points.
    Whole(Plan),
}

/// Global scale, applied to the block scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    None,
    /// Scales are divided by the global scale.
    Divides,
    /// Scales are multiplied by the global scale.
    Multiplies,
}

/// Weight that is stored as codes and scales.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Quantized {
    pub(super) kind: Kind,
    pub(super) shape: Vec<usize>,
    /// Names of the stored tensors, in the order in which the kind reads them.
    pub(super) parts: Vec<String>,
    /// Quantization of the rows that the weight multiplies.
    pub(super) inputs: Inputs,
}

impl Quantized {
    /// Returns a weight whose input rows are not quantized.
    fn new(kind: Kind, shape: Vec<usize>, parts: Vec<String>) -> Self {
        Self { kind, shape, parts, inputs: Inputs::Wide }
    }
}

/// GGUF block format that can hold codes from disk unchanged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Packed {
    /// Type of the blocks.
    pub ty: BlockType,
    /// Factor of the whole tensor.
    pub factor: f32,
}

/// Returns the GGUF block format that can hold a weight unchanged, if there is one.
pub(super) fn packed_in(checkpoint: &Checkpoint, made: &Quantized) -> Option<Packed> {
    let Kind::Four(group, how) = made.kind else { return None };
    let global = || read::global(checkpoint, made).filter(|x| x.is_finite() && *x > 0.0);
    let ty = BlockType::of_e2m1(group)?;
    let factor = match how {
        Global::None => 1.0,
        _ if !ty.has_factor() => return None,
        Global::Divides => 1.0 / global()?,
        Global::Multiplies => global()?,
    };
    Some(Packed { ty, factor })
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
type Find = fn(&Checkpoint, &str, &Said) -> Looked<Made>;

/// Supported method of quantization.
struct Method {
    /// Values of `quant_method`; messages list the first.
    names: &'static [&'static str],
    /// Readers of tensors, tried in order.
    find: &'static [Find],
}

/// Supported methods, by name.
const METHODS: [Method; 8] = [
    // The codes are those of GPTQ or AWQ.
    Method { names: &auto_round::METHODS, find: &[] },
    Method { names: &["awq"], find: &[awq::find] },
    Method { names: &["compressed-tensors"], find: &[packed::find, floats::find] },
    Method { names: &["fbgemm_fp8"], find: &[floats::find] },
    Method { names: &["fp8"], find: &[floats::find] },
    Method { names: &["gptq"], find: &[gptq::find] },
    Method { names: &["modelopt"], find: &[floats::find] },
    // Read by the rules of specs.
    Method { names: &["mxfp4"], find: &[] },
];

fn method(name: &str) -> Option<&'static Method> {
    METHODS.iter().find(|method| method.names.contains(&name))
}

/// Lists the supported methods.
pub(super) fn methods() -> impl Iterator<Item = &'static str> {
    METHODS.iter().map(|method| method.names[0])
}

/// Returns the `quant_method` of a folder if it is unsupported.
pub(super) fn foreign(folder: &Path) -> Option<String> {
    if said::is_mlx(folder) {
        return Some("mlx".to_owned());
    }
    let (said, _) = said::section(folder)?;
    let name = said.get("quant_method")?.as_str()?;
    method(name).is_none().then(|| name.to_owned())
}

/// Name and description of a quantized weight, if a tensor holds its codes.
type Made = Option<(String, Quantized)>;

/// Returns the quantized weights by name, and the names of the tensors that are only parts of them.
pub(super) fn find(
    checkpoint: &Checkpoint,
) -> Looked<(BTreeMap<String, Quantized>, BTreeSet<String>)> {
    let (mut found, mut parts) = (BTreeMap::new(), BTreeSet::new());
    let stored = &checkpoint.stored;
    let Some(said) = Said::of(checkpoint)? else {
        let eight =
            |info: &super::TensorInfo| matches!(info.dtype, FileDtype::F8E4m3 | FileDtype::F8E5m2);
        let mut coded = stored.iter().filter(|(_, info)| eight(info)).map(|(name, _)| name);
        return match coded.find(|name| floats::scale_of(name, stored).is_some()) {
            // An unsupported method is reported later, with the unmatched tensors.
            Some(name) if foreign(checkpoint.root()).is_none() => {
                let found = "codes of 8 bits, with scales beside them".to_owned();
                let expected = "a `quantization_config` in config.json that says what they are";
                Err(checkpoint.coded(name, found, expected.to_owned()))
            }
            _ => Ok((found, parts)),
        };
    };
    let readers = method(&said.method).map_or(&[][..], |method| method.find);
    for name in stored.keys() {
        let made = readers.iter().find_map(|find| find(checkpoint, name, &said).transpose());
        let Some((weight, made)) = made.transpose()? else { continue };
        let module = weight.strip_suffix("weight").unwrap_or(&weight).to_owned();
        if found.contains_key(&weight) || (stored.contains_key(&weight) && *name != weight) {
            let found = format!("codes, and so has `{}`", formats::shown(&weight));
            return Err(checkpoint.coded(name, found, "one of them".to_owned()));
        }
        parts.extend(made.parts.iter().filter(|part| **part != weight).cloned());
        let beside = BESIDE.iter().map(|end| format!("{module}{end}"));
        parts.extend(beside.filter(|part| stored.contains_key(part)));
        found.insert(weight, made);
    }
    if !found.is_empty() {
        let cache = |name: &&String| {
            [".k_scale", ".v_scale", ".q_scale", ".kv_scale"].iter().any(|end| name.ends_with(end))
        };
        parts.extend(stored.keys().filter(cache).cloned());
    }
    Ok((found, parts))
}
