//! Proves that an engine computes what the reference code computes, or says where it does not.
//!
//! [`dump`] reads what the reference computed, [`run`] runs an engine over the same tokens,
//! [`metrics`] and [`rule`] say how far apart they are and how far they may be, and
//! [`check`](check::check) puts it together into a [`report::Report`], which is text, JSON
//! (`docs/report.md`), JUnit XML or a page.
//!
//! Two ideas carry it. Every op is run on the reference's own inputs and states, where it has to give
//! the reference's numbers, but for what rounding in f32 explains. And whole runs are compared with an
//! ensemble of the reference, which shows what rounding makes of a model.

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
mod eight;
mod error;
pub mod evals;
pub mod evidence;
mod fed;
pub mod fit;
mod flips;
pub mod gate;
mod hints;
pub mod html;
pub mod json;
pub mod junit;
pub mod matrix;
pub mod measure;
pub mod measured;
pub mod metrics;
pub mod mutate;
pub mod order;
mod places;
pub mod record;
pub mod recorded;
pub mod report;
pub mod route;
pub mod rule;
pub mod run;
pub mod schedules;

pub use check::{CheckOptions, Error, check, check_schedules};
pub use dump::Dump;
pub use gate::Verdict;
pub use report::Report;
