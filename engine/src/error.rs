//! Errors of opening or running a model.

use registry::diag::Finding;
use registry::dtype::Dtype;
use registry::listing;

/// Failure of a device, in the device's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceError(pub String);

/// A refusal or a failure; the session is unchanged by either.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine cannot run this model; each finding names what is in the way.
    #[error("the model cannot run here: {}", join(.0))]
    Refused(Vec<Finding>),
    /// The checkpoint could not be read.
    #[error(transparent)]
    Checkpoint(Box<dyn std::error::Error + Send + Sync>),
    /// A device failed, or does not have enough memory.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The weights do not fit the memory of the device.
    #[error(
        "the weights take {} MiB in the memory of `{device}`, which has {} MiB free; take a device with more memory, \
         run in 16 bits if this run is in f32, or run on the CPU", .needed.div_ceil(1 << 20), .free >> 20
    )]
    DeviceMemory {
        /// The name of the device.
        device: String,
        /// The bytes that the weights take.
        needed: u64,
        /// The bytes that are free.
        free: u64,
    },
    /// A tensor of another shape than the spec's.
    #[error("tensor `{name}` has shape {got:?}; the spec expects {want:?}")]
    WeightShape {
        /// The tensor.
        name: String,
        /// The shape in the file.
        got: Vec<usize>,
        /// The shape that the spec expects.
        want: Vec<usize>,
    },
    /// A tensor in a format that this engine does not compute with.
    #[error(
        "tensor `{name}` is stored as {found}; this engine reads float formats: convert the checkpoint first"
    )]
    WeightDtype {
        /// The tensor.
        name: String,
        /// The format in the file.
        found: String,
    },
    /// No such slot, or one that was released.
    #[error("slot {0} is not open")]
    UnknownSlot(usize),
    /// A slot appears in two chunks of one step.
    #[error("slot {0} appears twice in one step; feed its tokens as one chunk")]
    RepeatedSlot(usize),
    /// A chunk without tokens.
    #[error("the chunk for slot {0} has no tokens; leave it out of the step")]
    EmptyChunk(usize),
    /// A token id that the vocabulary does not have.
    #[error(
        "token {id} at position {position} of slot {slot} is not below the vocabulary size {vocab}"
    )]
    Token {
        /// The id.
        id: u32,
        /// The position in the sequence.
        position: usize,
        /// The slot.
        slot: usize,
        /// Ids are below this.
        vocab: usize,
    },
    /// Rows that are fed besides tokens, too many or too few.
    #[error(
        "{got} numbers are fed besides {rows} tokens; the model reads {wanted} (a head reads one \
         row of what the model made for each token, any other model none)"
    )]
    Hidden {
        /// Numbers given.
        got: usize,
        /// Numbers expected.
        wanted: usize,
        /// Tokens of the step.
        rows: usize,
    },
    /// A mask that the sequence in a slot, or the engine, does not have.
    #[error("slot {slot}: {reason}")]
    Mask {
        /// The slot.
        slot: usize,
        /// The reason, and the remedy.
        reason: String,
    },
    /// Rows or positions that a chunk, the model, or the engine does not have.
    #[error("slot {slot}: {reason}")]
    Given {
        /// The slot.
        slot: usize,
        /// The reason, and the remedy.
        reason: String,
    },
    /// A head that this way of drafting does not know.
    #[error("drafting: {0}")]
    Draft(String),
    /// More positions than the model claims to handle.
    #[error("slot {slot} would reach {wanted} positions; the model handles {context}")]
    Context {
        /// The slot.
        slot: usize,
        /// Positions after the step.
        wanted: usize,
        /// Most positions.
        context: usize,
    },
    /// A truncation that cannot be done.
    #[error("slot {slot} cannot be truncated to {length}: {reason}")]
    Truncate {
        /// The slot.
        slot: usize,
        /// The length asked for.
        length: usize,
        /// The reason, and the remedy.
        reason: String,
    },
    /// Bytes that are not a slot of this model and run.
    #[error("these bytes are not a saved slot of this session: {0}")]
    Restore(String),
    /// States that no slot of this session can begin with.
    #[error("a slot cannot begin with these states: {0}")]
    Seed(String),
    /// An op got something it cannot work with; the graph and the engine disagree.
    #[error("op `{op}` (node {node}): {message}")]
    Op {
        /// The op.
        op: String,
        /// Index of the node.
        node: usize,
        /// The fault, in words.
        message: String,
    },
    /// NaN or infinite numbers that reach the logits.
    #[error(
        "the logits are not finite: `{tap}` is the first value that has {value}, at position {position} of slot {slot} \
         in {dtype}; expected finite numbers: check the weights for damage, or run in a dtype of wider range"
    )]
    NotFinite {
        /// The first value in order of execution that is not finite.
        tap: String,
        /// NaN or an infinity.
        value: f32,
        /// The position in the sequence.
        position: usize,
        /// The slot.
        slot: usize,
        /// The dtype of activations.
        dtype: Dtype,
    },
    /// The worker threads could not be started.
    #[error("starting worker threads: {0}")]
    Threads(String),
    /// An engine behind a plug-in failed.
    #[error("{0}")]
    Other(String),
    /// An engine in a process of its own ended, was silent, or sent what it must not; it is gone.
    #[error("{0}")]
    Lost(String),
}

/// Most characters of a list of findings, which may quote files.
const MAX_TEXT: usize = 10_000;

fn join(findings: &[Finding]) -> String {
    let lines: Vec<String> = findings
        .iter()
        .map(|f| match &f.help {
            Some(help) => format!("{} ({help})", f.message),
            None => f.message.clone(),
        })
        .collect();
    listing::shortened(&lines.join("; "), MAX_TEXT).into_owned()
}
