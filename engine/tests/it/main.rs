//! The engine on small graphs built by hand.

mod build;
mod laws;
