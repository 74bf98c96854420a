//! Proves that an engine computes the results of the reference code, or locates the first difference.
//!
//! [`dump`] reads the reference's results, and [`run`] runs an engine over the same tokens. [`metrics`]
//! measures the difference, and [`rule`] bounds it. [`check`](check::check) combines them into a
//! [`report::Report`], which can be written as text, JSON (`docs/report.md`), JUnit XML or a page.
//!
//! A check compares in two ways. Every op is run on the reference's own inputs and states, and must
//! reproduce the reference's output up to f32 rounding. Whole runs are compared with an ensemble of the
//! reference, which shows the effect of rounding on the model.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use onboard_parity::{CheckOptions, Dump, check};
//!
//! # fn run(source: &engine::ModelSource<'_>) -> Result<(), Box<dyn std::error::Error>> {
//! let dump = Dump::open(Path::new("checkpoints/mine/reference"))?;
//! let report = check(source, &dump, &CheckOptions::default())?;
//! println!("{}", onboard_parity::report::text(&report));
//! # Ok(())
//! # }
//! ```

pub mod beside;
pub mod bound;
pub mod cause;
pub mod check;
mod compare;
pub mod cost;
pub mod diagnose;
pub mod diff;
mod diverge;
pub mod dump;
pub mod edit;
mod error;
pub mod evals;
pub mod evidence;
pub mod fit;
mod flips;
pub mod gate;
mod hints;
pub mod html;
pub mod json;
pub mod junit;
mod kv_fp8;
pub mod limit;
mod mask_support;
pub mod matrix;
pub mod measure;
pub mod metrics;
pub mod mutate;
mod nextn_session;
pub mod op_error;
pub mod order;
mod places;
pub mod quantized;
pub mod record;
pub mod recorded_logprobs;
pub mod reference_script;
pub mod report;
pub mod route;
pub mod rule;
pub mod run;
pub mod schedules;

pub use check::{CheckOptions, Error, check, check_engine, check_schedules, of_layers};
pub use dump::Dump;
pub use gate::Verdict;
pub use report::Report;
