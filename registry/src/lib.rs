//! Model descriptions: specs, the expression language, and the resolved model.
//!
//! This crate is data and checks only. It reads YAML and `config.json`, and
//! knows shapes and dtypes, but no tensor ever passes through it.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use onboard_spec::config::Config;
//! use onboard_spec::library::Library;
//! use onboard_spec::ops::OpSet;
//! use onboard_spec::resolve::resolve;
//!
//! # fn main() -> Result<(), Vec<onboard_spec::diag::Finding>> {
//! let config = Config::read(Path::new("checkpoints/mine/config.json")).map_err(|one| vec![one])?;
//! let library = Library::builtin();
//! if let [name, ..] = library.find(&config)[..] {
//!     let spec = library.load(name, &[])?;
//!     let (model, _warnings) = resolve(&spec, &config, &OpSet::builtin())?;
//!     println!("{name}: {} weights", model.graph.weights.len());
//! }
//! # Ok(())
//! # }
//! ```

pub mod alias;
pub mod attention_modules;
pub mod check;
pub mod config;
pub mod diag;
pub mod dtype;
pub mod engines;
pub mod eval;
pub mod file;
pub mod formats;
pub mod gguf;
pub mod gguf_head;
pub mod gguf_match;
pub mod graph;
pub mod image;
pub mod layer_choice;
mod layer_part;
pub mod library;
pub mod lint;
pub mod listing;
pub mod model;
pub mod model_json;
pub mod ngram;
pub mod normal;
pub mod op;
pub mod ops;
pub mod parse;
pub mod print;
pub mod quant;
pub mod quantity;
pub mod reference;
pub mod render;
pub mod resolve;
pub mod rope;
pub mod scalar;
pub mod schema;
pub mod sheet;
pub mod shell;
pub mod spec;
pub mod suggest;
pub mod syntax;
pub mod table;
pub mod text;
pub mod weight_map;
pub mod yaml;

mod builder;
mod builtin;
mod extend;
mod lexer;
pub mod wrapper;
