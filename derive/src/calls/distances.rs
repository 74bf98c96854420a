//! Positions of queries beside those of keys: distances, and masks by them.

use crate::graph::Kind;
use crate::layout::Axis;
use crate::number::Number;
use crate::operand::Operand;
use crate::read::{Reader, Value};
use crate::record::Event;

/// Makes the term of positions along the keys beside those along the tokens; false if the operands are others.
pub(super) fn compared(
    reader: &mut Reader<'_>,
    event: &Event,
    step: &str,
    left: &Value,
    right: &Value,
) -> bool {
    let is_plain = |value: &Value| reader.graph.term(reader.graph.bare(value.id)).op == "positions";
    if !is_plain(left) || !is_plain(right) {
        return false;
    }
    // True if the left operand has the positions of queries, and the right one those of keys.
    let straight = match (from_end(left), from_end(right)) {
        (Some(2), Some(1)) => true,
        (Some(1), Some(2)) => false,
        _ => return false,
    };
    let op = match (step, straight) {
        ("sub", _) => "distance",
        ("ge" | "lt", true) | ("le" | "gt", false) => "mask",
        _ => return false,
    };
    let is_mask = op == "mask";
    let kind = if is_mask { Kind::Bool } else { Kind::Int };
    let mut term = reader.graph.step(op, &[], Vec::new(), kind);
    if is_mask {
        term.set("kind", Number::Word("create_causal_mask".to_owned()));
    }
    let mut id = reader.graph.add(term);
    let hides = is_mask && ["lt", "gt"].contains(&step);
    if hides {
        id = reader.graph.unary("not", id);
    } else if !is_mask && !straight {
        id = reader.graph.unary("neg", id);
    }
    let rank = left.axes.len().max(right.axes.len());
    let mut axes = vec![Axis::One; rank - 2];
    if left.axes.first() == Some(&Axis::Batch) || right.axes.first() == Some(&Axis::Batch) {
        axes[0] = Axis::Batch;
    }
    axes.extend([Axis::Tokens, Axis::Keys]);
    reader.bind(&event.out, id, axes);
    true
}

/// Place of the tokens, counted from the last axis.
fn from_end(value: &Value) -> Option<usize> {
    value.axes.iter().rev().position(|axis| *axis == Axis::Tokens).map(|place| place + 1)
}

/// Numbers of a query that are taken by the distance of each key; false if the places are others.
pub(super) fn near(reader: &mut Reader<'_>, event: &Event, source: &Value, places: &Value) -> bool {
    let graph = &reader.graph;
    let mut index = places.id;
    while ["expand", "cast", "with_ones"].contains(&graph.term(index).op.as_str()) {
        index = graph.term(index).inputs[0];
    }
    let bounded = graph.term(index).clone();
    let is_distance = bounded.op == "clamp" && graph.term(bounded.inputs[0]).op == "distance";
    let numbers = graph.term(source.id).clone();
    let bound = |name: &str| bounded.attribute(name)?.evaluate(&reader.record.config);
    let [Axis::Batch, Axis::Row(0), Axis::Tokens, Axis::Row(1)] = source.axes[..] else {
        return false;
    };
    let all = bound("lo") == Some(0.0) && bound("hi") == Some(numbers.width().size as f64 - 1.0);
    if !is_distance || !all || places.axes.last() != Some(&Axis::Keys) {
        return false;
    }
    let heads = numbers.shape[..1].to_vec();
    let mut term = reader.graph.step("near", &[source.id], heads, numbers.kind);
    term.set("n", numbers.width().number);
    reader.give(&event.out, term, places.axes.clone());
    true
}

/// Is true for the places of keys that are not among the nearest: behind the query, or too far before it.
pub(super) fn is_far(reader: &Reader<'_>, mask: usize, count: usize) -> bool {
    let test = reader.graph.term(reader.graph.bare(mask));
    let tests = crate::rules::both(test);
    test.op == "or"
        && tests.iter().any(|(one, other)| {
            compares_distance(reader, *one, "lt", 0.0)
                && compares_distance(reader, *other, "ge", count as f64)
        })
}

/// Is true for a comparison of distances with a number.
fn compares_distance(reader: &Reader<'_>, id: usize, op: &str, number: f64) -> bool {
    let graph = &reader.graph;
    let term = graph.term(graph.bare(id));
    let bound = term.attribute("s").and_then(|bound| bound.evaluate(&reader.record.config));
    term.op == op && bound == Some(number) && graph.term(term.inputs[0]).op == "distance"
}

/// Numbers of a query by distance, with 0 for keys that are too far; false if the mask is another.
pub(super) fn bounded(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) -> bool {
    let values = super::tensors(reader, args);
    let [value, mask, ..] = values.as_slice() else { return false };
    let Some(near) = reader.graph.is(value.id, "near").cloned() else { return false };
    let count = reader.graph.term(near.inputs[0]).width().size;
    let zero = match super::argument(event, args, 2, "value") {
        Operand::Number(number) => number.evaluate(&reader.record.config) == Some(0.0),
        _ => false,
    };
    if !zero || !is_far(reader, mask.id, count) {
        return false;
    }
    let term = reader.graph.step("relative", &near.inputs, near.shape.clone(), near.kind);
    reader.give(&event.out, term, value.axes.clone());
    true
}
