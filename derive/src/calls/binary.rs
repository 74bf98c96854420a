//! Arithmetic of two tensors, or of a tensor and a number.

use crate::graph::{Dim, Id, Kind};
use crate::layout::Axis;
use crate::number::Number;
use crate::operand::Operand;
use crate::read::{Reader, Value};
use crate::record::Event;

/// Steps by torch's names; a leading `r` has the operands exchanged.
const BINARY: &[(&str, &str)] = &[
    ("add", "add"),
    ("__add__", "add"),
    ("__radd__", "add"),
    ("add_", "add"),
    ("__iadd__", "add"),
    ("mul", "mul"),
    ("__mul__", "mul"),
    ("__rmul__", "mul"),
    ("mul_", "mul"),
    ("multiply", "mul"),
    ("__imul__", "mul"),
    ("sub", "sub"),
    ("__sub__", "sub"),
    ("subtract", "sub"),
    ("__rsub__", "rsub"),
    ("rsub", "rsub"),
    ("div", "div"),
    ("true_divide", "div"),
    ("__truediv__", "div"),
    ("div_", "div"),
    ("__itruediv__", "div"),
    ("__rdiv__", "rdiv"),
    ("__rtruediv__", "rdiv"),
    ("__rpow__", "rpow"),
    ("pow", "pow"),
    ("__pow__", "pow"),
    ("maximum", "maximum"),
    ("minimum", "minimum"),
    ("eq", "eq"),
    ("__eq__", "eq"),
    ("ne", "ne"),
    ("lt", "lt"),
    ("gt", "gt"),
    ("le", "le"),
    ("ge", "ge"),
    ("__and__", "and"),
    ("logical_and", "and"),
    ("__or__", "or"),
    ("logical_or", "or"),
];

/// Makes the term of an arithmetic call; false if it is none.
pub(super) fn call(reader: &mut Reader<'_>, name: &str, event: &Event, args: &[Operand]) -> bool {
    let Some((_, step)) = BINARY.iter().find(|(torch, _)| *torch == name) else { return false };
    let second = args
        .get(1)
        .cloned()
        .or_else(|| event.named.get("other").map(Operand::parse))
        .unwrap_or(Operand::None);
    match (&args.first(), &second) {
        (Some(Operand::Value(left)), Operand::Value(right)) => {
            let left = reader.value(*left);
            let right = reader.value(*right);
            let (left, right) = if step.starts_with('r') { (right, left) } else { (left, right) };
            let step = step.trim_start_matches('r');
            let embed = reader.graph.term(left.id);
            if let (Some(number), "embed", "mul") =
                (single(reader, &right), embed.op.as_str(), step)
            {
                let mut scaled = embed.clone();
                scaled.set("scale", number);
                reader.give(&event.out, scaled, left.axes);
            } else if let Some(number) = single(reader, &right) {
                with_number(reader, event, &left, step, number);
            } else if let (Some(number), true) =
                (single(reader, &left), ["add", "mul"].contains(&step))
            {
                with_number(reader, event, &right, step, number);
            } else {
                pair(reader, event, step, &left, &right);
            }
        }
        (Some(Operand::Value(left)), Operand::Number(number))
        | (Some(Operand::Number(number)), Operand::Value(left)) => {
            let value = reader.value(*left);
            if super::sorted::rows_of_choices(reader, event, &value, number) {
                return true;
            }
            let reversed = matches!(args.first(), Some(Operand::Number(_)))
                && ["sub", "div", "pow"].contains(step);
            if name.starts_with("__r") && *step == "rdiv" {
                return inverse(reader, event, &value, number);
            }
            let step = if reversed { format!("r{step}") } else { (*step).to_owned() };
            with_number(reader, event, &value, &step, number.clone());
        }
        _ => reader.hole(event, "operands are neither tensors nor numbers"),
    }
    true
}

/// The number of a constant of one element.
fn single(reader: &Reader<'_>, value: &Value) -> Option<Number> {
    let term = reader.graph.term(value.id);
    if term.op == "constant" { term.attribute("number").cloned() } else { None }
}

