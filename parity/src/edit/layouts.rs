//! Edits of the way in which weights are read: heads, halves and pairs in another order, and other numbers.

use std::collections::{BTreeMap, BTreeSet};

use registry::graph::{Graph, Node, ValueId, WeightId};
use registry::model::Model;
use registry::ops::{Op, Trait};
use registry::scalar::Scalar;
use registry::weight_map::{SplitSizes, WeightRule, WeightStep, without_numbers};

use super::scope::{Suspects, place, scopes, shape_of};
use super::{Candidate, Change, Edit};

/// Most numbers that one edit reads again. They are held in memory, where the weights of the model are mapped.
const NUMBERS: usize = 512 << 20;
/// Most weights that one edit of an axis or of vectors changes. Mixtures have many.
const WEIGHTS: usize = 4096;
/// Most layouts of one axis.
const LAYOUTS: usize = 24;
/// Most ops between a projection and the attention that its result is for.
const REACH: usize = 6;

/// An axis as `[outer, a, b, inner]`, of which `a` and `b` change places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AxisLayout {
    axis: usize,
    outer: usize,
    sizes: [usize; 2],
    inner: usize,
}

impl AxisLayout {
    fn steps(self) -> Vec<WeightStep> {
        let Self { axis, outer, sizes: [a, b], inner } = self;
        let mut sizes = vec![outer, a, b, inner];
        sizes.retain(|size| *size != 1);
        let first = axis + usize::from(outer != 1);
        let merge = WeightStep::Flatten(axis);
        let count = sizes.len();
        let mut steps =
            vec![WeightStep::Unflatten { axis, sizes }, WeightStep::Transpose(first, first + 1)];
        steps.extend(std::iter::repeat_n(merge, count - 1));
        steps
    }
}

/// Returns edits of the layouts of the suspects' weights, and of the tensors that rules split.
pub(super) fn candidates(model: &Model, suspects: &Suspects) -> Vec<Candidate> {
    let sizes = sizes(model);
    let mut all = groups(&model.graph, suspects);
    all.extend(parts(model, suspects));
    all.extend(roles(&model.graph, suspects));
    all.extend(values(&model.graph, suspects));
    all.extend(experts(&model.graph, suspects));
    all.extend(axes(&model.graph, suspects, &sizes));
    let held = held(&model.graph);
    all.retain(|edit| numbers(model, &held, &edit.change) <= NUMBERS);
    all.into_iter().map(Candidate::Edit).collect()
}

/// Returns the weights that are held in memory, with the numbers of each. Those of experts are read when a row wants
/// them.
fn held(graph: &Graph) -> BTreeMap<usize, (&str, usize)> {
    let experts = graph.nodes.iter().filter(|node| node.op.is(Trait::Experts));
    let experts: BTreeSet<usize> =
        experts.flat_map(|node| node.weights.values().map(|of| of.0)).collect();
    let all = graph.weights.iter().enumerate().filter(|(n, _)| !experts.contains(n));
    all.map(|(n, weight)| (n, (weight.name.as_str(), weight.shape.iter().product()))).collect()
}

/// Counts the numbers of the weights that a change gives steps.
fn numbers(model: &Model, held: &BTreeMap<usize, (&str, usize)>, change: &Change) -> usize {
    match change {
        Change::WeightSteps(all) => {
            let weights = all.iter().flat_map(|(weights, _)| weights);
            weights.filter_map(|of| held.get(&of.0)).map(|(_, count)| count).sum()
        }
        Change::RuleSteps(rules) => {
            let rules = rules.iter().filter_map(|(rule, ..)| model.rules.get(*rule));
            let rules: Vec<_> = rules.collect();
            let changed = held
                .values()
                .filter(|(name, _)| rules.iter().any(|rule| rule.weight.fit(name).is_some()));
            changed.map(|(_, count)| count).sum()
        }
        _ => 0,
    }
}

