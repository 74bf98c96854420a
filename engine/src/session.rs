//! The seam between engines and everything that drives them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use checkpoints::checkpoint::Rounding;
use formats::codec::BlockType;
use registry::dtype::Dtype;
use registry::graph::{StateId, WeightId};
use registry::model::Model;

use crate::feature::Feature;
use crate::{ChunkMask, Error, ExtraInputs};

/// Something that runs models.
pub trait Engine: Send + Sync {
    /// Returns the name that `--engine` takes.
    fn name(&self) -> &str;

    /// True if a row's bits do not depend on the chunks, batches and slots it is computed in.
    fn exact(&self) -> bool {
        false
    }

    /// True if the engine runs the graph of a resolved model; false if it builds its own graph from files.
    fn runs_specs(&self) -> bool {
        true
    }

    /// True if the engine has an ability besides running a model. Sessions refuse what it lacks.
    fn has(&self, _feature: Feature) -> bool {
        false
    }

    /// Returns name, version, device and settings in force as the engine reports them, if it is a program of its own.
    fn facts(&self) -> Option<String> {
        None
    }

    /// Opens a model. Refuses what it cannot run, naming the op, state or rule in the way.
    fn open(
        &self,
        source: &ModelSource<'_>,
        options: &SessionOptions,
    ) -> Result<Box<dyn Session>, Error>;
}

/// The source of a session: a resolved model and the location of its weights.
#[derive(Debug, Clone)]
pub struct ModelSource<'a> {
    /// The resolved model.
    pub model: Arc<Model>,
    /// The checkpoint's folder; the file, for an engine that opens files by itself.
    pub dir: &'a Path,
}

/// Rows whose values stay in the caches of a CPU from op to op: with 5,632 numbers to a row 12 MB.
const PART: usize = 512;

/// The options of a session.
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// The dtype of activations, and of states that follow them.
    pub dtype: Dtype,
    /// True if fused kernels may replace several nodes; their results are bit-equal to the plain graph.
    pub rewrites: bool,
    /// True if memory of a released slot is filled with NaN, so that a stale read is noticed.
    pub poison: bool,
    /// True to run a spec whose declared dtypes an op refuses, to study the effect.
    pub allow_dtype_mismatch: bool,
    /// The number of positions that a slot can be truncated by after a window has passed over them.
    pub rollback: usize,
    /// True if drafts of a `nextn` head are to be verified.
    pub drafts: bool,
    /// True if sequences are to have a bidirectional prefix.
    pub prefix: bool,
    /// True if sequences are to have several documents.
    pub documents: bool,
    /// True if sequences are to have spans of tokens that see each other.
    pub spans: bool,
    /// True if rows are to be given in the place of embeddings.
    pub rows: bool,
    /// Refuses steps whose results are NaN or infinite, with [`Error::NotFinite`]; a comparison
    /// wants to see them.
    pub finite: bool,
    /// The number of tensor-parallel ranks; 1 for none.
    pub ranks: usize,
    /// Worker threads; all cores if not given.
    pub threads: Option<usize>,
    /// The number of rows in a part of a long step; 0 for steps in one part. The native engine divides steps of
    /// twice as many rows and more, on the CPU, if all results stay the same.
    pub part: usize,
    /// The matrices whose input rows are rounded first, as the checkpoint declares.
    pub rounds: InputRounding,
    /// Rounding of input rows by the type of the weights in a file, as another engine does; the matrices that
    /// it covers are rounded in this way alone.
    pub rounds_by_type: Vec<(BlockType, Rounding)>,
    /// The products of matrices.
    pub arithmetic: ProductArithmetic,
    /// The observer of matrix inputs, in runs of the plain graph.
    pub observer: Option<Arc<dyn InputObserver>>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            dtype: Dtype::F32,
            rewrites: true,
            poison: cfg!(debug_assertions),
            allow_dtype_mismatch: false,
            rollback: 16,
            drafts: false,
            prefix: false,
            documents: false,
            spans: false,
            rows: false,
            finite: true,
            ranks: 1,
            threads: None,
            part: PART,
            rounds: InputRounding::None,
            rounds_by_type: Vec::new(),
            arithmetic: ProductArithmetic::Exact,
            observer: None,
        }
    }
}

