//! Products of matrices.

use crate::graph::{Dim, Graph, Kind};
use crate::layout::Axis;
use crate::number::Number;
use crate::operand::Operand;
use crate::read::{Reader, Value};
use crate::record::Event;

/// Makes the term of a product; false if the call is none.
pub(super) fn call(reader: &mut Reader<'_>, name: &str, event: &Event, args: &[Operand]) -> bool {
    match name {
        "linear" => linear(reader, event, args),
        "matmul" | "__matmul__" | "bmm" | "mm" => {
            let values = super::tensors(reader, args);
            match values.as_slice() {
                [left, right] => product(reader, event, left, right),
                _ => reader.hole(event, "operands are no tensors"),
            }
        }
        "addmm" => {
            let values = super::tensors(reader, args);
            match values.as_slice() {
                [bias, rows, weight] => transposed_linear(reader, event, rows, weight, Some(bias)),
                _ => reader.hole(event, "operands are no tensors"),
            }
        }
        _ => return false,
    }
    true
}

fn linear(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let values = super::tensors(reader, args);
    let bias_named = event.named.get("bias").and_then(|json| Operand::parse(json).value());
    let (Some(rows), Some(weight)) = (values.first().cloned(), values.get(1).cloned()) else {
        return reader.hole(event, "operands are no tensors");
    };
    let bias = match bias_named {
        Some(number) => Some(reader.value(number)),
        None => values.get(2).cloned(),
    };
    let Some(Axis::Row(last)) = rows.axes.last().cloned() else {
        return reader.hole(event, "the last axis is none of a row");
    };
    let mut weight = weight;
    let divisor = divided_weight(reader, weight.id);
    if let Some((bare, _)) = &divisor {
        weight.id = *bare;
    }
    let row = super::shape(reader, rows.id);
    if bias.is_none() && super::sorted::expert(reader, event, &rows, &weight) {
        return;
    }
    if last + 1 != row.len() || reader.graph.weight(weight.id).is_none() {
        return reader.hole(event, "a product with a computed matrix");
    }
    let out = super::shape(reader, weight.id).first().cloned().unwrap_or_else(|| Dim::plain(1));
    let mut shape = row.clone();
    shape[last] = out;
    let kind = Operand::parse(&event.out).value().map_or(Kind::Activation, |out| reader.kind(out));
    let mut inputs = vec![rows.id, weight.id];
    inputs.extend(bias.iter().map(|bias| bias.id));
    let op = if row.len() > 1 { "heads_linear" } else { "linear" };
    let mut term = reader.graph.step(op, &inputs, shape, kind);
    term.set("bias", bias_switch(reader, weight.id, bias.is_some()));
    let id = reader.graph.add(term);
    let (Some((_, divisor)), None) = (divisor, &bias) else {
        return reader.bind(&event.out, id, rows.axes);
    };
    let shape = super::shape(reader, id);
    let mut quotient = reader.graph.step("divide", &[id], shape, kind);
    quotient.set("s", divisor);
    reader.give(&event.out, quotient, rows.axes);
}

/// A weight that was divided by a power of 2, which divides a product as well without a rounding.
fn divided_weight(reader: &Reader<'_>, id: usize) -> Option<(usize, Number)> {
    let quotient = reader.graph.is(id, "divide")?;
    let divisor = quotient.attribute("s")?.clone();
    let exponent = divisor.evaluate(&reader.record.config)?.log2();
    let path = reader.graph.weight(quotient.inputs[0])?;
    let layer = path.split('.').find_map(|part| part.parse().ok());
    let divisor = layer.map_or_else(|| divisor.clone(), |layer| divisor.counting_layers(layer));
    (exponent.fract() == 0.0).then_some((quotient.inputs[0], divisor))
}