/// Returns the sizes that a layout may have: those of the model's dims, and pairs.
fn sizes(model: &Model) -> BTreeSet<usize> {
    let dims = model.dims.values().filter_map(Scalar::as_usize);
    dims.filter(|dim| *dim > 1).chain([2]).collect()
}

/// Returns the layouts of an axis, simplest first.
fn layouts(axis: usize, length: usize, sizes: &BTreeSet<usize>) -> Vec<AxisLayout> {
    let mut all = Vec::new();
    for size in sizes {
        add_layout(&mut all, axis, length, [1, *size, 1]);
        if length.is_multiple_of(*size) && length / size > 1 {
            add_layout(&mut all, axis, length, [1, length / size, 1]);
        }
    }
    for outer in sizes {
        // Pairs inside of a head, and halves.
        add_layout(&mut all, axis, length, [*outer, 2, 1]);
        if length.is_multiple_of(outer * 2) && length / (outer * 2) > 1 {
            add_layout(&mut all, axis, length, [*outer, length / (outer * 2), 1]);
        }
        for inner in sizes {
            add_layout(&mut all, axis, length, [1, *outer, *inner]);
        }
    }
    all
}

/// Adds the layout of an axis with three of its sizes, if these divide its length, and if it is a new one of the first
/// [`LAYOUTS`].
fn add_layout(
    all: &mut Vec<AxisLayout>,
    axis: usize,
    length: usize,
    [outer, a, inner]: [usize; 3],
) {
    let divisor = outer * a * inner;
    if length.is_multiple_of(divisor) && length / divisor > 1 {
        let layout = AxisLayout { axis, outer, sizes: [a, length / divisor], inner };
        if !all.contains(&layout) && all.len() < LAYOUTS {
            all.push(layout);
        }
    }
}

/// Longest axis that an edit reverses whole: the taps of a short convolution.
const TAPS: usize = 8;

/// Returns the reversals of an axis: of each pair, of its halves, and of a short axis as a whole.
fn reversed(axis: usize, length: usize) -> Vec<Vec<WeightStep>> {
    let mut all = Vec::new();
    if length > 2 && length.is_multiple_of(2) {
        let flatten = WeightStep::Flatten(axis);
        let pairs = WeightStep::Unflatten { axis, sizes: vec![0, 2] };
        let halves = WeightStep::Unflatten { axis, sizes: vec![2, 0] };
        all.push(vec![pairs, WeightStep::Reverse(axis + 1), flatten.clone()]);
        all.push(vec![halves, WeightStep::Reverse(axis), flatten]);
    }
    if (2..=TAPS).contains(&length) {
        all.push(vec![WeightStep::Reverse(axis)]);
    }
    all
}

/// Weights of one kind: those of a role, or of a role of each expert.
type RoleKinds = BTreeMap<String, Vec<String>>;

/// Returns the roles of a node by kind: `gate` has `gate.0`, `gate.1` and so on.
fn role_kinds(node: &Node) -> RoleKinds {
    let mut kinds = RoleKinds::new();
    for role in node.weights.keys() {
        let kind = role.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('.');
        kinds.entry(kind.to_owned()).or_default().push(role.clone());
    }
    kinds
}

/// Returns the kind of the biases beside weights of a kind.
fn bias_kind(kind: &str) -> String {
    if kind == "weight" { "bias".to_owned() } else { format!("bias.{kind}") }
}

/// Returns the calls of the spec that suspects are of: a suspect, and the nodes of its call.
fn calls<'g>(graph: &'g Graph, suspects: &Suspects) -> Vec<(&'g Node, Vec<usize>)> {
    let mut all: Vec<(&Node, Vec<usize>)> = Vec::new();
    for node in suspects.first.iter().filter_map(|n| graph.nodes.get(*n)) {
        if all.iter().all(|(known, _)| call_of(known) != call_of(node)) {
            let same_call = (0..graph.nodes.len())
                .filter(|n: &usize| call_of(&graph.nodes[*n]) == call_of(node));
            all.push((node, same_call.collect()));
        }
    }
    all
}

