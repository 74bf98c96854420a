//! The text forms of a resolved model: what `onboard show` prints and snapshots compare.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::dtype::Dtype;
use crate::graph::{Graph, Node, State, StateKind, ValueId};
use crate::model::Model;
use crate::scalar::Scalar;

/// Formats every dim, one per line.
pub fn dims(model: &Model) -> String {
    let width = model.dims.keys().map(String::len).max().unwrap_or(0);
    let mut out = String::new();
    for (name, value) in &model.dims {
        line(&mut out, format_args!("{name:width$} = {}", fold_list(value)));
    }
    out
}

/// Formats every weight with its shape, layers of the same form folded, and the totals.
pub fn weights(model: &Model) -> String {
    let mut rows: Vec<(String, Vec<usize>, Vec<usize>)> = Vec::new(); // name, shape, layers
    let mut place: BTreeMap<(String, Vec<usize>), usize> = BTreeMap::new();
    let mut total: u128 = 0;
    for weight in &model.graph.weights {
        total += weight.shape.iter().map(|&d| d as u128).product::<u128>();
        let (name, layer) = match layer_of(model, &weight.name) {
            Some((layer, suffix)) => (format!("(layer) {suffix}"), Some(layer)),
            None => (weight.name.clone(), None),
        };
        let key = (name.clone(), weight.shape.clone());
        let row = *place.entry(key).or_insert_with(|| {
            rows.push((name, weight.shape.clone(), Vec::new()));
            rows.len() - 1
        });
        rows[row].2.extend(layer);
    }
    let wide = rows.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    let shaped = rows.iter().map(|(_, shape, _)| shape_text(shape).len()).max().unwrap_or(0);
    let mut out = String::new();
    for (name, shape, layers) in rows {
        let shape = shape_text(&shape);
        if layers.is_empty() {
            line(&mut out, format_args!("{name:wide$}  {shape}"));
        } else {
            line(
                &mut out,
                format_args!("{name:wide$}  {shape:shaped$}  layers {}", ranges(&layers)),
            );
        }
    }
    let count = model.graph.weights.len();
    line(&mut out, format_args!("{count} tensors, {total} parameters"));
    out
}

/// Formats every state with its dtype rule and its memory cost at `activation`.
pub fn states(model: &Model, activation: Dtype) -> String {
    let mut groups: Vec<(&State, Vec<usize>)> = Vec::new();
    for state in &model.graph.states {
        match groups.iter_mut().find(|(other, _): &&mut (&State, Vec<usize>)| {
            (&other.name, other.kind, &other.parts, other.dtype, other.eight)
                == (&state.name, state.kind, &state.parts, state.dtype, state.eight)
                && (other.window, other.block) == (state.window, state.block)
        }) {
            Some((_, layers)) => layers.push(state.layer),
            None => groups.push((state, vec![state.layer])),
        }
    }
    let mut out = String::new();
    let mut per_token = 0u128;
    let mut per_slot = 0u128;
    for (state, layers) in &groups {
        let parts: Vec<_> =
            state.parts.iter().map(|p| format!("{} {}", p.name, shape_text(&p.shape))).collect();
        let count = layers.len() as u128;
        let numbers: u128 =
            state.parts.iter().map(|p| p.shape.iter().map(|&d| d as u128).product::<u128>()).sum();
        let bytes = match state.eight {
            None => numbers * state.dtype.resolve(activation).size() as u128 * count,
            Some(eight) => {
                let parts = state.parts.iter();
                let scales: u128 = parts.map(|p| 4 * eight.count(&p.shape) as u128).sum();
                (numbers + scales) * count
            }
        };
        let cost = match (state.kind, state.window) {
            (StateKind::Attention | StateKind::Latent | StateKind::Index, None) => {
                per_token += bytes;
                format!("{bytes} bytes per token")
            }
            (StateKind::Attention | StateKind::Latent, Some(window)) => {
                let slot_bytes = bytes * window.saturating_sub(1) as u128;
                per_slot += slot_bytes;
                format!("window {window}, {slot_bytes} bytes per slot")
            }
            (StateKind::Pooled, window) => {
                let one = bytes / state.parts.len().max(1) as u128;
                let slot_bytes = one * window.map_or(0, |window| window.saturating_sub(1)) as u128;
                let block = state.block.unwrap_or(1).max(1);
                per_slot += slot_bytes;
                per_token += one.div_ceil(block as u128);
                format!("{one} bytes per block of {block}, {slot_bytes} bytes per slot")
            }
            _ => {
                per_slot += bytes;
                format!("{bytes} bytes per slot")
            }
        };
        line(
            &mut out,
            format_args!(
                "{} ({}): {}, dtype {}, layers {}, {cost}",
                state.name,
                state.kind.name(),
                parts.join(", "),
                state.eight.map_or_else(|| state.dtype.to_string(), |e| e.name().to_owned()),
                ranges(layers)
            ),
        );
    }
    line(
        &mut out,
        format_args!("at {activation}: {per_token} bytes per token, {per_slot} bytes per slot"),
    );
    out
}

