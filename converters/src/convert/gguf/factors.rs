//! What blocks are multiplied by as a whole, where their own scales do not reach: a tensor `NAME.scale` beside
//! `NAME.weight`.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use rayon::prelude::*;
use registry::gguf::heeds_scale;

use super::{Choice, Output, Tensor};
use crate::codec::{self, BlockType};
use crate::convert::work::Encode;
use crate::flow::Numbers;
use crate::gguf::Declared;
use crate::gguf::companions::SCALE;

/// Numbers read at a time.
const SLAB: usize = 1 << 18;

/// Names of matrices, behind their layer, for which llama.cpp looks for a scale.
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

/// One number for each matrix of a tensor, or one for all: known from the source, or once its numbers were
/// looked through.
#[derive(Debug, Clone, Default)]
pub struct Factors(Arc<OnceLock<Vec<f32>>>);

impl Factors {
    fn known(numbers: Vec<f32>) -> Self {
        Self(Arc::new(OnceLock::from(numbers)))
    }

    fn get(&self, matrix: usize) -> Option<f32> {
        let all = self.0.get()?;
        if all.len() == 1 { all.first().copied() } else { all.get(matrix).copied() }
    }
}

/// How many matrices a tensor is.
fn matrices(tensor: &Tensor<'_>) -> usize {
    tensor.flow.shape().iter().rev().skip(2).product()
}

/// Whether a tensor may have a scale beside it.
pub fn may_be_scaled(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(".weight") else { return false };
    let behind = stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    behind.is_some_and(|(_, name)| SCALED.contains(&name))
}

/// The factors of the tensors that are chosen to have some, by their places. `bare`: of those alone whose source
/// has them, as programs do that know no others.
pub fn factors(tensors: &[Tensor<'_>], choices: &[Choice], bare: bool) -> BTreeMap<usize, Factors> {
    let chosen = tensors.iter().zip(choices).enumerate();
    let chosen = chosen.filter(|(_, (tensor, choice))| {
        choice.ty == BlockType::Nvfp4 && may_be_scaled(&tensor.name)
    });
    let of = |tensor: &Tensor<'_>| match &tensor.packed {
        Some(packed) if packed.ty == BlockType::Nvfp4 => {
            let mut numbers = packed.factors.clone();
            // A stack has one for each matrix, whether they differ or not.
            if let [one] = numbers[..] {
                numbers = vec![one; matrices(tensor)];
            }
            Some(Factors::known(numbers))
        }
        _ if bare => None,
        _ => Some(Factors::default()),
    };
    chosen.filter_map(|(n, (tensor, _))| Some((n, of(tensor)?))).collect()
}

/// What stock llama.cpp does not multiply by, though it is there.
pub fn unheeded(arch: &str, output: &Output, tensors: &[Tensor<'_>]) -> Option<String> {
    let names = output.factors.keys().map(|&n| tensors[n].name.as_str());
    let left: Vec<&str> = names.filter(|name| !heeds_scale(arch, name)).collect();
    let first = *left.first()?;
    Some(format!(
        "llama.cpp does not multiply {} tensors of `{arch}` by the scale that NVFP4 has beside its blocks, the \
         first is `{first}`: choose another type for them with --tensor-type",
        left.len()
    ))
}

/// The tensors of factors.
pub(super) fn declared(output: &Output, tensors: &[Tensor<'_>]) -> Vec<Declared> {
    let name = |tensor: &Tensor<'_>| {
        let stem = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name);
        format!("{stem}{SCALE}")
    };
    let one = |n: &usize| Declared {
        name: name(&tensors[*n]),
        shape: vec![matrices(&tensors[*n])],
        ty: BlockType::F32,
    };
    output.factors.keys().map(one).collect()
}

/// Looks for the factors that are not known: reads every such tensor once.
pub fn measure(tensors: &[Tensor<'_>], output: &Output) {
    output.factors.par_iter().filter(|(_, factors)| factors.0.get().is_none()).for_each(
        |(&n, factors)| {
            let tensor = &tensors[n];
            let count = matrices(tensor);
            let size = tensor.flow.len() / count.max(1);
            let of = |matrix: usize| {
                let mut most = 0.0_f32;
                for at in (0..size).step_by(SLAB) {
                    let mut numbers = vec![0.0; SLAB.min(size - at)];
                    tensor.flow.read(matrix * size + at, &mut numbers);
                    most = numbers.iter().fold(most, |most, x| most.max(x.abs()));
                }
                codec::nvfp4_factor(most)
            };
            // Whoever else found them found the same.
            factors.0.set((0..count).into_par_iter().map(of).collect()).ok();
        },
    );
}

/// The factors as numbers of a tensor.
pub(super) struct Kept(pub(super) Factors);

impl Numbers for Kept {
    fn read(&self, at: usize, out: &mut [f32]) {
        for (n, x) in out.iter_mut().enumerate() {
            *x = self.0.get(at + n).unwrap_or(f32::NAN);
        }
    }
}

/// Blocks that are multiplied by something.
pub(super) struct Multiplied {
    pub(super) factors: Factors,
    /// Rows in a matrix.
    pub(super) matrix: usize,
}

impl Multiplied {
    /// Stretches of rows that have one factor: their numbers, counted from the first, and it.
    fn stretches(&self, first: usize, rows: usize) -> impl Iterator<Item = (usize, usize, f32)> {
        let matrix = self.matrix.max(1);
        let mut done = 0;
        std::iter::from_fn(move || {
            let now = (matrix - (first + done) % matrix).min(rows - done);
            let factor = self.factors.get((first + done) / matrix).unwrap_or(f32::NAN);
            let found = (done < rows).then_some((done, now, factor));
            done += now;
            found
        })
    }
}

impl Encode for Multiplied {
    fn bytes(&self, rows: usize, row: usize) -> usize {
        rows * row / BlockType::Nvfp4.elements() * BlockType::Nvfp4.bytes()
    }

    fn encode(
        &self,
        first: usize,
        numbers: &[f32],
        row: usize,
        out: &mut [u8],
    ) -> Result<(), String> {
        for (done, rows, factor) in self.stretches(first, numbers.len() / row.max(1)) {
            let (from, to) = (self.bytes(done, row), self.bytes(done + rows, row));
            let numbers = &numbers[done * row..(done + rows) * row];
            codec::encode_nvfp4(numbers, factor, &mut out[from..to]).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    fn decode(
        &self,
        first: usize,
        _numbers: &[f32],
        bytes: &[u8],
        row: usize,
        out: &mut [f32],
    ) -> bool {
        let decoded = codec::decode(BlockType::Nvfp4, bytes, out).is_ok();
        for (done, rows, factor) in self.stretches(first, out.len() / row.max(1)) {
            for x in &mut out[done * row..(done + rows) * row] {
                *x *= factor;
            }
        }
        decoded
    }
}
