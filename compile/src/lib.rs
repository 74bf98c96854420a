//! Source code for engines from specs.
//!
//! The program of a spec is written as it is, not unrolled: functions become methods of the modules whose weights they use, kinds of layers
//! become classes, dims become reads of config keys. What a target has is data: `registry/targets/NAME` ([`Target`]).
//! Reasons: [decision 114](../../docs/decisions/0114-code-from-programs.md).
//!
//! ```
//! use onboard_compile::{ConfigTexts, Target, compile};
//! use registry::library::Library;
//! use registry::ops::OpSet;
//!
//! # fn main() -> Result<(), Vec<registry::diag::Finding>> {
//! let library = Library::builtin();
//! let target = Target::builtin("torch")?;
//! # let config = registry::config::Config::read(std::path::Path::new("../fixtures/llama/config.json")).map_err(|one| vec![one])?;
//! # let name = library.find(&config).remove(0);
//! let spec = library.load(&name, &[])?;
//! let code = compile(&spec, &OpSet::builtin(), &target, &ConfigTexts::default())?;
//! assert!(code.text.contains("class "));
//! # Ok(())
//! # }
//! ```

mod arguments;
mod base;
mod bodies;
mod builtin;
mod checkpoint;
mod classes;
mod comments;
mod conditions;
mod cpp;
mod cpp_code;
mod cpp_expression;
mod cpp_layout;
mod cpp_methods;
mod cpp_types;
mod division;
mod file;
mod functions;
mod helpers;
mod joined;
mod layers;
mod layout;
mod lent;
mod loader;
mod loops;
mod modules;
mod operations;
mod page;
mod places;
mod python;
mod scalars;
mod settings;
mod shapes;
mod size;
mod states;
mod symbol;
mod target;
mod trunk;
mod value;
mod walk;
mod words;

pub use checkpoint::ConfigTexts;
pub use file::{Code, compile};
pub use target::{Layout, OpSheet, Target};
