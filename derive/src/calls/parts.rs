//! Calls that take rows apart, and put them side by side.

use super::axes::{dropped, renumber};
use super::axis_at;
use crate::graph::{Dim, Id};
use crate::layout::Axis;
use crate::number::Number;
use crate::operand::Operand;
use crate::read::{Reader, Value};
use crate::record::Event;

pub(super) fn interleave(reader: &mut Reader<'_>, event: &Event, value: &Value, args: &[Operand]) {
    let count = args.get(1).cloned().or_else(|| event.named.get("repeats").map(Operand::parse));
    let at = args
        .get(2)
        .cloned()
        .or_else(|| event.named.get("dim").map(Operand::parse))
        .and_then(|operand| operand.int());
    let (Some(Operand::Number(count)), Some(place)) = (count, at.and_then(|at| axis_at(value, at)))
    else {
        return reader.hole(event, "repeats unknown");
    };
    let Axis::Row(axis) = value.axes[place] else { return reader.hole(event, "repeats rows") };
    let size = count.evaluate(&reader.record.config).unwrap_or(1.0) as usize;
    let term = reader.graph.term(value.id);
    let mut shape = term.shape.clone();
    shape[axis] = Dim::product(&[shape[axis].clone(), Dim { size, number: count.clone() }]);
    let mut step = reader.graph.step("repeat_each", &[value.id], shape, term.kind);
    step.set("axis", Number::Int(axis as i64));
    step.set("n", count);
    reader.give(&event.out, step, value.axes.clone());
}

/// A row with a new axis along which it is repeated.
pub(super) fn expanded(reader: &mut Reader<'_>, id: Id, at: usize, count: Dim) -> Id {
    let term = reader.graph.term(id);
    let mut shape = term.shape.clone();
    shape.insert(at, count);
    let mut step = reader.graph.step("expand", &[id], shape, term.kind);
    step.set("at", Number::Int(at as i64));
    reader.graph.add(step)
}

