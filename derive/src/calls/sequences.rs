//! Calls along the tokens: convolutions, positions, caches, masks and rotations.

use super::{argument, same, shape};
use crate::graph::{Dim, Kind};
use crate::layout::Axis;
use crate::number::Number;
use crate::operand::Operand;
use crate::read::{Reader, Value};
use crate::record::Event;

/// Pairs of numbers as complex ones.
pub(super) fn complex(reader: &mut Reader<'_>, event: &Event, first: Option<usize>) {
    let Some(first) = first else { return reader.hole(event, "operand is no tensor") };
    let value = reader.value(first);
    let mut shape = shape(reader, value.id);
    shape.pop();
    let term = reader.graph.step("complex", &[value.id], shape, Kind::Float);
    let mut axes = value.axes;
    axes.pop();
    reader.give(&event.out, term, axes);
}

/// Complex numbers as pairs.
pub(super) fn real(reader: &mut Reader<'_>, event: &Event, first: Option<usize>) {
    let Some(first) = first else { return reader.hole(event, "operand is no tensor") };
    let value = reader.value(first);
    let mut shape = shape(reader, value.id);
    shape.push(Dim::plain(2));
    let mut axes = value.axes;
    axes.push(Axis::Row(shape.len() - 1));
    let term = reader.graph.step("real", &[value.id], shape, Kind::Float);
    reader.give(&event.out, term, axes);
}

/// The logarithm of the sum of exponentials of scores.
pub(super) fn log_sum(reader: &mut Reader<'_>, event: &Event, first: Option<usize>) {
    let Some(first) = first else { return reader.hole(event, "operand is no tensor") };
    let value = reader.value(first);
    let rank = reader.graph.term(value.id).shape.len();
    if rank > 0 && value.axes.last() == Some(&Axis::Row(rank - 1)) {
        let mut row = shape(reader, value.id);
        row[rank - 1] = Dim::plain(1);
        let kind = reader.graph.term(value.id).kind;
        let term = reader.graph.step("lse_row", &[value.id], row, kind);
        return reader.give(&event.out, term, value.axes);
    }
    if value.axes.last() != Some(&Axis::Keys) {
        return reader.hole(event, "a logarithm of a sum over an axis that is not the keys");
    }
    let out = Operand::parse(&event.out).value();
    let keeps = out.is_some_and(|out| reader.record.values[out].shape.len() == value.axes.len());
    let mut axes = value.axes;
    axes.pop();
    if keeps {
        axes.push(Axis::One);
    }
    let kind = out.map_or(Kind::Float, |out| reader.kind(out));
    let shape = shape(reader, value.id);
    let term = reader.graph.step("lse", &[value.id], shape, kind);
    reader.give(&event.out, term, axes);
}

/// A running sum of a mask of ones counts positions from 1.
pub(super) fn counted(reader: &mut Reader<'_>, event: &Event, first: Option<usize>) {
    let Some(first) = first else { return reader.hole(event, "operand is no tensor") };
    let value = reader.value(first);
    if reader.graph.term(reader.graph.uncast(value.id)).word("with") != Some("ones") {
        return reader.hole(event, "a running sum");
    }
    let positions = reader.graph.step("positions", &[], Vec::new(), Kind::Int);
    let positions = reader.graph.add(positions);
    let mut term = reader.graph.step("offset", &[positions], Vec::new(), Kind::Int);
    term.set("s", Number::Int(1));
    reader.give(&event.out, term, vec![Axis::One, Axis::Tokens]);
}