/// Returns the range of the call in the spec that a node is of, and its op.
fn call_of(node: &Node) -> (usize, usize, &Op) {
    (node.at.start, node.at.end, &node.op)
}

/// Returns the other layouts of a projection whose result is split: the parts of each head side by side, or all heads
/// of a part.
fn fused(graph: &Graph, node: &Node, sizes: &BTreeSet<usize>) -> Vec<Vec<WeightStep>> {
    let Some(next) = node.outputs.first().and_then(|value| reader_of(graph, *value)) else {
        return Vec::new();
    };
    let (split, heads) = match next.outputs.as_slice() {
        [output] if next.weights.is_empty() => {
            (reader_of(graph, *output), shape_of(graph, *output).first().copied())
        }
        _ => (Some(next), None),
    };
    let split = split.filter(|node| node.outputs.len() > 1 && node.weights.is_empty());
    let Some(split) = split else { return Vec::new() };
    let parts: Vec<usize> =
        split.outputs.iter().map(|part| shape_of(graph, *part).iter().product()).collect();
    let mut all = Vec::new();
    for heads in heads.map_or_else(|| sizes.iter().copied().collect(), |heads| vec![heads]) {
        if heads < 2 || !parts.iter().all(|part| part.is_multiple_of(heads)) {
            continue;
        }
        let each = parts.iter().map(|part| part / heads).collect();
        let unflatten = WeightStep::Unflatten { axis: 0, sizes: vec![heads, 0] };
        all.push(vec![
            WeightStep::Split { axis: 0, sizes: SplitSizes::Each(parts.clone()) },
            unflatten.clone(),
            WeightStep::Concat(1),
            WeightStep::Flatten(0),
        ]);
        all.push(vec![
            unflatten,
            WeightStep::Split { axis: 1, sizes: SplitSizes::Each(each) },
            WeightStep::Flatten(0),
            WeightStep::Concat(0),
        ]);
    }
    all
}

/// Returns the first node that reads a value.
fn reader_of(graph: &Graph, value: ValueId) -> Option<&Node> {
    graph.nodes.iter().find(|node| node.inputs.contains(&value))
}

/// Returns edits of the numbers of vectors: left out, as an offset from one, or with another sign or form.
fn values(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    use WeightStep::{Add, LogNeg, Mul, NegExp};
    let mut all = Vec::new();
    for (node, nodes) in calls(graph, suspects) {
        for (kind, roles) in role_kinds(node) {
            let shape = roles.first().and_then(|role| weight(graph, node, role));
            if shape.is_none_or(|of| graph.weights[of.0].shape.len() != 1) {
                continue;
            }
            for scope in scopes(graph, &nodes, suspects) {
                let weights = of_kind(graph, &scope.nodes, &kind);
                if weights.len() > WEIGHTS {
                    continue;
                }
                let Some(name) = weights.first().map(|of| &graph.weights[of.0].name) else {
                    continue;
                };
                for step in [Mul(0.0), Add(1.0), Add(-1.0), Mul(-1.0), NegExp, LogNeg] {
                    let steps = vec![step];
                    let words = words(name, &steps);
                    let change = Change::WeightSteps(vec![(weights.clone(), steps)]);
                    all.push(Edit { words, place: scope.place.clone(), change });
                }
            }
        }
    }
    all
}

/// Most experts of a layer of which each is left out; of more, the first and the last.
const EXPERTS: usize = 16;