fn with_number(reader: &mut Reader<'_>, event: &Event, value: &Value, step: &str, number: Number) {
    let term = reader.graph.term(value.id);
    if term.op == "embed"
        && step == "mul"
        && term.attribute("scale").is_none()
        && !reader.graph.owner.is_empty()
        && term.owner == reader.graph.owner
    {
        let mut scaled = term.clone();
        scaled.set("scale", number);
        scaled.set("round", Number::Word("none".to_owned()));
        return reader.give(&event.out, scaled, value.axes.clone());
    }
    let shape = term.shape.clone();
    let kind = Operand::parse(&event.out).value().map_or(term.kind, |out| reader.kind(out));
    let one = |op: &str, key: &str, number: Number| {
        let mut made = reader.graph.step(op, &[value.id], shape.clone(), kind);
        made.set(key, number);
        made
    };
    let made = match step {
        "add" => one("offset", "s", number),
        "sub" => one("offset", "s", Number::apply("neg", vec![number])),
        "mul" => one("scale", "s", number),
        "div" => one("divide", "s", number),
        "rdiv" => one("inverse", "s", number),
        "rsub" => {
            let negative = reader.graph.unary("neg", value.id);
            let mut made = reader.graph.step("offset", &[negative], shape, kind);
            made.set("s", number);
            made
        }
        "pow" if number == Number::Int(2) || number == Number::Real(2.0) => {
            reader.graph.step("square", &[value.id], shape, kind)
        }
        other => one(other, "s", number),
    };
    reader.give(&event.out, made, value.axes.clone());
}

/// A number divided by a tensor, which is the inverse of the tensor, rounded, times the number.
fn inverse(reader: &mut Reader<'_>, event: &Event, value: &Value, number: &Number) -> bool {
    let kind = reader.graph.term(value.id).kind;
    if kind != Kind::Activation {
        with_number(reader, event, value, "rdiv", number.clone());
        return true;
    }
    let shape = super::shape(reader, value.id);
    let mut term = reader.graph.step("inverse", &[value.id], shape.clone(), kind);
    term.set("s", Number::Real(1.0));
    let id = reader.graph.add(term);
    let mut term = reader.graph.step("scale", &[id], shape, kind);
    term.set("s", number.clone());
    reader.give(&event.out, term, value.axes.clone());
    true
}

fn pair(reader: &mut Reader<'_>, event: &Event, step: &str, left: &Value, right: &Value) {
    if super::distances::compared(reader, event, step, left, right) {
        return;
    }
    let Some((inputs, shape, axes)) = broadcast(reader, &[left.clone(), right.clone()]) else {
        return reader.hole(event, "shapes that no row has");
    };
    let kind = Operand::parse(&event.out).value().map_or(Kind::Activation, |out| reader.kind(out));
    let made = reader.graph.step(step, &inputs, shape, kind);
    reader.give(&event.out, made, axes);
}

/// Whether an operand holds one number for each of the merged rows of another.
fn is_column_of(reader: &Reader<'_>, operand: &Value, rows: &Value) -> bool {
    operand.axes.len() == rows.axes.len()
        && matches!(rows.axes[0], Axis::Merged(_))
        && operand.axes[0] == rows.axes[0]
        && operand.axes[1..].iter().all(|axis| *axis == Axis::One)
        && reader.graph.term(operand.id).shape.len() == 1
}

