//! The GGUF format: a header of typed keys and tensor names, then the tensors' bytes, each padded.
//!
//! The reader holds a file to every rule that llama.cpp's loader has, and the writing half refuses to
//! lay out a file that would break one. What no rule forbids is let through as there: bytes
//! after the last tensor, or its padding missing.
//!
//! * [`File`] is one file, or the first of a split set with the others, mapped;
//! * [`Layout`] says where everything of a file will be before any of its data exists;
//! * [`split::layouts`] does so for a set of files.

pub mod companions;
pub mod error;
mod evidence;
pub mod file;
mod fused;
pub mod header;
pub mod layout;
pub mod metadata;
mod reader;
mod rules;
pub mod scalars;
pub mod split;
pub mod value;

pub use error::Error;
pub use evidence::evidence;
pub use file::File;
pub use fused::{Cut, Fused};
pub use header::Header;
pub use layout::{Declared, Dims, Layout};
pub use metadata::Metadata;
pub use value::{Array, Kind, Value};

use crate::codec::BlockType;

/// The version that is written. Version 2 reads the same way.
pub const VERSION: u32 = 3;
/// What tensors are padded to where no key says otherwise.
pub const ALIGNMENT: u64 = 32;
/// The key that says otherwise.
pub const ALIGNMENT_KEY: &str = "general.alignment";
/// Names of tensors have fewer bytes than this.
pub const MAX_NAME: usize = 64;
/// The most dimensions of a tensor.
pub const MAX_DIMS: usize = 4;
/// The longest text, and the most elements of an array.
pub const MAX_LENGTH: u64 = 1 << 30;

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its shape, row-major: the last number is the length of a row.
    pub shape: Vec<usize>,
    /// What its numbers are kept in.
    pub ty: BlockType,
    /// Which of the files it is in, counted from zero.
    pub file: usize,
    /// Where its bytes begin, counted from the beginning of that file.
    pub offset: u64,
    /// How many bytes it takes, padding apart.
    pub bytes: u64,
}

impl TensorInfo {
    /// How many numbers it holds.
    pub fn elements(&self) -> u64 {
        // Innermost first, the order in which it was checked: after a zero nothing overflows.
        self.shape.iter().rev().map(|&dim| dim as u64).product()
    }
}
