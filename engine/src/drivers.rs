//! Engines that run in this process. Each has one line of the table; the engines live in files of their own.
//!
//! Facts of engines are in sheets, and code is in drivers ([decision 1](../../docs/decisions/0001-engine-sheet-and-driver.md)).

mod cuda;
mod llama_cpp;
mod native;

use std::path::Path;

pub use cuda::gpu;

pub use crate::model_file::ModelFile;
use crate::{Engine, Error};

/// Makes an engine with room for so many positions in a slot.
pub type StartEngine = fn(usize) -> Box<dyn Engine>;

/// Reads the facts of a file.
pub type DescribeFile = fn(&Path) -> Result<ModelFile, Error>;

/// An engine that the build lacks; the message is the remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{remedy}")]
pub struct NotBuilt {
    /// The command that builds it in.
    pub remedy: &'static str,
}

/// An engine of this process.
#[derive(Debug)]
pub struct EngineDriver {
    /// The name, which is that of its sheet.
    pub name: &'static str,
    /// Makes the engine with room for so many positions in a slot, or explains how to build it in.
    pub start: Result<StartEngine, NotBuilt>,
    /// Reads the facts of a file. Only for an engine that opens files by itself and runs no specs.
    pub describe: Option<DescribeFile>,
}

/// Every engine of this process, the default first.
pub static DRIVERS: [&EngineDriver; 3] = [&native::DRIVER, &cuda::DRIVER, &llama_cpp::DRIVER];
