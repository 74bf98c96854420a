//! Calls that move, split and join axes.

use crate::graph::{Dim, Id};
use crate::layout::{self, Axis};
use crate::number::Number;
use crate::operand::Operand;
use crate::read::{Reader, Value};
use crate::record::Event;

use super::axis_at;

/// Makes the term of a call that changes axes; false if it is none.
pub(super) fn call(reader: &mut Reader<'_>, name: &str, event: &Event, args: &[Operand]) -> bool {
    let Some(Operand::Value(first)) = args.first() else {
        return match name {
            "cat" | "concat" | "stack" | "concatenate" => {
                super::parts::joined(reader, name, event, args);
                true
            }
            _ => false,
        };
    };
    let value = reader.value(*first);
    let numbers = flat(&args[1..]);
    match name {
        "view" | "reshape" | "flatten" | "unflatten" | "squeeze" | "unsqueeze" | "view_as"
        | "reshape_as" => reshape(reader, event, &value, &numbers),
        "transpose" | "swapaxes" | "transpose_" | "swapdims" => {
            let place = |position: usize, word: &str| {
                numbers
                    .get(position)
                    .cloned()
                    .or_else(|| event.named.get(word).map(Operand::parse))
                    .and_then(|operand| operand.int())
                    .and_then(|at| axis_at(&value, at))
            };
            let (Some(one), Some(other)) = (place(0, "dim0"), place(1, "dim1")) else {
                reader.hole(event, "no such axes");
                return true;
            };
            let mut axes = value.axes.clone();
            axes.swap(one, other);
            reader.bind(&event.out, value.id, axes);
        }
        "T" | "mT" | "t" => {
            let mut axes = value.axes.clone();
            let last = axes.len();
            if last >= 2 {
                axes.swap(last - 1, last - 2);
            }
            reader.bind(&event.out, value.id, axes);
        }
        "permute" => {
            let places: Option<Vec<usize>> = numbers
                .iter()
                .map(|number| number.int().and_then(|at| axis_at(&value, at)))
                .collect();
            match places {
                Some(places) => {
                    let axes = places.iter().map(|&place| value.axes[place].clone()).collect();
                    reader.bind(&event.out, value.id, axes);
                }
                None => reader.hole(event, "no such axes"),
            }
        }
        "movedim" => {
            let (Some(from), Some(to)) = (
                numbers.first().and_then(Operand::int).and_then(|at| axis_at(&value, at)),
                numbers.get(1).and_then(Operand::int).and_then(|at| axis_at(&value, at)),
            ) else {
                reader.hole(event, "no such axes");
                return true;
            };
            let mut axes = value.axes.clone();
            let moved = axes.remove(from);
            axes.insert(to, moved);
            reader.bind(&event.out, value.id, axes);
        }
        "expand" | "expand_as" | "repeat" | "broadcast_to" => {
            expand(reader, event, &value, &numbers);
        }
        "repeat_interleave" => super::parts::interleave(reader, event, &value, args),
        "chunk" | "split" | "unbind" | "tensor_split" | "split_with_sizes" => {
            super::parts::parts(reader, name, event, &value, args);
        }
        _ => return false,
    }
    true
}

/// Arguments, of which a list counts as its items.
pub(super) fn flat(args: &[Operand]) -> Vec<Operand> {
    args.iter()
        .flat_map(|argument| match argument {
            Operand::List(items) => items.clone(),
            other => vec![other.clone()],
        })
        .collect()
}

/// Merges axes of a row.
pub(super) fn merge_row(reader: &mut Reader<'_>, id: Id, at: usize, count: usize) -> Id {
    let term = reader.graph.term(id);
    let mut shape = term.shape.clone();
    let merged = Dim::product(&shape[at..at + count]);
    shape.splice(at..at + count, [merged]);
    let mut step = reader.graph.step("merge_axes", &[id], shape, term.kind);
    step.set("at", Number::Int(at as i64));
    step.set("count", Number::Int(count as i64));
    reader.graph.add(step)
}

/// Splits an axis of a row.
pub(super) fn split_row(reader: &mut Reader<'_>, id: Id, at: usize, into: &[Dim]) -> Id {
    let term = reader.graph.term(id);
    let mut shape = term.shape.clone();
    shape.splice(at..=at, into.iter().cloned());
    let mut step = reader.graph.step("split_axis", &[id], shape, term.kind);
    step.set("at", Number::Int(at as i64));
    step.set("count", Number::Int(into.len() as i64));
    reader.graph.add(step)
}

