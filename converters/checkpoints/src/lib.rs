//! Checkpoints: folders of weights, their quantization schemes, and the steps of weight maps.
//!
//! * [`Checkpoint`] is a folder or one file of weights, mapped on demand;
//! * [`weights::CheckpointWeights`] pairs the weights that a model declares with the tensors of a checkpoint;
//! * [`GgufWeights`] does so for a GGUF file;
//! * [`flow`] reads tensors piece by piece through the steps of a weight map;
//! * [`random`] writes checkpoints of any size, for measurements and trials.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use onboard_checkpoints::Checkpoint;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let checkpoint = Checkpoint::open(Path::new("checkpoints/mine"))?;
//! for (name, tensor) in checkpoint.tensors() {
//!     println!("{name} {:?} {:?}", tensor.dtype, tensor.shape);
//! }
//! # Ok(())
//! # }
//! ```

pub mod checkpoint;
pub mod flow;
mod gguf_names;
pub mod gguf_weights;
pub mod integers;
pub mod load;
pub mod random;
pub mod weights;

pub use checkpoint::{Checkpoint, TensorInfo};
pub use gguf_names::own_names;
pub use gguf_weights::GgufWeights;
pub use load::WeightView;
