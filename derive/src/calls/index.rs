//! Slices and indices.

use crate::graph::{Dim, Graph};
use crate::layout::Axis;
use crate::number::Number;
use crate::operand::Operand;
use crate::read::{Reader, Value};
use crate::record::Event;

use super::parts::slice_row;

/// Makes the term of an index; false if the call is none.
pub(super) fn call(reader: &mut Reader<'_>, name: &str, event: &Event, args: &[Operand]) -> bool {
    let Some(Operand::Value(first)) = args.first() else { return false };
    match name {
        "__getitem__" => {
            let value = reader.value(*first);
            let table = reader
                .graph
                .weight(value.id)
                .is_some_and(|path| reader.record.buffers.contains_key(path));
            let out = Operand::parse(&event.out).value();
            if table && out.is_some_and(|out| super::sequences::bind_square(reader, out)) {
                return true;
            }
            let by_tensor =
                super::axes::flat(&args[1..]).iter().any(|item| matches!(item, Operand::Value(_)));
            if by_tensor && super::sequences::rotary_rows(reader, event, &value) {
                return true;
            }
            if by_tensor
                && super::choices::by_token(reader, event, &value, &super::axes::flat(&args[1..]))
            {
                return true;
            }
            if by_tensor
                && super::sorted::taken(reader, event, &value, &super::axes::flat(&args[1..]))
            {
                return true;
            }
            if by_tensor
                && super::mixture::taken(reader, event, &value, &super::axes::flat(&args[1..]))
            {
                return true;
            }
            indexed(reader, event, value, &args[1..]);
        }
        "__setitem__" => part_set(reader, event, *first, &args[1..]),
        "narrow" => reader.hole(event, "a part by numbers"),
        _ => return false,
    }
    true
}

fn indexed(reader: &mut Reader<'_>, event: &Event, mut value: Value, args: &[Operand]) {
    let items = super::axes::flat(args);
    let named =
        items.iter().filter(|item| !matches!(item, Operand::None | Operand::Ellipsis)).count();
    let mut axes = Vec::new();
    let mut id = value.id;
    let mut place = 0;
    for item in &items {
        match item {
            Operand::None => axes.push(Axis::One),
            Operand::Ellipsis => {
                let open = value.axes.len().saturating_sub(named);
                for _ in 0..open {
                    axes.push(value.axes[place].clone());
                    place += 1;
                }
            }
            Operand::Slice(ends) => {
                let Some(axis) = value.axes.get(place).cloned() else {
                    return reader.hole(event, "too many indices");
                };
                place += 1;
                match sliced(reader, id, &axis, ends) {
                    Some(sliced) => id = sliced,
                    None => return reader.hole(event, "a slice of rows"),
                }
                axes.push(axis);
            }
            Operand::Number(number) => {
                let Some(axis) = value.axes.get(place).cloned() else {
                    return reader.hole(event, "too many indices");
                };
                place += 1;
                match axis {
                    Axis::One => {}
                    Axis::Row(row) => {
                        let size = reader.graph.term(id).shape[row].size as i64;
                        let Some(at) = number.evaluate(&reader.record.config).map(|at| at as i64)
                        else {
                            return reader.hole(event, "an index that is no number");
                        };
                        let at = if at < 0 { at + size } else { at };
                        let dim = |offset: i64| Dim {
                            size: (at + offset) as usize,
                            number: Number::Int(at + offset),
                        };
                        id = slice_row(reader, id, row, &dim(0), &dim(1), Dim::plain(1));
                        if reader.graph.term(id).shape.len() > 1 {
                            id = super::axes::dropped(reader, id, row);
                            super::axes::renumber(&mut value.axes, &mut axes, row, -1);
                        } else {
                            axes.push(Axis::Row(0));
                        }
                    }
                    _ => return reader.hole(event, "an index into rows"),
                }
            }
            Operand::List(places) => {
                let Some(axis) = value.axes.get(place).cloned() else {
                    return reader.hole(event, "too many indices");
                };
                place += 1;
                let size = axis.size(&reader.graph.term(id).shape, reader.sizes) as i64;
                let at: Option<Vec<i64>> = places
                    .iter()
                    .map(|operand| operand.int().map(|at| if at < 0 { at + size } else { at }))
                    .collect();
                let (Some(at), Axis::Row(row)) = (at, &axis) else {
                    return reader.hole(event, "an index by a tensor");
                };
                let [single] = at[..] else {
                    return reader.hole(event, "several places of an axis");
                };
                let whole = reader.graph.term(id).shape[*row].clone();
                let end = |offset: i64| Dim {
                    size: (single + offset) as usize,
                    number: Number::apply(
                        "-",
                        vec![whole.number.clone(), Number::Int(size - single - offset)],
                    ),
                };
                id = slice_row(reader, id, *row, &end(0), &end(1), Dim::plain(1));
                axes.push(axis);
            }
            _ => return reader.hole(event, "an index by a tensor"),
        }
    }
    axes.extend(value.axes[place.min(value.axes.len())..].iter().cloned());
    reader.bind(&event.out, id, axes);
}