/// Brings operands to rows that broadcast: returns their terms, the row and its axes.
pub(super) fn broadcast(
    reader: &mut Reader<'_>,
    operands: &[Value],
) -> Option<(Vec<Id>, Vec<Dim>, Vec<Axis>)> {
    let rank = operands.iter().map(|operand| operand.axes.len()).max()?;
    let operands = &without_ones(reader, operands, rank)[..];
    if let Some(whole) = operands.iter().find(|operand| {
        let several = |axis: &Axis| matches!(axis, Axis::Merged(_) | Axis::Sorted(_));
        operand.axes.iter().any(|axis| several(axis) && !axis.is_outer())
    }) {
        if operands.len() == 2
            && super::shape(reader, whole.id).len() == 2
            && let Some(place) =
                operands.iter().position(|operand| is_column_of(reader, operand, whole))
        {
            // A number for each row of all.
            let mut inputs: Vec<Id> = operands.iter().map(|operand| operand.id).collect();
            let shape = super::shape(reader, whole.id);
            let axes = whole.axes.clone();
            let numbers = reader.graph.term(inputs[place]);
            let column = vec![numbers.shape[0].clone(), Dim::plain(1)];
            let with_ones = reader.graph.step("with_ones", &[inputs[place]], column, numbers.kind);
            inputs[place] = reader.graph.add(with_ones);
            return Some((inputs, shape, axes));
        }
        let known = operands.iter().all(|operand| {
            operand.axes == whole.axes
                || operand.axes.len() == 1
                || reader.graph.term(operand.id).op == "sorted_weights"
                || super::shape(reader, operand.id).last().is_some_and(|dim| dim.size == 1)
        });
        if !known {
            return None;
        }
        return Some((
            operands.iter().map(|operand| operand.id).collect(),
            super::shape(reader, whole.id),
            whole.axes.clone(),
        ));
    }
    let row_axes =
        |value: &Value| value.axes.iter().filter(|axis| matches!(axis, Axis::Row(_))).count();
    let mut order: Vec<usize> = (0..operands.len()).collect();
    order.sort_by_key(|&number| std::cmp::Reverse(row_axes(&operands[number])));
    let at = |value: &Value, place: usize| -> Option<Axis> {
        let missing = rank - value.axes.len();
        if place < missing { None } else { Some(value.axes[place - missing].clone()) }
    };
    // Places of the result that are axes of its row: by the operand with most axes, others between them.
    let mut places: Vec<(usize, usize)> = Vec::new();
    for &number in &order {
        for place in 0..rank {
            if let Some(Axis::Row(axis)) = at(&operands[number], place)
                && !places.iter().any(|(known, _)| *known == place)
            {
                places.push((place, axis * 16 + number));
            }
        }
    }
    let primary = &operands[order[0]];
    let complete = places.len() == row_axes(primary);
    if complete {
        places.sort_by_key(|(place, _)| match at(primary, *place) {
            Some(Axis::Row(axis)) => axis,
            _ => usize::MAX,
        });
    } else {
        places.sort_unstable();
    }
    let mut shape: Vec<Dim> = vec![Dim::plain(1); places.len()];
    let mut axes = Vec::new();
    for place in 0..rank {
        if let Some(axis) = places.iter().position(|(known, _)| *known == place) {
            // Rows say more of a size than the weights that meet them.
            let (weights, rows): (Vec<&Value>, Vec<&Value>) =
                operands.iter().partition(|operand| reader.graph.weight(operand.id).is_some());
            for operand in rows.into_iter().chain(weights) {
                if let Some(Axis::Row(number)) = at(operand, place) {
                    let dim = reader.graph.term(operand.id).shape.get(number)?.clone();
                    let better = shape[axis].size == 1
                        || (dim.size != 1 && !shape[axis].number.is_symbolic());
                    if better {
                        shape[axis] = dim;
                    }
                }
            }
            axes.push(Axis::Row(axis));
            continue;
        }
        let outer = operands
            .iter()
            .filter_map(|operand| at(operand, place))
            .find(|axis| *axis != Axis::One);
        axes.push(outer.unwrap_or(Axis::One));
    }
    let mut inputs = Vec::new();
    for operand in operands {
        let wanted: Vec<Option<usize>> = places
            .iter()
            .map(|(place, _)| match at(operand, *place) {
                Some(Axis::Row(axis)) => Some(axis),
                _ => None,
            })
            .collect();
        inputs.push(placed(reader, operand.id, &wanted)?);
    }
    Some((inputs, shape, axes))
}

/// Operands without axes of size 1 where another has sequences or tokens.
fn without_ones(reader: &mut Reader<'_>, operands: &[Value], rank: usize) -> Vec<Value> {
    let mut result = operands.to_vec();
    for value in &mut result {
        let missing = rank - value.axes.len();
        for place in 0..value.axes.len() {
            let Axis::Row(axis) = value.axes[place] else { continue };
            let shape = super::shape(reader, value.id);
            let meets = operands.iter().any(|other| {
                let behind = rank - other.axes.len();
                let axis = (missing + place).checked_sub(behind).map(|place| &other.axes[place]);
                matches!(axis, Some(Axis::Batch | Axis::Tokens | Axis::Keys))
            });
            if meets && shape.len() > 1 && shape[axis].size == 1 {
                value.id = super::axes::dropped(reader, value.id, axis);
                value.axes[place] = Axis::One;
                super::axes::renumber(&mut value.axes, &mut [], axis, -1);
            }
        }
    }
    result
}

/// A term whose axes stand at the wanted places, with axes of size 1 where it has none.
fn placed(reader: &mut Reader<'_>, id: Id, wanted: &[Option<usize>]) -> Option<Id> {
    let present: Vec<usize> = wanted.iter().flatten().copied().collect();
    let row = reader.graph.term(id).shape.clone();
    if present.is_empty() && row.iter().all(|dim| dim.size == 1) {
        return Some(id);
    }
    if present.len() != row.len() {
        return None;
    }
    let mut id = id;
    if present.windows(2).any(|pair| pair[0] > pair[1]) {
        id = super::axes::permuted(reader, id, &present);
    }
    let first = wanted.iter().position(Option::is_some).unwrap_or(wanted.len());
    let tail = &wanted[first..];
    if tail.iter().all(Option::is_some) {
        return Some(id);
    }
    let row = reader.graph.term(id).shape.clone();
    let mut rest = row.iter();
    let shape: Vec<Dim> = tail
        .iter()
        .map(|axis| {
            if axis.is_some() {
                rest.next().cloned().unwrap_or_else(|| Dim::plain(1))
            } else {
                Dim::plain(1)
            }
        })
        .collect();
    let kind = reader.graph.term(id).kind;
    let term = reader.graph.step("with_ones", &[id], shape, kind);
    Some(reader.graph.add(term))
}
