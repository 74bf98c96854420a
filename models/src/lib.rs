//! Opens checkpoints and GGUF files as resolved models.
//!
//! * [`specs::Specs`] holds the built-in specs and those of folders, and finds the one that matches a
//!   [`config::ConfigFile`];
//! * [`open::open`] opens a folder, a safetensors file or a GGUF file as a [`local_model::LocalModel`];
//! * [`coverage::TensorCoverage`] pairs the weights of a model with the tensors of a checkpoint;
//! * [`add::add`] opens a checkpoint with a spec that matches, or drafts one with [`draft::draft`].
//!
//! Warnings are returned as values, and an [`Error`] holds the findings that caused it. A folder of the
//! checkpoint must be local; the caller fetches models from hubs.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use onboard_models::coverage::TensorCoverage;
//! use onboard_models::open::{OpenOptions, open};
//! use onboard_models::specs::Specs;
//!
//! # fn main() -> Result<(), onboard_models::Error> {
//! let mut specs = Specs::builtin();
//! let target = open(Path::new("checkpoints/mine"), &mut specs, &OpenOptions::default())?.target;
//! let coverage = TensorCoverage::of(&target.model, &target.checkpoint()?);
//! println!("{}: {}", target.spec.name, coverage.summary());
//! # Ok(())
//! # }
//! ```

pub mod add;
pub mod config;
pub mod coverage;
pub mod draft;
mod error;
mod folder;
pub mod gguf;
pub mod local_model;
pub mod open;
mod opened;
pub mod plugin;
pub mod spec_text;
pub mod specs;
pub mod tiny;

pub use error::{Error, FindingSubject};
pub use folder::{CheckpointFolder, folder, is_gguf};