/// A convolution of each channel over the tokens before.
pub(super) fn convolution(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let (Some(rows), Some(weight)) =
        (args.first().and_then(Operand::value), argument(event, args, 1, "weight").value())
    else {
        return reader.hole(event, "operands are no tensors");
    };
    let mut rows = reader.value(rows);
    let part = reader.graph.is(rows.id, "kept_rows").cloned();
    if let Some(part) = &part {
        rows.id = part.inputs[0];
    }
    let weight_value = reader.value(weight);
    let bias = argument(event, args, 2, "bias").value();
    let Some(path) = reader.graph.weight(weight_value.id).map(str::to_owned) else {
        return reader.hole(event, "a convolution with a computed kernel");
    };
    let shape = shape(reader, rows.id);
    let tokens_last = rows.axes.last() == Some(&Axis::Tokens) && shape.len() == 1;
    let groups = argument(event, args, 6, "groups");
    let depthwise = matches!(&groups, Operand::Number(number) if number.evaluate(&reader.record.config) == shape.first().map(|dim| dim.size as f64));
    if tokens_last && !depthwise && grouped(reader, event, args, &rows, &path) {
        return;
    }
    if !tokens_last || !depthwise {
        return reader.hole(event, "a convolution that mixes channels");
    }
    let module = path.rsplit_once('.').map_or("", |(module, _)| module);
    let facts = reader.record.modules.get(module);
    let kernel = facts.and_then(|facts| facts.values.get("bias_switch")).map(Number::parse);
    let size = reader.record.values[weight].shape.last().copied().unwrap_or(1);
    let width = facts
        .and_then(|facts| facts.values.get("kernel_width"))
        .map(Number::parse)
        .filter(|number| number.evaluate(&reader.record.config) == Some(size as f64))
        .unwrap_or(Number::Int(size as i64));
    let kind = reader.graph.term(rows.id).kind;
    let root = reader.graph.weight_root(weight_value.id);
    let mut inputs = vec![rows.id, root];
    if let Some(bias) = bias {
        let bias = reader.value(bias);
        inputs.push(bias.id);
    }
    let mut term = reader.graph.step("causal_conv", &inputs, shape, kind);
    term.set("width", width);
    if let Some(part) = part.as_ref().and_then(|part| part.attribute("part")) {
        term.set("part", part.clone());
    }
    let switch = match kernel {
        Some(Number::Word(text)) => serde_json::from_str(&text)
            .map_or(Number::Bool(bias.is_some()), |json| Number::parse(&json)),
        _ => Number::Bool(bias.is_some()),
    };
    term.set(
        "bias",
        if switch.is_symbolic()
            && switch.evaluate(&reader.record.config) == Some(f64::from(u8::from(bias.is_some())))
        {
            switch
        } else {
            Number::Bool(bias.is_some())
        },
    );
    reader.give(&event.out, term, rows.axes);
}

/// Rows of a table of sines and cosines, one for each position; false if the source is none.
pub(crate) fn rotary_rows(reader: &mut Reader<'_>, event: &Event, source: &Value) -> bool {
    let mut table = source.id;
    while ["expand", "repeat_each", "cast"].contains(&reader.graph.term(table).op.as_str()) {
        table = reader.graph.term(table).inputs[0];
    }
    let Some(_) = reader
        .graph
        .weight(table)
        .filter(|path| {
            path.ends_with("embed_positions") && reader.record.buffers.contains_key(*path)
        })
        .map(str::to_owned)
    else {
        return false;
    };
    let Some(out) = Operand::parse(&event.out).value() else { return false };
    let name = "embed_positions".to_owned();
    if !reader.tables.contains(&name) {
        reader.tables.push(name.clone());
    }
    let width = Dim::plain(reader.record.values[out].shape.last().copied().unwrap_or(1));
    let mut term = reader.graph.step("rope_both", &[], vec![width], reader.kind(out));
    term.set("table", Number::Word(name));
    let mut axes = vec![Axis::Batch, Axis::Tokens, Axis::Row(0)];
    if reader.record.values[out].shape.first() == Some(&1) {
        axes[0] = Axis::One;
    }
    reader.give(&event.out, term, axes);
    true
}

/// Rows one token later, zeros before the first; false if the padding is another.
pub(super) fn shifted(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) -> bool {
    let Some(first) = args.first().and_then(Operand::value) else { return false };
    let value = reader.value(first);
    let sizes: Vec<Option<i64>> =
        super::axes::flat(args.get(1..2).unwrap_or_default()).iter().map(Operand::int).collect();
    let zeros = match event.named.get("value").map(Operand::parse) {
        Some(Operand::Number(number)) => number.evaluate(&reader.record.config) == Some(0.0),
        _ => true,
    };
    let row = shape(reader, value.id);
    let is_shift = sizes == [Some(0), Some(0), Some(1), Some(-1)];
    if !is_shift || !zeros || value.axes != [Axis::Batch, Axis::Tokens, Axis::Row(0)] {
        return false;
    }
    let kind = reader.graph.term(value.id).kind;
    let term = reader.graph.step("previous", &[value.id], row, kind);
    reader.give(&event.out, term, value.axes);
    true
}

