//! Companion tensors of NVFP4, whose block scales reach from 2^-10 to 448. `NAME.scale`, of one value or of
//! one per matrix, multiplies the whole tensor `NAME.weight`. `NAME.input_scale` is for programs that also
//! round the inputs.

use super::{GgufFile, GgufTensor};
use crate::codec::BlockType;
use crate::shown;

/// Suffix of a tensor of scales.
pub const SCALE: &str = ".scale";
/// Reason that companion scales cannot be used. Names are escaped, ready to print.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    #[error(
        "`{scale}` holds {count} numbers of {found}; expected one f32 or {matrices}, one for each \
         matrix of `{tensor}`"
    )]
    Form { scale: String, count: u64, found: BlockType, matrices: usize, tensor: String },
    #[error("`{scale}` holds {found}; a scale is a finite number")]
    NotFinite { scale: String, found: f32 },
}

const ENDS: [&str; 2] = [SCALE, ".input_scale"];

/// Returns the factor of a matrix: a single factor applies to all matrices.
pub fn one_of(factors: &[f32], matrix: usize) -> Option<f32> {
    if factors.len() == 1 { factors.first().copied() } else { factors.get(matrix).copied() }
}

/// Multiplies values by the factor of their matrix. The first value has index `at` in a tensor whose
/// matrices have `matrix` values.
pub fn multiply(factors: &[f32], matrix: usize, at: usize, numbers: &mut [f32]) {
    let matrix = matrix.max(1);
    let mut at = at;
    let mut remaining = numbers;
    while !remaining.is_empty() {
        let (now, later) = remaining.split_at_mut((matrix - at % matrix).min(remaining.len()));
        let factor = one_of(factors, at / matrix).unwrap_or(f32::NAN);
        for x in &mut *now {
            *x *= factor;
        }
        at += now.len();
        remaining = later;
    }
}

impl GgufFile {
    /// True if a tensor is a companion of a tensor whose type has factors.
    pub fn is_companion(&self, name: &str) -> bool {
        let stem = ENDS.iter().find_map(|end| name.strip_suffix(end));
        stem.and_then(|stem: &str| self.info(&format!("{stem}.weight")).map(|info| info.ty))
            .is_some_and(BlockType::has_factor)
    }

    /// Returns the factors of a tensor's matrices, besides the block scales: one for all, or one per
    /// matrix.
    pub fn factors(&self, info: &GgufTensor) -> Result<Option<Vec<f32>>, Error> {
        let stem = info.name.strip_suffix(".weight").filter(|_| info.ty.has_factor());
        let Some(name) = stem.map(|stem| format!("{stem}{SCALE}")) else { return Ok(None) };
        let Some(scale) = self.info(&name) else { return Ok(None) };
        let matrices: usize = info.shape.iter().rev().skip(2).product();
        let ty = scale.ty;
        let count = scale.elements();
        if ty != BlockType::F32 || (count != 1 && count != matrices as u64) {
            let scale = shown(&name);
            let tensor = shown(&info.name);
            return Err(Error::Form { scale, count, found: ty, matrices, tensor });
        }
        let bytes = self.bytes(&name).unwrap_or_default().as_chunks::<4>().0;
        let numbers: Vec<f32> = bytes.iter().map(|four| f32::from_le_bytes(*four)).collect();
        match numbers.iter().find(|x| !x.is_finite()) {
            Some(&factor) => Err(Error::NotFinite { scale: shown(&name), found: factor }),
            None => Ok(Some(numbers)),
        }
    }
}