/// Parts of an axis.
pub(super) fn parts(
    reader: &mut Reader<'_>,
    name: &str,
    event: &Event,
    value: &Value,
    args: &[Operand],
) {
    let default = if name == "unbind" { 1 } else { 2 };
    let at = args
        .get(default)
        .cloned()
        .or_else(|| event.named.get("dim").map(Operand::parse))
        .and_then(|operand| operand.int())
        .unwrap_or(0);
    let Some(place) = axis_at(value, at) else { return reader.hole(event, "no such axis") };
    let outs = Operand::parse(&event.out).values();
    let Axis::Row(axis) = value.axes[place] else {
        if outs.len() == 1 {
            return reader.bind(
                &event.out.get(0).cloned().unwrap_or_default(),
                value.id,
                value.axes.clone(),
            );
        }
        if let Axis::Sorted(_) = value.axes[place] {
            // Rows of each expert.
            for out in outs {
                let mut axes = value.axes.clone();
                axes[place] = Axis::Sorted(reader.record.values[out].shape[place]);
                reader.values.insert(out, Value { id: value.id, axes });
            }
            return;
        }
        return reader.hole(event, "parts of rows");
    };
    let written: Vec<Option<Number>> = match args.get(1) {
        Some(Operand::List(items)) => items
            .iter()
            .map(|item| match item {
                Operand::Number(number) => Some(number.clone()),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    };
    let whole = reader.graph.term(value.id).shape[axis].clone();
    let mut from = Dim { size: 0, number: Number::Int(0) };
    let count = outs.len();
    for (number, out) in outs.into_iter().enumerate() {
        let sizes = &reader.record.values[out].shape;
        let size = if name == "unbind" { 1 } else { sizes[place] };
        let even = size * count == whole.size;
        let expression = written.get(number).cloned().flatten().unwrap_or_else(|| {
            if even {
                Number::apply("//", vec![whole.number.clone(), Number::Int(count as i64)])
            } else {
                Number::Int(size as i64)
            }
        });
        let width = Dim { size, number: expression };
        let to = Dim {
            size: from.size + size,
            number: Number::apply("+", vec![from.number.clone(), width.number.clone()]),
        };
        let id = slice_row(reader, value.id, axis, &from, &to, width);
        from = to;
        let mut axes = value.axes.clone();
        let id = if name == "unbind" {
            axes.remove(place);
            let id = dropped(reader, id, axis);
            renumber(&mut axes, &mut [], axis, -1);
            id
        } else {
            id
        };
        reader.values.insert(out, Value { id, axes });
    }
}

/// A part of an axis of a row.
pub(super) fn slice_row(
    reader: &mut Reader<'_>,
    id: Id,
    axis: usize,
    from: &Dim,
    to: &Dim,
    width: Dim,
) -> Id {
    let term = reader.graph.term(id);
    let mut shape = term.shape.clone();
    let last = axis + 1 == shape.len();
    shape[axis] = width;
    let mut step =
        reader.graph.step(if last { "slice" } else { "slice_axis" }, &[id], shape, term.kind);
    step.set("from", from.number.clone());
    step.set("to", to.number.clone());
    if !last {
        step.set("axis", Number::Int(axis as i64));
    }
    step.set("start", Number::Int(from.size as i64));
    step.set("end", Number::Int(to.size as i64));
    reader.graph.add(step)
}

pub(super) fn joined(reader: &mut Reader<'_>, name: &str, event: &Event, args: &[Operand]) {
    let values = match args.first() {
        Some(list @ Operand::List(_)) => list.values(),
        _ => {
            event.named.get("tensors").map(|json| Operand::parse(json).values()).unwrap_or_default()
        }
    };
    let values: Vec<Value> = values.into_iter().map(|number| reader.value(number)).collect();
    let at = args
        .get(1)
        .cloned()
        .or_else(|| event.named.get("dim").map(Operand::parse))
        .and_then(|operand| operand.int())
        .unwrap_or(0);
    // A cache that holds nothing yet, and what it keeps.
    if let [empty, kept] = values.as_slice() {
        let nothing = reader.graph.term(empty.id).shape.first().is_some_and(|dim| dim.size == 0);
        if nothing && kept.axes.contains(&Axis::Tokens) {
            let shape = super::shape(reader, kept.id);
            let kind = reader.graph.term(kept.id).kind;
            let term = reader.graph.step("kept_index", &[kept.id], shape, kind);
            let axes = kept
                .axes
                .iter()
                .map(|axis| if *axis == Axis::Tokens { Axis::Keys } else { axis.clone() })
                .collect();
            return reader.give(&event.out, term, axes);
        }
    }
    let Some(first) = values.first() else { return reader.hole(event, "joins nothing") };
    if super::sorted::joined(reader, event, &values)
        || super::sequences::delayed(reader, event, &values, at)
    {
        return;
    }
    if name == "stack" {
        return stacked(reader, event, &values, at);
    }
    let Some(place) = axis_at(first, at) else { return reader.hole(event, "no such axis") };
    if first.axes[place] != Axis::Keys
        && place + 1 == first.axes.len()
        && values
            .iter()
            .any(|value| value.axes.len() != first.axes.len() || value.axes != first.axes)
    {
        return side_by_side(reader, event, &values);
    }
    let row = |value: &Value| match value.axes.get(place) {
        Some(Axis::Row(axis)) => Some(*axis),
        _ => None,
    };
    if first.axes[place] == Axis::Keys && values.len() == 2 {
        let shape = super::shape(reader, first.id);
        let kind = reader.graph.term(first.id).kind;
        let term = reader.graph.step("with_sinks", &[first.id, values[1].id], shape, kind);
        return reader.give(&event.out, term, first.axes.clone());
    }
    let Some(axis) = row(first) else { return reader.hole(event, "joins rows") };
    if values.iter().any(|value| {
        row(value) != Some(axis)
            || reader.graph.term(value.id).shape.len() != reader.graph.term(first.id).shape.len()
    }) {
        return reader.hole(event, "joins unequal rows");
    }
    let mut shape = super::shape(reader, first.id);
    shape[axis] = values.iter().skip(1).fold(shape[axis].clone(), |sum, value| {
        let dim = &reader.graph.term(value.id).shape[axis];
        let number = Number::apply("+", vec![sum.number, dim.number.clone()]);
        Dim { size: sum.size + dim.size, number }
    });
    let last = axis + 1 == shape.len();
    let ids: Vec<Id> = values.iter().map(|value| value.id).collect();
    let kind = reader.graph.term(first.id).kind;
    let mut term =
        reader.graph.step(if last { "concat" } else { "concat_axis" }, &ids, shape, kind);
    if !last {
        term.set("axis", Number::Int(axis as i64));
    }
    reader.give(&event.out, term, first.axes.clone());
}

pub(super) fn stacked(reader: &mut Reader<'_>, event: &Event, values: &[Value], at: i64) {
    let Some(out) = Operand::parse(&event.out).value() else { return };
    let rank = reader.record.values[out].shape.len() as i64;
    let place = if at < 0 { rank + at } else { at } as usize;
    let first = &values[0];
    let axis = first.axes[..place.min(first.axes.len())]
        .iter()
        .filter_map(|axis| match axis {
            Axis::Row(number) => Some(number + 1),
            _ => None,
        })
        .max()
        .unwrap_or(0);
    let mut shape = super::shape(reader, first.id);
    if axis > shape.len() {
        return reader.hole(event, "stacks rows");
    }
    shape.insert(axis, Dim::plain(values.len()));
    let ids: Vec<Id> = values.iter().map(|value| value.id).collect();
    let kind = reader.graph.term(first.id).kind;
    let mut term = reader.graph.step("stack_axis", &ids, shape, kind);
    term.set("axis", Number::Int(axis as i64));
    let mut axes = first.axes.clone();
    for other in &mut axes {
        if let Axis::Row(number) = other
            && *number >= axis
        {
            *number += 1;
        }
    }
    axes.insert(place, Axis::Row(axis));
    reader.give(&event.out, term, axes);
}

/// Joins rows along their last axis, of which some lack an axis that others have.
pub(super) fn side_by_side(reader: &mut Reader<'_>, event: &Event, values: &[Value]) {
    let rows =
        |value: &Value| value.axes.iter().filter(|axis| matches!(axis, Axis::Row(_))).count();
    let Some(widest) = values.iter().max_by_key(|value| rows(value)).cloned() else {
        return reader.hole(event, "joins nothing");
    };
    let shape = super::shape(reader, widest.id);
    let mut ids = Vec::new();
    for value in values {
        let mut id = value.id;
        let missing: Vec<usize> = widest
            .axes
            .iter()
            .enumerate()
            .filter_map(|(place, axis)| match (axis, value.axes.get(place)) {
                (Axis::Row(number), Some(Axis::One)) => Some(*number),
                _ => None,
            })
            .collect();
        for number in missing {
            let term = reader.graph.term(id);
            let mut row = term.shape.clone();
            if number > row.len() {
                return reader.hole(event, "joins unequal rows");
            }
            row.insert(number, shape[number].clone());
            let mut step = reader.graph.step("expand", &[id], row, term.kind);
            step.set("at", Number::Int(number as i64));
            id = reader.graph.add(step);
        }
        if reader.graph.term(id).shape.len() != shape.len() {
            return reader.hole(event, "joins unequal rows");
        }
        ids.push(id);
    }
    let mut shape = shape;
    let last = shape.len() - 1;
    shape[last] = ids.iter().skip(1).fold(reader.graph.term(ids[0]).width(), |sum, &id| {
        let dim = reader.graph.term(id).width();
        Dim { size: sum.size + dim.size, number: Number::apply("+", vec![sum.number, dim.number]) }
    });
    let kind = reader.graph.term(ids[0]).kind;
    let term = reader.graph.step("concat", &ids, shape, kind);
    reader.give(&event.out, term, widest.axes);
}
