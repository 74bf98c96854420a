//! Finds a known architecture that computes what a model computes, under other names.
//!
//! An engine that knows the other architecture can then run the model: its config keys and its tensors
//! only need the other's names.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Config;
use crate::gguf::compare::{LabeledGraph, differences, reachable};
use crate::graph::Graph;
use crate::library::Library;
use crate::model::Model;
use crate::ops::OpSet;
use crate::resolve::resolve;
use crate::spec::{DimSource, Spec};
use crate::weight_map::{WeightRule, WeightStep};

/// A known architecture that computes the same as a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Alias {
    /// The other spec.
    pub spec: String,
    /// The other architecture.
    pub architecture: String,
    /// Config keys of the other architecture, with the values that make it this model. Keys with dots are nested.
    pub keys: Vec<(String, serde_json::Value)>,
    /// Names of tensors on disk, here and there; only those that differ.
    pub renames: BTreeMap<String, String>,
}

/// A known architecture that is another model, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AliasMismatch {
    /// The other spec.
    pub spec: String,
    /// The first difference.
    pub why: String,
}

/// Looks for an alias among `architectures`, in the specs that the model's own extends. `tensors` are the names in
/// the checkpoint. Without an alias, returns what is in the way of each relative.
pub fn alias(
    model: &Model,
    config: &Config,
    library: &Library,
    ops: &OpSet,
    architectures: &BTreeSet<&str>,
    tensors: &BTreeSet<String>,
) -> Result<Alias, Vec<AliasMismatch>> {
    let mut mismatches = Vec::new();
    let mut next = Some(model.name.clone());
    let mut seen = BTreeSet::new();
    while let Some(name) = next.filter(|name| seen.insert(name.clone())) {
        let Ok(spec) = library.load(&name, &[]) else { break };
        next = spec.extends.as_ref().map(|word| word.name.clone());
        let known = spec.matches.iter().find(|word| architectures.contains(word.name.as_str()));
        let Some(architecture) = known.map(|word| word.name.clone()) else { continue };
        match same(model, config, &spec, ops, tensors) {
            Ok((keys, renames)) => return Ok(Alias { spec: name, architecture, keys, renames }),
            Err(why) => mismatches.push(AliasMismatch { spec: name, why }),
        }
    }
    Err(mismatches)
}

type AliasNames = (Vec<(String, serde_json::Value)>, BTreeMap<String, String>);

/// Compares a model with what another spec makes of its dims.
fn same(
    model: &Model,
    config: &Config,
    spec: &Spec,
    ops: &OpSet,
    tensors: &BTreeSet<String>,
) -> Result<AliasNames, String> {
    let keys = keys(model, config, spec);
    let mut json = json_of(config)?;
    for (key, value) in &keys {
        set(&mut json, key, value.clone());
    }
    let name = &spec.name.name;
    let other = Config::parse("config.json", &json.to_string())
        .map_err(|finding| vec![finding])
        .and_then(|config| resolve(spec, &config, ops))
        .map_err(|findings| findings.first().map(|f| f.message.clone()).unwrap_or_default())
        .map_err(|why| format!("`{name}` does not describe this model: {why}"))?
        .0;
    let sides = [model, &other].map(|model| LabeledGraph {
        graph: &model.graph,
        ropes: &model.ropes,
        labels: labels(&model.graph),
    });
    if let Some(counts) = other_ops(&model.graph, &other.graph, name) {
        return Err(counts);
    }
    if let Some(first) = differences(&sides[0], &sides[1], name, ops).into_iter().next() {
        return Err(first.text);
    }
    let theirs = label_positions(&sides[1]);
    let mut renames = BTreeMap::new();
    for (label, n) in label_positions(&sides[0]) {
        let Some(&m) = theirs.get(&label) else { continue };
        let ours = &model.graph.weights[n];
        let other_weight = &other.graph.weights[m];
        let stored = disk_names(&model.rules, &ours.name);
        let Some((from, steps)) = stored.into_iter().find(|(name, _)| tensors.contains(name))
        else {
            continue; // tied to another
        };
        let theirs = disk_names(&other.rules, &other_weight.name);
        let Some((to, _)) = theirs.into_iter().find(|(_, other)| *other == steps) else {
            return Err(format!(
                "the tensor `{from}` is stored in another form than `{}` of `{name}`",
                other_weight.name
            ));
        };
        if from != to {
            renames.insert(from, to);
        }
    }
    Ok((keys, renames))
}