/// The expression of a module's argument `bias`, or whether it has one.
fn bias_switch(reader: &Reader<'_>, weight: usize, present: bool) -> Number {
    let module = reader
        .graph
        .weight(weight)
        .and_then(|path| path.rsplit_once('.'))
        .map_or("", |(module, _)| module);
    let switch = reader
        .record
        .modules
        .get(module)
        .and_then(|facts| facts.values.get("bias_switch"))
        .map(Number::parse);
    let Some(Number::Word(text)) = switch else { return Number::Bool(present) };
    let number =
        serde_json::from_str(&text).map_or(Number::Bool(present), |json| Number::parse(&json));
    match number.evaluate(&reader.record.config) {
        Some(value) if number.is_symbolic() && (value != 0.0) == present => number,
        _ => Number::Bool(present),
    }
}

fn transposed_linear(
    reader: &mut Reader<'_>,
    event: &Event,
    rows: &Value,
    weight: &Value,
    bias: Option<&Value>,
) {
    let shape = super::shape(reader, weight.id);
    if reader.graph.weight(weight.id).is_none() || shape.len() != 2 {
        return reader.hole(event, "a product with a computed matrix");
    }
    let straight = weight.axes == [Axis::Row(1), Axis::Row(0)];
    let out = shape[usize::from(!straight)].clone();
    let row = super::shape(reader, rows.id);
    if row.len() > 1 {
        if bias.is_some() || rows.axes.last() != Some(&Axis::Row(row.len() - 1)) {
            return reader.hole(event, "a product of these axes");
        }
        return by_heads(reader, event, rows, weight, out, straight);
    }
    let mut inputs = vec![rows.id, weight.id];
    inputs.extend(bias.iter().map(|bias| bias.id));
    let kind = Operand::parse(&event.out).value().map_or(Kind::Activation, |out| reader.kind(out));
    let mut term = reader.graph.step("linear", &inputs, vec![out], kind);
    term.set("bias", Number::Bool(bias.is_some()));
    if !straight {
        term.set("transposed", Number::Bool(true));
    }
    reader.give(&event.out, term, rows.axes.clone());
}

/// The product of each head of a row with its matrix of a stack, or with one matrix; `straight` if outputs come first in it.
fn by_heads(
    reader: &mut Reader<'_>,
    event: &Event,
    rows: &Value,
    weight: &Value,
    out: Dim,
    straight: bool,
) {
    let mut shape = super::shape(reader, rows.id);
    if let Some(last) = shape.last_mut() {
        *last = out;
    }
    let kind = Operand::parse(&event.out).value().map_or(Kind::Activation, |out| reader.kind(out));
    let mut term = reader.graph.step("heads_linear", &[rows.id, weight.id], shape, kind);
    if !straight {
        term.set("layout", Number::Word("in_out".to_owned()));
    }
    reader.give(&event.out, term, rows.axes.clone());
}

/// Streams of a row that a matrix of the same row mixes; false if the operands are others.
fn streams(reader: &mut Reader<'_>, event: &Event, matrix: &Value, rows: &Value) -> bool {
    let [Axis::Batch, Axis::Tokens, Axis::Row(0), Axis::Row(1)] = rows.axes[..] else {
        return false;
    };
    let order = match matrix.axes[..] {
        [Axis::Batch, Axis::Tokens, Axis::Row(0), Axis::Row(1)] => [0, 1],
        [Axis::Batch, Axis::Tokens, Axis::Row(1), Axis::Row(0)] => [1, 0],
        _ => return false,
    };
    let matrix = super::axes::permuted(reader, matrix.id, &order);
    let count = reader.graph.term(matrix).shape[0].clone();
    let shape = vec![count, reader.graph.term(rows.id).width()];
    let kind = reader.graph.term(rows.id).kind;
    let term = reader.graph.step("mixed_streams", &[rows.id, matrix], shape, kind);
    reader.give(&event.out, term, rows.axes.clone());
    true
}

/// Is true for a weight, and for a matrix whose rows are those of several.
fn is_stack(graph: &Graph, id: usize) -> bool {
    let term = graph.term(id);
    let source = if term.op == "split_axis" && term.attribute("at") == Some(&Number::Int(0)) {
        term.inputs[0]
    } else {
        id
    };
    graph.weight(source).is_some()
}

