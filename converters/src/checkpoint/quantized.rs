//! Weights that a checkpoint keeps as codes and scales: found by what its config says, and read as
//! numbers piece by piece.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::TensorInfo;
use crate::safetensors::FileDtype;

mod integers;
mod read;

pub(super) use read::flow;

/// How the numbers of a weight come about.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// A code of eight bits times the scale of its block: `(rows, columns)` of a block.
    Eight(usize, usize),
    /// Four bits of e2m1 times the scale of so many numbers of a row.
    Four(usize, Global),
    /// Integers in words of 32 bits along the inputs, as GPTQ has them.
    Gptq { bits: u32, plus_one: bool },
    /// Integers of four bits in words along the outputs, as AWQ has them.
    Awq,
}

/// A scale of scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    None,
    /// Scales are divided by it.
    Divides,
    /// Scales are multiplied by it.
    Multiplies,
}

/// A weight of codes and scales.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Quantized {
    pub(super) kind: Kind,
    pub(super) shape: Vec<usize>,
    /// The names of the tensors it is made of, in the order in which its kind reads them.
    pub(super) parts: Vec<String>,
}

/// Tensors of a module that say nothing about the numbers of its weight.
const BESIDE: [&str; 6] =
    ["input_scale", "input_global_scale", "weight_shape", "g_idx", "k_scale", "v_scale"];

/// What a config says of all weights.
struct Said {
    method: String,
    block: Option<(usize, usize)>,
    bits: u32,
    plus_one: bool,
}

/// What is said about quantization beside the weights, if anything is; and whether in a file of its own.
fn section(folder: &Path) -> Option<(Value, bool)> {
    let read = |name: &str| -> Option<Value> {
        serde_json::from_slice(&fs_err::read(folder.join(name)).ok()?).ok()
    };
    let inside =
        read("config.json").and_then(|mut c| Some(c.get_mut("quantization_config")?.take()));
    let own = || read("hf_quant_config.json")?.get_mut("quantization").map(Value::take);
    inside.map(|said| (said, false)).or_else(|| Some((own()?, true)))
}

fn said(folder: &Path) -> Option<Said> {
    let (quantization, own_file) = section(folder)?;
    if own_file {
        return Some(Said { method: "modelopt".into(), block: None, bits: 4, plus_one: true });
    }
    let pair = |value: &Value| match value.as_array().map(Vec::as_slice) {
        Some([a, b]) => Some((a.as_u64()?.try_into().ok()?, b.as_u64()?.try_into().ok()?)),
        _ => None,
    };
    let groups = quantization.get("config_groups").and_then(Value::as_object);
    let group = groups.and_then(|groups| groups.values().next());
    let block = group
        .and_then(|group| group.pointer("/weights/block_structure"))
        .or_else(|| quantization.get("weight_block_size"))
        .and_then(pair);
    let bits = quantization.get("bits").and_then(Value::as_u64).unwrap_or(4);
    let format = quantization.get("checkpoint_format").and_then(Value::as_str);
    Some(Said {
        method: quantization.get("quant_method")?.as_str()?.to_owned(),
        block,
        bits: u32::try_from(bits).unwrap_or(4),
        plus_one: format != Some("gptq_v2"),
    })
}

/// Whether the config says that what weights of 8 bits multiply has a scale that is stored.
pub(super) fn inputs_are_known(folder: &Path) -> bool {
    let Some((said, _)) = section(folder) else { return false };
    let groups = said.get("config_groups").and_then(Value::as_object);
    let dynamic = groups
        .and_then(|groups| groups.values().next())
        .and_then(|group| group.pointer("/input_activations/dynamic"));
    match dynamic {
        Some(dynamic) => dynamic == false,
        None => said["activation_scheme"] == "static" || said["quant_algo"] == "FP8",
    }
}

