//! Sets of nodes that one edit changes together.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use registry::graph::{Graph, Node, ValueId};

/// Nodes that can cause the observed difference.
#[derive(Debug, Clone, Default)]
pub(crate) struct Suspects {
    /// Suspects for the first place that differs.
    pub(crate) first: BTreeSet<usize>,
    /// Suspects for any place that differs.
    pub(crate) all: BTreeSet<usize>,
    /// True if single nodes are suspected too.
    pub(crate) single: bool,
}

impl Suspects {
    /// Returns all nodes as suspects, if nothing narrows them.
    pub(crate) fn everything(graph: &Graph) -> Self {
        let all: BTreeSet<usize> = (0..graph.nodes.len()).collect();
        Self { first: all.clone(), all, single: false }
    }

    /// True if one of the nodes is a suspect for the first place that differs.
    pub(super) fn has_any(&self, nodes: &[usize]) -> bool {
        nodes.iter().any(|n| self.first.contains(n))
    }
}

/// Returns the shape of one row of a value.
pub(super) fn shape_of(graph: &Graph, value: ValueId) -> &[usize] {
    &graph.values[value.0].shape
}

/// Returns the index of the node that makes a value.
pub(crate) fn maker_of(graph: &Graph, value: ValueId) -> Option<usize> {
    graph.nodes.iter().position(|node| node.outputs.contains(&value))
}

/// Nodes of one edit, and their place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EditScope {
    pub(crate) nodes: Vec<usize>,
    pub(crate) place: String,
}

/// Returns the sets of nodes that one edit may change. These are all of a group, those of one call in the
/// spec, those of one kind of layer, the suspects, and single nodes.
pub(crate) fn scopes(graph: &Graph, group: &[usize], suspects: &Suspects) -> Vec<EditScope> {
    if !suspects.has_any(group) {
        return Vec::new();
    }
    let mut scopes: Vec<EditScope> = Vec::new();
    let mut add = |nodes: Vec<usize>, words: Option<String>| {
        if !nodes.is_empty() && suspects.has_any(&nodes) && scopes.iter().all(|s| s.nodes != nodes)
        {
            let place = words.unwrap_or_else(|| place(graph, &nodes));
            scopes.push(EditScope { nodes, place });
        }
    };
    add(group.to_vec(), None);
    for range in distinct(group.iter().map(|n| call(&graph.nodes[*n]))) {
        let nodes = group.iter().copied().filter(|n: &usize| call(&graph.nodes[*n]) == range);
        add(nodes.collect(), None);
    }
    for joined in distinct(group.iter().filter_map(|n| joint(graph, *n))) {
        let nodes = group.iter().copied().filter(|n: &usize| joint(graph, *n) == Some(joined));
        let nodes: Vec<usize> = nodes.collect();
        let calls = distinct(nodes.iter().map(|n| call(&graph.nodes[*n]))).len();
        let reader = graph.nodes.iter().find(|other| call(other) == joined);
        // One call of a function that is used several times is before several ops.
        let words = reader.map(|reader| match calls {
            1 => format!("before `{}`, {}:{}", reader.op, joined.0, reader.at.line()),
            _ => format!("of {calls} inputs of `{}`, {}:{}", reader.op, joined.0, reader.at.line()),
        });
        add(nodes, words);
    }
    for kind in distinct(group.iter().filter_map(|n| layer_kind(graph, *n))) {
        let nodes = group.iter().copied().filter(|n: &usize| layer_kind(graph, *n) == Some(kind));
        add(nodes.collect(), Some(format!("in layers of kind `{kind}`")));
    }
    add(group.iter().copied().filter(|n| suspects.all.contains(n)).collect(), None);
    if suspects.single {
        for n in group.iter().filter(|n| suspects.first.contains(n)) {
            add(vec![*n], None);
        }
    }
    scopes
}

/// Returns the kind of the layer that a node is in.
fn layer_kind(graph: &Graph, n: usize) -> Option<&str> {
    let layer = graph.layers.get(graph.nodes[n].layer?)?;
    Some(&layer.kind)
}

/// Maximum number of nodes between a node and the one that combines its result with others.
const REACH: usize = 8;

/// Returns the call that combines a node's result with others, after nodes that read nothing else.
fn joint(graph: &Graph, n: usize) -> Option<(&str, usize, usize)> {
    let mut at = n;
    for _ in 0..REACH {
        let [output] = graph.nodes[at].outputs.as_slice() else { return None };
        let mut readers =
            (at + 1..graph.nodes.len()).filter(|r| graph.nodes[*r].inputs.contains(output));
        let (Some(reader), None) = (readers.next(), readers.next()) else { return None };
        if graph.nodes[reader].inputs.len() > 1 {
            return Some(call(&graph.nodes[reader]));
        }
        at = reader;
    }
    None
}

/// Returns the items without repetitions.
fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut all = Vec::new();
    for item in items {
        if !all.contains(&item) {
            all.push(item);
        }
    }
    all
}

/// Returns the call of the spec that a node is of: its file and its range.
fn call(node: &Node) -> (&str, usize, usize) {
    (&node.at.source.path, node.at.start, node.at.end)
}

/// Describes the place of nodes. It names the call of the spec and its line if they have one, and the layer
/// of a single node.
pub(crate) fn place(graph: &Graph, nodes: &[usize]) -> String {
    let Some(first) = nodes.first().and_then(|n| graph.nodes.get(*n)) else {
        return String::new();
    };
    if nodes.iter().filter_map(|n| graph.nodes.get(*n)).any(|node| call(node) != call(first)) {
        return format!("in {} nodes", nodes.len());
    }
    let line = first.at.text().lines().next().unwrap_or_default().trim();
    let short: String = line.chars().take(60).collect();
    let dots = if short.len() < line.len() { "..." } else { "" };
    let mut words = format!("`{short}{dots}`, {}:{}", first.at.source.path, first.at.line());
    let layers = graph.nodes.iter().filter(|node| call(node) == call(first)).count();
    if nodes.len() < layers
        && let [n] = nodes
    {
        let layer = graph.nodes[*n].layer.and_then(|layer| graph.layers.get(layer));
        words += &layer.map_or_else(String::new, |layer| format!(", `{}` alone", layer.prefix));
    } else if nodes.len() < layers {
        let _ = write!(words, ", {} of {layers} layers", nodes.len());
    }
    words
}

/// Groups the nodes that `selects` gives by their op, in the order of the graph.
pub(super) fn kinds(graph: &Graph, selects: impl Fn(&Node) -> bool) -> Vec<(String, Vec<usize>)> {
    let mut kinds: Vec<(String, Vec<usize>)> = Vec::new();
    for (n, node) in graph.nodes.iter().enumerate().filter(|(_, node)| selects(node)) {
        match kinds.iter_mut().find(|(op, _)| node.op == op.as_str()) {
            Some((_, nodes)) => nodes.push(n),
            None => kinds.push((node.op.to_string(), vec![n])),
        }
    }
    kinds
}