/// The product of heads with a stack of as many matrices; false if the operands are others.
fn stacked(reader: &mut Reader<'_>, event: &Event, rows: &Value, stack: &Value) -> bool {
    let shape = super::shape(reader, stack.id);
    let [Axis::Row(0), inner, Axis::Row(1)] = &rows.axes[..] else { return false };
    if !inner.is_outer() || shape.len() != 3 || reader.graph.term(rows.id).shape.len() != 2 {
        return false;
    }
    let (straight, out) = match stack.axes[..] {
        [Axis::Row(0), Axis::Row(2), Axis::Row(1)] => (true, shape[1].clone()),
        [Axis::Row(0), Axis::Row(1), Axis::Row(2)] => (false, shape[2].clone()),
        _ => return false,
    };
    by_heads(reader, event, rows, stack, out, straight);
    true
}

fn product(reader: &mut Reader<'_>, event: &Event, left: &Value, right: &Value) {
    if reader.graph.weight(right.id).is_some() && right.axes.len() == 2 {
        return transposed_linear(reader, event, left, right, None);
    }
    if reader.graph.weight(left.id).is_some()
        && left.axes.len() == 2
        && right.axes.last() == Some(&Axis::Tokens)
    {
        let out = super::shape(reader, left.id).first().cloned().unwrap_or_else(|| Dim::plain(1));
        let kind = reader.graph.term(right.id).kind;
        let mut term = reader.graph.step("linear", &[right.id, left.id], vec![out], kind);
        term.set("bias", Number::Bool(false));
        return reader.give(&event.out, term, right.axes.clone());
    }
    if is_stack(&reader.graph, right.id) && stacked(reader, event, left, right) {
        return;
    }
    if streams(reader, event, left, right) {
        return;
    }
    let left = &flattened(left);
    let right = &keys_of(left, flattened(right));
    let rank = left.axes.len();
    if rank < 3 || right.axes.len() != rank {
        return reader.hole(event, "a product of these axes");
    }
    let kind = Operand::parse(&event.out).value().map_or(Kind::Activation, |out| reader.kind(out));
    let tail = |value: &Value| (value.axes[rank - 2].clone(), value.axes[rank - 1].clone());
    match (tail(left), tail(right)) {
        ((Axis::Tokens, Axis::Row(_)), (Axis::Row(_), Axis::Keys)) => {
            let row = super::shape(reader, left.id);
            let mut shape = row.clone();
            shape.pop();
            let mut term = reader.graph.step("scores", &[left.id, right.id], shape, kind);
            term.set("scores", Number::Word("rounded".to_owned()));
            let mut axes = left.axes.clone();
            axes[rank - 1] = Axis::Keys;
            reader.give(&event.out, term, axes);
        }
        ((Axis::Tokens, Axis::Keys), (Axis::Keys, Axis::Row(_))) => {
            let mut shape = super::shape(reader, left.id);
            let width = reader.graph.term(right.id).width();
            shape.push(width);
            let term = reader.graph.step("attended", &[left.id, right.id], shape.clone(), kind);
            let mut axes = left.axes.clone();
            axes[rank - 1] = Axis::Row(shape.len() - 1);
            reader.give(&event.out, term, axes);
        }
        ((Axis::Row(_), Axis::Row(_)), (Axis::Row(_), Axis::Keys))
            if left.axes.contains(&Axis::Tokens) =>
        {
            let mut shape = super::shape(reader, left.id);
            shape.pop();
            let term = reader.graph.step("index_scores", &[left.id, right.id], shape, kind);
            let mut axes = left.axes.clone();
            axes[rank - 1] = Axis::Keys;
            reader.give(&event.out, term, axes);
        }
        ((_, Axis::Row(_)), (Axis::Row(_), Axis::Keys))
            if reader.graph.term(right.id).op == "index_scores" =>
        {
            let term = reader.graph.step("index_sum", &[right.id, left.id], Vec::new(), kind);
            let mut axes = left.axes.clone();
            axes[rank - 2] = Axis::One;
            axes[rank - 1] = Axis::Keys;
            reader.give(&event.out, term, axes);
        }
        _ => reader.hole(event, "a product of these axes"),
    }
}