/// Returns edits that leave out the results of one expert, or of the second half of them.
fn experts(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let mut all = Vec::new();
    for (node, nodes) in
        calls(graph, suspects).into_iter().filter(|(node, _)| node.op.is(Trait::Experts))
    {
        let numbers = node.weights.keys().filter_map(|role| expert_number(role));
        let count = numbers.max().map_or(0, |n| n + 1);
        let kinds = role_kinds(node);
        let kind = nodes.first().and_then(|n| result_kind(graph, node, *n, &kinds));
        let Some(kind) = kind else { continue };
        let one = (0..count).filter(|n| count <= EXPERTS || *n == 0 || n + 1 == count);
        let mut sets: Vec<(String, Vec<usize>)> =
            one.map(|n| (format!("expert {n}"), vec![n])).collect();
        if count > 2 {
            sets.push(("the second half of the experts".to_owned(), (count / 2..count).collect()));
        }
        for scope in scopes(graph, &nodes, suspects) {
            for (name, numbers) in &sets {
                let roles = numbers
                    .iter()
                    .flat_map(|n| [format!("{kind}.{n}"), format!("{}.{n}", bias_kind(kind))]);
                let roles: Vec<String> = roles.collect();
                let weights = scope.nodes.iter().flat_map(|n| {
                    roles.iter().filter_map(|role| weight(graph, &graph.nodes[*n], role))
                });
                let change =
                    Change::WeightSteps(vec![(weights.collect(), vec![WeightStep::Mul(0.0)])]);
                let words = format!("{name} of `{}` left out", node.op);
                all.push(Edit { words, place: scope.place.clone(), change });
            }
        }
    }
    all
}

/// Returns the number of the expert that a role is of.
fn expert_number(role: &str) -> Option<usize> {
    role.rsplit_once('.')?.1.parse().ok()
}

/// Returns the kind of the weights that make the results of experts: matrices with a row for each number of a result of
/// node `n`.
fn result_kind<'k>(
    graph: &Graph,
    node: &Node,
    n: usize,
    kinds: &'k RoleKinds,
) -> Option<&'k String> {
    let width = *shape_of(graph, *graph.nodes[n].outputs.first()?).last()?;
    let mut kinds = kinds.iter().filter(|(kind, _)| !kind.starts_with("bias"));
    let (kind, _) =
        kinds.find(|(_, roles)| roles.iter().all(|role| has_rows(graph, node, role, width)))?;
    Some(kind)
}

/// True if the weight of a role is a matrix with a number of rows.
fn has_rows(graph: &Graph, node: &Node, role: &str, count: usize) -> bool {
    let shape = weight(graph, node, role).map(|of| graph.weights[of.0].shape.as_slice());
    matches!(shape, Some([rows, _]) if *rows == count)
}

/// Returns the weights of a kind in nodes.
fn of_kind(graph: &Graph, nodes: &[usize], kind: &str) -> Vec<WeightId> {
    let mut weights = Vec::new();
    for node in nodes.iter().map(|n| &graph.nodes[*n]) {
        let roles = role_kinds(node).remove(kind).unwrap_or_default();
        weights.extend(roles.iter().filter_map(|role| weight(graph, node, role)));
    }
    weights
}

