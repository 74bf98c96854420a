//! Tensors that are read piece by piece through the steps of a weight map.
//!
//! A [`Flow`] is a lazy tensor: it knows its shape and can read any range of its values from their sources.
//! Only the requested range is held in memory, so a stack of experts costs no more memory than a norm.

use std::cell::RefCell;
use std::sync::Arc;

use registry::weight_map::{HeadLayout, StepError, WeightStep, inverse, shapes};

pub(crate) use compute::ValueStep;
use formats::mmap::MappedRange;
use formats::numbers;
use formats::safetensors::FileDtype;
pub use strided::StridedValues;

mod compute;
mod strided;
mod walk;

/// Reason that a tensor cannot be read as values, or steps cannot make tensors.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    #[error("{bytes} bytes do not hold shape {shape:?} of {dtype}")]
    Size { bytes: usize, shape: Vec<usize>, dtype: FileDtype },
    #[error("numbers of dtype `{dtype}` cannot be read as f32")]
    Dtype { dtype: FileDtype },
    #[error("the integer {number} is not below {limit}, and f32 does not hold all of them")]
    Integer { number: i64, limit: u64 },
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("blocks and scales are tensors of bytes, as they lie in the file")]
    NotBytes,
    #[error("{rows} rows are more than are made")]
    TooManyRows { rows: usize },
    #[error("the stretches do not add up to the {rows} rows of shape {shape:?}")]
    Stretches { rows: usize, shape: Vec<usize> },
    #[error("this step only moves numbers")]
    OnlyMoves,
    #[error("its steps give {found} tensors, and this is number {number}")]
    NoOutput { found: usize, number: usize },
}

/// Source of values that can be read at any offset.
pub trait ValueReader: Send + Sync {
    /// Reads values from index `at` on. The caller stays inside the tensor.
    fn read(&self, at: usize, out: &mut [f32]);

    /// Returns the dtype and bytes of the values, if they are stored uncompressed in memory.
    fn bytes(&self) -> Option<(FileDtype, &[u8])> {
        None
    }

    /// Copies stored bytes from offset `at` on. Returns false if the reader has none: see
    /// [`ValueReader::bytes`].
    fn copy(&self, at: usize, out: &mut [u8]) -> bool {
        let Some((_, bytes)) = self.bytes() else { return false };
        out.copy_from_slice(&bytes[at..at + out.len()]);
        true
    }
}

/// Values of a plain dtype in memory or in a memory map.
pub struct PlainValues<'a> {
    /// Dtype of the values. Other than floating-point types are copied and not read.
    pub dtype: FileDtype,
    /// Little-endian.
    pub bytes: &'a [u8],
}

impl ValueReader for PlainValues<'_> {
    fn read(&self, at: usize, out: &mut [f32]) {
        let size = self.dtype.size();
        let bytes = &self.bytes[at * size..(at + out.len()) * size];
        // On this thread: callers are threads themselves.
        numbers::widen(self.dtype, bytes, out);
    }

    fn bytes(&self) -> Option<(FileDtype, &[u8])> {
        Some((self.dtype, self.bytes))
    }
}

/// Values of a plain dtype in a file, which are copied from it piece by piece when they are read.
pub struct FileValues<'a> {
    /// Dtype of the values. Other than floating-point types are copied and not read.
    pub dtype: FileDtype,
    /// Little-endian.
    pub range: MappedRange<'a>,
}

/// Number of bytes that are copied from a file at a time: they stay in the cache of a core.
const COPY: usize = 1 << 15;

thread_local! {
    /// Bytes of a piece.
    static COPIED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl ValueReader for FileValues<'_> {
    fn read(&self, at: usize, out: &mut [f32]) {
        let size = self.dtype.size();
        COPIED.with_borrow_mut(|copied| {
            copied.resize(COPY, 0);
            for (n, out) in out.chunks_mut(COPY / size).enumerate() {
                let bytes = &mut copied[..out.len() * size];
                self.range.copy((at + n * (COPY / size)) * size, bytes);
                // On this thread: callers are threads themselves.
                numbers::widen(self.dtype, bytes, out);
            }
        });
    }

    fn bytes(&self) -> Option<(FileDtype, &[u8])> {
        Some((self.dtype, self.range.bytes()))
    }

    fn copy(&self, at: usize, out: &mut [u8]) -> bool {
        self.range.copy(at, out);
        true
    }
}

