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
//! ```
//! use std::path::Path;
//!
//! use engine::ModelSource;
//! use models::open::{OpenOptions, open};
//! use models::specs::Specs;
//! use onboard_parity::{CheckOptions, Dump, Verdict, check};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = Path::new("../fixtures/llama");
//! let opened = open(dir, &mut Specs::builtin(), &OpenOptions::default())?;
//! let source = ModelSource { model: opened.target.model, dir };
//! let dump = Dump::open(&dir.join("reference"))?;
//! let report = check(&source, &dump, &CheckOptions::default())?;
//! assert_eq!(report.verdict(), Verdict::Pass);
//! assert_eq!(report.unproven(), None);
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
pub mod op_error;
pub mod order;
mod places;
mod prompt_session;
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