/// Returns edits of one axis of the weights of one call.
fn axes(graph: &Graph, suspects: &Suspects, sizes: &BTreeSet<usize>) -> Vec<Edit> {
    let mut all = Vec::new();
    for (node, nodes) in calls(graph, suspects) {
        for (kind, roles) in role_kinds(node) {
            let shape = roles.first().and_then(|role| weight(graph, node, role));
            let shape = shape.map_or(&[][..], |of| graph.weights[of.0].shape.as_slice());
            let [outer @ .., rows, columns] = shape else { continue };
            let first = outer.len();
            let mut ways: Vec<(usize, Vec<WeightStep>)> = Vec::new();
            for (axis, length) in [(first, *rows), (first + 1, *columns)] {
                let layouts = layouts(axis, length, sizes).into_iter();
                ways.extend(layouts.map(|layout| (axis, layout.steps())));
            }
            ways.extend(fused(graph, node, sizes).into_iter().map(|steps| (first, steps)));
            for (axis, length) in [(first, *rows), (first + 1, *columns)] {
                ways.extend(reversed(axis, length).into_iter().map(|steps| (axis, steps)));
            }
            if rows == columns {
                ways.push((first + 1, vec![WeightStep::Transpose(first, first + 1)]));
            }
            for scope in scopes(graph, &nodes, suspects) {
                let weights = of_kind(graph, &scope.nodes, &kind);
                let biases = of_kind(graph, &scope.nodes, &bias_kind(&kind));
                if weights.len() > WEIGHTS {
                    continue;
                }
                let Some(name) = weights.first().map(|of| &graph.weights[of.0].name) else {
                    continue;
                };
                for (axis, steps) in &ways {
                    let mut words = words(name, steps);
                    if *axis == 0 && !biases.is_empty() {
                        let both = [weights.clone(), biases.clone()].concat();
                        all.push(Edit {
                            words: format!("{words}, and its bias too"),
                            place: scope.place.clone(),
                            change: Change::WeightSteps(vec![(both, steps.clone())]),
                        });
                        words += ", but not its bias";
                    }
                    let change = Change::WeightSteps(vec![(weights.clone(), steps.clone())]);
                    all.push(Edit { words, place: scope.place.clone(), change });
                }
            }
        }
    }
    all
}

/// Returns edits that swap weights of two roles of an op: gate and up of experts.
fn roles(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let mut all = Vec::new();
    for (node, nodes) in calls(graph, suspects) {
        let kinds = role_kinds(node);
        let names: Vec<&String> = kinds.keys().filter(|kind| !kind.starts_with("bias")).collect();
        for (n, a) in names.iter().enumerate() {
            for b in &names[n + 1..] {
                if shape_of_roles(graph, node, &kinds[*a])
                    != shape_of_roles(graph, node, &kinds[*b])
                {
                    continue;
                }
                for scope in scopes(graph, &nodes, suspects) {
                    let weights = role_pairs(graph, &scope.nodes, a, b);
                    let biases = role_pairs(graph, &scope.nodes, &bias_kind(a), &bias_kind(b));
                    let words = format!("`{a}` and `{b}` of `{}` swapped", node.op);
                    let change = Change::Roles([weights.clone(), biases.clone()].concat());
                    all.push(Edit { words: words.clone(), place: scope.place.clone(), change });
                    if !biases.is_empty() {
                        let words = format!("{words}, but not their biases");
                        let change = Change::Roles(weights);
                        all.push(Edit { words, place: scope.place.clone(), change });
                    }
                }
            }
        }
    }
    all
}

/// Returns the shape of the first weight of some roles, and the number of these roles.
fn shape_of_roles<'g>(
    graph: &'g Graph,
    node: &Node,
    roles: &[String],
) -> Option<(&'g [usize], usize)> {
    let of = roles.first().and_then(|role| weight(graph, node, role))?;
    Some((graph.weights[of.0].shape.as_slice(), roles.len()))
}

/// Returns the roles of two kinds in nodes, in pairs: the node and both roles.
fn role_pairs(graph: &Graph, nodes: &[usize], a: &str, b: &str) -> Vec<(usize, String, String)> {
    let mut all = Vec::new();
    for n in nodes {
        let mut kinds = role_kinds(&graph.nodes[*n]);
        let Some(first) = kinds.remove(a) else { continue };
        let Some(second) = kinds.remove(b) else { continue };
        let pairs = first.into_iter().zip(second);
        all.extend(pairs.map(|(first, second)| (*n, first, second)));
    }
    all
}

/// Returns the weight of a role of a node.
fn weight(graph: &Graph, node: &Node, role: &str) -> Option<WeightId> {
    node.weights.get(role).copied().filter(|of| of.0 < graph.weights.len())
}

