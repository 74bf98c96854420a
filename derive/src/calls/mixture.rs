//! Mixtures of experts written as a loop: the rows that chose an expert are taken out, go through its MLP, and are added to the others.

use super::argument;
use crate::graph::{Dim, Graph, Id, Kind, Term};
use crate::layout::Axis;
use crate::number::Number;
use crate::operand::Operand;
use crate::read::{Reader, Value};
use crate::record::Event;
use crate::rules::both;

/// Steps between the choices of a router and a mask of the rows that chose an expert.
const MASKS: &[&str] =
    &["eq", "one_hot", "cast", "slice", "merge_axes", "split_axis", "permute_row", "with_ones"];
/// Names of the matrices of an expert in the spec language.
const GATE: &str = "gate_proj";
const UP: &str = "up_proj";
const DOWN: &str = "down_proj";

/// A mask with one more axis, for the experts.
pub(super) fn one_hot(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let Some(choices) = args.first().and_then(Operand::value) else {
        return reader.hole(event, "operand is no tensor");
    };
    let choices = reader.value(choices);
    let mut shape = super::shape(reader, choices.id);
    let out = Operand::parse(&event.out).value();
    let size = out.and_then(|out| reader.record.values[out].shape.last().copied()).unwrap_or(1);
    let number = match argument(event, args, 1, "num_classes") {
        Operand::Number(number) => number,
        _ => Number::Int(size as i64),
    };
    let mut axes = choices.axes;
    axes.push(Axis::Row(shape.len()));
    shape.push(Dim { size, number });
    let term = reader.graph.step("one_hot", &[choices.id], shape, Kind::Int);
    reader.give(&event.out, term, axes);
}

/// The rows that chose an expert, and the places of their choices; false if the mask is none of choices.
pub(super) fn chosen_rows(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) -> bool {
    let Some(mask) = args.first().and_then(Operand::value) else { return false };
    let mask = reader.value(mask);
    let Some(choose) = choices(&reader.graph, mask.id) else { return false };
    let outs = Operand::parse(&event.out).values();
    if outs.len() != mask.axes.len() {
        return false;
    }
    for (axis, out) in mask.axes.iter().zip(outs) {
        let step = if axis.is_outer() { "chosen_rows" } else { "chosen_places" };
        let term = reader.graph.step(step, &[choose], Vec::new(), Kind::Int);
        let id = reader.graph.add(term);
        let count = reader.record.values[out].shape.first().copied().unwrap_or(0);
        reader.values.insert(out, Value { id, axes: vec![Axis::Chosen(count)] });
    }
    true
}

/// The choices that a mask was made of.
fn choices(graph: &Graph, id: Id) -> Option<Id> {
    let term = graph.term(id);
    if term.op == "choose" {
        return Some(id);
    }
    MASKS.contains(&term.op.as_str()).then(|| choices(graph, *term.inputs.first()?)).flatten()
}

/// Rows, or weights of choices, that are taken out for an expert; false if the index is another.
pub(super) fn taken(
    reader: &mut Reader<'_>,
    event: &Event,
    value: &Value,
    items: &[Operand],
) -> bool {
    let mut axes = Vec::new();
    let mut choose = None;
    let mut place = 0;
    for item in items {
        match item {
            Operand::None => axes.push(Axis::One),
            Operand::Value(number) => {
                let index = reader.value(*number);
                let term = reader.graph.term(index.id);
                match (term.op.as_str(), value.axes.get(place)) {
                    ("chosen_rows", Some(axis)) if axis.is_outer() => axes.extend(index.axes),
                    ("chosen_places", Some(Axis::Row(0))) => choose = term.inputs.first().copied(),
                    _ => return false,
                }
                place += 1;
            }
            _ => return false,
        }
    }
    axes.extend(value.axes[place..].iter().cloned());
    if let Some(choose) = choose {
        let kind = reader.graph.term(value.id).kind;
        let weight = reader.graph.step("weight_of_choice", &[value.id, choose], Vec::new(), kind);
        reader.give(&event.out, weight, axes);
    } else {
        reader.bind(&event.out, value.id, axes);
    }
    true
}