/// The arithmetic of products of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProductArithmetic {
    /// Rows as they are, times decoded weights.
    #[default]
    Exact,
    /// Rows rounded to blocks of 8 bits, multiplied in integers with weights in blocks (Q4_K and others of GGUF
    /// files). In bf16 runs, weights in bf16 are multiplied in tiles (`kernels/tiles.rs`) where the CPU has a unit for
    /// it. Other weights, and types without such a kernel, are multiplied exactly.
    Q8 {
        /// True to keep a second copy of the weights, in the layout of the kernels. Without it tiles are
        /// packed at every use, with the same results.
        repack: bool,
    },
    /// Products of many rows are left to a device's library of matrix products (cuBLASLt), with sums in f32 in an order
    /// of its own. Weights that are stored in another dtype than the rows are first decoded to the rows' dtype if they are in
    /// blocks, or if the rows are in f32. Few rows are multiplied exactly.
    Library,
}

/// The quantized matrices whose input rows are rounded to few bits. The checkpoint's config declares this
/// rounding (`input_activations` and its kin).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InputRounding {
    /// No matrices: rows are not rounded, whatever is declared.
    #[default]
    None,
    /// All matrices but those of experts. Loaders that stack experts dequantize them and lose their schemes.
    Linear,
    /// All quantized matrices, as in engines that multiply codes by codes.
    All,
}

/// One sequence's set of states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotId(pub usize);

/// The rows of a chunk that give logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputRows {
    /// No row: only the states move on.
    None,
    /// The row of the last token.
    Last,
    /// The row of every token.
    All,
}

/// Tokens to feed to one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// The slot.
    pub slot: SlotId,
    /// The tokens, at the slot's position and on.
    pub tokens: &'a [u32],
    /// The logits asked for.
    pub rows: OutputRows,
}

/// Logits of one chunk, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    /// Rows: 0, 1 or the chunk's length, by its [`OutputRows`].
    pub rows: usize,
    /// Columns.
    pub vocab: usize,
    /// `[rows, vocab]`.
    pub data: Vec<f32>,
}

impl Logits {
    /// Returns one row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.vocab..(row + 1) * self.vocab]
    }
}

