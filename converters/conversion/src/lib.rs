//! Writes models in other formats, in one pass and bounded memory.
//!
//! Everything is planned before any tensor is read: a [`Work`] has the files with their headers and
//! lengths, and [`Task`]s. A task maps the rows of a [`Flow`](checkpoints::flow::Flow) to target files and
//! encodings. [`run`](run::run) cuts the tasks into slabs of rows. Every worker reads a slab once, encodes
//! it for each of its targets and writes the bytes at their final offset. Memory is therefore workers times
//! slab, whatever the model's size, and the bytes do not depend on the number of workers.
//!
//! Files are written as `<name>.part` beside their final path, with a journal of finished slabs. They are
//! renamed together, once all of them are written and read back: see [`run::run`].
//!
//! ```no_run
//! use onboard_conversion::mix::{MixFacts, MixTarget, MixTensor, Overrides, assign};
//! use formats::codec::BlockType;
//!
//! # fn main() -> Result<(), onboard_conversion::mix::Error> {
//! let tensor =
//!     MixTensor { name: "blk.0.ffn_down.weight", shape: &[512, 2048], base: BlockType::Bf16 };
//! let facts = MixFacts { layers: 1, ..MixFacts::default() };
//! let chosen = assign(MixTarget::parse("q4_k_m")?, &[tensor], &facts, &Overrides::default())?;
//! println!("{:?}: {}", chosen[0].ty, chosen[0].why);
//! # Ok(())
//! # }
//! ```

pub mod blocks;
mod factors;
pub mod folder;
pub mod gguf;
pub mod hashes;
pub mod journal;
pub mod measure;
pub mod mix;
pub mod peaks;
pub mod run;
pub mod work;

pub use journal::Journal;
pub use measure::Measure;
pub use run::{ConversionResult, Error, Progress, RunOptions, compare, run};
pub use work::{Encode, EncodeError, OutFile, OutFolder, SideFile, Task, TaskTarget, Work};
