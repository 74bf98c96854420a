//! Source code for engines from specs.
//!
//! The program of a spec is written as it is, not unrolled: functions become methods of the modules whose weights they use, kinds of layers
//! become classes, dims become reads of config keys. What a target has is data: `registry/targets/NAME` ([`Target`]).
//! Reasons: [decision 114](../../docs/decisions/0114-code-from-programs.md).

mod arguments;
mod builtin;
mod classes;
mod comments;
mod file;
mod helpers;
mod layers;
mod layout;
mod loader;
mod operations;
mod places;
mod python;
mod scalars;
mod settings;
mod shapes;
mod size;
mod symbol;
mod target;
mod trunk;
mod value;
mod walk;

pub use file::{Code, compile};
pub use target::{OpSheet, Target};
