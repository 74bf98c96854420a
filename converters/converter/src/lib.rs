//! Converts opened models: to GGUF files, and to checkpoints that serving engines load.
//!
//! [`convert`] takes a model that `onboard-models` opened and [`ConvertOptions`]. It plans files with `onboard-conversion`,
//! chooses the types of tensors, and writes everything in one pass. Two steps run the model itself. A divergence goal
//! ([`GoalOptions`]) finds the types that keep the outputs near those of a reference, and a calibration
//! ([`CalibrationOptions`]) measures scales on a text. [`verify`] compares written files with the model that they were made of,
//! and [`compare_hashes`] with the hashes beside them. [`measure_importance`] makes an importance matrix.
//!
//! The library never prints. A [`ConversionObserver`] gets remarks, results and progress; `()` is the silent one.
//!
//! ```
//! use std::path::Path;
//!
//! use models::open::{OpenOptions, open};
//! use models::specs::Specs;
//! use onboard_converter::{ConvertOptions, convert};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let checkpoint = Path::new("../../fixtures/lfm2_256");
//! let output = folder.path().join("model.gguf");
//! let opened = open(checkpoint, &mut Specs::builtin(), &OpenOptions::default())?;
//! let options = ConvertOptions::new("gguf:q4_k_m", &output);
//! let converted = convert(&opened.target, &options, &())?;
//! assert!(converted.files.contains(&output) && output.is_file());
//! # Ok(())
//! # }
//! ```

mod calibration;
mod chunked_text;
mod convert;
mod deviations;
mod draft;
mod engine_keys;
mod error;
mod folder;
mod folder_plan;
mod folder_verify;
mod format;
mod gguf_model;
mod gguf_source;
mod goal;
mod imatrix;
mod line_journal;
mod loaded_files;
mod measured;
mod merged_set;
mod observer;
mod options;
mod outcome;
mod output;
mod raise;
mod run;
mod set_id;
mod show_plan;
mod summary;
mod trial_folder;
mod verified;
mod written_keys;

pub use chunked_text::reference_tokenizer;
pub use convert::{convert, verify};
pub use deviations::{TensorDeviation, deviations};
pub use engine_keys::compat_config;
pub use error::Error;
pub use format::GgufFormat;
pub use imatrix::{ImatrixOptions, join_importance, measure_importance};
pub use line_journal::LineJournal;
pub use merged_set::{CompleteSet, complete_set};
pub use observer::ConversionObserver;
pub use options::{
    CalibrationOptions, ConvertOptions, GoalOptions, MeasuringDevice, PeerRoute, TypeOptions,
};
pub use outcome::ConversionOutcome;
pub use output::refuse_existing;
pub use verified::{VerifiedFiles, compare_hashes, hashes_path, read_fault};
