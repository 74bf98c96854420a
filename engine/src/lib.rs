//! Runs models: executor, ops, states, and the seam other engines plug into.
//!
//! An [`Engine`] opens a model and hands out a [`Session`]; a session has slots (one sequence
//! each) and one verb, [`Session::step`], that takes any mix of prefill and decode chunks.
//! `fork`, `truncate`, `save` and `restore` work on slots; batching, prefix reuse and
//! speculative rollback are built from these, so parity can test each of them.
//!
//! The native engine carries every value in f32 and rounds it to the grid of its dtype where
//! the graph says so: 16-bit runs follow the reference's rounding while kernels stay simple.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use onboard_engine::{Chunk, Engine as _, ModelSource, NativeEngine, NoProbe, OutputRows, SessionOptions};
//!
//! # fn run(model: registry::model::Model) -> Result<(), onboard_engine::Error> {
//! let source = ModelSource { model: Arc::new(model), dir: Path::new("checkpoints/mine") };
//! let mut session = NativeEngine::new().open(&source, &SessionOptions::default())?;
//! let slot = session.open_slot();
//! let chunk = Chunk { slot, tokens: &[1, 5, 9], rows: OutputRows::Last };
//! let logits = session.step(&[chunk], &mut NoProbe)?;
//! println!("{} rows of {:?}", logits[0].rows, logits[0].row(0).len());
//! # Ok(())
//! # }
//! ```

pub mod angles;
pub mod bench;
pub mod capability;
pub mod catalog;
pub mod child;
pub mod device;
pub mod draft;
pub mod drivers;
pub mod importance;
pub mod kernels;
#[cfg(feature = "llama-cpp")]
pub mod llama_cpp;
pub mod mixed;
mod model_file;
pub mod ops;
pub mod peaks;
pub mod rewrite;
pub mod sample;
pub mod states;
pub mod value;
pub mod weights;

mod error;
mod exec;
mod feature;
mod finite;
mod given;
mod given_rows;
mod masks;
mod memory;
mod native;
mod parts;
mod rows_session;
mod session;
mod step_rows;

pub use error::{DeviceError, Error};
pub use given::{ChunkGiven, refuse_rows};
pub use given_rows::GivenRows;
pub use masks::{ChunkMask, ExtraInputs, refuse_documents, refuse_prefix, refuse_spans};
pub use memory::keep_freed_memory;
pub use native::NativeEngine;
pub use rows_session::RowsSession;
pub use session::{
    Chunk, Engine, InputObserver, InputRounding, Logits, ModelSource, NoProbe, OutputRows, Probe,
    ProductArithmetic, Session, SessionFeatures, SessionOptions, ShownParts, SlotId, StateValue,
};
