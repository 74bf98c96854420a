//! Plan of a conversion: files, tasks and encodings, complete before anything is written.

use std::path::PathBuf;
use std::sync::Arc;

use super::factors::Factors;
use super::hashes;
use checkpoints::flow::Flow;
use formats::codec::{self, BlockType};
use formats::gguf::companions::{multiply, one_of};
use formats::numbers;
use formats::safetensors::FileDtype;

/// File to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutFile {
    /// Path of the file.
    pub path: PathBuf,
    /// First bytes of the file.
    pub header: Vec<u8>,
    /// Length of the file; ranges that nothing is written to are zeros.
    pub len: u64,
}

/// Reason that values of a tensor cannot be encoded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum EncodeError {
    #[error(transparent)]
    Codec(#[from] codec::Error),
    #[error("what its blocks are multiplied by is not known")]
    NoFactor,
    #[error("the importance matrix is too short")]
    Importance,
    #[error("its numbers of dtype {dtype} cannot be copied")]
    Verbatim { dtype: FileDtype },
    #[error("number {at} is {found}")]
    NotFinite { at: usize, found: f32 },
    #[error("it has numbers that are not finite")]
    CopyNotFinite,
    #[error(
        "number {at} is {found} and would be read back as {seen}: the type does not reach so far; \
         choose another for it"
    )]
    OutOfReach { at: usize, found: f32, seen: f32 },
}

/// Encoder of rows of values into bytes.
pub trait Encode: Send + Sync {
    /// Returns the number of rows that can only be encoded together.
    fn unit(&self) -> usize {
        1
    }

    /// True if each value is encoded independently of its row.
    fn elementwise(&self) -> bool {
        false
    }

    /// Returns the size of the encoding of `rows` rows. The number of rows is an integer multiple of the
    /// unit (the last unit may be short).
    fn bytes(&self, rows: usize, row: usize) -> usize;

    /// Encodes rows; the first of them is row `first` of the tensor.
    fn encode(
        &self,
        first: usize,
        numbers: &[f32],
        row: usize,
        out: &mut [u8],
    ) -> Result<(), EncodeError>;

    /// Decodes `bytes`, the encoding of `numbers` in rows from `first` on. Returns false if the bytes do
    /// not encode values of the tensor.
    fn decode(
        &self,
        first: usize,
        numbers: &[f32],
        bytes: &[u8],
        row: usize,
        out: &mut [f32],
    ) -> bool;

    /// Returns the plain dtype of the encoding, if any, so that values already stored in it can be copied.
    fn plain(&self) -> Option<FileDtype> {
        None
    }
}

/// Destination of the bytes of a task.
#[derive(Clone)]
pub struct TaskTarget {
    /// Index into [`Work::files`].
    pub file: usize,
    /// Name of the tensor in that file.
    pub name: String,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Encoding of the tensor.
    pub encode: Arc<dyn Encode>,
}

/// Tensor that is read once, and everything that is made of it.
#[derive(Clone)]
pub struct Task<'a> {
    /// Source of the values.
    pub flow: Flow<'a>,
    /// Destinations of the values.
    pub targets: Vec<TaskTarget>,
    /// Place of the first source (file and offset), so that sources are read in order.
    pub place: (usize, u64),
}

/// Number of values in a piece of the hashes of tensors that are encoded value by value. It divides every slab of the
/// command line, which counts in thousands.
const PIECE: usize = 1000;

impl Task<'_> {
    /// Returns the number of values in a row: 1 if every target encodes values independently.
    pub fn row(&self) -> usize {
        if self.targets.iter().all(|target| target.encode.elementwise()) {
            1
        } else {
            self.flow.shape().last().copied().unwrap_or(1).max(1)
        }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.flow.len() / self.row()
    }

    /// Returns the number of rows in a slab of about `numbers` values.
    pub fn slab_rows(&self, numbers: usize) -> usize {
        let unit = self.piece_rows(numbers);
        (numbers / self.row() / unit * unit).max(unit)
    }

    /// Returns the number of rows in a piece of the hashes, in slabs of about `numbers` values. It is the same for all
    /// slabs of at least `PIECE` values, so the hashes do not depend on slabs.
    pub fn piece_rows(&self, numbers: usize) -> usize {
        if self.targets.iter().all(|target| target.encode.elementwise()) {
            return numbers.clamp(1, PIECE);
        }
        self.targets.iter().map(|target| target.encode.unit()).max().unwrap_or(1).max(1)
    }
}

