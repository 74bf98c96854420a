//! File formats of tensors: strict readers, writers, and the number formats in them.
//!
//! No length, offset or name in a file is trusted: each is checked before use, and each kind of malformed
//! file has its own error.
//!
//! * [`safetensors`] reads headers strictly and writes files as a stream;
//! * [`gguf`] reads GGUF files and lays out new ones;
//! * [`codec`] holds the block formats of GGUF files, [`numbers`] the plain number formats;
//! * [`imatrix`] reads and writes importance matrices;
//! * [`output`] creates files and renames them when they are complete;
//! * [`mmap`] maps files.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use onboard_formats::gguf::GgufFile;
//!
//! # fn main() -> Result<(), onboard_formats::gguf::Error> {
//! let file = GgufFile::open(Path::new("model.gguf"))?;
//! println!("{:?}", file.metadata().str("general.architecture")?);
//! for tensor in file.tensors() {
//!     println!("{} {:?} {:?}", tensor.name, tensor.ty, tensor.shape);
//! }
//! # Ok(())
//! # }
//! ```

pub mod codec;
pub mod gguf;
pub mod imatrix;
pub mod mmap;
pub mod numbers;
pub mod output;
pub mod python_json;
pub mod safetensors;

pub use safetensors::FileDtype;

use registry::listing;

/// Escapes control characters in text from a file and shortens long text, so that it is safe to show.
pub fn shown(text: &str) -> String {
    escaped(&listing::shortened(text, listing::QUOTED))
}

/// Returns the text with control characters escaped, and quotes as they are.
fn escaped(text: &str) -> String {
    text.escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'")
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_shown_without_their_control_characters() {
        assert_eq!(super::shown("a.b"), "a.b");
        assert_eq!(super::shown("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert!(super::shown(&"x".repeat(100_000)).len() < 200);
    }
}
