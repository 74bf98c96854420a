//! Benchmarks: tokens per second of prefill and decode, in rows like those of other bench tools.
//!
//! [`BenchGrid`] lists the tests, [`measure()`] times them on a session in turn with other programs ([`PeerChoice`]), and
//! [`render`] formats the rows. [`DraftComparison`] measures drafts of a model's own head.

mod draft;
mod error;
mod measure;
mod peers;
mod plan;
mod table;

pub use draft::DraftComparison;
pub use error::BenchError;
pub use measure::{NamedPeer, measure, spread_tokens};
pub use peers::{BenchPeer, PeerChoice, PeerSetting};
pub use plan::{BenchGrid, BenchSubject, BenchTest, parse_count, parse_pair, parse_tokens};
pub use table::{BenchForm, BenchRow, BenchSamples, render};
