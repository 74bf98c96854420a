//! Launches of inference servers: the command, with a reason for each flag, in the forms of other programs.
//!
//! A [`PlannedLaunch`] is a sheet of `onboard-spec` applied to a model. [`text`] and [`json`] show it, [`systemd`],
//! [`compose`] and [`kubernetes`] format it for other programs, and [`verify`] compares it with a running server.

mod command;
mod containers;
mod error;
mod json;
mod plan;
mod show;
mod units;
mod verify;

pub use containers::{compose, kubernetes};
pub use error::LaunchError;
pub use json::json;
pub use plan::{EngineVersion, PlannedLaunch, parse_mib, read_settings};
pub use show::{message_text, refusal, text};
pub use units::systemd;
pub use verify::{SettingComparisons, verify};