/// A model opened by an engine, and its slots.
pub trait Session: Send {
    /// Returns the model of the session.
    fn model(&self) -> &Model;
    /// Returns the dtype of activations.
    fn dtype(&self) -> Dtype;
    /// Returns the internals that the session shows; others cannot be compared.
    fn features(&self) -> SessionFeatures {
        SessionFeatures::default()
    }
    /// Returns the taps and parts of states that are shown, if not all are.
    fn shown_parts(&self) -> Option<&ShownParts> {
        None
    }
    /// Generates greedy tokens by the engine's own call, as its users call it; none if it has no such call.
    fn generate(&mut self, _tokens: &[u32], _count: usize) -> Result<Option<Vec<u32>>, Error> {
        Ok(None)
    }
    /// Opens an empty slot.
    fn open_slot(&mut self) -> SlotId;
    /// Gives a slot back; its memory is filled with NaN if [`SessionOptions::poison`].
    fn release(&mut self, slot: SlotId) -> Result<(), Error>;
    /// Returns the number of tokens that a slot has seen.
    fn position(&self, slot: SlotId) -> Result<usize, Error>;
    /// Feeds chunks, each to its slot; gives logits, one per chunk. Nothing changes on error.
    fn step(&mut self, chunks: &[Chunk<'_>], probe: &mut dyn Probe) -> Result<Vec<Logits>, Error>;
    /// Feeds chunks like [`Session::step`], with more inputs than tokens. An engine that has no such input
    /// refuses it.
    fn step_with(
        &mut self,
        chunks: &[Chunk<'_>],
        extra: ExtraInputs<'_>,
        probe: &mut dyn Probe,
    ) -> Result<Vec<Logits>, Error> {
        if !extra.hidden.is_empty() {
            let rows = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
            return Err(Error::Hidden { got: extra.hidden.len(), wanted: 0, rows });
        }
        if let Some((_, chunk)) =
            extra.given.iter().zip(chunks).find(|(given, _)| !given.is_empty())
        {
            let reason =
                "this engine takes tokens only, no rows in the place of embeddings".to_owned();
            return Err(Error::Given { slot: chunk.slot.0, reason });
        }
        let masked = extra.masks.iter().zip(chunks).find(|(mask, _)| !mask.is_causal());
        if let Some((mask, chunk)) = masked {
            let feature = match mask {
                ChunkMask { spans: [_, ..], .. } => "tokens of an image that see each other",
                ChunkMask { documents: [_, ..], .. } => "packed documents",
                _ => "a bidirectional prefix",
            };
            let reason = format!(
                "this engine has no {feature}: it feeds causal chunks of one sequence only"
            );
            return Err(Error::Mask { slot: chunk.slot.0, reason });
        }
        self.step(chunks, probe)
    }
    /// Returns the position of a slot at which its last document begins; 0 if it has one document.
    fn document(&self, _slot: SlotId) -> Result<usize, Error> {
        Ok(0)
    }
    /// Opens a slot with a copy of this slot's states.
    fn fork(&mut self, slot: SlotId) -> Result<SlotId, Error>;
    /// Forgets every token from `length` on. Nothing changes on error.
    fn truncate(&mut self, slot: SlotId, length: usize) -> Result<(), Error>;
    /// Returns a slot as bytes.
    fn save(&self, slot: SlotId) -> Result<Vec<u8>, Error>;
    /// Opens a slot from bytes of [`Session::save`], perhaps of another process.
    fn restore(&mut self, bytes: &[u8]) -> Result<SlotId, Error>;
    /// Returns the states of a slot, in the layouts of `docs/dump.md`.
    fn states(&self, slot: SlotId) -> Result<Vec<StateValue>, Error>;
    /// Moves every table of constants (slopes, frequencies) by so many units in the last place of f32. Rotary
    /// frequencies move by at most one. Measurements of rounding use this; 0 restores the constants. An
    /// engine without such tables does nothing.
    fn nudge(&mut self, _units: u32) {}
    /// Opens a slot that has seen `position` tokens and has these states. `states` holds every part of every
    /// state, in the layouts of [`Session::states`]. Attention may be given more positions than it reads.
    fn seed(&mut self, _position: usize, _states: &[StateValue]) -> Result<SlotId, Error> {
        Err(Error::Seed("this engine cannot begin a slot with given states".to_owned()))
    }
    /// Opens a slot like [`Session::seed`], whose last document begins at position `document`.
    fn seed_in_document(
        &mut self,
        position: usize,
        document: usize,
        states: &[StateValue],
    ) -> Result<SlotId, Error> {
        if document == 0 {
            return self.seed(position, states);
        }
        Err(Error::Seed(format!(
            "this engine cannot begin a slot in a document that begins at position {document}"
        )))
    }
}

/// The part of its inside that a session shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShownParts {
    /// Names of taps.
    pub taps: BTreeSet<String>,
    /// Parts of states: `k`, `v`, `conv`, ...
    pub parts: BTreeSet<String>,
}

/// The internals that a session shows.
/// A check uses every ability that exists ([decision 4](../../docs/decisions/0004-partial-engines.md)).
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionFeatures {
    /// True if probes are called.
    pub taps: bool,
    /// True if [`Session::states`] has an answer.
    pub states: bool,
    /// True if [`Session::seed`] has an answer.
    pub seeds: bool,
    /// True if a probe may overwrite what it sees, so that ops run on given inputs.
    pub feeds: bool,
    /// True if a slot can be continued; an engine without it scores whole prompts from an empty slot only.
    pub steps: bool,
}

impl Default for SessionFeatures {
    fn default() -> Self {
        Self { taps: true, states: true, seeds: true, feeds: true, steps: true }
    }
}

/// One part of one state of a slot.
#[derive(Debug, Clone, PartialEq)]
pub struct StateValue {
    /// The state of the graph.
    pub state: StateId,
    /// The layer.
    pub layer: usize,
    /// `k`, `v`, `conv`, `recurrent` or what the spec calls it.
    pub part: String,
    /// Attention: `[kept, kv_heads, head_dim]`; conv: `[channels, width - 1]`, oldest first;
    /// recurrent: as declared.
    pub shape: Vec<usize>,
    /// Row-major.
    pub data: Vec<f32>,
}

/// Sees the inputs of matrices, from the threads that multiply.
pub trait InputObserver: std::fmt::Debug + Send + Sync {
    /// Rows of `inputs` numbers that are multiplied with a weight.
    fn product(&self, weight: WeightId, inputs: usize, rows: &[f32]);

    /// Rows that attention keeps as a part of a state: 0 for keys, 1 for values.
    fn cached(&self, _state: StateId, _part: usize, _rows: &[f32]) {}
}

/// Sees tapped values as they are made, and may overwrite them (local comparison does).
///
/// After the head of the graph only rows whose logits are wanted exist.
pub trait Probe {
    /// True if this tap is worth a call; asked before anything is copied.
    fn wants(&self, tap: &str) -> bool;
    /// Reports a value; `shape` is `[rows, ...]`, rows of all chunks in order.
    fn tap(&mut self, tap: &str, shape: &[usize], data: &mut [f32]);
}

/// Looks at nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProbe;

impl Probe for NoProbe {
    fn wants(&self, _tap: &str) -> bool {
        false
    }

    fn tap(&mut self, _tap: &str, _shape: &[usize], _data: &mut [f32]) {}
}
