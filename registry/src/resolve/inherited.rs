//! Checks that an inherited architecture name still names the model.
//!
//! The spec that wrote `gguf: arch:` is resolved twice: with the same config, and with the config that
//! the file's own keys give back. If either gives the same graph, a reader of the file computes the
//! same model. Otherwise the first difference is reported.
//!
//! An architecture name means a graph ([decision 21](../../../docs/decisions/0021-architecture-name-is-a-graph.md)).

use std::collections::{BTreeMap, BTreeSet};

use super::resolve;
use crate::config::Config;
use crate::diag::Finding;
use crate::gguf::FileMetadata;
use crate::gguf::compare::{LabeledGraph, OpDifference, differences};
use crate::gguf::config::{KeyTree, config_of};
use crate::gguf::{Gguf, TensorGroup};
use crate::gguf_head::with_head;
use crate::model::Model;
use crate::ops::OpSet;
use crate::scalar::Scalar;
use crate::spec::{ArchOwner, Spec};

/// Returns a warning if the model is not the one that the owner of its architecture name describes.
pub(crate) fn owner_difference(
    model: &Model,
    owner: &ArchOwner,
    config: &Config,
    ops: &OpSet,
) -> Option<Finding> {
    let (gguf, weights) = with_head(model).or_else(|| {
        let gguf = model.gguf.clone()?;
        Some((gguf, model.graph.weights.clone()))
    })?;
    let difference = match (&owner.spec, gguf.groups(&weights)) {
        (Some(spec), Ok(groups)) => first(model, &gguf, &groups, spec, config, ops)?,
        // A weight that the owner's file has no tensor for.
        (Some(_), Err(faults)) => whole_difference(model, faults.first()?.to_string())?,
        (None, _) => {
            let text = format!("`{}` is no complete spec and describes no model", owner.name);
            whole_difference(model, text)?
        }
    };
    let arch = &gguf.arch;
    let message = if owner.name == model.name {
        format!("overrides make `{}` another model than `arch: {arch}` names", model.name)
    } else {
        format!(
            "`{}` inherits `arch: {arch}` from `{}` and computes another model",
            model.name, owner.name
        )
    };
    let help = format!(
        "llama.cpp would run such a GGUF file as the other model. Under `gguf:` write an `arch:` of its own, or `gguf: ~` if \
         llama.cpp has none; write `arch: {arch}` again only if keys of the file say the difference and llama.cpp reads them"
    );
    Some(Finding::error(&difference.at, message).label(difference.text).help(help).warning())
}

/// Returns a difference of the models as wholes, placed at the first node.
fn whole_difference(model: &Model, text: String) -> Option<OpDifference> {
    Some(OpDifference { node: 0, at: model.graph.nodes.first()?.at.clone(), text })
}

/// Returns the first difference; none if the owner makes the same model of the config or of the file.
fn first(
    model: &Model,
    gguf: &Gguf,
    groups: &[TensorGroup],
    owner: &Spec,
    config: &Config,
    ops: &OpSet,
) -> Option<OpDifference> {
    let (by_config, refused) = match resolve(owner, &config.clone(), ops) {
        Ok((other, _)) => {
            let differences = between(model, &other, &owner.name.name, ops);
            if differences.is_empty() && has_all_keys(gguf, &other) {
                return None;
            }
            (differences, None)
        }
        Err(findings) => (Vec::new(), findings.into_iter().next()),
    };
    let header = file_metadata(gguf, groups);
    let from_file = config_of(owner, &header);
    let by_file = match from_file.and_then(|config| resolve(owner, &config, ops)) {
        Ok((other, _)) => Some(between(model, &other, &owner.name.name, ops)),
        Err(_) => None,
    };
    match &by_file {
        Some(differences) if differences.is_empty() => None,
        // A setting that keys of the file carry differs by the config alone; one that does not read
        // backwards differs by the file alone.
        Some(differences) => {
            let common = differences
                .iter()
                .find(|difference| by_config.iter().any(|other| other.node == difference.node));
            common.or(differences.first()).cloned()
        }
        None => by_config.into_iter().next().or_else(|| {
            let at = model.graph.nodes.first()?.at.clone();
            let name = &owner.name.name;
            let why = refused.map(|finding| format!(": {}", finding.message)).unwrap_or_default();
            Some(OpDifference {
                node: 0,
                at,
                text: format!("`{name}` does not describe this model{why}"),
            })
        }),
    }
}

