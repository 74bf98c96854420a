//! Calls that choose: the best of numbers, places of a row, masks.

use super::{argument, axes, binary, shape, tensors};
use crate::graph::{Dim, Kind};
use crate::layout::Axis;
use crate::number::Number;
use crate::operand::Operand;
use crate::read::{Reader, Value};
use crate::record::Event;
use crate::rules;

/// One of two values by a test; tokens stay what they are.
pub(super) fn choice(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let values = tensors(reader, args);
    if let Some(tokens) =
        values.iter().skip(1).find(|value| reader.graph.term(value.id).op == "tokens").cloned()
    {
        return reader.bind(&event.out, tokens.id, tokens.axes);
    }
    let Some((inputs, shape, axes)) =
        (if values.len() == 3 { binary::broadcast(reader, &values) } else { None })
    else {
        return reader.hole(event, "a choice by a test");
    };
    let kind = Operand::parse(&event.out).value().map_or(Kind::Activation, |out| reader.kind(out));
    let term = reader.graph.step("where", &inputs, shape, kind);
    reader.give(&event.out, term, axes);
}

pub(super) fn topk(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let Some(first) = args.first().and_then(Operand::value) else {
        return reader.hole(event, "operand is no tensor");
    };
    let value = reader.value(first);
    let Operand::Number(count) = argument(event, args, 1, "k") else {
        return reader.hole(event, "the count is no number");
    };
    let outs = Operand::parse(&event.out).values();
    let [numbers, places] = outs[..] else { return reader.hole(event, "unexpected results") };
    let size = count.evaluate(&reader.record.config).unwrap_or(1.0) as usize;
    if value.axes.last() == Some(&Axis::Keys) {
        return best_keys(reader, event, &value, &count, places);
    }
    let term = reader.graph.term(value.id);
    let kind = term.kind;
    let mut shape = term.shape.clone();
    if let Some(last) = shape.last_mut() {
        *last = Dim { size, number: count.clone() };
    }
    if shape.len() > 1 {
        for (step, out) in [("top_values", numbers), ("top_places", places)] {
            let mut term = reader.graph.step(
                step,
                &[value.id],
                shape.clone(),
                if step == "top_values" { kind } else { Kind::Int },
            );
            term.set("k", count.clone());
            let id = reader.graph.add(term);
            reader.values.insert(out, Value { id, axes: value.axes.clone() });
        }
        return;
    }
    let mut choose = reader.graph.step("choose", &[value.id], shape.clone(), Kind::Int);
    choose.set("k", count);
    let chosen = reader.graph.add(choose);
    let pick = reader.graph.step("pick", &[value.id, chosen], shape, kind);
    let picked = reader.graph.add(pick);
    reader.values.insert(numbers, Value { id: picked, axes: value.axes.clone() });
    reader.values.insert(places, Value { id: chosen, axes: value.axes });
}

/// Experts of each token, from a table of whole numbers; false if the index is another.
pub(super) fn by_token(
    reader: &mut Reader<'_>,
    event: &Event,
    table: &Value,
    items: &[Operand],
) -> bool {
    let [Operand::Value(number)] = items else { return false };
    let tokens = reader.value(*number);
    let facts = reader.graph.term(table.id).clone();
    let is_table = facts.op == "weight" && facts.kind == Kind::Int && facts.shape.len() == 2;
    if !is_table || reader.graph.term(tokens.id).op != "tokens" {
        return false;
    }
    let shape = facts.shape[1..].to_vec();
    let term = reader.graph.step("choose_by_token", &[tokens.id, table.id], shape, Kind::Int);
    let mut axes = tokens.axes;
    axes.push(Axis::Row(0));
    reader.give(&event.out, term, axes);
    true
}

/// The keys that an indexer scores best.
pub(super) fn best_keys(
    reader: &mut Reader<'_>,
    event: &Event,
    value: &Value,
    count: &Number,
    places: usize,
) {
    let Some(sum) = reader.graph.is(value.id, "index_sum").cloned() else {
        return reader.hole(event, "the best of keys");
    };
    let scores = reader.graph.term(sum.inputs[0]).clone();
    let most = match count {
        Number::Apply(word, items) if word == "min" => {
            items.iter().find(|item| item.is_symbolic()).cloned().unwrap_or_else(|| count.clone())
        }
        other => other.clone(),
    };
    let size = reader.record.values[places].shape.last().copied().unwrap_or(1);
    let Some(key) = reader
        .graph
        .is(reader.graph.bare(scores.inputs[1]), "kept_index")
        .map(|kept| kept.inputs[0])
    else {
        return reader.hole(event, "keys that no index keeps");
    };
    let key = rules::with_heads(&mut reader.graph, key);
    let query = reader.graph.uncast(scores.inputs[0]);
    let mut term = reader.graph.step(
        "index_topk",
        &[query, key, sum.inputs[1]],
        vec![Dim { size, number: most.clone() }],
        Kind::Int,
    );
    term.set("topk", most);
    term.set("scale", scores.attribute("scale").cloned().unwrap_or(Number::Real(1.0)));
    let id = reader.graph.add(term);
    let mut axes = value.axes.clone();
    if let Some(last) = axes.last_mut() {
        *last = Axis::Row(0);
    }
    reader.values.insert(places, Value { id, axes });
}