/// Formats the program; layers that compute the same are printed once.
pub fn graph(model: &Model) -> String {
    let graph = &model.graph;
    let mut out = String::new();
    let mut bodies: Vec<(String, Vec<usize>, usize)> = Vec::new();
    for (n, layer) in graph.layers.iter().enumerate() {
        let body = text_of(graph, layer.nodes.0, layer.nodes.1, &layer.prefix);
        match bodies
            .iter_mut()
            .find(|(other, _, first)| *other == body && graph.layers[*first].kind == layer.kind)
        {
            Some((_, layers, _)) => layers.push(n),
            None => bodies.push((body, vec![n], n)),
        }
    }
    let first = graph.layers.first().map_or(graph.nodes.len(), |l| l.nodes.0);
    let last = graph.layers.last().map_or(graph.nodes.len(), |l| l.nodes.1);
    out.push_str(&text_of(graph, 0, first, ""));
    for (body, layers, first) in bodies {
        let layer = &graph.layers[first];
        line(&mut out, format_args!("layers {} ({}):", ranges(&layers), layer.kind));
        for text in body.lines() {
            line(&mut out, format_args!("  {text}"));
        }
    }
    if last < graph.nodes.len() {
        out.push_str(&text_of(graph, last, graph.nodes.len(), ""));
    }
    if let Some(output) = graph.output {
        line(&mut out, format_args!("return {}", graph.values[output.0].name));
    }
    out
}

/// Nodes `start..end`, values numbered from the first one used, weights without `prefix`.
fn text_of(graph: &Graph, start: usize, end: usize, prefix: &str) -> String {
    let mut names: BTreeMap<ValueId, String> = BTreeMap::new();
    let mut used: BTreeMap<String, usize> = BTreeMap::new();
    // What a layer is given has another name in each layer's neighbour; `x` lets layers fold.
    if !prefix.is_empty()
        && let Some(&given) = graph.nodes[start..end].first().and_then(|node| node.inputs.first())
    {
        names.insert(given, "x".to_owned());
        used.insert("x".to_owned(), 1);
    }
    let mut out = String::new();
    for node in &graph.nodes[start..end] {
        for &id in node.inputs.iter().chain(&node.outputs) {
            names.entry(id).or_insert_with(|| {
                let base = &graph.values[id.0].name;
                let count = used.entry(base.clone()).or_insert(0);
                *count += 1;
                if *count == 1 { base.clone() } else { format!("{base}.{count}") }
            });
        }
        line(&mut out, format_args!("{}", node_text(graph, node, &names, prefix)));
    }
    out
}

