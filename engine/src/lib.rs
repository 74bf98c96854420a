//! Runs models: executor, ops, states, and the seam other engines plug into.
//!
//! An [`Engine`] opens a model and hands out a [`Session`]; a session has slots (one sequence
//! each) and one verb, [`Session::step`], that takes any mix of prefill and decode chunks.
//! `fork`, `truncate`, `save` and `restore` work on slots; batching, prefix reuse and
//! speculative rollback are built from these, so parity can test each of them.
//!
//! The native engine carries every value in f32 and rounds it to the grid of its dtype where
//! the graph says so: 16-bit runs follow the reference's rounding while kernels stay simple.

pub mod angles;
pub mod capability;
pub mod child;
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
mod finite;
mod native;
mod session;

pub use error::Error;
pub use native::NativeEngine;
pub use session::{
    BlockArithmetic, Chunk, Engine, InputObserver, InputRounding, Logits, ModelSource, NoProbe,
    OutputRows, Probe, Session, SessionFeatures, SessionOptions, ShownParts, SlotId, StateValue,
};
