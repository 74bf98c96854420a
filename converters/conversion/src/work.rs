//! What is to be written, before anything is.

use std::path::PathBuf;
use std::sync::Arc;

use super::gguf::Factors;
use checkpoints::flow::Flow;
use formats::codec::{self, BlockType};
use formats::gguf::companions::{multiply, one_of};
use formats::numbers;
use formats::safetensors::FileDtype;

/// A file to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutFile {
    /// Where it will be.
    pub path: PathBuf,
    /// Its first bytes.
    pub header: Vec<u8>,
    /// Its length; what nothing is written to is zeros.
    pub len: u64,
}

/// Turns rows of numbers into bytes.
pub trait Encode: Send + Sync {
    /// Rows that can only be encoded together.
    fn unit(&self) -> usize {
        1
    }

    /// Whether each number is encoded by itself, whatever row it is in.
    fn elementwise(&self) -> bool {
        false
    }

    /// The bytes of so many rows, a whole number of units (the last one may be short).
    fn bytes(&self, rows: usize, row: usize) -> usize;

    /// Encodes rows; the first of them is row `first` of the tensor.
    fn encode(
        &self,
        first: usize,
        numbers: &[f32],
        row: usize,
        out: &mut [u8],
    ) -> Result<(), String>;

    /// What a reader of the bytes, those of rows from `first` on, that `numbers` were encoded to will see; false if they are no
    /// numbers of the tensor.
    fn decode(
        &self,
        first: usize,
        numbers: &[f32],
        bytes: &[u8],
        row: usize,
        out: &mut [f32],
    ) -> bool;

    /// The plain dtype that the bytes are, so that numbers that are kept in it can be copied.
    fn plain(&self) -> Option<FileDtype> {
        None
    }
}

/// Where the bytes of a task go.
#[derive(Clone)]
pub struct Target {
    /// Index into [`Work::files`].
    pub file: usize,
    /// The tensor's name in that file.
    pub name: String,
    /// Where its bytes begin.
    pub offset: u64,
    /// How it is encoded.
    pub encode: Arc<dyn Encode>,
}

/// A tensor that is read once, and everything that is made of it.
#[derive(Clone)]
pub struct Task<'a> {
    /// Where its numbers come from.
    pub flow: Flow<'a>,
    /// Where they go.
    pub targets: Vec<Target>,
    /// The place of the first source, so that sources are read in order: file and offset.
    pub place: (usize, u64),
}

impl Task<'_> {
    /// Numbers in a row. A tensor whose numbers are all encoded by themselves has rows of one.
    pub fn row(&self) -> usize {
        if self.targets.iter().all(|target| target.encode.elementwise()) {
            1
        } else {
            self.flow.shape().last().copied().unwrap_or(1).max(1)
        }
    }

    /// How many rows it has.
    pub fn rows(&self) -> usize {
        self.flow.len() / self.row()
    }

    /// Rows of a slab of about so many numbers.
    pub fn slab_rows(&self, numbers: usize) -> usize {
        let unit = self.targets.iter().map(|target| target.encode.unit()).max().unwrap_or(1).max(1);
        (numbers / self.row() / unit * unit).max(unit)
    }
}

/// A small file that belongs to the output, held in memory until all of it gets its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SideFile {
    /// Where it will be.
    pub path: PathBuf,
    /// All of it.
    pub bytes: Vec<u8>,
}

/// Everything that a conversion writes.
#[derive(Default)]
pub struct Work<'a> {
    /// The files of tensors, in the order in which they get their names.
    pub files: Vec<OutFile>,
    /// What goes into them.
    pub tasks: Vec<Task<'a>>,
    /// What it is made of and how, as a text that is equal only for equal work: a resumed
    /// conversion must not mix two.
    pub fingerprint: String,
    /// Files beside them.
    pub beside: Vec<SideFile>,
    /// Files without which no reader opens the others, as `config.json` and the first file of a set.
    /// They are removed before any other file gets its name, and get theirs last, so that old and
    /// new files never load together.
    pub gates: Vec<PathBuf>,
    /// Files of an older output that readers would take for parts of this one.
    pub stale: Vec<PathBuf>,
    /// The folder that belongs to this work, if it writes more than single files.
    pub folder: Option<Folder>,
}

