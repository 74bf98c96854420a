//! The GGUF format: a header of typed keys and tensor names, then the tensors' bytes, each padded.
//!
//! The reader checks a file against every rule of llama.cpp's loader, and the writer refuses to lay out a
//! file that breaks one. Files that no rule forbids are accepted, as in llama.cpp: bytes after the last
//! tensor, or missing padding after it.
//!
//! * [`GgufFile`] is one file, or the first of a split set with the others, mapped;
//! * [`GgufLayout`] computes the offset of everything in a file before any of its data exists;
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
mod show;
mod show_json;
pub mod split;
pub mod value;

pub use error::Error;
pub use evidence::evidence;
pub use file::GgufFile;
pub use fused::{FusedPart, FusedTensor};
pub use header::GgufHeader;
pub use layout::{DimsStyle, GgufLayout, GgufTensorSpec};
pub use metadata::Metadata;
pub use show::{GgufSections, show_text};
pub use show_json::show_json;
pub use value::{MetadataArray, MetadataKind, MetadataValue};

use crate::codec::BlockType;

/// Version that is written. Version 2 reads the same way.
pub const VERSION: u32 = 3;
/// Default alignment of tensors.
pub const ALIGNMENT: u64 = 32;
/// Key that overrides the alignment.
pub const ALIGNMENT_KEY: &str = "general.alignment";
/// Upper bound on the bytes of a tensor name (exclusive).
pub const MAX_NAME: usize = 64;
/// Maximum number of dimensions of a tensor.
pub const MAX_DIMS: usize = 4;
/// Maximum length of a text, and of an array.
pub const MAX_LENGTH: u64 = 1 << 30;

/// Tensor of a file, without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufTensor {
    /// Name of the tensor.
    pub name: String,
    /// Row-major shape: the last dimension is the length of a row.
    pub shape: Vec<usize>,
    /// Type of the tensor.
    pub ty: BlockType,
    /// Index of its file, counted from zero.
    pub file: usize,
    /// Offset of its bytes from the beginning of that file.
    pub offset: u64,
    /// Size in bytes, without padding.
    pub bytes: u64,
}

impl GgufTensor {
    /// Returns the number of values.
    pub fn elements(&self) -> u64 {
        // Innermost first, the order of the overflow check: after a zero nothing overflows.
        self.shape.iter().rev().map(|&dim| dim as u64).product()
    }
}
