//! Finds the nodes that can cause a failed gate.

use std::collections::BTreeSet;

use registry::model::Model;

use crate::dump::{Dump, Phase};
use crate::edit::Suspects;
use crate::gate::{Gate, Mode, Subject};
use crate::order::ExecutionOrder;
use crate::places::{DumpTaps, Places};
use crate::report::RunReport;

/// Finds the nodes that can cause a finding. The first set leads to the first finding without another
/// recorded value between, the second to any finding of its kind.
pub(super) fn suspects(model: &Model, dump: &Dump, run: &RunReport, gate: &Gate) -> Suspects {
    let graph = &model.graph;
    if gate.mode == Mode::Cumulative {
        // Errors of all earlier ops contribute to it.
        let first: BTreeSet<usize> =
            (0..graph.nodes.len()).filter(|n| *n <= gate.place.node).collect();
        return Suspects { all: first.clone(), first, single: false };
    }
    let order = ExecutionOrder::of(graph, |_| true);
    let mut recorded = DumpTaps::default();
    for (tap, info) in dump.manifest.taps.0.iter().filter(|(tap, _)| order.taps.contains_key(tap)) {
        recorded.all.insert(tap.clone());
        if info.has(Phase::Decode) {
            recorded.steps.insert(tap.clone());
        }
    }
    let places = Places::new(graph, &recorded);
    let failing: BTreeSet<String> = run
        .gates
        .iter()
        .filter(|other| other.fails() && other.mode == Mode::Local)
        .map(|other| other.subject.to_string())
        .collect();
    let mut suspects = Suspects { single: true, ..Suspects::default() };
    for n in 0..graph.nodes.len() {
        let mut reached = places.of([n]);
        if let Some(state) = graph.nodes[n].state {
            reached.extend(places.of_states(&[state]));
        }
        if reached.contains(&gate.subject.to_string()) {
            suspects.first.insert(n);
        }
        if reached.iter().any(|place| failing.contains(place)) {
            suspects.all.insert(n);
        }
    }
    if let Subject::Tap { name } = &gate.subject
        && suspects.first.is_empty()
        && let Some(place) = order.taps.get(name)
    {
        suspects.first.insert(place.node);
    }
    suspects.all.extend(&suspects.first);
    suspects
}
