//! The engine on small graphs built by hand.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod build;
mod laws;
mod new_op;
mod ops;
mod recurrence;
mod streams;
