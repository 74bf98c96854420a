//! The engine on small graphs built by hand, and on every fixture.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod build;
mod drafts;
mod fixtures;
mod laws;
mod new_op;
mod ops;
mod recurrence;
mod seeds;
mod streams;