/// The weights that are kept as codes, by name, and the tensors that are only parts of them.
pub(super) fn find(
    folder: &Path,
    stored: &BTreeMap<String, TensorInfo>,
) -> (BTreeMap<String, Quantized>, BTreeSet<String>) {
    let (mut found, mut parts) = (BTreeMap::new(), BTreeSet::new());
    let Some(said) = said(folder) else { return (found, parts) };
    for (name, info) in stored {
        let made = match said.method.as_str() {
            "compressed-tensors" | "fp8" | "modelopt" | "fbgemm_fp8" => {
                eight(name, info, stored, &said).or_else(|| four(name, info, stored))
            }
            "gptq" | "awq" => integers(name, info, stored, &said),
            _ => None,
        };
        let Some((weight, made)) = made else { continue };
        let module = weight.strip_suffix("weight").unwrap_or(&weight).to_owned();
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
    (found, parts)
}

type Made = Option<(String, Quantized)>;

fn eight(
    name: &str,
    info: &TensorInfo,
    stored: &BTreeMap<String, TensorInfo>,
    said: &Said,
) -> Made {
    if !matches!(info.dtype, FileDtype::F8E4m3 | FileDtype::F8E5m2) {
        return None;
    }
    let &[rows, columns] = &info.shape[..] else { return None };
    let ends = ["_scale_inv", "_scale"];
    let scale = ends.iter().map(|end| format!("{name}{end}")).find(|n| stored.contains_key(n))?;
    let sides = &stored[&scale].shape;
    let (down, across) = match sides[..] {
        _ if sides.iter().all(|&side| side == 1) => (rows, columns),
        [n] | [n, 1] if n == rows => (1, columns),
        _ => said.block.unwrap_or((128, 128)),
    };
    let (down, across) = (down.max(1), across.max(1));
    let needed = rows.div_ceil(down) * columns.div_ceil(across);
    if stored[&scale].elements() != needed || !stored[&scale].dtype.is_float() {
        return None;
    }
    let kind = Kind::Eight(down, across);
    let parts = vec![name.to_owned(), scale];
    Some((name.to_owned(), Quantized { kind, shape: info.shape.clone(), parts }))
}

fn four(name: &str, info: &TensorInfo, stored: &BTreeMap<String, TensorInfo>) -> Made {
    let weight = match name.strip_suffix("_packed") {
        Some(weight) => weight.to_owned(),
        None => name.to_owned(),
    };
    let &[rows, half] = &info.shape[..] else { return None };
    if info.dtype != FileDtype::U8 || !weight.ends_with("weight") {
        return None;
    }
    let columns = half.checked_mul(2)?;
    let scale = format!("{weight}_scale");
    let scales = stored.get(&scale)?;
    let group = columns.checked_div(scales.elements().checked_div(rows)?)?;
    let bytes = matches!(scales.dtype, FileDtype::F8E4m3 | FileDtype::F8E8m0 | FileDtype::U8);
    if group == 0 || rows * columns.div_ceil(group) != scales.elements() || !bytes {
        return None;
    }
    let globals = [
        (format!("{weight}_global_scale"), Global::Divides),
        (format!("{weight}_scale_2"), Global::Multiplies),
    ];
    let global = globals.into_iter().find(|(name, _)| {
        stored.get(name).is_some_and(|info| info.elements() == 1 && info.dtype.is_float())
    });
    let mut parts = vec![name.to_owned(), scale];
    let how = global.as_ref().map_or(Global::None, |(_, how)| *how);
    parts.extend(global.map(|(name, _)| name));
    Some((weight, Quantized { kind: Kind::Four(group, how), shape: vec![rows, columns], parts }))
}

fn integers(
    name: &str,
    info: &TensorInfo,
    stored: &BTreeMap<String, TensorInfo>,
    said: &Said,
) -> Made {
    let module = name.strip_suffix("qweight")?;
    let &[tall, wide] = &info.shape[..] else { return None };
    let parts = [name.to_owned(), format!("{module}scales"), format!("{module}qzeros")];
    let (scales, zeros) = (stored.get(&parts[1])?, stored.get(&parts[2])?);
    let (kind, inputs, outputs) = if said.method == "awq" {
        (Kind::Awq, tall, wide.checked_mul(8)?)
    } else {
        if ![2, 4, 8].contains(&said.bits) {
            return None;
        }
        let kind = Kind::Gptq { bits: said.bits, plus_one: said.plus_one };
        (kind, tall.checked_mul(32 / said.bits as usize)?, wide)
    };
    let per_word = if said.method == "awq" { 8 } else { 32 / said.bits as usize };
    let groups = scales.elements().checked_div(outputs)?;
    let fits = info.dtype == FileDtype::I32
        && zeros.dtype == FileDtype::I32
        && scales.dtype.is_float()
        && groups > 0
        && scales.elements() == groups * outputs
        && zeros.elements() * per_word == scales.elements();
    if !fits {
        return None;
    }
    let mut parts = parts.to_vec();
    let order = format!("{module}g_idx");
    let ordered = |info: &TensorInfo| info.dtype == FileDtype::I32 && info.elements() == inputs;
    if kind != Kind::Awq && stored.get(&order).is_some_and(ordered) {
        parts.push(order);
    }
    Some((format!("{module}weight"), Quantized { kind, shape: vec![outputs, inputs], parts }))
}
