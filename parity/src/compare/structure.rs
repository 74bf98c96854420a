//! Finds structure that only one side has: modules never computed, states never kept.

use std::collections::BTreeSet;

use registry::model::Model;

use crate::dump::{Dump, Phase};
use crate::gate::{Gate, Mode, Subject};
use crate::order::{ExecutionOrder, GraphPlace, LAST};
use crate::report::Uncovered;

/// Compares the graph with the manifest. `tensors` are the names in the checkpoint.
///
/// A module of the reference whose weights the graph never reads is a finding: a part is missing from the
/// spec. A container (a layer's `mlp`, the rotary table) has no weights of its own and is only listed.
pub(crate) fn structure(
    model: &Model,
    order: &ExecutionOrder,
    dump: &Dump,
    tensors: &BTreeSet<String>,
) -> (Vec<Gate>, Uncovered) {
    let mut gates = Vec::new();
    let mut uncovered = Uncovered::default();
    let read: BTreeSet<String> =
        model.graph.weights.iter().filter_map(|w| module_of(&w.name)).collect();
    // Left out are modules that only contain others, and tensors that the spec ignores: masks, tables.
    let stored: BTreeSet<String> = tensors
        .iter()
        .filter(|t| !(is_taken(model, t) || model.passes_over(t) && contains_read(&read, t)))
        .filter_map(|t| module_of(&name_in_graph(model, &read, t).unwrap_or_else(|| t.clone())))
        .collect();
    let prompt =
        dump.manifest.prompts.iter().find(|p| !p.taps.is_empty()).map_or("", |p| p.name.as_str());
    // The manifest lists modules in order of execution, so an unknown one is placed after its neighbour.
    let mut place = GraphPlace { node: 0, output: false };
    for (tap, info) in &dump.manifest.taps.0 {
        if let Some(known) = order.taps.get(tap) {
            place = *known;
        } else if stored.contains(tap) && !read.contains(tap) {
            let phase = if info.has(Phase::Prefill) { Phase::Prefill } else { Phase::Decode };
            let subject = Subject::Tap { name: tap.clone() };
            gates.push(Gate::new(subject, prompt, phase, Mode::Cumulative, place).failed(
                "the reference runs this module, which has weights; the spec never computes it",
            ));
        } else {
            uncovered.reference.push(tap.clone());
        }
    }
    for info in &dump.manifest.states {
        for part in &info.parts {
            if order.states.contains_key(&(info.layer, part.clone())) {
                continue;
            }
            let subject = Subject::State {
                name: format!("{part} of layer {}", info.layer),
                layer: info.layer,
                part: part.clone(),
            };
            let place = model
                .graph
                .layers
                .get(info.layer)
                .map_or(LAST, |l| GraphPlace { node: l.nodes.0, output: false });
            gates.push(Gate::new(subject, prompt, Phase::Prefill, Mode::Cumulative, place).failed(
                format!("the reference keeps this state ({}); the spec declares none", info.kind),
            ));
        }
    }
    let named: BTreeSet<&str> = dump.manifest.taps.0.iter().map(|(tap, _)| tap.as_str()).collect();
    // Router choices are compared separately, and no module of the reference has a `:` in its name.
    let ours = order
        .taps
        .keys()
        .filter(|tap| !named.contains(tap.as_str()) && !tap.contains(':'))
        .cloned();
    uncovered.ours = ours.collect();
    (gates, uncovered)
}

/// Returns the module of a tensor.
fn module_of(tensor: &str) -> Option<String> {
    tensor.rsplit_once('.').map(|(module, _)| module.to_owned())
}

/// Returns the name that a rule gives to a tensor, if the graph reads weights of its module.
fn name_in_graph(model: &Model, read: &BTreeSet<String>, tensor: &str) -> Option<String> {
    model.rules.iter().find_map(|rule| {
        let name = rule.renamed(tensor)?;
        module_of(&name).is_some_and(|module| read.contains(&module)).then_some(name)
    })
}

/// True if a rule takes a tensor without renaming it, so that it is read under another name.
fn is_taken(model: &Model, tensor: &str) -> bool {
    let mut fitting = model.rules.iter().filter(|rule| rule.disk.fit(tensor).is_some());
    fitting.any(|rule| rule.renamed(tensor).is_none())
}

/// True if the graph reads modules inside the module of a tensor.
fn contains_read(read: &BTreeSet<String>, tensor: &str) -> bool {
    let inside = module_of(tensor).map(|module| module + ".");
    inside.is_some_and(|inside| read.iter().any(|other| other.starts_with(&inside)))
}