/// Bytes that encode no values on their own: blocks and their scales.
pub struct RawBytes<'a>(pub &'a [u8]);

impl ValueReader for RawBytes<'_> {
    fn read(&self, at: usize, out: &mut [f32]) {
        let bytes = &self.0[at..at + out.len()];
        out.iter_mut().zip(bytes).for_each(|(x, b)| *x = f32::from(*b));
    }

    fn bytes(&self) -> Option<(FileDtype, &[u8])> {
        Some((FileDtype::U8, self.0))
    }
}

/// Number of 4-bit values that share a scale in the step `mxfp4`.
pub(crate) const MXFP4_GROUP: usize = 32;

/// 4-bit values (E2M1) in blocks of 32, as stored in checkpoints. Byte `j` of a block holds value `2 j` in
/// its low half and `2 j + 1` in its high half. A scale is a power of two with a bias of 127.
struct Mxfp4<'a> {
    blocks: Arc<dyn ValueReader + 'a>,
    scales: Arc<dyn ValueReader + 'a>,
}

impl ValueReader for Mxfp4<'_> {
    fn read(&self, at: usize, out: &mut [f32]) {
        let (Some((_, blocks)), Some((_, scales))) = (self.blocks.bytes(), self.scales.bytes())
        else {
            return out.fill(f32::NAN);
        };
        for (n, x) in out.iter_mut().enumerate() {
            let at = at + n;
            let four = numbers::f4_e2m1_to_f32(blocks[at / 2] >> (at % 2 * 4));
            *x = four * numbers::f8_e8m0_to_f32(scales[at / MXFP4_GROUP]);
        }
    }
}

/// Tensor that is read on demand.
#[derive(Clone)]
pub struct Flow<'a> {
    shape: Vec<usize>,
    node: Arc<FlowNode<'a>>,
}

