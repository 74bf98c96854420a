//! Runs models: executor, ops, states, schedules, engine plugins.
//!
//! Public surface (signatures other crates rely on):
//!
//! ```text
//! pub trait Engine: Send + Sync {
//!     fn name(&self) -> &str;
//!     /// Opens a model. Refuses what it cannot run, naming the op, state or rule in the way.
//!     fn open(&self, source: &Source<'_>, options: &Options) -> Result<Box<dyn Session>, Error>;
//! }
//! pub struct Source<'a> { pub model: Arc<registry::model::Model>, pub dir: &'a Path }
//! pub struct Options { pub dtype: Dtype, pub rewrites: bool, pub poison: bool, pub allow_dtype_mismatch: bool, pub rollback: usize, pub threads: Option<usize>, .. }  // Default
//! pub struct SlotId(pub usize);
//! pub enum Want { None, Last, All }
//! pub struct Chunk<'a> { pub slot: SlotId, pub tokens: &'a [u32], pub want: Want }
//! pub struct Logits { pub rows: usize, pub vocab: usize, pub data: Vec<f32> }   // one per chunk, row-major
//! pub trait Session: Send {
//!     fn model(&self) -> &Model;
//!     fn dtype(&self) -> Dtype;
//!     fn open_slot(&mut self) -> SlotId;
//!     fn release(&mut self, slot: SlotId) -> Result<(), Error>;           // poisoned with NaN if Options.poison
//!     fn position(&self, slot: SlotId) -> Result<usize, Error>;
//!     fn step(&mut self, chunks: &[Chunk<'_>], probe: &mut dyn Probe) -> Result<Vec<Logits>, Error>;
//!     fn fork(&mut self, slot: SlotId) -> Result<SlotId, Error>;
//!     fn truncate(&mut self, slot: SlotId, length: usize) -> Result<(), Error>;
//!     fn save(&self, slot: SlotId) -> Result<Vec<u8>, Error>;
//!     fn restore(&mut self, bytes: &[u8]) -> Result<SlotId, Error>;
//!     fn states(&self, slot: SlotId) -> Result<Vec<StateValue>, Error>;
//! }
//! pub struct StateValue { pub state: StateId, pub layer: usize, pub part: String, pub shape: Vec<usize>, pub data: Vec<f32> } // canonical layout of docs/dump.md
//! /// Sees tapped values as they are made; may overwrite them (local comparison does).
//! pub trait Probe { fn tap(&mut self, tap: &str, shape: &[usize] /* [rows, ...] */, data: &mut [f32]) ; fn wants(&self, tap:&str) -> bool; }
//! pub struct NoProbe;
//! ```