/// A term with the axes of its row in another order.
pub(super) fn permuted(reader: &mut Reader<'_>, id: Id, order: &[usize]) -> Id {
    let term = reader.graph.term(id);
    let shape = order.iter().map(|&axis| term.shape[axis].clone()).collect();
    let mut step = reader.graph.step("permute_row", &[id], shape, term.kind);
    step.set(
        "order",
        Number::Apply(
            "list".to_owned(),
            order.iter().map(|&axis| Number::Int(axis as i64)).collect(),
        ),
    );
    reader.graph.add(step)
}

fn reshape(reader: &mut Reader<'_>, event: &Event, value: &Value, numbers: &[Operand]) {
    let Some(out) = Operand::parse(&event.out).value() else { return };
    let sizes = reader.record.values[out].shape.clone();
    let written: Vec<Option<Number>> = if numbers.len() == sizes.len()
        && ["view", "reshape"].contains(&event.call.as_deref().unwrap_or_default())
    {
        numbers
            .iter()
            .map(|operand| match operand {
                Operand::Number(number) if *number != Number::Int(-1) => Some(number.clone()),
                _ => None,
            })
            .collect()
    } else {
        vec![None; sizes.len()]
    };
    match reshaped(reader, value, &sizes, &written) {
        Some((id, axes)) => reader.bind(&event.out, id, axes),
        None => reader.hole(event, "a reshape across rows"),
    }
}

/// Gives a value another torch shape; `written` are expressions of its sizes.
pub(super) fn reshaped(
    reader: &mut Reader<'_>,
    value: &Value,
    sizes: &[usize],
    written: &[Option<Number>],
) -> Option<(Id, Vec<Axis>)> {
    let mut id = value.id;
    let mut axes: Vec<Axis> = value
        .axes
        .iter()
        .flat_map(|axis| match axis {
            Axis::Merged(parts) => parts.clone(),
            other => vec![other.clone()],
        })
        .collect();
    // Axes of the row are brought into torch's order first where a group joins them.
    let old: Vec<usize> =
        axes.iter().map(|axis| axis.size(&reader.graph.term(id).shape, reader.sizes)).collect();
    let mut groups = layout::groups(&old, sizes)?;
    join_single_parts(&mut groups, &axes, written);
    for (olds, news) in &groups {
        if olds.len() > 1 && news.len() <= olds.len() {
            let rows: Vec<usize> = olds
                .iter()
                .filter_map(|&place| match axes[place] {
                    Axis::Row(axis) => Some(axis),
                    _ => None,
                })
                .collect();
            let contiguous = rows.windows(2).all(|pair| pair[1] == pair[0] + 1);
            if !contiguous {
                let mut order: Vec<usize> = Vec::new();
                for axis in &axes {
                    if let Axis::Row(number) = axis {
                        order.push(*number);
                    }
                }
                if order.len() != reader.graph.term(id).shape.len() {
                    return None;
                }
                id = permuted(reader, id, &order);
                let mut next = 0;
                for axis in &mut axes {
                    if let Axis::Row(number) = axis {
                        *number = next;
                        next += 1;
                    }
                }
            }
        }
    }
    let mut result: Vec<Axis> = Vec::new();
    for (olds, news) in groups {
        let group: Vec<Axis> = olds.iter().map(|&place| axes[place].clone()).collect();
        match (group.as_slice(), news.as_slice()) {
            ([Axis::One], []) => {}
            ([Axis::Row(axis)], []) => {
                let axis = *axis;
                id = dropped(reader, id, axis);
                renumber(&mut axes, &mut result, axis, -1);
            }
            ([], [_]) => result.push(Axis::One),
            ([single], [_]) => result.push(single.clone()),
            (group, [_]) if group.iter().all(|axis| matches!(axis, Axis::Row(_))) => {
                let Axis::Row(first) = group[0] else { return None };
                id = merge_row(reader, id, first, group.len());
                result.push(Axis::Row(first));
                renumber(&mut axes, &mut result, first, 1 - group.len() as i64);
            }
            (group, [_]) => result.push(Axis::Merged(group.to_vec())),
            ([Axis::Row(axis)], news) => {
                let axis = *axis;
                let dim = reader.graph.term(id).shape[axis].clone();
                let into = split_dims(&dim, news, sizes, written);
                id = split_row(reader, id, axis, &into);
                renumber(&mut axes, &mut result, axis, news.len() as i64 - 1);
                result.extend((0..news.len()).map(|offset| Axis::Row(axis + offset)));
            }
            (group, news) if group.iter().all(|axis| matches!(axis, Axis::Row(_))) => {
                let Axis::Row(first) = group[0] else { return None };
                id = merge_row(reader, id, first, group.len());
                renumber(&mut axes, &mut result, first, 1 - group.len() as i64);
                let dim = reader.graph.term(id).shape[first].clone();
                let into = split_dims(&dim, news, sizes, written);
                id = split_row(reader, id, first, &into);
                renumber(&mut axes, &mut result, first, news.len() as i64 - 1);
                result.extend((0..news.len()).map(|offset| Axis::Row(first + offset)));
            }
            (group, news) => {
                let (&Axis::Row(axis), outer) = group.split_last()? else { return None };
                if news.len() < 2 || !outer.iter().all(Axis::is_outer) {
                    return None;
                }
                let into = parts_behind(&reader.graph.term(id).shape[axis], news, sizes, written)?;
                id = split_row(reader, id, axis, &into);
                renumber(&mut axes, &mut result, axis, news.len() as i64 - 1);
                let first = outer.iter().cloned().chain([Axis::Row(axis)]).collect();
                result.push(Axis::Merged(first));
                result.extend((1..news.len()).map(|offset| Axis::Row(axis + offset)));
            }
        }
    }
    Some((id, result))
}

