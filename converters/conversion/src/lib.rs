//! Writing models in other formats, in one pass and bounded memory.
//!
//! Everything is known before a number is read: a [`Work`] has the files with their headers and
//! lengths, and [`Task`]s that say which rows of which [`Flow`](checkpoints::flow::Flow) go where as
//! what. [`run`](run::run) cuts the tasks into slabs of rows, and every worker reads a slab
//! once, encodes it for each of its targets and writes the bytes at their final place. So
//! memory is workers times slab, whatever the model's size, and the bytes do not depend on how
//! many workers there are.
//!
//! Files are written beside their place as `<name>.part` with a journal of finished slabs. They get
//! their names together, when all of them are there and were read back: see [`run::run`].

pub mod folder;
pub mod gguf;
pub mod journal;
pub mod measure;
pub mod mix;
mod peaks;
pub mod run;
pub mod work;

pub use journal::Journal;
pub use measure::Measure;
pub use run::{Done, Error, Progress, Settings, run, size};
pub use work::{Encode, Folder, OutFile, SideFile, Target, Task, Work};
