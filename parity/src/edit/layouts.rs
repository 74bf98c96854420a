//! Edits of the way in which weights are read: heads, halves and pairs in another order, and other numbers.

use std::collections::{BTreeMap, BTreeSet};

use registry::graph::{Graph, Node, ValueId, WeightId};
use registry::model::Model;
use registry::ops::Trait;
use registry::scalar::Scalar;
use registry::weight_map::{SplitSizes, WeightStep, without_numbers};

use super::scope::{Suspects, place, scopes};
use super::{Candidate, Change, Edit};

/// Most numbers that one edit reads again. They are held in memory, where the weights of the model are mapped.
const NUMBERS: usize = 512 << 20;
/// Most weights that one edit of an axis or of vectors changes. Mixtures have many.
const WEIGHTS: usize = 4096;
/// Most layouts of one axis.
const LAYOUTS: usize = 24;
/// Most ops between a projection and the attention that its result is for.
const REACH: usize = 6;

/// An axis as `[outer, a, b, rest]`, of which `a` and `b` change places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AxisLayout {
    axis: usize,
    outer: usize,
    sizes: [usize; 2],
    rest: usize,
}

impl AxisLayout {
    fn steps(self) -> Vec<WeightStep> {
        let Self { axis, outer, sizes: [a, b], rest } = self;
        let mut sizes = vec![outer, a, b, rest];
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
            let made = |name: &str| rules.iter().any(|rule| rule.weight.fit(name).is_some());
            held.values().filter(|(name, _)| made(name)).map(|(_, count)| count).sum()
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
    let mut add = |outer: usize, a: usize, rest: usize| {
        let whole = outer * a * rest;
        if length.is_multiple_of(whole) && length / whole > 1 {
            let layout = AxisLayout { axis, outer, sizes: [a, length / whole], rest };
            if !all.contains(&layout) && all.len() < LAYOUTS {
                all.push(layout);
            }
        }
    };
    for size in sizes {
        add(1, *size, 1);
        if length.is_multiple_of(*size) && length / size > 1 {
            add(1, length / size, 1);
        }
    }
    for outer in sizes {
        // Pairs inside of a head, and halves.
        add(*outer, 2, 1);
        if length.is_multiple_of(outer * 2) && length / (outer * 2) > 1 {
            add(*outer, length / (outer * 2), 1);
        }
        for rest in sizes {
            add(1, *outer, *rest);
        }
    }
    all
}

/// Longest axis that an edit reverses whole: the taps of a short convolution.
const TAPS: usize = 8;

/// Returns the reversals of an axis: of each pair, of its halves, and of a short axis as a whole.
fn reversed(axis: usize, length: usize) -> Vec<Vec<WeightStep>> {
    let unflatten = |sizes: [usize; 2]| WeightStep::Unflatten { axis, sizes: sizes.to_vec() };
    let mut all = Vec::new();
    if length > 2 && length.is_multiple_of(2) {
        let flatten = WeightStep::Flatten(axis);
        all.push(vec![unflatten([0, 2]), WeightStep::Reverse(axis + 1), flatten.clone()]);
        all.push(vec![unflatten([2, 0]), WeightStep::Reverse(axis), flatten]);
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

/// The nodes of one call of the spec, with one of them.
fn calls<'g>(graph: &'g Graph, suspects: &Suspects) -> Vec<(&'g Node, Vec<usize>)> {
    let call = |node: &Node| (node.at.start, node.at.end, node.op.clone());
    let mut all: Vec<(&Node, Vec<usize>)> = Vec::new();
    for node in suspects.first.iter().filter_map(|n| graph.nodes.get(*n)) {
        if all.iter().all(|(known, _)| call(known) != call(node)) {
            all.push((
                node,
                (0..graph.nodes.len())
                    .filter(|n: &usize| call(&graph.nodes[*n]) == call(node))
                    .collect(),
            ));
        }
    }
    all
}

/// Returns the other layouts of a projection whose result is split: the parts of each head side by side, or all heads
/// of a part.
fn fused(graph: &Graph, node: &Node, sizes: &BTreeSet<usize>) -> Vec<Vec<WeightStep>> {
    let shape = |value: &ValueId| graph.values[value.0].shape.as_slice();
    let reader = |value: &ValueId| graph.nodes.iter().find(|node| node.inputs.contains(value));
    let splits = |node: &Node| node.outputs.len() > 1 && node.weights.is_empty();
    let Some(next) = node.outputs.first().and_then(reader) else { return Vec::new() };
    let (split, heads) = match next.outputs.as_slice() {
        [made] if next.weights.is_empty() => (reader(made), shape(made).first().copied()),
        _ => (Some(next), None),
    };
    let Some(split) = split.filter(|node| splits(node)) else { return Vec::new() };
    let parts: Vec<usize> = split.outputs.iter().map(|part| shape(part).iter().product()).collect();
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
        // Of the weights of an expert, those of its last matrix give its result.
        let number = |role: &str| role.rsplit_once('.')?.1.parse::<usize>().ok();
        let kinds = role_kinds(node);
        let count = node.weights.keys().filter_map(|role| number(role)).max().map_or(0, |n| n + 1);
        let last = |n: usize| {
            let shape = &graph.values[graph.nodes[n].outputs.first()?.0].shape;
            let width = *shape.last()?;
            let makes = |role: &&String| {
                let of = weight(graph, node, role).map(|of| graph.weights[of.0].shape.as_slice());
                matches!(of, Some([rows, _]) if *rows == width)
            };
            kinds.iter().find(|(kind, roles)| {
                !kind.starts_with("bias") && roles.iter().all(|role| makes(&role))
            })
        };
        let Some((kind, _)) = nodes.first().and_then(|n| last(*n)) else { continue };
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

/// Returns the weights of a kind in nodes.
fn of_kind(graph: &Graph, nodes: &[usize], kind: &str) -> Vec<WeightId> {
    let mut found = Vec::new();
    for node in nodes.iter().map(|n| &graph.nodes[*n]) {
        let roles = role_kinds(node).remove(kind).unwrap_or_default();
        found.extend(roles.iter().filter_map(|role| weight(graph, node, role)));
    }
    found
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
                let found = layouts(axis, length, sizes).into_iter();
                ways.extend(found.map(|layout| (axis, layout.steps())));
            }
            ways.extend(fused(graph, node, sizes).into_iter().map(|steps| (first, steps)));
            for (axis, length) in [(first, *rows), (first + 1, *columns)] {
                ways.extend(reversed(axis, length).into_iter().map(|steps| (axis, steps)));
            }
            if rows == columns {
                ways.push((first + 1, vec![WeightStep::Transpose(first, first + 1)]));
            }
            for scope in scopes(graph, &nodes, suspects) {
                let of = |kind: &str| of_kind(graph, &scope.nodes, kind);
                let weights = of(&kind);
                let biases = of(&bias_kind(&kind));
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
        let shape = |roles: &[String]| {
            let of = roles.first().and_then(|role| weight(graph, node, role))?;
            Some((&graph.weights[of.0].shape, roles.len()))
        };
        let names: Vec<&String> = kinds.keys().filter(|kind| !kind.starts_with("bias")).collect();
        for (n, a) in names.iter().enumerate() {
            for b in &names[n + 1..] {
                if shape(&kinds[*a]) != shape(&kinds[*b]) {
                    continue;
                }
                for scope in scopes(graph, &nodes, suspects) {
                    let pairs = |a: &str, b: &str| {
                        let mut found = Vec::new();
                        for n in &scope.nodes {
                            let mut kinds = role_kinds(&graph.nodes[*n]);
                            let both = (kinds.remove(a), kinds.remove(b));
                            let (Some(first), Some(second)) = both else { continue };
                            let pairs = first.into_iter().zip(second);
                            found.extend(pairs.map(|(first, second)| (*n, first, second)));
                        }
                        found
                    };
                    let weights = pairs(a, b);
                    let biases = pairs(&bias_kind(a), &bias_kind(b));
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

fn weight(graph: &Graph, node: &Node, role: &str) -> Option<WeightId> {
    node.weights.get(role).copied().filter(|of| of.0 < graph.weights.len())
}

/// Returns edits of the order of heads: those that share keys lie side by side, or a number of groups apart.
fn groups(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let projects = |n: &usize| graph.nodes[*n].op.is(Trait::Projects);
    let width = |n: usize| Some(&graph.values[graph.nodes[n].outputs.first()?.0].shape);
    // The projection that makes the queries, and the one that reads the result.
    let before = |n: usize| {
        let mut at = *graph.nodes[n].inputs.first()?;
        for _ in 0..REACH {
            let maker = graph.nodes[..n].iter().rposition(|node| node.outputs.contains(&at))?;
            if projects(&maker) {
                return Some(maker);
            }
            at = *graph.nodes[maker].inputs.first()?;
        }
        None
    };
    let after = |n: usize| {
        let mut at = *graph.nodes[n].outputs.first()?;
        for _ in 0..REACH {
            let reader =
                (n + 1..graph.nodes.len()).find(|r| graph.nodes[*r].inputs.contains(&at))?;
            if projects(&reader) {
                return Some(reader);
            }
            at = *graph.nodes[reader].outputs.first()?;
        }
        None
    };
    let mut found: Vec<(usize, WeightId, WeightId, [usize; 3])> = Vec::new();
    for n in 0..graph.nodes.len() {
        let node = &graph.nodes[n];
        let ([query, key, ..], Some(_)) = (node.inputs.as_slice(), node.state) else { continue };
        let shape = |value: &ValueId| graph.values[value.0].shape.as_slice();
        let ([heads, wide], [kv, _]) = (shape(query), shape(key)) else { continue };
        if *kv < 2 || !heads.is_multiple_of(*kv) || heads == kv {
            continue;
        }
        let (Some(first), Some(last)) = (before(n), after(n)) else { continue };
        let weights = (
            weight(graph, &graph.nodes[first], "weight"),
            weight(graph, &graph.nodes[last], "weight"),
        );
        if let ((Some(q), Some(o)), Some([rows])) = (weights, width(first).map(Vec::as_slice))
            && *rows == heads * wide
        {
            found.push((n, q, o, [*kv, heads / kv, *wide]));
        }
    }
    let nodes: Vec<usize> = found.iter().map(|(n, ..)| *n).collect();
    if !nodes.iter().any(|n: &usize| {
        suspects.first.contains(n)
            || [before(*n), after(*n)].iter().flatten().any(|n| suspects.first.contains(n))
    }) {
        return Vec::new();
    }
    let layout = |order: [usize; 2]| {
        let mut changes = Vec::new();
        for (_, q, o, [kv, group, rest]) in &found {
            let sizes = if order == [0, 1] { [*kv, *group] } else { [*group, *kv] };
            let of = |axis| AxisLayout { axis, outer: 1, sizes, rest: *rest }.steps();
            changes.push((vec![*q], of(0)));
            changes.push((vec![*o], of(1)));
        }
        changes
    };
    [([0, 1], "a number of groups apart"), ([1, 0], "side by side")]
        .into_iter()
        .map(|(order, way)| Edit {
            words: format!("query heads that share a key lie {way}"),
            place: place(graph, &nodes),
            change: Change::WeightSteps(layout(order)),
        })
        .collect()
}

/// Returns edits of tensors that rules take apart: their parts lie side by side, or one after another.
fn parts(model: &Model, suspects: &Suspects) -> Vec<Edit> {
    let graph = &model.graph;
    let mut all = Vec::new();
    // By the axis and the number of parts: weights and their biases have one layout.
    let mut found: BTreeMap<(usize, usize), Vec<(usize, usize)>> = BTreeMap::new();
    let mut nodes = BTreeSet::new();
    for (number, rule) in model.rules.iter().enumerate() {
        let made = |node: &Node| {
            let mut weights = node.weights.values().filter_map(|of| graph.weights.get(of.0));
            weights.any(|weight| rule.weight.fit(&weight.name).is_some())
        };
        let makes: Vec<usize> = (0..graph.nodes.len()).filter(|n| made(&graph.nodes[*n])).collect();
        if !makes.iter().any(|n| suspects.first.contains(n)) {
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
            found.entry(parts).or_default().push((number, before));
            nodes.extend(makes.iter().copied());
        }
    }
    let nodes: Vec<usize> = nodes.into_iter().collect();
    for ((axis, parts), rules) in found {
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
