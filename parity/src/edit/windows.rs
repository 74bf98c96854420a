//! Edits of attention windows.

use std::collections::{BTreeMap, BTreeSet};

use registry::graph::{Graph, Node, StateKind};
use registry::scalar::Scalar;

use super::scope::{Suspects, scopes};
use super::{Candidate, Change, Clues, Edit};

/// True for nodes that own keys and values and can have a window.
pub(crate) fn has_window(graph: &Graph, node: &Node) -> bool {
    let kind = node.state.map(|state| graph.states[state.0].kind);
    matches!(kind, Some(StateKind::Attention | StateKind::Latent))
        && node.attrs.contains_key("window")
}

/// Returns windows one larger and one smaller, and those of the config and of other layers. Also returns
/// those at which the difference begins.
pub(super) fn candidates(
    graph: &Graph,
    dims: &BTreeMap<String, Scalar>,
    suspects: &Suspects,
    clues: &Clues,
) -> Vec<Candidate> {
    let mut sizes: BTreeSet<usize> = graph.nodes.iter().filter_map(window_of).collect();
    sizes.extend(dims.iter().filter_map(|(name, value)| {
        value.as_usize().filter(|_| name.contains("window") || name.contains("chunk"))
    }));
    for at in &clues.positions {
        sizes.extend([at.saturating_sub(1), *at, at + 1]);
    }
    sizes.extend((3..).map(|n| 1 << n).take_while(|n| *n <= clues.longest));
    sizes.remove(&0);
    let mut all = Vec::new();
    for with in [true, false] {
        let nodes = graph.nodes.iter().enumerate();
        let nodes = nodes.filter(|(_, node)| has_window(graph, node));
        let nodes: Vec<usize> =
            nodes.filter(|(_, node)| window_of(node).is_some() == with).map(|(n, _)| n).collect();
        for scope in scopes(graph, &nodes, suspects) {
            let nodes = &scope.nodes;
            let mut choices: Vec<Vec<(usize, Option<usize>)>> = Vec::new();
            if with {
                choices.push(nodes.iter().map(|n| (*n, None)).collect());
                let larger = nodes.iter().map(|n| (*n, window_changed_by(graph, *n, 1)));
                choices.push(larger.collect());
                let smaller = nodes.iter().map(|n| (*n, window_changed_by(graph, *n, -1)));
                choices.push(smaller.filter(|(_, window)| window.is_some()).collect());
            }
            for window in &sizes {
                choices.push(nodes.iter().map(|n| (*n, Some(*window))).collect());
            }
            all.extend(choices.into_iter().filter_map(|values| edit(graph, &scope.place, values)));
        }
    }
    all
}

/// Returns the window of a node, if it is limited.
pub(crate) fn window_of(node: &Node) -> Option<usize> {
    node.attrs.get("window").and_then(Scalar::as_usize)
}

/// Returns the window of a node plus a number; none if nothing is left of it.
fn window_changed_by(graph: &Graph, n: usize, by: isize) -> Option<usize> {
    window_of(&graph.nodes[n])?.checked_add_signed(by).filter(|window| *window > 0)
}

/// Returns the edit of the nodes that have other windows now.
fn edit(graph: &Graph, place: &str, values: Vec<(usize, Option<usize>)>) -> Option<Candidate> {
    let values: Vec<_> =
        values.into_iter().filter(|(n, window)| window_of(&graph.nodes[*n]) != *window).collect();
    let (n, window) = values.first()?;
    let words = match (*window, window_of(&graph.nodes[*n])) {
        (None, Some(was)) => format!("`window` left out (here {was})"),
        (Some(now), None) => format!("`window` = {now} instead of none"),
        (now, was) => {
            format!("`window` = {} instead of {}", now.unwrap_or(0), was.unwrap_or(0))
        }
    };
    let change = Change::Window(values);
    Some(Candidate::Edit(Edit { words, place: place.to_owned(), change }))
}