/// A slice along an axis: `None` where it would drop rows.
fn sliced(reader: &mut Reader<'_>, id: usize, axis: &Axis, ends: &[Operand; 3]) -> Option<usize> {
    let size = axis.size(&reader.graph.term(id).shape, reader.sizes) as i64;
    let end = |operand: &Operand, default: i64| -> Option<(i64, Number)> {
        match operand {
            Operand::None => Some((default, Number::Int(default))),
            Operand::Number(number) => {
                let value = number.evaluate(&reader.record.config)? as i64;
                Some(if value < 0 {
                    (value + size, Number::Int(value + size))
                } else {
                    (value.min(size), number.clone())
                })
            }
            _ => None,
        }
    };
    let from = end(&ends[0], 0)?;
    let to = end(&ends[1], size)?;
    let step = match &ends[2] {
        Operand::None => 1,
        other => other.int()?,
    };
    if from.0 == 0 && to.0 == size && step == 1 {
        return Some(id);
    }
    if *axis == Axis::Tokens && from.0 == 0 && to.0 + 1 == size && step == 1 {
        // Rows that the next tokens see.
        let term = reader.graph.term(id);
        let earlier = reader.graph.step("earlier", &[id], term.shape.clone(), term.kind);
        return Some(reader.graph.add(earlier));
    }
    let Axis::Row(row) = axis else {
        let scores = reader.graph.term(id);
        let sinks = ["sinks", "query_sinks"].iter().any(|name| scores.attribute(name).is_some());
        return (*axis == Axis::Keys && from.0 == 0 && sinks && to.0 + 1 == size).then_some(id);
    };
    let whole = reader.graph.term(id).shape[*row].clone();
    if step != 1 {
        let term = reader.graph.term(id);
        let mut shape = term.shape.clone();
        let width = ((to.0 - from.0) + step - 1) / step;
        shape[*row] = Dim {
            size: width as usize,
            number: Number::apply("//", vec![whole.number, Number::Int(step)]),
        };
        let mut made = reader.graph.step("every", &[id], shape, term.kind);
        made.set("axis", Number::Int(*row as i64));
        made.set("from", Number::Int(from.0));
        made.set("step", Number::Int(step));
        return Some(reader.graph.add(made));
    }
    let share = |value: i64, number: Number| {
        // A literal that is half of the axis is so in every size.
        let half = matches!(number, Number::Int(_)) && value * 2 == size && size > 2;
        if half {
            Number::apply("//", vec![whole.number.clone(), Number::Int(2)])
        } else if value == size {
            whole.number.clone()
        } else {
            number
        }
    };
    let start = Dim { size: from.0 as usize, number: share(from.0, from.1) };
    let stop = Dim { size: to.0 as usize, number: share(to.0, to.1) };
    let width = Dim {
        size: (to.0 - from.0).max(0) as usize,
        number: Number::apply("-", vec![stop.number.clone(), start.number.clone()]),
    };
    Some(slice_row(reader, id, *row, &start, &stop, width))
}

/// A copy into a part of a tensor that was made empty, or over a whole one.
pub(super) fn copied(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let (Some(part), Some(source)) =
        (args.first().and_then(Operand::value), args.get(1).and_then(Operand::value))
    else {
        return reader.hole(event, "operands are no tensors");
    };
    let part = reader.value(part);
    let source = reader.value(source);
    let term = reader.graph.term(part.id).clone();
    let bound = |name: &str| match term.attribute(name) {
        Some(Number::Int(value)) => Some(*value),
        _ => None,
    };
    let (true, Some(from), Some(to)) = (term.op == "slice", bound("start"), bound("end")) else {
        if term.op == "filled" {
            replace(reader, part.id, &source);
        }
        return reader.bind(&event.out, source.id, source.axes);
    };
    if from == to {
        return reader.bind(&event.out, source.id, source.axes);
    }
    let base = term.inputs[0];
    if reader.graph.term(base).op != "filled" {
        return reader.hole(event, "writes into a computed tensor");
    }
    let width = reader.graph.term(base).width().size as i64;
    let mut parts = reader.parts.remove(&base).unwrap_or_default();
    parts.push((from, to, source));
    parts.sort_by_key(|(from, ..)| *from);
    let complete = parts.first().is_some_and(|(from, ..)| *from == 0)
        && parts.last().is_some_and(|(_, to, _)| *to == width)
        && parts.windows(2).all(|pair| pair[0].1 == pair[1].0);
    if !complete {
        reader.parts.insert(base, parts);
        return;
    }
    let values: Vec<Value> = parts.into_iter().map(|(_, _, value)| value).collect();
    let out = Operand::parse(&event.out).value();
    super::parts::side_by_side(reader, event, &values);
    if let Some(whole) = out.and_then(|out| reader.values.get(&out).cloned()) {
        replace(reader, base, &whole);
    }
}