/// Returns edits of the order of heads: those that share keys lie side by side, or a number of groups apart.
fn groups(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let attentions = grouped_attentions(graph);
    let nodes: Vec<usize> = attentions.iter().map(|(n, ..)| *n).collect();
    let near = nodes.iter().any(|n| {
        let projections = [projection_before(graph, *n), projection_after(graph, *n)];
        suspects.first.contains(n)
            || projections.iter().flatten().any(|n| suspects.first.contains(n))
    });
    if !near {
        return Vec::new();
    }
    [([0, 1], "a number of groups apart"), ([1, 0], "side by side")]
        .into_iter()
        .map(|(order, way)| Edit {
            words: format!("query heads that share a key lie {way}"),
            place: place(graph, &nodes),
            change: Change::WeightSteps(head_steps(&attentions, order)),
        })
        .collect()
}

/// An attention whose query heads share keys: its node, the weights of its queries and of its output, and three numbers:
/// the heads of its keys, the query heads of each, and the numbers of a head.
type GroupedAttention = (usize, WeightId, WeightId, [usize; 3]);

/// Returns the attentions whose query heads share keys.
fn grouped_attentions(graph: &Graph) -> Vec<GroupedAttention> {
    let mut all = Vec::new();
    for (n, node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.state.is_some()) {
        let [query, key, ..] = node.inputs.as_slice() else { continue };
        let [heads, wide] = shape_of(graph, *query) else { continue };
        let [kv, _] = shape_of(graph, *key) else { continue };
        if *kv < 2 || !heads.is_multiple_of(*kv) || heads == kv {
            continue;
        }
        let Some(first) = projection_before(graph, n) else { continue };
        let Some(last) = projection_after(graph, n) else { continue };
        let Some(q) = weight(graph, &graph.nodes[first], "weight") else { continue };
        let Some(o) = weight(graph, &graph.nodes[last], "weight") else { continue };
        let result = graph.nodes[first].outputs.first().map(|value| shape_of(graph, *value));
        if matches!(result, Some([rows]) if *rows == heads * wide) {
            all.push((n, q, o, [*kv, heads / kv, *wide]));
        }
    }
    all
}

/// Returns the nearest projection before a node, along the first inputs: the one that makes the queries of an attention.
fn projection_before(graph: &Graph, n: usize) -> Option<usize> {
    let mut at = *graph.nodes[n].inputs.first()?;
    for _ in 0..REACH {
        let maker = graph.nodes[..n].iter().rposition(|node| node.outputs.contains(&at))?;
        if graph.nodes[maker].op.is(Trait::Projects) {
            return Some(maker);
        }
        at = *graph.nodes[maker].inputs.first()?;
    }
    None
}

/// Returns the nearest projection after a node, along the first outputs: the one that reads the result of an attention.
fn projection_after(graph: &Graph, n: usize) -> Option<usize> {
    let mut at = *graph.nodes[n].outputs.first()?;
    for _ in 0..REACH {
        let reader = (n + 1..graph.nodes.len()).find(|r| graph.nodes[*r].inputs.contains(&at))?;
        if graph.nodes[reader].op.is(Trait::Projects) {
            return Some(reader);
        }
        at = *graph.nodes[reader].outputs.first()?;
    }
    None
}

/// Returns the steps that put the query heads of attentions in another order, in the weights of queries and of outputs.
fn head_steps(
    attentions: &[GroupedAttention],
    order: [usize; 2],
) -> Vec<(Vec<WeightId>, Vec<WeightStep>)> {
    let mut changes = Vec::new();
    for (_, q, o, [kv, group, inner]) in attentions {
        let sizes = if order == [0, 1] { [*kv, *group] } else { [*group, *kv] };
        for (axis, weight) in [*q, *o].into_iter().enumerate() {
            let layout = AxisLayout { axis, outer: 1, sizes, inner: *inner };
            changes.push((vec![weight], layout.steps()));
        }
    }
    changes
}

