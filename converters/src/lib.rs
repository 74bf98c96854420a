//! Tensors in files: safetensors, sharded checkpoints, weight maps, number formats.
//!
//! What a file says is never trusted: every length, offset and name is checked
//! before it is used, and each way a file can lie has its own error.
//!
//! * [`checkpoint::Checkpoint`] is a folder (or one file) of weights, mapped on demand;
//! * [`safetensors`] reads headers strictly and writes files as a stream;
//! * [`weights::Weights`] pairs the weights a model wants with the tensors a checkpoint has;
//! * [`gguf`] reads GGUF files and lays out new ones; [`codec`] holds their block formats;
//! * [`convert`] writes files from plans, in one pass and bounded memory;
//! * [`flow`] reads tensors piece by piece through the steps of a weight map;
//! * [`imatrix`] reads how much each input of a weight matters;
//! * [`mix`] chooses the type of each tensor of a quantized file;
//! * [`tokenizer`] writes tokenizers as keys of GGUF files, and checks what they will do;
//! * [`numbers`] widens to f32 and rounds back;
//! * [`output`] gives finished files their names;
//! * [`random`] writes checkpoints of any size, for measurements and trials.

pub mod checkpoint;
pub mod codec;
pub mod convert;
pub mod flow;
pub mod gguf;
pub mod imatrix;
pub mod load;
pub mod mix;
pub mod mmap;
pub mod numbers;
pub mod output;
pub mod python_json;
pub mod random;
pub mod safetensors;
pub mod tokenizer;
pub mod weights;

pub use checkpoint::{Checkpoint, TensorInfo};
pub use load::WeightView;
pub use safetensors::FileDtype;

/// Makes text from a file safe to show: control characters escaped, the middle of long text left out.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 160;
    let escape =
        |part: String| part.escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'");
    let count = text.chars().count();
    if count <= MOST {
        return escape(text.to_owned());
    }
    let head: String = text.chars().take(MOST / 2).collect();
    let tail: String = text.chars().skip(count - MOST / 2).collect();
    format!("{} ... {}", escape(head), escape(tail))
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
