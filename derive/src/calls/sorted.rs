//! Mixtures whose rows are sorted by the experts that they chose, go through a stack of matrices in parts, and are added up again.

use super::argument;
use crate::graph::{Graph, Id, Kind};
use crate::layout::Axis;
use crate::number::Number;
use crate::operand::Operand;
use crate::read::{Reader, Value};
use crate::record::Event;
use crate::rules::both;

/// Order of the choices of all rows by their experts; false if other numbers are sorted.
pub(super) fn sort(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) -> bool {
    let Some(choices) = args.first().and_then(Operand::value) else { return false };
    let choices = reader.value(choices);
    let outs = Operand::parse(&event.out).values();
    let (Some(_), [_, order]) = (reader.graph.is(choices.id, "choose"), &outs[..]) else {
        return false;
    };
    if !are_choices(&choices.axes) {
        return false;
    }
    let count = reader.record.values[*order].shape.first().copied().unwrap_or(0);
    let term = reader.graph.step("choice_order", &[choices.id], Vec::new(), Kind::Int);
    let id = reader.graph.add(term);
    reader.values.insert(*order, Value { id, axes: vec![Axis::Sorted(count)] });
    true
}

/// Is true for sequences, tokens and the choices of a row in one axis.
fn are_choices(axes: &[Axis]) -> bool {
    let [Axis::Merged(parts)] = axes else { return false };
    matches!(parts.split_last(), Some((Axis::Row(0), outer)) if outer.iter().all(Axis::is_outer))
}

/// Rows of sorted choices: their places divided by the number of choices; false if the quotient is another.
pub(super) fn rows_of_choices(
    reader: &mut Reader<'_>,
    event: &Event,
    value: &Value,
    divisor: &Number,
) -> bool {
    let Some(order) = reader.graph.is(value.id, "choice_order").cloned() else { return false };
    let count = reader.graph.term(order.inputs[0]).width().size;
    let truncates = event.named.get("rounding_mode").is_some_and(|mode| !mode.is_null());
    if !truncates || divisor.evaluate(&reader.record.config) != Some(count as f64) {
        return false;
    }
    let term = reader.graph.step("choice_rows", &order.inputs, Vec::new(), Kind::Int);
    reader.give(&event.out, term, value.axes.clone());
    true
}

/// Rows, weights or results of choices in the order of the experts; false if the index is another.
pub(super) fn taken(
    reader: &mut Reader<'_>,
    event: &Event,
    value: &Value,
    items: &[Operand],
) -> bool {
    let [Operand::Value(number)] = items else { return false };
    let index = reader.value(*number);
    let term = reader.graph.term(index.id).clone();
    let (step, axis) = match (term.op.as_str(), &value.axes[..]) {
        ("choice_rows", [outer, Axis::Row(0)]) if outer.is_outer() => ("taken_rows", Some(0)),
        ("choice_order", axes) if are_choices(axes) => ("sorted_weights", None),
        ("choice_order", [first, Axis::Row(1)]) if are_choices(std::slice::from_ref(first)) => {
            ("sorted_rows", Some(1))
        }
        _ => return false,
    };
    let source = reader.graph.term(value.id);
    let taken =
        reader.graph.step(step, &[value.id, term.inputs[0]], source.shape.clone(), source.kind);
    let mut axes = index.axes;
    axes.extend(axis.map(Axis::Row));
    reader.give(&event.out, taken, axes);
    true
}

/// The choices by which rows are sorted.
fn choices_of(graph: &Graph, id: Id) -> Option<Id> {
    let term = graph.term(id);
    match term.op.as_str() {
        "taken_rows" | "sorted_rows" | "sorted_weights" | "expert_linear" => {
            term.inputs.get(1).copied()
        }
        _ => term.inputs.iter().find_map(|&input| choices_of(graph, input)),
    }
}

