//! Edits of attention windows.

use std::collections::{BTreeMap, BTreeSet};

use registry::graph::{Graph, Node, StateKind};
use registry::scalar::Scalar;

use super::scope::{Suspects, scopes};
use super::{Candidate, Change, Clues, Edit};

/// True for nodes that own keys and values and can have a window.
pub(crate) fn has_window(graph: &Graph, node: &Node) -> bool {
    let kind = node.state.map(|state| graph.states[state.0].kind);
    kind == Some(StateKind::Attention) && node.attrs.contains_key("window")
}

/// Returns windows one larger and one smaller, and those of the config and of other layers. Also returns
/// those at which the difference begins.
pub(super) fn candidates(
    graph: &Graph,
    dims: &BTreeMap<String, Scalar>,
    suspects: &Suspects,
    clues: &Clues,
) -> Vec<Candidate> {
    let own = |n: usize| graph.nodes[n].attrs.get("window").and_then(Scalar::as_usize);
    let all = |with: bool| -> Vec<usize> {
        let nodes = graph.nodes.iter().enumerate();
        nodes
            .filter(|(n, node)| has_window(graph, node) && own(*n).is_some() == with)
            .map(|(n, _)| n)
            .collect()
    };
    let mut wanted: BTreeSet<usize> = graph
        .nodes
        .iter()
        .filter_map(|node| node.attrs.get("window").and_then(Scalar::as_usize))
        .collect();
    wanted.extend(dims.iter().filter_map(|(name, value)| {
        value.as_usize().filter(|_| name.contains("window") || name.contains("chunk"))
    }));
    for at in &clues.positions {
        wanted.extend([at.saturating_sub(1), *at, at + 1]);
    }
    wanted.extend((3..).map(|n| 1 << n).take_while(|n| *n <= clues.longest));
    wanted.remove(&0);
    let mut found = Vec::new();
    for with in [true, false] {
        for scope in scopes(graph, &all(with), suspects) {
            let mut add = |values: Vec<(usize, Option<usize>)>| {
                let values: Vec<_> = values.into_iter().filter(|(n, w)| own(*n) != *w).collect();
                let Some((n, window)) = values.first() else { return };
                let words = match (*window, own(*n)) {
                    (None, Some(was)) => format!("`window` left out (here {was})"),
                    (Some(now), None) => format!("`window` = {now} instead of none"),
                    (now, was) => {
                        format!("`window` = {} instead of {}", now.unwrap_or(0), was.unwrap_or(0))
                    }
                };
                let place = scope.place.clone();
                found.push(Candidate::Edit(Edit { words, place, change: Change::Window(values) }));
            };
            if with {
                add(scope.nodes.iter().map(|n| (*n, None)).collect());
                let by = |n: &usize, by: isize| {
                    (*n, own(*n).and_then(|w| w.checked_add_signed(by)).filter(|w| *w > 0))
                };
                add(scope.nodes.iter().map(|n| by(n, 1)).collect());
                add(scope.nodes.iter().map(|n| by(n, -1)).filter(|(_, w)| w.is_some()).collect());
            }
            for window in &wanted {
                add(scope.nodes.iter().map(|n| (*n, Some(*window))).collect());
            }
        }
    }
    found
}
