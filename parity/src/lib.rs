//! Proves that an engine computes what the reference code computes, or says where it does not.
//!
//! [`dump`] reads what the reference computed, [`run`] runs an engine over the same tokens,
//! [`metrics`] and [`tolerance`] say how far apart they are and how far they may be, and
//! [`check`](check::check) puts it together into a [`report::Report`], which is text, JSON
//! (`docs/report.md`), JUnit XML or a page.
//!
//! Two ideas carry it. A 16-bit run is judged against the noise that the reference's own
//! 16-bit run shows, so no tolerance is set per model. And every op is also run on the
//! reference's inputs, so that one wrong op is one finding and not a hundred.

pub mod check;
mod compare;
pub mod cost;
mod diverge;
pub mod dump;
mod eight;
mod fed;
mod flips;
pub mod gate;
mod hints;
pub mod html;
pub mod json;
pub mod junit;
pub mod metrics;
pub mod order;
pub mod recorded;
pub mod report;
pub mod route;
pub mod run;
pub mod schedules;
pub mod tolerance;

pub use check::{CheckOptions, Error, check, check_schedules};
pub use dump::Dump;
pub use gate::Verdict;
pub use report::Report;