/// Sizes of the parts of an axis of which the first part joins the axes before.
fn parts_behind(
    dim: &Dim,
    news: &[usize],
    sizes: &[usize],
    written: &[Option<Number>],
) -> Option<Vec<Dim>> {
    let behind: Vec<Dim> = news[1..]
        .iter()
        .map(|&place| {
            let plain = Dim::plain(sizes[place]);
            let number = written.get(place).cloned().flatten().unwrap_or(plain.number);
            Dim { size: plain.size, number }
        })
        .collect();
    let size = behind.iter().map(|part| part.size).product::<usize>();
    if size == 0 || !dim.size.is_multiple_of(size) {
        return None;
    }
    let number = behind.iter().fold(dim.number.clone(), |number, part| {
        Number::apply("//", vec![number, part.number.clone()])
    });
    let first = Dim { size: dim.size / size, number };
    Some(std::iter::once(first).chain(behind).collect())
}

/// A part of size 1 whose size is an expression is an axis of the row, as one head of keys is.
fn join_single_parts(
    groups: &mut Vec<(Vec<usize>, Vec<usize>)>,
    axes: &[Axis],
    written: &[Option<Number>],
) {
    let mut place = 0;
    while place + 1 < groups.len() {
        let (single, split) = (&groups[place], &groups[place + 1]);
        let is_part = single.0.is_empty()
            && single.1.len() == 1
            && split.0.len() == 1
            && matches!(axes[split.0[0]], Axis::Row(_))
            && written.iter().flatten().any(Number::is_symbolic)
            && !matches!(written.get(single.1[0]), Some(Some(Number::Int(_))));
        if is_part {
            let mut news = single.1.clone();
            news.extend(&split.1);
            let olds = split.0.clone();
            groups.splice(place..place + 2, [(olds, news)]);
        }
        place += 1;
    }
}

/// Sizes of the parts of an axis; one whose expression is not written is the quotient.
fn split_dims(dim: &Dim, news: &[usize], sizes: &[usize], written: &[Option<Number>]) -> Vec<Dim> {
    let mut into: Vec<Dim> = news
        .iter()
        .map(|&place| Dim {
            size: sizes[place],
            number: written.get(place).cloned().flatten().unwrap_or(Number::Unknown(String::new())),
        })
        .collect();
    let open: Vec<usize> = (0..into.len())
        .filter(|&place| into[place].number == Number::Unknown(String::new()))
        .collect();
    for &place in &open {
        let others: Vec<Number> = (0..into.len())
            .filter(|&other| other != place && !open.contains(&other))
            .map(|other| into[other].number.clone())
            .collect();
        into[place].number = if open.len() == 1 {
            others
                .into_iter()
                .fold(dim.number.clone(), |number, other| Number::apply("//", vec![number, other]))
        } else {
            Number::Int(into[place].size as i64)
        };
    }
    into
}

/// Counts axes anew behind an axis that was split or merged.
pub(super) fn renumber(axes: &mut [Axis], result: &mut [Axis], from: usize, by: i64) {
    for axis in axes.iter_mut().chain(result.iter_mut()) {
        if let Axis::Row(number) = axis
            && *number > from
        {
            *number = (*number as i64 + by) as usize;
        }
    }
}

/// A row without an axis of size 1.
pub(super) fn dropped(reader: &mut Reader<'_>, id: Id, axis: usize) -> Id {
    let rank = reader.graph.term(id).shape.len();
    if rank == 1 {
        return id;
    }
    if axis == 0 { merge_row(reader, id, 0, 2) } else { merge_row(reader, id, axis - 1, 2) }
}