/// Puts a value in the place of a tensor that was made empty.
fn replace(reader: &mut Reader<'_>, empty: usize, whole: &Value) {
    for value in reader.values.values_mut().filter(|value| value.id == empty) {
        *value = whole.clone();
    }
}

/// Is true for a place of zeros to which nothing was written.
fn is_zero_part(graph: &Graph, id: usize) -> bool {
    let mut part = graph.term(id);
    if part.op == "merge_axes" {
        part = graph.term(part.inputs[0]);
    }
    let Some(Number::Int(place)) = part.attribute("start") else { return false };
    let source = graph.term(part.inputs[0]);
    let is_written = source.attribute(&format!("written {place}")).is_some();
    source.word("with") == Some("zeros") && !is_written
}

/// Is true for an index of the first token of all sequences.
fn is_first_row(items: &[Operand]) -> bool {
    let all = |ends: &[Operand; 3]| ends.iter().all(|end| *end == Operand::None);
    matches!(items, [Operand::Slice(ends), first] if all(ends) && first.int() == Some(0))
}

/// A part of a tensor that was made empty: when all parts are there, they lie side by side.
fn part_set(reader: &mut Reader<'_>, event: &Event, base: usize, args: &[Operand]) {
    let whole = reader.value(base);
    if reader.graph.term(whole.id).op == "tokens" {
        return reader.bind(&event.out, whole.id, whole.axes);
    }
    let (Some(index), Some(value)) = (args.first(), args.get(1).and_then(Operand::value)) else {
        return reader.hole(event, "sets something else than a part");
    };
    let items = super::axes::flat(std::slice::from_ref(index));
    if reader.graph.term(whole.id).op == "previous" && is_first_row(&items) {
        // The row before the first token, which a state of zeros has.
        let source = reader.value(value).id;
        if is_zero_part(&reader.graph, source) {
            return reader.bind(&event.out, whole.id, whole.axes);
        }
    }
    if let (Some(Operand::Number(place)), Some("zeros")) =
        (items.last(), reader.graph.term(whole.id).word("with"))
    {
        // A place of a state is written.
        let mut state = reader.graph.term(whole.id).clone();
        state.set(&format!("written {place}"), Number::Bool(true));
        return reader.give(&event.out, state, whole.axes);
    }
    let Some(Operand::Slice(ends)) = items.last().cloned() else {
        return reader.hole(event, "sets something else than a part");
    };
    let width = reader.record.values[base].shape.last().copied().unwrap_or(1) as i64;
    let end = |operand: &Operand, default: i64| match operand {
        Operand::Number(number) => number
            .evaluate(&reader.record.config)
            .map(|at| if at < 0.0 { at as i64 + width } else { at as i64 }),
        _ => Some(default),
    };
    let (Some(from), Some(to)) = (end(&ends[0], 0), end(&ends[1], width)) else {
        return reader.hole(event, "sets a part without bounds");
    };
    let value = reader.value(value);
    let mut parts = reader.parts.remove(&base).unwrap_or_default();
    parts.push((from, to, value));
    parts.sort_by_key(|(from, ..)| *from);
    let Some(out) = Operand::parse(&event.out).value() else { return };
    let complete = parts.first().is_some_and(|(from, ..)| *from == 0)
        && parts.last().is_some_and(|(_, to, _)| *to == width)
        && parts.windows(2).all(|pair| pair[0].1 == pair[1].0);
    if !complete {
        reader.parts.insert(out, parts);
        return;
    }
    let values: Vec<Value> = parts.into_iter().map(|(_, _, value)| value).collect();
    super::parts::side_by_side(reader, event, &values);
}