/// A row of zeros and all rows but the last behind it; false if others are joined.
pub(super) fn delayed(reader: &mut Reader<'_>, event: &Event, values: &[Value], at: i64) -> bool {
    let [first, rows] = values else { return false };
    let Some(earlier) = reader.graph.is(rows.id, "earlier").cloned() else { return false };
    let place = super::axis_at(rows, at);
    let along_tokens = place.is_some_and(|place| rows.axes[place] == Axis::Tokens);
    if !along_tokens || !is_zero(reader, first.id) {
        return false;
    }
    let row = earlier.shape.clone();
    let mut term = reader.graph.step("previous", &earlier.inputs, row, earlier.kind);
    let mut events = reader.record.runs[0].events.iter();
    if events.any(|event| event.call.as_deref() == Some("cache.update_recurrent_state")) {
        term.set("kept", Number::Word("recurrent".to_owned()));
    }
    reader.give(&event.out, term, rows.axes.clone());
    true
}

/// Is true for zeros, and for their product with a matrix.
fn is_zero(reader: &Reader<'_>, id: usize) -> bool {
    let term = reader.graph.term(id);
    match term.op.as_str() {
        "filled" => term.word("with").is_some_and(|with| with.ends_with("zeros")),
        "linear" | "heads_linear" => term.inputs.len() == 2 && is_zero(reader, term.inputs[0]),
        _ => false,
    }
}

/// The last size of a value's recorded shape.
fn last_size(reader: &Reader<'_>, value: Option<usize>) -> Option<usize> {
    reader.record.values[value?].shape.last().copied()
}

/// A convolution by groups behind one of each channel, both over zeros before the first token; false if it is another.
fn grouped(
    reader: &mut Reader<'_>,
    event: &Event,
    args: &[Operand],
    rows: &Value,
    path: &str,
) -> bool {
    let Some(first) = reader.graph.is(rows.id, "causal_conv").cloned() else { return false };
    let kernel = argument(event, args, 1, "weight").value();
    let second = last_size(reader, kernel).unwrap_or(1);
    let padded = last_size(reader, args.first().and_then(Operand::value));
    let columns = last_size(reader, Operand::parse(&event.out).value());
    let is_causal =
        padded == Some(reader.sizes.tokens + second - 1) && columns == Some(reader.sizes.tokens);
    let biased = argument(event, args, 2, "bias").value().is_some();
    let (true, true, Some(kernel), Some(Number::Bool(true)), Operand::Number(groups)) =
        (is_causal, biased, kernel, first.attribute("bias"), argument(event, args, 6, "groups"))
    else {
        return false;
    };
    let weight = reader.value(kernel).id;
    let weight = reader.graph.weight_root(weight);
    let mut term = first.clone();
    "grouped_conv".clone_into(&mut term.op);
    term.inputs = vec![first.inputs[0], first.inputs[1], weight];
    term.owner.clone_from(&reader.graph.owner);
    let facts = path.rsplit_once('.').and_then(|(module, _)| reader.record.modules.get(module));
    let width = facts
        .and_then(|facts| facts.values.get("kernel_width"))
        .map(Number::parse)
        .filter(|number| number.evaluate(&reader.record.config) == Some(second as f64));
    term.set("second", width.unwrap_or(Number::Int(second as i64)));
    term.set("groups", groups);
    reader.give(&event.out, term, rows.axes.clone());
    true
}