fn node_text(
    graph: &Graph,
    node: &Node,
    names: &BTreeMap<ValueId, String>,
    prefix: &str,
) -> String {
    let outputs: Vec<_> = node
        .outputs
        .iter()
        .map(|id| {
            let value = &graph.values[id.0];
            format!("{}: {}{}", names[id], value.dtype, shape_text(&value.shape))
        })
        .collect();
    let mut args: Vec<String> = node.inputs.iter().map(|id| names[id].clone()).collect();
    for (role, id) in &node.weights {
        let name = &graph.weights[id.0].name;
        let name = name
            .strip_prefix(prefix)
            .map_or(name.as_str(), |suffix| suffix.trim_start_matches('.'));
        args.push(format!("{role}={name}"));
    }
    if let Some(id) = node.state {
        args.push(format!("state={}", graph.states[id.0].name));
    }
    if let Some(id) = node.rope {
        args.push(format!("rope={}", id.0));
    }
    for (name, value) in &node.attrs {
        args.push(format!("{name}={value}"));
    }
    let tap = node.outputs.first().and_then(|id| graph.values[id.0].tap.as_deref());
    let tap = match tap.map(|tap| tap.strip_prefix(prefix).unwrap_or(tap)) {
        Some("") => "  # the layer".to_owned(),
        Some(tap) => format!("  # {}", tap.trim_start_matches('.')),
        None => String::new(),
    };
    format!("{} = {}({}){tap}", outputs.join(", "), node.op, args.join(", "))
}

/// Returns the layer that a weight belongs to, and the weight's name inside it.
fn layer_of<'a>(model: &Model, name: &'a str) -> Option<(usize, &'a str)> {
    model.graph.layers.iter().enumerate().find_map(|(n, layer)| {
        let suffix = name.strip_prefix(&layer.prefix)?.strip_prefix('.')?;
        Some((n, suffix))
    })
}

fn shape_text(shape: &[usize]) -> String {
    let dims: Vec<_> = shape.iter().map(usize::to_string).collect();
    format!("[{}]", dims.join(", "))
}

/// Describes the multi-token prediction head: its inputs, and its own states and program.
pub fn heads(model: &Model, dtype: Dtype) -> String {
    let Some(nextn) = &model.nextn else { return String::new() };
    let mut text = String::new();
    for (n, head) in nextn.layers.iter().enumerate() {
        let _ = writeln!(text, "# head {}, fed tokens and rows of `{}`\n", n + 1, nextn.from);
        let sections = [weights(head), states(head, dtype), graph(head)];
        text.push_str(&sections.join("\n"));
        text.push('\n');
    }
    text
}

/// Formats sorted indices as ranges: `0, 2-5, 8`.
pub fn ranges(indices: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &n in indices {
        match parts.last_mut() {
            Some((_, end)) if *end + 1 == n => *end = n,
            _ => parts.push((n, n)),
        }
    }
    parts
        .iter()
        .map(|&(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}-{b}") })
        .collect::<Vec<_>>()
        .join(", ")
}

/// Formats a list of equal neighbours as `3 x 'conv', 'full_attention'`; other values as they are.
fn fold_list(value: &Scalar) -> String {
    let Scalar::List(items) = value else { return value.to_string() };
    let mut runs: Vec<(&Scalar, usize)> = Vec::new();
    for item in items {
        match runs.last_mut() {
            Some((last, count)) if *last == item => *count += 1,
            _ => runs.push((item, 1)),
        }
    }
    format!(
        "[{}]",
        runs.iter()
            .map(|(item, count): &(&Scalar, usize)| match count {
                1 => item.to_string(),
                _ => format!("{count} x {item}"),
            })
            .collect::<Vec<_>>()
            .join(", ")
    )
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _done = writeln!(out, "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_fold_into_ranges() {
        assert_eq!(ranges(&[0, 2, 3, 4, 8]), "0, 2-4, 8");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn lists_fold_equal_neighbours() {
        let conv = Scalar::Str("conv".into());
        let list = Scalar::List(vec![conv.clone(), conv, Scalar::Int(1)]);
        assert_eq!(fold_list(&list), "[2 x 'conv', 1]");
    }
}