/// A folder that belongs to a conversion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    /// Its path.
    pub path: PathBuf,
    /// True if other processes write other files of the same set into it.
    pub shared: bool,
}

/// A block format of GGUF, or plain numbers.
pub struct Blocks {
    /// The format.
    pub ty: BlockType,
    /// Weights on the errors, one list of `row` numbers after another: one per matrix.
    pub importance: Option<Arc<Vec<f32>>>,
    /// Rows in a matrix: which list of `importance` is a row's.
    pub matrix: usize,
    /// Numbers are rounded to this first, as programs do that write an intermediate file.
    pub via: Option<FileDtype>,
    /// What matrices are multiplied by when they are read, for blocks that have it beside them.
    pub factors: Option<Factors>,
}

impl Blocks {
    /// Rows as they are, with nothing to weigh or round by.
    pub fn plain(ty: BlockType) -> Self {
        Self { ty, importance: None, matrix: 1, via: None, factors: None }
    }

    /// One matrix, or a part of one.
    fn encode_matrix(
        &self,
        matrix: usize,
        numbers: &[f32],
        row: usize,
        out: &mut [u8],
    ) -> Result<(), String> {
        if let Some(factors) = &self.factors {
            let factor = factors.get().and_then(|all| one_of(all, matrix));
            let factor = factor.ok_or("what its blocks are multiplied by is not known")?;
            return codec::encode_nvfp4(numbers, factor, out).map_err(|e| e.to_string());
        }
        let weights = self.importance.as_deref().map(|importance| {
            let from = matrix * row;
            importance.get(from..from + row).ok_or("the importance matrix is too short")
        });
        codec::encode(self.ty, numbers, row, weights.transpose()?, out).map_err(|e| e.to_string())
    }
}

impl Encode for Blocks {
    fn elementwise(&self) -> bool {
        !self.ty.is_quantized()
    }

    fn bytes(&self, rows: usize, row: usize) -> usize {
        rows * row / self.ty.elements() * self.ty.bytes()
    }

    fn encode(
        &self,
        first: usize,
        numbers: &[f32],
        row: usize,
        out: &mut [u8],
    ) -> Result<(), String> {
        let rounded;
        let numbers = match self.via {
            Some(dtype) => {
                rounded = round(dtype, numbers);
                &rounded
            }
            None => numbers,
        };
        if self.importance.is_none() && self.factors.is_none() {
            return self.encode_matrix(0, numbers, row, out);
        }
        let matrix = self.matrix.max(1);
        let (mut first, mut numbers, mut out) = (first, numbers, out);
        while !numbers.is_empty() {
            let rows = (matrix - first % matrix).min(numbers.len() / row);
            let (now, later) = numbers.split_at(rows * row);
            let (bytes, rest) = out.split_at_mut(self.bytes(rows, row));
            self.encode_matrix(first / matrix, now, row, bytes)?;
            (first, numbers, out) = (first + rows, later, rest);
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
        let decoded = codec::decode(self.ty, bytes, out).is_ok();
        if let Some(factors) = self.factors.as_ref().and_then(Factors::get) {
            multiply(factors, self.matrix * row, first * row, out);
        }
        decoded
    }

    fn plain(&self) -> Option<FileDtype> {
        match self.ty {
            BlockType::F32 => Some(FileDtype::F32),
            BlockType::F16 => Some(FileDtype::F16),
            BlockType::Bf16 => Some(FileDtype::Bf16),
            _ => None,
        }
    }
}

fn round(dtype: FileDtype, numbers: &[f32]) -> Vec<f32> {
    match dtype {
        FileDtype::Bf16 => {
            numbers.iter().map(|&x| numbers::bf16_to_f32(numbers::f32_to_bf16(x))).collect()
        }
        FileDtype::F16 => {
            numbers.iter().map(|&x| numbers::f16_to_f32(numbers::f32_to_f16(x))).collect()
        }
        _ => numbers.to_vec(),
    }
}