/// Attention that torch computes in one call: neither scores nor weights are rounded.
pub(super) fn fused_attention(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let values = super::tensors(reader, &args[..args.len().min(3)]);
    let [query, keys, attended] = values.as_slice() else {
        return reader.hole(event, "operands are no tensors");
    };
    let mask =
        super::argument(event, args, 3, "attn_mask").value().map(|number| reader.value(number));
    let Some(kind) = mask.map_or_else(
        || Some(Number::Word("create_causal_mask".to_owned())),
        |mask| crate::rules::mask_kind(&reader.graph, mask.id),
    ) else {
        return reader.hole(event, "a mask that is not known");
    };
    let [Axis::Batch, Axis::Row(_), Axis::Tokens, Axis::Row(_)] = query.axes[..] else {
        return reader
            .hole(event, "queries with other axes than sequences, heads, tokens and numbers");
    };
    let row = super::shape(reader, query.id);
    let size = reader.graph.term(query.id).width().number;
    let scale = match super::argument(event, args, 6, "scale") {
        Operand::Number(number) => number,
        _ => Number::apply("**", vec![size, Number::Real(-0.5)]),
    };
    let mut scores =
        reader.graph.step("scores", &[query.id, keys.id], row[..1].to_vec(), Kind::Float);
    for (name, value) in [
        ("scale", scale),
        ("mask", kind),
        ("scores", Number::Word("f32".to_owned())),
        ("soft", Number::Word("unrounded".to_owned())),
    ] {
        scores.set(name, value);
    }
    let scores = reader.graph.add(scores);
    let width = reader.graph.term(attended.id).width();
    let kind = reader.graph.term(query.id).kind;
    let term =
        reader.graph.step("attended", &[scores, attended.id], vec![row[0].clone(), width], kind);
    reader.give(&event.out, term, query.axes.clone());
}

/// Rows behind a query, or behind its scores, are keys also where no cache gave them back.
fn keys_of(left: &Value, mut right: Value) -> Value {
    let rank = right.axes.len();
    if rank < 3 || left.axes.len() != rank {
        return right;
    }
    let place = match (&left.axes[rank - 2], &left.axes[rank - 1]) {
        (Axis::Tokens, Axis::Row(_)) => rank - 1,
        (Axis::Tokens, Axis::Keys) => rank - 2,
        _ => return right,
    };
    if right.axes[place] == Axis::Tokens {
        right.axes[place] = Axis::Keys;
    }
    right
}

/// A value whose merged axes stand one by one.
fn flattened(value: &Value) -> Value {
    let axes = value
        .axes
        .iter()
        .flat_map(|axis| match axis {
            Axis::Merged(parts) => parts.clone(),
            other => vec![other.clone()],
        })
        .collect();
    Value { id: value.id, axes }
}

/// A product that is scaled and added to a bias of zeros.
pub(super) fn added(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let values = super::tensors(reader, args);
    let [bias, left, right] = values.as_slice() else {
        return reader.hole(event, "operands are no tensors");
    };
    let zeros = reader.graph.term(bias.id).op == "filled";
    if !zeros {
        return reader.hole(event, "a product with a bias");
    }
    product(reader, event, left, right);
    let Some(out) = Operand::parse(&event.out).value() else { return };
    let (Some(value), Some(Operand::Number(alpha))) =
        (reader.values.get(&out).cloned(), event.named.get("alpha").map(Operand::parse))
    else {
        return;
    };
    if reader.graph.term(value.id).op != "scores" {
        return;
    }
    let mut term = reader.graph.term(value.id).clone();
    term.set("scale", alpha);
    term.set("scores", Number::Word("once".to_owned()));
    let id = reader.graph.add(term);
    reader.values.insert(out, Value { id, axes: value.axes });
}
