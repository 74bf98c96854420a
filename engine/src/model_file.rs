//! Facts of a model file that an engine opens by itself.

use formats::codec::BlockType;
use formats::gguf::{self, GgufFile, GgufTensor};
use registry::model::Model;

/// The key that says what a file holds.
pub(crate) const ARCHITECTURE: &str = "general.architecture";

/// Facts of a file, as the engine that opens it sees them.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFile {
    /// The architecture, the vocabulary and the context; the graph is empty where the engine does not show
    /// the one it builds.
    pub model: Model,
    /// True if all numbers are stored in 32 bits, so that only arithmetic can differ.
    pub f32_weights: bool,
}

impl ModelFile {
    /// Reads a GGUF file's facts. Its vocabulary and its context are known otherwise.
    pub fn of_gguf(
        file: &GgufFile,
        vocab: usize,
        context: Option<usize>,
    ) -> Result<Self, gguf::Error> {
        let keys = file.metadata();
        let architecture = keys.str(ARCHITECTURE)?.unwrap_or_default().to_owned();
        let name = keys.str("general.name")?.unwrap_or(&architecture).to_owned();
        let wide = |tensor: &GgufTensor| matches!(tensor.ty, BlockType::F32 | BlockType::I32);
        Ok(Self {
            model: Model::opaque(name, architecture, vocab, context),
            f32_weights: file.tensors().iter().all(wide),
        })
    }
}
