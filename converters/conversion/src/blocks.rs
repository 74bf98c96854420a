//! Compares the blocks of a tensor with the encoding of its source.
//!
//! Encoders are deterministic, and equal to those of llama.cpp, so blocks of a file made without an importance matrix
//! have determined bytes. Blocks of other files are bounded by the error that their type explains.

use rayon::prelude::*;

use crate::Measure;
use crate::gguf::PlannedTensor;
use crate::work::round;
use formats::FileDtype;
use formats::codec::{self, BlockType, expected_error};
use formats::gguf::companions::{self, multiply, one_of};
use formats::gguf::{GgufFile, GgufTensor};
use formats::imatrix::{self, Imatrix};

/// Values compared at a time.
const SLAB: usize = 1 << 18;

/// Dtypes that values may have been rounded to before they were quantized: none, or that of an intermediate file.
const VIA: [Option<FileDtype>; 3] = [None, Some(FileDtype::F16), Some(FileDtype::Bf16)];

/// Reason why a tensor cannot be compared with its source.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum BlockError {
    #[error("its bytes are too few for its shape")]
    Short,
    #[error(transparent)]
    Factors(#[from] companions::Error),
    #[error(transparent)]
    Importance(#[from] imatrix::Error),
    #[error(transparent)]
    Codec(#[from] codec::Error),
}

/// Number of blocks, and the index of the first value of the first of them.
pub type BlockCount = (u64, Option<usize>);

/// Blocks of a tensor compared with the encoding of the source.
#[derive(Debug, Clone, Default)]
pub struct BlockComparison {
    /// Error of the decoded values.
    pub measure: Measure,
    /// Error of the values that the source's own encoding gives; of no value if there is none.
    pub encoded: Measure,
    /// Number of blocks.
    pub blocks: u64,
    /// For each intermediate dtype, the number of blocks with other bytes, and the first value of the first one.
    unequal: [BlockCount; VIA.len()],
    /// Number of blocks with a larger error than the type explains, and the first value of the first one.
    pub strayed: BlockCount,
    /// True if the type has an encoding without an importance matrix.
    pub is_encoded: bool,
}

/// Adds a count of blocks; the first block of both is kept.
fn add_blocks(sum: &mut BlockCount, more: &BlockCount) {
    sum.0 += more.0;
    sum.1 = sum.1.into_iter().chain(more.1).min();
}

impl BlockComparison {
    fn and(mut self, other: &Self) -> Self {
        self.measure = self.measure.and(other.measure);
        self.encoded = self.encoded.and(other.encoded);
        self.blocks += other.blocks;
        self.unequal.iter_mut().zip(&other.unequal).for_each(|(sum, more)| add_blocks(sum, more));
        add_blocks(&mut self.strayed, &other.strayed);
        self.is_encoded |= other.is_encoded;
        self
    }

    /// Returns the number of blocks with other bytes, for the intermediate dtype that explains most.
    pub fn unequal(&self) -> BlockCount {
        self.unequal.into_iter().min_by_key(|(count, _)| *count).unwrap_or_default()
    }
}

/// Rows of one matrix.
struct Rows<'a> {
    ty: BlockType,
    row: usize,
    /// Index of the first value in the tensor.
    at: usize,
    bytes: &'a [u8],
    factor: Option<f32>,
    importance: Option<&'a [f32]>,
}

/// Compares a tensor of a file with its source, encoded with the importance matrix, if one is given.
pub fn compare(
    file: &GgufFile,
    info: &GgufTensor,
    planned: &PlannedTensor<'_>,
    imatrix: Option<&Imatrix>,
) -> Result<BlockComparison, BlockError> {
    let ty = info.ty;
    let flow = &planned.flow;
    let bytes = file.bytes(&info.name).ok_or(BlockError::Short)?;
    let shape = flow.shape();
    let row = shape.last().copied().unwrap_or(1).max(1);
    let matrix = shape.iter().rev().take(2).product::<usize>().max(1);
    let matrices = shape.iter().rev().skip(2).product::<usize>();
    let factors = file.factors(info)?;
    let weights = imatrix.filter(|_| ty.is_quantized() && planned.packed.is_none());
    let weights =
        weights.map(|all| all.weights_for(&info.name, row, matrices)).transpose()?.flatten();
    // Elements of plain types have no rows.
    let row = if ty.is_quantized() { row } else { 1 };
    if !row.is_multiple_of(ty.elements()) {
        return Err(codec::Error::Row { ty, row }.into());
    }
    let step = (SLAB / row).max(1) * row;
    let firsts = (0..flow.len()).step_by(matrix);
    let cuts = firsts.flat_map(|begin| {
        let end = (begin + matrix).min(flow.len());
        (begin..end).step_by(step).map(move |at| (at, step.min(end - at)))
    });
    let cuts: Vec<(usize, usize)> = cuts.collect();
    let parts = cuts.par_iter().map(|&(at, count): &(usize, usize)| {
        let from = at / ty.elements() * ty.bytes();
        let len = count / ty.elements() * ty.bytes();
        let bytes = bytes.get(from..from + len).ok_or(BlockError::Short)?;
        let columns = matrix.min(shape.last().copied().unwrap_or(1));
        let importance = weights.and_then(|all| all.get(at / matrix * columns..)?.get(..columns));
        let factor = factors.as_ref().and_then(|all| one_of(all, at / matrix));
        let mut numbers = vec![0.0; count];
        flow.read(at, &mut numbers);
        Rows { ty, row, at, bytes, factor, importance }.compare(&numbers)
    });
    let parts: Vec<Result<BlockComparison, BlockError>> = parts.collect();
    let mut total = BlockComparison::default();
    for part in parts {
        total = total.and(&part?);
    }
    if let Some(stored) = &factors {
        expect_factors(&mut total, planned, ty, stored, (matrix, matrices));
    }
    Ok(total)
}

/// Counts a factor that is not the one of the source as a block with other bytes.
fn expect_factors(
    total: &mut BlockComparison,
    planned: &PlannedTensor<'_>,
    ty: BlockType,
    stored: &[f32],
    (matrix, matrices): (usize, usize),
) {
    for n in 0..matrices {
        let packed = planned.packed.as_ref().filter(|packed| packed.ty == ty);
        let expected = if let Some(packed) = packed {
            one_of(&packed.factors, n)
        } else {
            let mut numbers = vec![0.0; matrix];
            planned.flow.read(n * matrix, &mut numbers);
            ty.factor(numbers.iter().fold(0.0, |peak: f32, x| peak.max(x.abs())))
        };
        if one_of(stored, n) != expected {
            total.unequal.iter_mut().for_each(|(count, first)| {
                *count += 1;
                first.get_or_insert(n * matrix);
            });
        }
    }
}

impl Rows<'_> {
    fn compare(&self, numbers: &[f32]) -> Result<BlockComparison, BlockError> {
        let elements = self.ty.elements();
        let size = self.ty.bytes();
        let seen = self.decoded(self.bytes, numbers.len())?;
        let mut sum = BlockComparison {
            measure: Measure::of(numbers, &seen),
            blocks: (numbers.len() / elements) as u64,
            ..BlockComparison::default()
        };
        let mut encoded = vec![0; self.bytes.len()];
        let mut nearest = None;
        for (candidate, via) in VIA.into_iter().enumerate() {
            let rounded = via.map(|dtype| round(dtype, numbers));
            // Numbers in f32 are those that programs keep as they are.
            let is_tried = via.is_none() || self.ty != BlockType::F32;
            if !is_tried || !self.encode(rounded.as_deref().unwrap_or(numbers), &mut encoded) {
                sum.unequal[candidate] = (sum.blocks, Some(self.at));
                continue;
            }
            sum.is_encoded = true;
            let pairs = self.bytes.chunks(size).zip(encoded.chunks(size)).enumerate();
            let mut other =
                pairs.filter(|(_, (stored, expected))| stored != expected).map(|(n, _)| n);
            let first = other.next();
            let count = other.count() as u64 + u64::from(first.is_some());
            sum.unequal[candidate] = (count, first.map(|first| self.at + first * elements));
            if via.is_none() {
                if first.is_none() {
                    // Values that are not rounded by an intermediate dtype have the same bytes.
                    sum.encoded = sum.measure;
                    return Ok(sum);
                }
                let values = self.decoded(&encoded, numbers.len())?;
                sum.encoded = Measure::of(numbers, &values);
                nearest = Some(values);
            } else if first.is_none() {
                // Programs that quantize an intermediate file round the tensors that stay plain as well.
                return Ok(sum);
            }
        }
        let none = vec![f32::NAN; elements];
        let blocks = numbers.chunks(elements).zip(seen.chunks(elements)).enumerate();
        for (n, (numbers, seen)) in blocks {
            let encoded =
                nearest.as_ref().map_or(&none[..], |all| &all[n * elements..][..elements]);
            if strays(self.ty, numbers, seen, encoded) {
                sum.strayed.0 += 1;
                sum.strayed.1.get_or_insert(self.at + n * elements);
            }
        }
        Ok(sum)
    }

    /// Encodes values as the file's type. Returns false if the type cannot encode them without an importance matrix.
    fn encode(&self, numbers: &[f32], out: &mut [u8]) -> bool {
        let encoded = match self.factor {
            Some(factor) => codec::encode_factored(self.ty, numbers, factor, out),
            None => codec::encode(self.ty, numbers, self.row, self.importance, out),
        };
        encoded.is_ok()
    }

    fn decoded(&self, bytes: &[u8], count: usize) -> Result<Vec<f32>, codec::Error> {
        let mut numbers = vec![0.0; count];
        codec::decode(self.ty, bytes, &mut numbers)?;
        if let Some(factor) = self.factor {
            multiply(&[factor], count, 0, &mut numbers);
        }
        Ok(numbers)
    }
}