/// A row whose axis goes round several times.
fn repeated(reader: &mut Reader<'_>, id: Id, axis: usize, times: &Dim) -> Id {
    let term = reader.graph.term(id);
    let mut shape = term.shape.clone();
    shape[axis] = Dim::product(&[shape[axis].clone(), times.clone()]);
    let mut step = reader.graph.step("repeat_all", &[id], shape, term.kind);
    step.set("axis", Number::Int(axis as i64));
    step.set("n", times.number.clone());
    reader.graph.add(step)
}

/// Is true for an axis of sequences, or one that they are merged in.
fn holds_batch(axis: &Axis) -> bool {
    match axis {
        Axis::Merged(parts) => parts.iter().any(holds_batch),
        other => *other == Axis::Batch,
    }
}

fn expand(reader: &mut Reader<'_>, event: &Event, value: &Value, numbers: &[Operand]) {
    let written: Vec<Option<Number>> = numbers
        .iter()
        .map(|operand| match operand {
            Operand::Number(number) if number.is_symbolic() => Some(number.clone()),
            _ => None,
        })
        .collect();
    let Some(out) = Operand::parse(&event.out).value() else { return };
    let sizes = reader.record.values[out].shape.clone();
    let mut id = value.id;
    let mut axes = value.axes.clone();
    while axes.len() < sizes.len() {
        axes.insert(0, Axis::One);
    }
    let outer = [(reader.sizes.batch, Axis::Batch), (reader.sizes.tokens, Axis::Tokens)];
    for place in 0..sizes.len() {
        let size = axes[place].size(&reader.graph.term(id).shape, reader.sizes);
        // A first axis of a computed size is an axis of the row, even where the size is 1.
        let counted =
            place == 0 && axes[0] == Axis::One && matches!(written.first(), Some(Some(_)));
        if size == sizes[place] && !counted {
            continue;
        }
        let has_batch = axes.iter().any(holds_batch);
        if axes[place] == Axis::One && place == 0 && sizes[place] == outer[0].0 && !has_batch {
            axes[place] = Axis::Batch;
            continue;
        }
        if let Axis::Row(axis) = axes[place] {
            if size != 1 {
                if event.call.as_deref() != Some("repeat") || !sizes[place].is_multiple_of(size) {
                    return reader.hole(event, "repeats rows");
                }
                let times = Dim {
                    size: sizes[place] / size,
                    number: written
                        .get(place)
                        .cloned()
                        .flatten()
                        .unwrap_or(Number::Int((sizes[place] / size) as i64)),
                };
                id = repeated(reader, id, axis, &times);
                continue;
            }
            let term = reader.graph.term(id);
            let mut shape = term.shape.clone();
            shape[axis] = Dim::plain(sizes[place]);
            let mut step = reader.graph.step("repeat_each", &[id], shape, term.kind);
            step.set("axis", Number::Int(axis as i64));
            step.set("n", Number::Int(sizes[place] as i64));
            id = reader.graph.add(step);
            continue;
        }
        if axes[place] == Axis::One && sizes[place] == outer[1].0 && place == axes.len() - 2 {
            axes[place] = Axis::Tokens;
            continue;
        }
        let repeats = event.call.as_deref() == Some("repeat") && sizes[place].is_multiple_of(size);
        if place == 0 && axes[0].is_outer() && axes[0] != Axis::One && repeats {
            let times = sizes[0] / size;
            let number = written.first().cloned().flatten().unwrap_or(Number::Int(times as i64));
            id = super::parts::expanded(reader, id, 0, Dim { size: times, number });
            for axis in &mut axes[1..] {
                if let Axis::Row(number) = axis {
                    *number += 1;
                }
            }
            let parts = match &axes[0] {
                Axis::Merged(parts) => parts.clone(),
                other => vec![other.clone()],
            };
            axes[0] = Axis::Merged([vec![Axis::Row(0)], parts].concat());
            continue;
        }
        let at = match axes[place] {
            Axis::One => axes[..place]
                .iter()
                .filter_map(|axis| match axis {
                    Axis::Row(number) => Some(number + 1),
                    _ => None,
                })
                .max()
                .unwrap_or(0),
            _ => return reader.hole(event, "repeats rows"),
        };
        let term = reader.graph.term(id);
        let mut shape = term.shape.clone();
        shape.insert(
            at,
            Dim {
                size: sizes[place],
                number: written
                    .get(place)
                    .cloned()
                    .flatten()
                    .unwrap_or(Number::Int(sizes[place] as i64)),
            },
        );
        let mut step = reader.graph.step("expand", &[id], shape, term.kind);
        step.set("at", Number::Int(at as i64));
        id = reader.graph.add(step);
        for axis in &mut axes {
            if let Axis::Row(number) = axis
                && *number >= at
            {
                *number += 1;
            }
        }
        axes[place] = Axis::Row(at);
    }
    reader.bind(&event.out, id, axes);
}