/// Maps each label of a graph's weights to the position of its weight.
fn label_positions(side: &LabeledGraph<'_>) -> BTreeMap<String, usize> {
    side.labels.iter().enumerate().map(|(n, label)| (label.clone(), n)).collect()
}

/// Returns the ops that stand in one graph more often than in the other. Behind one that is missing, calls have no
/// counterparts that could be compared.
fn other_ops(graph: &Graph, other: &Graph, name: &str) -> Option<String> {
    let mut counts: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for (side, graph) in [graph, other].into_iter().enumerate() {
        for node in reachable(graph) {
            counts.entry(graph.nodes[node].op.as_str()).or_default()[side] += 1;
        }
    }
    counts.retain(|_, [ours, theirs]| ours != theirs);
    let texts: Vec<String> = counts
        .iter()
        .map(|(op, [ours, theirs])| format!("{ours} of `{op}` where `{name}` has {theirs}"))
        .collect();
    (!texts.is_empty()).then(|| format!("its graph has {}", texts.join(", ")))
}

/// Weights by the order in which the graph uses them first.
fn labels(graph: &Graph) -> Vec<String> {
    let mut order = BTreeMap::new();
    for node in reachable(graph) {
        for weight in graph.nodes[node].weights.values() {
            let next = order.len();
            order.entry(weight.0).or_insert(next);
        }
    }
    (0..graph.weights.len())
        .map(|n: usize| order.get(&n).map_or(format!("unused {n}"), |at| format!("weight {at}")))
        .collect()
}

/// Names that a weight may have on disk, each with the steps that make the weight of the tensor.
fn disk_names(rules: &[WeightRule], weight: &str) -> Vec<(String, String)> {
    let plain = (weight.to_owned(), format!("{:?}", Vec::<WeightStep>::new()));
    let named = rules.iter().filter_map(|rule| {
        let name = rule.on_disk(weight).or_else(|| rule.disk.fill(&rule.weight.fit(weight)?))?;
        Some((name, format!("{:?}", rule.steps)))
    });
    std::iter::once(plain).chain(named).collect()
}

/// Returns the config keys of another spec whose values this model's config lacks or has otherwise.
fn keys(model: &Model, config: &Config, spec: &Spec) -> Vec<(String, serde_json::Value)> {
    let mut keys = Vec::new();
    let Ok(json) = json_of(config) else { return keys };
    for dim in spec.dims.values() {
        let (Some(DimSource::Key(key)), Some(value)) =
            (dim.sources.first(), model.dims.get(&dim.name.name))
        else {
            continue;
        };
        let value = serde_json::Value::from(value);
        let path = format!("/{}", key.name.replace('.', "/"));
        if !value.is_null() && json.pointer(&path) != Some(&value) {
            keys.push((key.name.clone(), value));
        }
    }
    keys
}

fn json_of(config: &Config) -> Result<serde_json::Value, String> {
    serde_json::from_str(&config.json()).map_err(|error| format!("the config is not JSON: {error}"))
}

/// Sets a value at a dotted place.
fn set(json: &mut serde_json::Value, key: &str, value: serde_json::Value) {
    let mut at = json;
    for part in key.split('.') {
        if !at.is_object() {
            *at = serde_json::json!({});
        }
        at = &mut at[part];
    }
    *at = value;
}