/// The product of the rows of one expert with its matrix of a stack; false if rows or matrix are others.
pub(super) fn expert(reader: &mut Reader<'_>, event: &Event, rows: &Value, matrix: &Value) -> bool {
    if !matches!(rows.axes[..], [Axis::Sorted(_), Axis::Row(_)]) {
        return false;
    }
    let graph = &reader.graph;
    let Some(part) =
        graph.is(matrix.id, "merge_axes").and_then(|term| graph.is(term.inputs[0], "slice_axis"))
    else {
        return false;
    };
    let (Some(choose), Some(_)) = (choices_of(graph, rows.id), graph.weight(part.inputs[0])) else {
        return false;
    };
    let Some(Number::Int(place)) = part.attribute("start") else { return false };
    let width = graph.term(matrix.id).shape[0].clone();
    let shape = vec![graph.term(choose).width(), width];
    let kind = graph.term(rows.id).kind;
    let mut term = graph.step("expert_part", &[rows.id, choose, part.inputs[0]], shape, kind);
    term.set("place", Number::Int(*place));
    reader.give(&event.out, term, vec![rows.axes[0].clone(), Axis::Row(1)]);
    true
}

/// The results of all experts, one below the other; false if others are joined.
pub(super) fn joined(reader: &mut Reader<'_>, event: &Event, values: &[Value]) -> bool {
    let graph = &reader.graph;
    let Some(first) = values.first().map(|value| graph.term(value.id).clone()) else {
        return false;
    };
    let in_order = values.iter().enumerate().all(|(place, value)| {
        let term = graph.term(value.id);
        term.op == "expert_part"
            && term.inputs == first.inputs
            && term.attribute("place") == Some(&Number::Int(place as i64))
    });
    let [rows, choose, stack] = first.inputs[..] else { return false };
    let scores = graph.term(*graph.term(choose).inputs.first().unwrap_or(&choose)).width();
    if !in_order || graph.term(stack).shape[0].size != values.len() || scores.size != values.len() {
        return false;
    }
    let count = values
        .iter()
        .map(|value| match value.axes[0] {
            Axis::Sorted(count) => count,
            _ => 0,
        })
        .sum();
    let source = graph.term(rows);
    let rows = match source.op.as_str() {
        "taken_rows" | "sorted_rows" => source.inputs[0],
        _ => rows,
    };
    let mut term = graph.step("expert_linear", &[rows, choose, stack], first.shape, first.kind);
    term.set("n", scores.number);
    reader.give(&event.out, term, vec![Axis::Sorted(count), Axis::Row(1)]);
    true
}

/// Results of choices that are brought back into the order of rows, or added to their rows; false if the index is another.
pub(super) fn added(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) -> bool {
    let operands = [(0, "input"), (2, "index"), (3, "source")]
        .map(|(place, name)| argument(event, args, place, name).value());
    let [Some(total), Some(index), Some(part)] = operands else { return false };
    let total = reader.value(total);
    let index = reader.value(index).id;
    let part = reader.value(part);
    let graph = &reader.graph;
    let index = graph.term(index);
    let choose = index.inputs.first().copied();
    if graph.term(total.id).op != "filled" || choices_of(graph, part.id) != choose {
        return false;
    }
    match index.op.as_str() {
        "choice_order" => {
            let axes =
                vec![Axis::Merged(vec![Axis::Batch, Axis::Tokens, Axis::Row(0)]), Axis::Row(1)];
            reader.bind(&event.out, part.id, axes);
        }
        "choice_rows" => {
            let product = graph.term(part.id);
            let weighed = both(product).into_iter().find(|(rows, weights)| {
                graph.term(*rows).op == "expert_linear"
                    && graph.term(*weights).op == "sorted_weights"
                    && graph.term(*weights).inputs.get(1) == graph.term(*rows).inputs.get(1)
            });
            let Some((rows, weights)) = weighed else { return false };
            if product.op != "mul" || product.kind != Kind::Activation {
                return false;
            }
            let mut term = graph.term(rows).clone();
            term.shape.remove(0);
            term.inputs.push(graph.term(weights).inputs[0]);
            reader.give(&event.out, term, total.axes);
        }
        _ => return false,
    }
    true
}
