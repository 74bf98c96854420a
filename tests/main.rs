//! End-to-end tests: the rules of the repository, and the commands as typed by a user.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

mod bench;
mod bench_serve;
mod bindings;
mod block_types;
mod book;
mod calibrated;
mod chat;
mod commands;
mod conversation;
mod decisions;
mod doors;
mod drafts;
mod dumps;
mod engines;
mod evals;
mod fake_hub;
mod finite;
mod foreign;
mod formats;
mod front;
mod gguf_source;
mod guards;
mod hub;
mod idle;
mod imatrix;
#[cfg(unix)]
mod jobs;
mod kill;
mod launch;
mod layering;
mod layers;
mod matrix;
mod misfits;
mod names;
mod nvfp4;
mod op_names;
mod op_pages;
mod overwrite;
mod parts;
mod plan;
mod plugin;
mod prose;
mod quant;
mod raised;
mod rounded;
mod shapes;
mod signatures;
mod tool;
mod type_names;
mod unhashed;
mod unproven;
mod verify;
mod writes;