/// Differences of the graphs, and of those of the heads that a file has.
fn between(ours: &Model, theirs: &Model, name: &str, ops: &OpSet) -> Vec<OpDifference> {
    let mut list = differences(&labeled_graph(ours), &labeled_graph(theirs), name, ops);
    let heads = ours.nextn.iter().filter(|nextn| nextn.gguf.is_some());
    for (n, layer) in heads.flat_map(|nextn| &nextn.layers).enumerate() {
        let other = theirs.nextn.as_ref().and_then(|nextn| nextn.layers.get(n));
        // A file says how many there are, and their own weights are known by the rules of a file with them.
        if let Some(other) = other {
            list.extend(differences(&labeled_graph(layer), &labeled_graph(other), name, ops));
        }
    }
    list
}

/// Describes a model's graph, its weights named by the tensors that they become.
fn labeled_graph(model: &Model) -> LabeledGraph<'_> {
    let weights = &model.graph.weights;
    let mut labels: Vec<String> = weights.iter().map(|weight| weight.name.clone()).collect();
    let groups = model.gguf.as_ref().and_then(|gguf| gguf.groups(weights).ok());
    for group in groups.into_iter().flatten() {
        let Some((tensor, _)) = group.tensors.first() else { continue };
        for (n, &weight) in group.weights.iter().enumerate() {
            labels[weight] = format!("{tensor} ({n} of {:?})", group.steps);
        }
    }
    LabeledGraph { graph: &model.graph, ropes: &model.ropes, labels }
}

/// True if the file has every key and every computed tensor of the owner's file.
fn has_all_keys(gguf: &Gguf, owner: &Model) -> bool {
    let Some(other) = &owner.gguf else { return false };
    let keys: BTreeMap<&str, &Scalar> =
        gguf.metadata.iter().map(|(k, v)| (k.as_str(), v)).collect();
    gguf.arch == other.arch
        && other.metadata.iter().all(|(key, value)| {
            // A head's layers are counted where the file has one.
            key.ends_with(".block_count") || keys.get(key.as_str()) == Some(&value)
        })
        && gguf.tensors == other.tensors
}

/// Returns the metadata and tensors that the file of a model has.
pub fn file_metadata(gguf: &Gguf, groups: &[TensorGroup]) -> FileMetadata {
    let mut keys = KeyTree::default();
    let prefix = format!("{}.", gguf.arch);
    for (key, value) in &gguf.metadata {
        if let Some(key) = key.strip_prefix(&prefix) {
            keys.add(key, value.clone());
        }
    }
    let mut tensors = BTreeMap::new();
    for (name, shape) in groups.iter().flat_map(|group| &group.tensors) {
        tensors.insert(name.clone(), shape.clone());
    }
    for (name, numbers) in &gguf.tensors {
        tensors.insert(name.clone(), vec![numbers.len()]);
        let numbers = numbers.iter().map(|x| float(*x)).collect();
        keys.add(&format!("numbers.{name}"), Scalar::List(numbers));
    }
    for (name, shape) in &tensors {
        let shape = shape.iter().map(|&dim| Scalar::Int(dim as i64)).collect();
        keys.add(&format!("shapes.{name}"), Scalar::List(shape));
    }
    FileMetadata { keys: keys.into_config("the file"), tensors, companions: BTreeSet::new() }
}

/// Returns an f32 as its shortest decimal.
fn float(x: f32) -> Scalar {
    Scalar::Float(x.to_string().parse().unwrap_or(f64::from(x)))
}