/// True if a block is farther from its source than its type explains. `encoded` are the values of the source's own
/// encoding, NaN if there is none.
fn strays(ty: BlockType, numbers: &[f32], seen: &[f32], encoded: &[f32]) -> bool {
    /// Error of a block over that of its type, as amplitudes: a weighted search trades errors between values.
    const MORE: f64 = 6.0;
    /// Error of a block over that of its own encoding.
    const WEIGHTED: f64 = 3.0;
    /// Rounding of a value that is computed in f32, in another order.
    const COMPUTED: f64 = 1e-6;
    let power: f64 = numbers.iter().map(|x| f64::from(*x).powi(2)).sum();
    let error = squared_distance(numbers, seen);
    let least = squared_distance(numbers, encoded);
    if !ty.is_quantized() {
        // Of f32, last bits of computed values; of the others, none.
        let rounding = if ty == BlockType::F32 { COMPUTED * COMPUTED * power } else { 0.0 };
        return error.is_nan() || error > least + rounding;
    }
    let least = if least.is_nan() { 0.0 } else { least };
    let share = expected_error(ty).map_or(0.1, |expected| MORE * expected);
    let explained = (WEIGHTED * WEIGHTED * least).max(share * share * power);
    // Zeros have an error of the values' power, exchanged rows of twice as much.
    let bound = explained.min(0.9 * power).max(1.5 * least);
    error.is_nan() || error > bound
}

/// Returns the sum of the squared differences.
fn squared_distance(one: &[f32], other: &[f32]) -> f64 {
    one.iter().zip(other).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2)).sum()
}
