//! Factors of whole matrices, beyond the range of block scales: a tensor `NAME.scale` beside `NAME.weight`.
//!
//! The factor is a part of the tensor ([decision 25](../../../../docs/decisions/0025-factors-beside-blocks.md)).

use std::collections::BTreeMap;

use rayon::prelude::*;
use registry::gguf::applies_scale;

use super::{GgufOutput, PlannedTensor, TypeChoice};
use crate::factors::Factors;
use crate::peaks::{Error, in_threads, peak};
use checkpoints::flow::ValueReader;
use formats::codec::BlockType;
use formats::gguf::GgufTensorSpec;
use formats::gguf::companions::SCALE;

/// Names of matrices, without their layer, for which llama.cpp looks for a scale.
const SCALED: [&str; 20] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_output",
    "attn_gate",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
    "ffn_gate_shexp",
    "ffn_up_shexp",
    "ffn_down_shexp",
    "ssm_in",
    "ssm_out",
    "ssm_alpha",
    "ssm_beta",
    "nextn.eh_proj",
];

/// Returns the number of matrices in a tensor.
fn matrices(tensor: &PlannedTensor<'_>) -> usize {
    tensor.flow.shape().iter().rev().skip(2).product()
}

/// True if a tensor may have a `.scale` beside it.
pub fn may_be_scaled(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(".weight") else { return false };
    let behind = stem.strip_prefix("blk.").and_then(|suffix| suffix.split_once('.'));
    behind.is_some_and(|(_, name)| SCALED.contains(&name))
}

/// Returns the factors of the tensors whose type has some, by tensor index. `bare` limits them to sources
/// that store factors, as in programs that know no others.
pub fn factors(
    tensors: &[PlannedTensor<'_>],
    choices: &[TypeChoice],
    bare: bool,
) -> BTreeMap<usize, Factors> {
    let chosen = tensors.iter().zip(choices).enumerate();
    let chosen = chosen
        .filter(|(_, (tensor, choice))| choice.ty.has_factor() && may_be_scaled(&tensor.name));
    chosen
        .filter_map(|(n, (tensor, choice))| Some((n, factors_of(tensor, choice, bare)?)))
        .collect()
}

/// Returns the factors of a tensor: those of its blocks in the source, or unknown ones unless it is to be `bare`.
fn factors_of(tensor: &PlannedTensor<'_>, choice: &TypeChoice, bare: bool) -> Option<Factors> {
    match &tensor.packed {
        Some(packed) if packed.ty == choice.ty => {
            let mut numbers = packed.factors.clone();
            // A stack of matrices has one factor per matrix, even if all are equal.
            if let [one] = numbers[..] {
                numbers = vec![one; matrices(tensor)];
            }
            Some(Factors::known(numbers))
        }
        _ if bare => None,
        _ => Some(Factors::default()),
    }
}

/// Returns a warning about factors in the file that stock llama.cpp does not apply.
pub fn ignored_factors(
    arch: &str,
    output: &GgufOutput,
    tensors: &[PlannedTensor<'_>],
) -> Option<String> {
    let names = output.factors.keys().map(|&n| tensors[n].name.as_str());
    let left: Vec<&str> = names.filter(|name| !applies_scale(arch, name)).collect();
    let first = *left.first()?;
    Some(format!(
        "llama.cpp does not multiply {} tensors of `{arch}` by the scale that NVFP4 has beside its blocks, the \
         first is `{first}`: choose another type for them with the option `tensor-type`",
        left.len()
    ))
}

/// Returns the declarations of the tensors of factors.
pub(super) fn declared(output: &GgufOutput, tensors: &[PlannedTensor<'_>]) -> Vec<GgufTensorSpec> {
    let scaled = output.factors.keys().map(|n| &tensors[*n]);
    let specs = scaled.map(|tensor| {
        let stem = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name);
        let shape = vec![matrices(tensor)];
        GgufTensorSpec { name: format!("{stem}{SCALE}"), shape, ty: BlockType::F32 }
    });
    specs.collect()
}

/// Computes the unknown factors, reading each such tensor once.
pub fn measure(
    tensors: &[PlannedTensor<'_>],
    output: &GgufOutput,
    threads: usize,
) -> Result<(), Error> {
    let unknown = output.factors.iter().filter(|(_, factors)| factors.0.get().is_none());
    let unknown: Vec<(&usize, &Factors)> = unknown.collect();
    in_threads(threads, || {
        unknown.par_iter().try_for_each(|&(&n, factors)| {
            let tensor = &tensors[n];
            let count = matrices(&tensors[n]);
            let ty = output.choices[n].ty;
            let size = tensor.flow.len() / count.max(1);
            let computed = (0..count).into_par_iter().map(|matrix: usize| -> Result<f32, Error> {
                let numbers = matrix * size..(matrix + 1) * size;
                let peak = peak(&tensor.name, &tensor.flow, numbers)?;
                Ok(ty.factor(peak).unwrap_or(1.0))
            });
            let computed = computed.collect::<Result<Vec<f32>, Error>>()?;
            // Another thread can only have set the same value.
            factors.0.set(computed).ok();
            Ok(())
        })
    })?
}

/// Encoder of the factors as a tensor.
pub(super) struct FactorEncoder(pub(super) Factors);

impl ValueReader for FactorEncoder {
    fn read(&self, at: usize, out: &mut [f32]) {
        match self.0.get().and_then(|all| all.get(at..at + out.len())) {
            Some(numbers) => out.copy_from_slice(numbers),
            None => out.fill(f32::NAN),
        }
    }
}
