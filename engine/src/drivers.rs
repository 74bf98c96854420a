//! Engines that run in this process. One line of the table each; what an engine is lies in its own files.

mod llama_cpp;
mod native;

use std::path::Path;

use registry::model::Model;

use crate::{Engine, Error};

/// Makes an engine with room for so many positions in a slot.
pub type Start = fn(usize) -> Box<dyn Engine>;

/// Reads the facts of a file.
pub type Describe = fn(&Path) -> Result<File, Error>;

/// An engine of this process.
#[derive(Debug)]
pub struct Driver {
    /// The name, which is that of its sheet.
    pub name: &'static str,
    /// Makes the engine with room for so many positions in a slot; or says how to build it in.
    pub start: Result<Start, &'static str>,
    /// Reads the facts of a file. Only for an engine that opens files by itself and runs no specs.
    pub describe: Option<Describe>,
}

/// Facts of a file, as the engine that opens it sees them.
#[derive(Debug, Clone, PartialEq)]
pub struct File {
    /// The architecture, the vocabulary and the context; the graph is empty where the engine does not show
    /// the one it builds.
    pub model: Model,
    /// True if all numbers are stored in 32 bits, so that only arithmetic can differ.
    pub wide: bool,
}

/// Every engine of this process, the default first.
pub static DRIVERS: [&Driver; 2] = [&native::DRIVER, &llama_cpp::DRIVER];
