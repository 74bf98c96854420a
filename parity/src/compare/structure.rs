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
    let module = |name: &str| name.rsplit_once('.').map(|(module, _)| module.to_owned());
    let read: BTreeSet<String> =
        model.graph.weights.iter().filter_map(|w| module(&w.name)).collect();
    // A tensor that a rule takes is read under another name; a renamed module is not read.
    let is_read = |name: &String| module(name).is_some_and(|module| read.contains(&module));
    let called =
        |name: &str| model.rules.iter().find_map(|rule| rule.renamed(name).filter(is_read));
    let taken = |name: &str| {
        let mut fitting = model.rules.iter().filter(|rule| rule.disk.fit(name).is_some());
        fitting.any(|rule| rule.renamed(name).is_none())
    };
    // Modules that only contain others, and tensors that the spec ignores: masks, tables.
    let passed = |name: &str| model.passes_over(name);
    let holds = |name: &str| {
        let inside = module(name).map(|module| module + ".");
        inside.is_some_and(|inside| read.iter().any(|other| other.starts_with(&inside)))
    };
    let stored: BTreeSet<String> = tensors
        .iter()
        .filter(|t| !(taken(t) || passed(t) && holds(t)))
        .filter_map(|t| module(&called(t).unwrap_or_else(|| t.clone())))
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
    // Router choices are compared separately, and no module of the reference has that name.
    let inner = |tap: &str| tap.contains(':');
    let ours =
        order.taps.keys().filter(|tap| !named.contains(tap.as_str()) && !inner(tap)).cloned();
    uncovered.ours = ours.collect();
    (gates, uncovered)
}