/// Origin of a flow's values.
enum FlowNode<'a> {
    Source(Arc<dyn ValueReader + 'a>),
    /// A flow with another shape; values and their order stay.
    Shaped(Flow<'a>),
    /// Part of an axis: `outer` times `size` of every `whole` runs of `run` values, from `from`.
    Cut {
        of: Flow<'a>,
        from: usize,
        size: usize,
        whole: usize,
        run: usize,
    },
    /// Concatenated parts: each contributes its number of `chunk`s in turn.
    Join {
        parts: Vec<(Flow<'a>, usize)>,
        whole: usize,
    },
    /// Reordered rows of each head; a row is `row` values, a head `2 * half` rows.
    Heads {
        of: Flow<'a>,
        row: usize,
        half: usize,
        to: HeadLayout,
    },
    /// Two swapped axes.
    Swapped {
        of: Flow<'a>,
        axes: [usize; 2],
    },
    /// The first values, followed by zeros.
    Resized {
        of: Flow<'a>,
    },
    Computed {
        of: Flow<'a>,
        how: ValueStep,
    },
}

impl<'a> Flow<'a> {
    /// Returns a flow of a source's values.
    pub fn new(shape: &[usize], numbers: Arc<dyn ValueReader + 'a>) -> Self {
        Self { shape: shape.to_vec(), node: Arc::new(FlowNode::Source(numbers)) }
    }

    /// Returns a flow of a floating-point dtype. An error says why the bytes cannot be read as values.
    pub fn plain(shape: &[usize], dtype: FileDtype, bytes: &'a [u8]) -> Result<Self, Error> {
        let flow = Self::stored(shape, dtype, bytes)?;
        flow.numeric()?;
        Ok(flow)
    }

    /// Returns a flow of any dtype, for steps that move or decode bytes.
    pub fn stored(shape: &[usize], dtype: FileDtype, bytes: &'a [u8]) -> Result<Self, Error> {
        let count = shape.iter().try_fold(1_usize, |n, &dim| n.checked_mul(dim));
        let size = count.and_then(|count| count.checked_mul(dtype.size()));
        if size != Some(bytes.len()) {
            return Err(Error::Size { bytes: bytes.len(), shape: shape.to_vec(), dtype });
        }
        Ok(Self::new(shape, Arc::new(PlainValues { dtype, bytes })))
    }

    /// Returns an error if a source has a dtype whose bytes cannot be read as values.
    pub fn numeric(&self) -> Result<(), Error> {
        match self.no_numbers() {
            None => Ok(()),
            Some(dtype) => Err(Error::Dtype { dtype }),
        }
    }

    /// Returns the row-major shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        product(&self.shape)
    }

    /// True if the tensor has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Applies steps to several tensors, without reading any.
    pub fn run(steps: &[WeightStep], mut flows: Vec<Self>) -> Result<Vec<Self>, Error> {
        for step in steps {
            let before: Vec<_> = flows.iter().map(|flow| flow.shape.clone()).collect();
            // Shapes are checked here once, so the code below need not check them.
            let after = shapes(std::slice::from_ref(step), before)?;
            flows = one(step, flows, after)?;
        }
        Ok(flows)
    }

    /// Returns the flow with its values rounded to a dtype.
    pub(crate) fn rounded(self, dtype: registry::dtype::Dtype) -> Self {
        let shape = self.shape.clone();
        Self::made(shape, FlowNode::Computed { of: self, how: ValueStep::Round(dtype) })
    }

    /// Undoes steps: returns the tensor of a given shape from which the steps make these flows.
    pub fn undo(
        steps: &[WeightStep],
        shape: Vec<usize>,
        mut flows: Vec<Self>,
    ) -> Result<Self, Error> {
        let Some((step, remaining)) = steps.split_first() else {
            let count = flows.len();
            return flows.pop().ok_or(Error::NoOutput { found: count, number: 1 });
        };
        let step = std::slice::from_ref(step);
        let outputs = shapes(step, vec![shape.clone()])?;
        let each = flows.len().checked_div(outputs.len()).unwrap_or(0).max(1);
        let parts = flows.chunks(each).zip(outputs);
        let parts = parts.map(|(flows, shape)| Self::undo(remaining, shape, flows.to_vec()));
        let parts: Vec<Self> = parts.collect::<Result<_, _>>()?;
        let mut undone = Self::run(&inverse(step, vec![shape])?, parts)?;
        let count = undone.len();
        undone.pop().ok_or(Error::NoOutput { found: count, number: 1 })
    }

    fn made(shape: Vec<usize>, node: FlowNode<'a>) -> Self {
        Self { shape, node: Arc::new(node) }
    }

    /// Returns the number of values per index of an axis: the product of the axes after it.
    fn inner(&self, axis: usize) -> usize {
        product(&self.shape[axis + 1..])
    }
}

/// Multiplies dims. Only the shape of a tensor without values overflows, and its product is not used.
fn product(dims: &[usize]) -> usize {
    dims.iter().fold(1, |n, &dim| n.saturating_mul(dim))
}

/// Limit on the bytes of a padded tensor.
const MOST_RESIZED: usize = 1 << 36;

type Shapes = Vec<Vec<usize>>;

/// Applies one step; `after` holds the shapes of the results.
fn one<'a>(step: &WeightStep, flows: Vec<Flow<'a>>, after: Shapes) -> Result<Vec<Flow<'a>>, Error> {
    Ok(match step {
        WeightStep::Concat(axis) => vec![join(*axis, &flows, after)],
        WeightStep::Mxfp4 => {
            let blocks = byte_source(&flows[0])?;
            let numbers = Mxfp4 { blocks, scales: byte_source(&flows[1])? };
            let shape = after.first().cloned().unwrap_or_default();
            vec![Flow::new(&shape, Arc::new(numbers))]
        }
        WeightStep::Stack(axis) => {
            let thin = flows.into_iter().map(|flow| {
                let mut shape = flow.shape.clone();
                shape.insert(*axis, 1);
                Flow::made(shape, FlowNode::Shaped(flow))
            });
            vec![join(*axis, &thin.collect::<Vec<_>>(), after)]
        }
        WeightStep::ConcatRuns { axis, runs } => {
            let mut remaining = flows.as_slice();
            let mut joined = Vec::with_capacity(runs.len());
            for (&run, shape) in runs.iter().zip(after) {
                let (now, later) = remaining.split_at(run);
                joined.push(join(*axis, now, vec![shape]));
                remaining = later;
            }
            joined
        }
        WeightStep::Split { axis, .. } | WeightStep::SplitRuns { axis, .. } => {
            cut(*axis, &flows, after)
        }
        WeightStep::Unstack(axis) => {
            let thick = after.iter().map(|shape| {
                let mut shape = shape.clone();
                shape.insert(*axis, 1);
                shape
            });
            let parts = cut(*axis, &flows, thick.collect());
            parts
                .into_iter()
                .zip(after)
                .map(|(part, shape)| Flow::made(shape, FlowNode::Shaped(part)))
                .collect()
        }
        WeightStep::At(n, step) => {
            let mut flows = flows;
            let flow = flows.remove(*n);
            let mut shape = after;
            flows.insert(*n, each(step, flow, shape.swap_remove(*n))?);
            flows
        }
        alone => flows
            .into_iter()
            .zip(after)
            .map(|(flow, shape)| each(alone, flow, shape))
            .collect::<Result<_, _>>()?,
    })
}