/// Returns edits of tensors that rules take apart: their parts lie side by side, or one after another.
fn parts(model: &Model, suspects: &Suspects) -> Vec<Edit> {
    let graph = &model.graph;
    let mut all = Vec::new();
    // By the axis and the number of parts: weights and their biases have one layout.
    let mut splits: BTreeMap<(usize, usize), Vec<(usize, usize)>> = BTreeMap::new();
    let mut nodes = BTreeSet::new();
    for (number, rule) in model.rules.iter().enumerate() {
        let readers: Vec<usize> = (0..graph.nodes.len())
            .filter(|n| reads_weight_of(graph, &graph.nodes[*n], rule))
            .collect();
        if !suspects.has_any(&readers) {
            continue;
        }
        for (before, step) in rule.steps.iter().enumerate() {
            let parts = match (step, rule.steps.get(before + 1)) {
                (WeightStep::Split { axis, sizes: SplitSizes::Equal(parts) }, _) => (*axis, *parts),
                (WeightStep::Split { axis, sizes: SplitSizes::Each(sizes) }, _) => {
                    (*axis, sizes.len())
                }
                (WeightStep::Unflatten { axis, sizes }, Some(WeightStep::Unstack(at)))
                    if sizes.len() == 2 && *at == axis + 1 =>
                {
                    (*axis, sizes[1])
                }
                _ => continue,
            };
            splits.entry(parts).or_default().push((number, before));
            nodes.extend(readers.iter().copied());
        }
    }
    let nodes: Vec<usize> = nodes.into_iter().collect();
    for ((axis, parts), rules) in splits {
        for (sizes, way) in
            [(vec![0, parts], "side by side"), (vec![parts, 0], "one after another")]
        {
            let steps = vec![
                WeightStep::Unflatten { axis, sizes },
                WeightStep::Transpose(axis, axis + 1),
                WeightStep::Flatten(axis),
            ];
            let Some(rule) = rules.first().and_then(|(rule, _)| model.rules.get(*rule)) else {
                continue;
            };
            all.push(Edit {
                words: format!("the {parts} parts of `{}` lie {way}", rule.disk.text),
                place: place(graph, &nodes),
                change: Change::RuleSteps(
                    rules
                        .iter()
                        .map(|(rule, before): &(usize, usize)| (*rule, *before, steps.clone()))
                        .collect(),
                ),
            });
        }
    }
    all
}

/// True if a node reads a weight that a rule makes.
fn reads_weight_of(graph: &Graph, node: &Node, rule: &WeightRule) -> bool {
    let mut weights = node.weights.values().filter_map(|of| graph.weights.get(of.0));
    weights.any(|weight| rule.weight.fit(&weight.name).is_some())
}

/// Describes a layout as a spec writes it.
fn words(name: &str, steps: &[WeightStep]) -> String {
    let shown = steps.iter().map(|step| match step {
        WeightStep::Unflatten { axis, sizes } => format!("unflatten({axis}, {sizes:?})"),
        WeightStep::Transpose(a, b) => format!("transpose({a}, {b})"),
        WeightStep::Flatten(axis) => format!("flatten({axis})"),
        WeightStep::Reverse(axis) => format!("reverse({axis})"),
        WeightStep::Split { axis, sizes: SplitSizes::Each(sizes) } => {
            format!("split({axis}, {sizes:?})")
        }
        WeightStep::Concat(axis) => format!("concat({axis})"),
        WeightStep::Mul(by) => format!("mul({by})"),
        WeightStep::Add(what) => format!("add({what})"),
        WeightStep::NegExp => "neg_exp".to_owned(),
        WeightStep::LogNeg => "log_neg".to_owned(),
        other => format!("{other:?}"),
    });
    let steps = shown.collect::<Vec<_>>().join(", ");
    format!("`{}` read with `do: [{steps}]`", without_numbers(name))
}