pub(super) fn gather(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let source = args.first().and_then(Operand::value);
    let places = argument(event, args, 2, "index").value();
    let (Some(source), Some(places)) = (source, places) else {
        return reader.hole(event, "operands are no tensors");
    };
    let source = reader.value(source);
    let places = reader.value(places);
    if super::distances::near(reader, event, &source, &places) {
        return;
    }
    let shape = reader.graph.term(places.id).shape.clone();
    let kind = reader.graph.term(source.id).kind;
    let term = reader.graph.step("pick", &[source.id, places.id], shape, kind);
    reader.give(&event.out, term, places.axes);
}

pub(super) fn scatter(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let (Some(base), Some(places)) =
        (args.first().and_then(Operand::value), argument(event, args, 2, "index").value())
    else {
        return reader.hole(event, "operands are no tensors");
    };
    let base = reader.value(base);
    let places = reader.value(places);
    if reader.graph.term(reader.graph.bare(places.id)).op == "index_topk" {
        let id = reader.graph.bare(places.id);
        let term = reader.graph.step("selection", &[id], Vec::new(), Kind::Bool);
        let mut axes = places.axes;
        if let Some(last) = axes.last_mut() {
            *last = Axis::Keys;
        }
        return reader.give(&event.out, term, axes);
    }
    let term = reader.graph.term(base.id);
    let mut step =
        reader.graph.step("scatter", &[base.id, places.id], term.shape.clone(), term.kind);
    match argument(event, args, 3, "value") {
        Operand::Number(number) => step.set("value", number),
        Operand::Value(source) => {
            let source = reader.value(source);
            step.inputs.push(source.id);
        }
        _ => {}
    }
    reader.give(&event.out, step, base.axes);
}

pub(super) fn masked_fill(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    if super::distances::bounded(reader, event, args) {
        return;
    }
    let values = tensors(reader, args);
    if let Some(tokens) =
        values.first().filter(|value| reader.graph.term(value.id).op == "tokens").cloned()
    {
        return reader.bind(&event.out, tokens.id, tokens.axes);
    }
    let [value, mask, ..] = values.as_slice() else {
        return reader.hole(event, "operands are no tensors");
    };
    if reader.graph.term(value.id).op == "mask" {
        let chosen = reader.graph.term(reader.graph.bare(mask.id));
        if chosen.op == "selection" {
            let mut term = reader.graph.term(value.id).clone();
            term.inputs.clone_from(&chosen.inputs);
            return reader.give(&event.out, term, value.axes.clone());
        }
    }
    let number = match argument(event, args, 2, "value") {
        Operand::Number(number) => number,
        Operand::Value(other) => {
            let other = reader.value(other);
            reader
                .graph
                .term(other.id)
                .attribute("number")
                .cloned()
                .unwrap_or(Number::Unknown("tensor".to_owned()))
        }
        _ => Number::Int(0),
    };
    if value.axes.contains(&Axis::Keys) {
        let shape = shape(reader, value.id);
        let kind = reader.graph.term(value.id).kind;
        let mut step = reader.graph.step("masked_fill", &[value.id, mask.id], shape, kind);
        step.set("value", number);
        return reader.give(&event.out, step, value.axes.clone());
    }
    let Some((inputs, shape, axes)) = binary::broadcast(reader, &[value.clone(), mask.clone()])
    else {
        return reader.hole(event, "shapes that no row has");
    };
    let kind = reader.graph.term(value.id).kind;
    let mut step = reader.graph.step("masked_fill", &inputs, shape, kind);
    step.set("value", number);
    reader.give(&event.out, step, axes);
}

/// The largest of the last axis; its place is no term.
pub(super) fn maximum(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let outs = Operand::parse(&event.out).values();
    let Some(first) = args.first().and_then(Operand::value) else {
        return reader.hole(event, "operand is no tensor");
    };
    let value = reader.value(first);
    let keep = argument(event, args, 2, "keepdim").int() == Some(1);
    let term = reader.graph.term(value.id);
    let on_keys = value.axes.last() == Some(&Axis::Keys);
    let mut shape = term.shape.clone();
    if !on_keys && let Some(last) = shape.last_mut() {
        *last = Dim::plain(1);
    }
    let step = reader.graph.step(
        if on_keys { "max_keys" } else { "max" },
        &[value.id],
        shape.clone(),
        term.kind,
    );
    let mut id = reader.graph.add(step);
    let mut axes = value.axes;
    if on_keys && let Some(last) = axes.last_mut() {
        *last = Axis::One;
    }
    if !keep {
        axes.pop();
        if !on_keys && shape.len() > 1 {
            id = axes::merge_row(reader, id, shape.len() - 2, 2);
        }
    }
    reader.values.insert(outs[0], Value { id, axes });
}
