//! The `nextn` head in a file: layers behind those of the model.
//!
//! llama.cpp numbers them so ([decision 19](../../docs/decisions/0019-heads-as-extra-layers.md)).

use crate::check::head_weights;
use crate::gguf::head::head_layers;
use crate::gguf::{FileMetadata, Gguf};
use crate::graph::Weight;
use crate::model::Model;

/// Returns the file of a model with its head, and the weights of both; none if the spec leaves heads out.
pub fn with_head(model: &Model) -> Option<(Gguf, Vec<Weight>)> {
    let gguf = model.nextn.as_ref()?.gguf.clone()?;
    let weights = model.graph.weights.iter().chain(head_weights(model));
    Some((gguf, weights.cloned().collect()))
}

/// Returns the file of a model in the form of an existing file. The head is included if the file counts one,
/// and its weights if the file has any of them. Some programs count the head and leave it out.
pub fn of_file(model: &Model, header: &FileMetadata) -> Option<(Gguf, Vec<Weight>)> {
    let Some((gguf, weights)) = with_head(model).filter(|_| head_layers(header) > 0) else {
        return Some((model.gguf.clone()?, model.graph.weights.clone()));
    };
    let head = gguf.groups(&weights[model.graph.weights.len()..]).unwrap_or_default();
    let mut tensors = head.iter().flat_map(|group| &group.tensors);
    if tensors.any(|(name, _)| header.tensors.contains_key(name)) {
        return Some((gguf, weights));
    }
    Some((gguf, model.graph.weights.clone()))
}