/// Small file of the output, held in memory until the whole output is renamed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SideFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Whole contents.
    pub bytes: Vec<u8>,
}

/// Complete plan of a conversion.
#[derive(Default)]
pub struct Work<'a> {
    /// Files of tensors, in the order in which they are renamed.
    pub files: Vec<OutFile>,
    /// Tasks that fill the files.
    pub tasks: Vec<Task<'a>>,
    /// Text that identifies the source and the options, equal only for equal work: a resumed conversion
    /// must not mix two.
    pub fingerprint: String,
    /// Small files of the output.
    pub beside: Vec<SideFile>,
    /// Files without which no reader opens the others, such as `config.json` and the first file of a set.
    /// They are removed before any other file is renamed, and renamed last, so that old and new files never
    /// load together.
    pub gates: Vec<PathBuf>,
    /// Files of an older output that readers would take for parts of the new one.
    pub stale: Vec<PathBuf>,
    /// True if hashes of the files are written beside them.
    pub hashed: bool,
    /// Folder that belongs to this work, if it writes more than single files.
    pub folder: Option<OutFolder>,
}

impl Work<'_> {
    /// Returns the paths of the files with hashes; none if there will be none.
    ///
    /// A folder has one. Processes that share a folder write one for each file of tensors, as single files have.
    pub fn hash_paths(&self) -> Vec<PathBuf> {
        match &self.folder {
            _ if !self.hashed => Vec::new(),
            Some(folder) if !folder.shared => vec![folder.path.join(hashes::FOLDER)],
            _ => self.files.iter().map(|file| hashes::path_for(&file.path)).collect(),
        }
    }
}

/// Folder that belongs to a conversion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutFolder {
    /// Path of the folder.
    pub path: PathBuf,
    /// True if other processes write other files of the same set into it.
    pub shared: bool,
}

/// Block format of GGUF, or a plain dtype.
pub struct BlockEncoder {
    /// Type of the blocks.
    pub ty: BlockType,
    /// Error weights: lists of `row` values, one list per matrix.
    pub importance: Option<Arc<Vec<f32>>>,
    /// Number of rows per matrix, which selects the list of `importance` for a row.
    pub matrix: usize,
    /// Dtype that values are rounded to first, as in programs that write an intermediate file.
    pub via: Option<FileDtype>,
    /// Factors that matrices are multiplied by on reading, for block formats that store one beside the
    /// blocks.
    pub factors: Option<Factors>,
}

impl BlockEncoder {
    /// Returns the encoding of a type without error weights, intermediate rounding or factors.
    pub fn plain(ty: BlockType) -> Self {
        Self { ty, importance: None, matrix: 1, via: None, factors: None }
    }

    /// Encodes one matrix, or a part of one.
    fn encode_matrix(
        &self,
        matrix: usize,
        numbers: &[f32],
        row: usize,
        out: &mut [u8],
    ) -> Result<(), EncodeError> {
        if let Some(factors) = &self.factors {
            let factor = factors.get().and_then(|all| one_of(all, matrix));
            let factor = factor.ok_or(EncodeError::NoFactor)?;
            return Ok(codec::encode_factored(self.ty, numbers, factor, out)?);
        }
        let weights = self.importance.as_deref().map(|importance| {
            let from = matrix * row;
            importance.get(from..from + row).ok_or(EncodeError::Importance)
        });
        Ok(codec::encode(self.ty, numbers, row, weights.transpose()?, out)?)
    }
}

impl Encode for BlockEncoder {
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
    ) -> Result<(), EncodeError> {
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
        let mut first = first;
        let mut numbers = numbers;
        let mut out = out;
        while !numbers.is_empty() {
            let rows = (matrix - first % matrix).min(numbers.len() / row);
            let (now, later) = numbers.split_at(rows * row);
            let (bytes, later_bytes) = out.split_at_mut(self.bytes(rows, row));
            self.encode_matrix(first / matrix, now, row, bytes)?;
            (first, numbers, out) = (first + rows, later, later_bytes);
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
        self.ty.plain().map(FileDtype::from)
    }
}

pub(crate) fn round(dtype: FileDtype, numbers: &[f32]) -> Vec<f32> {
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
