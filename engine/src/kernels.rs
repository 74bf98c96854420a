//! Arithmetic on plain slices: what ops are made of.
//!
//! A kernel knows nothing of graphs or slots. The plain form of each stands beside its fast
//! one, and the same tests run over both.

pub mod attention;
pub mod choose;
pub mod delta;
mod finish;
pub mod math;
pub mod matmul;
pub mod q8;
pub mod round;
pub mod ssd;
#[cfg(test)]
mod testing;
pub mod tiles;
pub mod tokens;
pub mod wide;
