//! The engine on small graphs built by hand.

mod build;
mod fixtures;
mod laws;
mod ops;