/// Returns the source of a tensor of bytes, as they lie in the file.
fn byte_source<'a>(flow: &Flow<'a>) -> Result<Arc<dyn ValueReader + 'a>, Error> {
    match &*flow.node {
        FlowNode::Source(source) if matches!(source.bytes(), Some((FileDtype::U8, b)) if b.len() == flow.len()) => {
            Ok(Arc::clone(source))
        }
        _ => Err(Error::NotBytes),
    }
}

fn each<'a>(step: &WeightStep, of: Flow<'a>, shape: Vec<usize>) -> Result<Flow<'a>, Error> {
    let node = match step {
        WeightStep::Squeeze(_)
        | WeightStep::Unsqueeze(_)
        | WeightStep::Reshape(_)
        | WeightStep::Flatten(_)
        | WeightStep::Unflatten { .. } => FlowNode::Shaped(of),
        WeightStep::Transpose(a, b) => FlowNode::Swapped { of, axes: [*a, *b] },
        WeightStep::Reverse(axis) => {
            let mut thin = of.shape.clone();
            let length = std::mem::replace(&mut thin[*axis], 1);
            let mut parts = cut(*axis, &[of], vec![thin; length]);
            parts.reverse();
            return Ok(join(*axis, &parts, vec![shape]));
        }
        WeightStep::PermuteHeads { heads, to } => {
            let row = of.inner(0);
            let half = of.shape[0] / heads / 2;
            FlowNode::Heads { of, row, half, to: *to }
        }
        WeightStep::Resize(rows) => {
            let size = of.dtype().unwrap_or(FileDtype::F32).size();
            if product(&shape).saturating_mul(size) > MOST_RESIZED {
                return Err(Error::TooManyRows { rows: *rows });
            }
            FlowNode::Resized { of }
        }
        computing => {
            let how = ValueStep::new(computing, &of.shape)?;
            FlowNode::Computed { of, how }
        }
    };
    Ok(Flow::made(shape, node))
}

fn join<'a>(axis: usize, parts: &[Flow<'a>], mut after: Shapes) -> Flow<'a> {
    let parts: Vec<_> =
        parts.iter().map(|part| (part.clone(), product(&part.shape[axis..]))).collect();
    let total = parts.iter().fold(0, |sum: usize, part| sum.saturating_add(part.1));
    Flow::made(after.swap_remove(0), FlowNode::Join { parts, whole: total })
}

/// Cuts each flow along an axis into its shapes from `after`, in turn.
fn cut<'a>(axis: usize, flows: &[Flow<'a>], after: Shapes) -> Vec<Flow<'a>> {
    let mut flows = flows.iter();
    let mut flow = flows.next();
    let mut from = 0;
    let mut parts = Vec::with_capacity(after.len());
    for shape in after {
        let size = shape[axis];
        // Empty parts may come last; they belong to the current tensor.
        while flow.is_some_and(|flow| from == flow.shape[axis] && size > 0) {
            (flow, from) = (flows.next(), 0);
        }
        let Some(of) = flow else { break };
        let axis_size = of.shape[axis];
        let run = of.inner(axis);
        parts.push(Flow::made(
            shape,
            FlowNode::Cut { of: of.clone(), from, size, whole: axis_size, run },
        ));
        from += size;
    }
    parts
}

#[cfg(test)]
mod tests;
