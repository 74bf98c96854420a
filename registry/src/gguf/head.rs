//! The `nextn` head in a file: layers behind those of the model.

use super::{Evidence, Gguf};
use crate::check::head_weights;
use crate::graph::Weight;
use crate::model::Model;
use crate::scalar::Scalar;

/// The key that counts the head's layers among those of the file.
const COUNT: &str = "nextn_predict_layers";

/// The file of a model with its head, and the weights of both; none if the spec leaves heads out.
pub fn with_head(model: &Model) -> Option<(Gguf, Vec<Weight>)> {
    let gguf = model.nextn.as_ref()?.gguf.clone()?;
    let weights = model.graph.weights.iter().chain(head_weights(model));
    Some((gguf, weights.cloned().collect()))
}

/// The file of a model as a file that is there has it: with the head if that counts one, and with
/// the head's weights if any of them is there. Some programs count it and leave it out.
pub fn of_file(model: &Model, told: &Evidence) -> Option<(Gguf, Vec<Weight>)> {
    let plain = || Some((model.gguf.clone()?, model.graph.weights.clone()));
    let Some((gguf, weights)) = with_head(model).filter(|_| ahead(told) > 0) else {
        return plain();
    };
    let head = gguf.groups(&weights[model.graph.weights.len()..]).unwrap_or_default();
    let mut tensors = head.iter().flat_map(|group| &group.tensors);
    if tensors.any(|(name, _)| told.tensors.contains_key(name)) {
        return Some((gguf, weights));
    }
    Some((gguf, model.graph.weights.clone()))
}

/// How many layers of a file are those of a head.
fn ahead(told: &Evidence) -> i64 {
    match told.keys.peek(COUNT) {
        Some(Scalar::Int(count)) => *count,
        _ => 0,
    }
}

/// What a file tells of the layers of the model alone.
pub(super) fn trunk(told: &Evidence) -> Evidence {
    let mut trunk = told.clone();
    if let (count @ 1.., Some(Scalar::Int(all))) = (ahead(told), told.keys.peek("block_count")) {
        trunk.keys.replace("block_count", Scalar::Int(all.saturating_sub(count)));
    }
    trunk
}