/// Results of an expert that are added to the rows that chose it.
pub(super) fn added(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let operands = [(0, "input"), (2, "index"), (3, "source")]
        .map(|(place, name)| argument(event, args, place, name).value());
    let [Some(total), Some(index), Some(part)] = operands else {
        return reader.hole(event, "operands are no tensors");
    };
    let total = reader.value(total);
    let index = reader.value(index).id;
    let part = reader.value(part).id;
    let kind = reader.graph.term(total.id).kind;
    let choices = reader.graph.is(index, "chosen_rows").map(|rows| rows.inputs[0]);
    let mixture = experts(reader, part, kind).filter(|term| Some(term.inputs[1]) == choices);
    let Some(term) = mixture else {
        return reader.hole(event, "rows that are added are not those of an expert");
    };
    let before = reader.graph.term(total.id).op.clone();
    let id = reader.graph.add(term);
    if before != "filled" && total.id != id {
        return reader.hole(event, "experts of a mixture differ in more than their weights");
    }
    reader.bind(&event.out, id, total.axes);
}

/// The mixture whose expert gave these weighed rows.
fn experts(reader: &Reader<'_>, part: Id, kind: Kind) -> Option<Term> {
    let graph = &reader.graph;
    let product = graph.is(graph.uncast(part), "mul")?;
    let (output, weight) = both(product).into_iter().find_map(|(output, weight)| {
        let weight = graph.is(graph.bare(weight), "weight_of_choice")?;
        Some((output, weight.clone()))
    })?;
    let down = graph.is(graph.uncast(output), "linear")?;
    let (path, down_name) = expert_matrix(graph, down.inputs[1])?;
    let inner = graph.term(graph.uncast(down.inputs[0]));
    let gated = inner.op == "mul";
    let gates: Vec<(Id, Option<Id>)> = if gated {
        both(inner).into_iter().map(|(gate, up)| (gate, Some(up))).collect()
    } else {
        vec![(graph.uncast(down.inputs[0]), None)]
    };
    let (act, gate, up) = gates.into_iter().find_map(|(gate, up)| {
        let act = graph.term(graph.uncast(gate));
        let name = registry::ops::activation_op(&act.op)?;
        Some((name, graph.is(*act.inputs.first()?, "linear")?, up))
    })?;
    let rows = gate.inputs[0];
    let (gate_path, gate_name) = expert_matrix(graph, gate.inputs[1])?;
    let mut names = vec![(down_name, DOWN)];
    if let Some(up) = up {
        let up = graph.is(up, "linear")?;
        let (up_path, up_name) = expert_matrix(graph, up.inputs[1])?;
        if up.inputs[0] != rows || up_path != path {
            return None;
        }
        names.extend([(gate_name, GATE), (up_name, UP)]);
    } else {
        names.push((gate_name, UP));
    }
    if gate_path != path {
        return None;
    }
    let [weights, choose] = weight.inputs[..] else { return None };
    let scores = graph.term(*graph.term(choose).inputs.first()?).width();
    let mut term = graph.step(
        "experts",
        &[rows, choose, weights],
        graph.term(rows).shape.clone(),
        Kind::Activation,
    );
    let ffn = graph.term(gate.inputs[1]).shape.first()?.number.clone();
    term.set("path", Number::Word(path));
    term.set("n", scores.number);
    term.set("ffn", ffn);
    term.set("act", Number::Word(act.to_owned()));
    if !gated {
        term.set("form", Number::Word("plain".to_owned()));
    }
    if gate.attribute("bias").is_some_and(|bias| *bias != Number::Bool(false)) {
        term.set("bias", Number::Bool(true));
    }
    if kind == Kind::Float {
        term.set("sum", Number::Word("once".to_owned()));
    }
    for (name, word) in names {
        if name != word {
            term.set(word, Number::Word(name));
        }
    }
    Some(term)
}

/// The list of experts that has a matrix, and the name of the matrix in an expert.
fn expert_matrix(graph: &Graph, weight: Id) -> Option<(String, String)> {
    let module = graph.weight(weight)?.strip_suffix(".weight")?;
    let (expert, name) = module.rsplit_once('.')?;
    let (list, number) = expert.rsplit_once('.')?;
    number.parse::<usize>().ok()?;
    Some((list.to_owned(), name.to_owned()))
}

/// Renamed tensors of the experts of a mixture: the name in a checkpoint, and in the spec.
pub(crate) fn renamed(term: &Term) -> Vec<(String, String)> {
    let Some(path) = term.word("path") else { return Vec::new() };
    let tensors: &[&str] =
        if term.attribute("bias").is_some() { &["weight", "bias"] } else { &["weight"] };
    let mut names = Vec::new();
    for word in [GATE, UP, DOWN] {
        let Some(name) = term.word(word) else { continue };
        for tensor in tensors {
            let expert = format!("{path}.{{e}}");
            names.push((format!("{expert}.{name}.{tensor}"), format!("{expert}.{word}.{tensor}")));
        }
    }
    names
}
