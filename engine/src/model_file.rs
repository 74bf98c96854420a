//! Facts of a model file that an engine opens by itself.

use registry::model::Model;

/// Facts of a file, as the engine that opens it sees them.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFile {
    /// The architecture, the vocabulary and the context; the graph is empty where the engine does not show
    /// the one it builds.
    pub model: Model,
    /// True if all numbers are stored in 32 bits, so that only arithmetic can differ.
    pub f32_weights: bool,
}