/// Keys and values as a cache gives them back.
pub(super) fn cached(reader: &mut Reader<'_>, event: &Event, args: &[Operand], name: &str) {
    if name == "cache.update_conv_state"
        && let Some(place @ 1..) =
            event.named.get("state_idx").and_then(|json| Operand::parse(json).int())
        && let Some(first) = args.iter().find_map(Operand::value)
    {
        // One of several convolutions of a layer.
        let value = reader.value(first);
        let kind = reader.graph.term(value.id).kind;
        let mut term = reader.graph.step("kept_rows", &[value.id], shape(reader, value.id), kind);
        term.set("part", Number::Int(place));
        return reader.give(&event.out, term, value.axes);
    }
    if name == "cache.update_conv_state" || name == "cache.update_recurrent_state" {
        return same(reader, event, args.iter().find_map(Operand::value));
    }
    let outs = Operand::parse(&event.out).values();
    let operands: Vec<usize> = args.iter().filter_map(Operand::value).collect();
    if name != "cache.update" || outs.len() != 2 || operands.len() < 2 {
        return reader.hole(event, "a cache of another kind than keys and values");
    }
    for (part, (out, operand)) in ["k", "v"].iter().zip(outs.iter().zip(&operands)) {
        let value = reader.value(*operand);
        let term = reader.graph.term(value.id);
        let mut step = reader.graph.step("cached", &[value.id], term.shape.clone(), term.kind);
        step.set("part", Number::Word((*part).to_owned()));
        if let Some(layer) = args.get(2).and_then(Operand::int) {
            step.set("layer", Number::Int(layer));
        }
        let id = reader.graph.add(step);
        let axes = value
            .axes
            .iter()
            .map(|axis| if *axis == Axis::Tokens { Axis::Keys } else { axis.clone() })
            .collect();
        reader.values.insert(*out, Value { id, axes });
    }
}

pub(super) fn mask(reader: &mut Reader<'_>, event: &Event, name: &str) {
    if let Some(kinds) = event.out.get("map").and_then(serde_json::Value::as_object) {
        for (kind, out) in kinds {
            let name = if kind.contains("sliding") {
                "create_sliding_window_causal_mask"
            } else if kind.contains("chunk") {
                "create_chunked_causal_mask"
            } else {
                "create_causal_mask"
            };
            bind_mask(reader, out, &Number::Word(name.to_owned()));
        }
        return;
    }
    let narrowed = event.named.get("and_mask_function");
    let window = narrowed.and_then(|function| function.get("window")).map(Number::parse);
    let widened = event.named.contains_key("or_mask_function");
    let kind = match window {
        Some(window) if !widened => Number::Apply("window".to_owned(), vec![window]),
        None if narrowed.is_none() && !widened => Number::Word(name.to_owned()),
        _ => Number::Word("unknown".to_owned()),
    };
    bind_mask(reader, &event.out, &kind);
}

pub(super) fn bind_mask(reader: &mut Reader<'_>, out: &serde_json::Value, kind: &Number) {
    for out in Operand::parse(out).values() {
        let mut term = reader.graph.step("mask", &[], Vec::new(), Kind::Activation);
        term.set("kind", kind.clone());
        let id = reader.graph.add(term);
        reader.values.insert(
            out,
            Value { id, axes: vec![Axis::Batch, Axis::One, Axis::Tokens, Axis::Keys] },
        );
    }
}

/// A triangle over tokens and keys is the mask of causal attention.
pub(super) fn triangle(reader: &mut Reader<'_>, event: &Event) {
    let Some(out) = Operand::parse(&event.out).value() else { return };
    if !bind_square(reader, out) {
        reader.hole(event, "a triangle that is no mask");
    }
}

/// Binds a square over tokens and keys to the mask of causal attention; false if it is none.
pub(super) fn bind_square(reader: &mut Reader<'_>, out: usize) -> bool {
    let shape = &reader.record.values[out].shape;
    let tokens = reader.sizes.tokens;
    let Some((inner, outer)) =
        shape.split_last_chunk::<2>().map(|(outer, inner)| (inner, outer.len()))
    else {
        return false;
    };
    if *inner != [tokens, tokens] {
        return false;
    }
    let mut term = reader.graph.step("mask", &[], Vec::new(), reader.kind(out));
    term.set("kind", Number::Word("create_causal_mask".to_owned()));
    let id = reader.graph.add(term);
    let mut axes = vec![Axis::One; outer];
    axes.extend([Axis::Tokens, Axis::Keys]);
    reader.values.insert(out, Value { id, axes });
    true
}
