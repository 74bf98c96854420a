//! The safetensors format: an 8-byte length, a JSON header, and the tensors' bytes.
//!
//! The reader is stricter than most: names occur once, offsets are in order without holes or
//! overlaps, sizes follow from shapes, and the file is exactly as long as its header says.

pub mod dtype;
pub mod error;
pub mod header;
mod json;
pub mod read;
pub mod write;

pub use dtype::FileDtype;
pub use error::Error;
pub use header::{SafetensorsHeader, TensorEntry};
pub use read::SafetensorsFile;
pub use write::{TensorSpec, Writer};

/// Maximum length of a header, the limit of the format's reference implementation.
pub const MAX_HEADER: u64 = 100 << 20;
