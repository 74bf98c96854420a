//! Calls of torch as terms.

use crate::graph::{Dim, Id, Kind};
use crate::layout::Axis;
use crate::number::Number;
use crate::operand::Operand;
use crate::read::{Reader, Value};
use crate::record::Event;

mod axes;
mod binary;
mod index;
mod products;

/// Calls that give a tensor with the same numbers.
const SAME: &[&str] = &["contiguous", "clone", "detach", "dropout", "requires_grad_", "pin_memory", "nan_to_num", "_set_grad_enabled"];
/// Functions of one tensor: torch's name, and that of the step.
const UNARY: &[(&str, &str)] = &[
    ("neg", "neg"), ("exp", "exp"), ("sigmoid", "sigmoid"), ("sigmoid_", "sigmoid"), ("silu", "silu"), ("tanh", "tanh"), ("relu", "relu"), ("relu_", "relu"),
    ("softplus", "softplus"), ("rsqrt", "rsqrt"), ("sqrt", "square_root"), ("square", "square"), ("abs", "absolute"), ("log", "log"), ("sign", "sign"),
    ("reciprocal", "reciprocal"), ("logsigmoid", "log_sigmoid"), ("cos", "cos"), ("sin", "sin"), ("floor", "floor"), ("log_sigmoid", "log_sigmoid"), ("erf", "erf"),
];
const CASTS: &[(&str, Kind)] = &[("float", Kind::Float), ("bfloat16", Kind::Activation), ("half", Kind::Activation), ("double", Kind::Float), ("long", Kind::Int), ("int", Kind::Int), ("bool", Kind::Bool)];

/// Makes the term of a call.
pub fn call(reader: &mut Reader<'_>, name: &str, event: &Event) {
    let args: Vec<Operand> = event.args.iter().map(Operand::parse).collect();
    let first = args.first().and_then(Operand::value);
    if event.out.is_null() {
        return;
    }
    if SAME.contains(&name) {
        return same(reader, event, first);
    }
    if let Some((_, step)) = UNARY.iter().find(|(torch, _)| *torch == name) {
        return unary(reader, event, first, step);
    }
    if let Some((_, kind)) = CASTS.iter().find(|(torch, _)| *torch == name) {
        return cast(reader, event, first, *kind);
    }
    match name {
        "to" | "type_as" | "type" => {
            let kind = Operand::parse(&event.out).value().map_or(Kind::Activation, |out| reader.kind(out));
            cast(reader, event, first, kind);
        }
        "gelu" => {
            let tanh = event.named.get("approximate").is_some_and(|json| Operand::parse(json) == Operand::Number(Number::Word("tanh".to_owned())));
            unary(reader, event, first, if tanh { "gelu_tanh" } else { "gelu" });
        }
        "mean" | "sum" | "amax" => reduce(reader, event, &args, name),
        "softmax" => softmax(reader, event, &args),
        "embedding" => embedding(reader, event, &args),
        "arange" => arange(reader, event),
        "layer_norm" | "rms_norm" => norm(reader, event, &args, name),
        "clamp" | "clip" | "clamp_min" | "clamp_max" | "clamp_" => clamp(reader, event, &args, name),
        "view_as_complex" => complex(reader, event, first),
        "view_as_real" => real(reader, event, first),
        "logsumexp" => log_sum(reader, event, first),
        "where" if args.len() == 3 => choice(reader, event, &args),
        "baddbmm" => products::added(reader, event, &args),
        "cumsum" => counted(reader, event, first),
        "conv1d" => convolution(reader, event, &args),
        "copy_" => index::copied(reader, event, &args),
        "topk" => topk(reader, event, &args),
        "gather" => gather(reader, event, &args),
        "scatter_" | "scatter" => scatter(reader, event, &args),
        "masked_fill" | "masked_fill_" => masked_fill(reader, event, &args),
        "__invert__" | "logical_not" | "bitwise_not" => unary(reader, event, first, "not"),
        "max" if Operand::parse(&event.out).values().len() == 2 => maximum(reader, event, &args),
        "zeros_like" | "ones_like" | "zeros" | "ones" | "full" | "empty" | "new_empty" | "new_zeros" | "empty_like" | "new_ones" => filled(reader, event, name),
        "scaled_dot_product_attention" => products::fused_attention(reader, event, &args),
        _ if name.starts_with("cache.") => cached(reader, event, &args, name),
        _ if name.starts_with("create_") => mask(reader, event, name),
        _ if products::call(reader, name, event, &args) || binary::call(reader, name, event, &args) || axes::call(reader, name, event, &args)
            || index::call(reader, name, event, &args) => {}
        _ => reader.hole(event, "no term for this call"),
    }
}

fn same(reader: &mut Reader<'_>, event: &Event, first: Option<usize>) {
    let Some(first) = first else { return };
    let value = reader.value(first);
    reader.bind(&event.out, value.id, value.axes);
}

fn unary(reader: &mut Reader<'_>, event: &Event, first: Option<usize>, step: &str) {
    let Some(first) = first else { return reader.hole(event, "operand is no tensor") };
    let value = reader.value(first);
    let id = reader.graph.unary(step, value.id);
    reader.bind(&event.out, id, value.axes);
}

fn cast(reader: &mut Reader<'_>, event: &Event, first: Option<usize>, kind: Kind) {
    let Some(first) = first else { return reader.hole(event, "operand is no tensor") };
    let value = reader.value(first);
    let shape = reader.graph.term(value.id).shape.clone();
    let term = reader.graph.step("cast", &[value.id], shape, kind);
    reader.give(&event.out, term, value.axes);
}

/// Axis of a tensor that an argument names, counted from the end if negative.
pub(crate) fn axis_at(value: &Value, at: i64) -> Option<usize> {
    let rank = value.axes.len() as i64;
    let place = if at < 0 { rank + at } else { at };
    (0..rank).contains(&place).then_some(place as usize)
}

fn argument(event: &Event, args: &[Operand], place: usize, name: &str) -> Operand {
    args.get(place).cloned().or_else(|| event.named.get(name).map(Operand::parse)).unwrap_or(Operand::None)
}

fn reduce(reader: &mut Reader<'_>, event: &Event, args: &[Operand], name: &str) {
    let Some(first) = args.first().and_then(Operand::value) else { return reader.hole(event, "operand is no tensor") };
    let value = reader.value(first);
    let at = match argument(event, args, 1, "dim") {
        Operand::List(items) if items.len() == 1 => items[0].int(),
        other => other.int(),
    };
    let keep = argument(event, args, 2, "keepdim").int() == Some(1);
    let Some(place) = at.and_then(|at| axis_at(&value, at)) else { return reader.hole(event, "the axis is not said") };
    let Axis::Row(axis) = value.axes[place] else { return reader.hole(event, "reduces an axis that is none of a row") };
    let term = reader.graph.term(value.id);
    if axis + 1 != term.shape.len() {
        return reducing(reader, event, &value, place, axis, name, keep);
    }
    let mut shape = term.shape.clone();
    shape[axis] = Dim::plain(1);
    let kind = Operand::parse(&event.out).value().map_or(term.kind, |out| reader.kind(out));
    let step = reader.graph.step(name, &[value.id], shape.clone(), kind);
    let mut axes = value.axes.clone();
    if keep {
        return reader.give(&event.out, step, axes);
    }
    axes.remove(place);
    let id = reader.graph.add(step);
    if shape.len() == 1 {
        return reader.bind(&event.out, id, axes);
    }
    let id = axes::merge_row(reader, id, axis - 1, 2);
    reader.bind(&event.out, id, axes);
}

/// A sum over an axis of a row that is not its last.
fn reducing(reader: &mut Reader<'_>, event: &Event, value: &Value, place: usize, axis: usize, name: &str, keep: bool) {
    let mut shape = reader.graph.term(value.id).shape.clone();
    shape.remove(axis);
    let kind = reader.graph.term(value.id).kind;
    let mut step = reader.graph.step(&format!("{name}_axis"), &[value.id], shape, kind);
    step.set("axis", Number::Int(axis as i64));
    let mut axes = value.axes.clone();
    axes.remove(place);
    for other in &mut axes {
        if let Axis::Row(number) = other {
            if *number > axis {
                *number -= 1;
            }
        }
    }
    if keep {
        axes.insert(place, Axis::One);
    }
    reader.give(&event.out, step, axes);
}

fn softmax(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let Some(first) = args.first().and_then(Operand::value) else { return reader.hole(event, "operand is no tensor") };
    let value = reader.value(first);
    let at = argument(event, args, 1, "dim").int().unwrap_or(-1);
    let Some(place) = axis_at(&value, at) else { return reader.hole(event, "no such axis") };
    let term = reader.graph.term(value.id);
    let kind = Operand::parse(&event.out).value().map_or(term.kind, |out| reader.kind(out));
    let step = match &value.axes[place] {
        Axis::Keys => "softmax_keys",
        Axis::Row(axis) if axis + 1 == term.shape.len() => "softmax",
        _ => return reader.hole(event, "softmax over an axis that is neither keys nor the last of a row"),
    };
    let term = reader.graph.step(step, &[value.id], term.shape.clone(), kind);
    reader.give(&event.out, term, value.axes);
}

fn embedding(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let (Some(tokens), Some(weight)) = (args.first().and_then(Operand::value), args.get(1).and_then(Operand::value)) else { return reader.hole(event, "operands are no tensors") };
    let tokens = reader.value(tokens);
    let weight = reader.value(weight);
    let shape = reader.graph.term(weight.id).shape.clone();
    let kind = reader.graph.term(weight.id).kind;
    let mut term = reader.graph.step("embed", &[tokens.id, weight.id], shape[1..].to_vec(), kind);
    term.set("rows", shape[0].number.clone());
    let mut axes = tokens.axes;
    axes.push(Axis::Row(0));
    reader.give(&event.out, term, axes);
}

fn arange(reader: &mut Reader<'_>, event: &Event) {
    let Some(out) = Operand::parse(&event.out).value() else { return };
    if reader.record.values[out].shape == [reader.sizes.tokens] {
        let term = reader.graph.step("positions", &[], Vec::new(), Kind::Int);
        return reader.give(&event.out, term, vec![Axis::Tokens]);
    }
    reader.hole(event, "a range that is not the positions");
}

fn filled(reader: &mut Reader<'_>, event: &Event, name: &str) {
    let Some(out) = Operand::parse(&event.out).value() else { return };
    let (row, axes) = reader.guess(out);
    let mut term = reader.graph.step("filled", &[], row, reader.kind(out));
    if name.contains("empty") {
        term.set("number", Number::Int(out as i64));
    }
    term.set("with", Number::Word(name.trim_end_matches("_like").to_owned()));
    reader.give(&event.out, term, axes);
}

fn norm(reader: &mut Reader<'_>, event: &Event, args: &[Operand], name: &str) {
    let Some(first) = args.first().and_then(Operand::value) else { return reader.hole(event, "operand is no tensor") };
    let value = reader.value(first);
    let mut inputs = vec![value.id];
    let weight = argument(event, args, 2, "weight").value();
    let bias = argument(event, args, 3, "bias").value();
    for tensor in [weight, bias].into_iter().flatten() {
        let tensor = reader.value(tensor);
        inputs.push(tensor.id);
    }
    let term = reader.graph.term(value.id);
    let mut step = reader.graph.step(name, &inputs, term.shape.clone(), term.kind);
    let eps = argument(event, args, if name == "layer_norm" { 4 } else { 3 }, "eps");
    step.set("eps", match eps { Operand::Number(number) => number, _ => Number::Real(1e-5) });
    if name == "layer_norm" {
        step.set("bias", Number::Bool(bias.is_some()));
        step.set("weight", Number::Bool(weight.is_some()));
    }
    reader.give(&event.out, step, value.axes);
}

fn clamp(reader: &mut Reader<'_>, event: &Event, args: &[Operand], name: &str) {
    let Some(first) = args.first().and_then(Operand::value) else { return reader.hole(event, "operand is no tensor") };
    let value = reader.value(first);
    let term = reader.graph.term(value.id);
    let mut step = reader.graph.step("clamp", &[value.id], term.shape.clone(), term.kind);
    let low = if name == "clamp_max" { Operand::None } else { argument(event, args, 1, "min") };
    let high = if name == "clamp_max" { argument(event, args, 1, "max") } else { argument(event, args, 2, "max") };
    for (key, bound) in [("lo", low), ("hi", high)] {
        if let Operand::Number(number) = bound {
            step.set(key, number);
        }
    }
    reader.give(&event.out, step, value.axes);
}

/// Pairs of numbers as complex ones.
fn complex(reader: &mut Reader<'_>, event: &Event, first: Option<usize>) {
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
fn real(reader: &mut Reader<'_>, event: &Event, first: Option<usize>) {
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
fn log_sum(reader: &mut Reader<'_>, event: &Event, first: Option<usize>) {
    let Some(first) = first else { return reader.hole(event, "operand is no tensor") };
    let value = reader.value(first);
    if value.axes.last() != Some(&Axis::Keys) { return reader.hole(event, "a logarithm of a sum over an axis that is not the keys"); }
    let out = Operand::parse(&event.out).value();
    let keeps = out.is_some_and(|out| reader.record.values[out].shape.len() == value.axes.len());
    let mut axes = value.axes;
    axes.pop();
    if keeps { axes.push(Axis::One); }
    let kind = out.map_or(Kind::Float, |out| reader.kind(out));
    let shape = shape(reader, value.id);
    let term = reader.graph.step("lse", &[value.id], shape, kind);
    reader.give(&event.out, term, axes);
}

/// One of two values by a test; tokens stay what they are.
fn choice(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let values = tensors(reader, args);
    if let Some(tokens) = values.iter().skip(1).find(|value| reader.graph.term(value.id).op == "tokens").cloned() {
        return reader.bind(&event.out, tokens.id, tokens.axes);
    }
    let Some((inputs, shape, axes)) = (if values.len() == 3 { binary::broadcast(reader, &values) } else { None }) else { return reader.hole(event, "a choice by a test") };
    let kind = Operand::parse(&event.out).value().map_or(Kind::Activation, |out| reader.kind(out));
    let term = reader.graph.step("where", &inputs, shape, kind);
    reader.give(&event.out, term, axes);
}

/// A running sum of a mask of ones counts positions from 1.
fn counted(reader: &mut Reader<'_>, event: &Event, first: Option<usize>) {
    let Some(first) = first else { return reader.hole(event, "operand is no tensor") };
    let value = reader.value(first);
    if reader.graph.term(reader.graph.uncast(value.id)).word("with") != Some("ones") { return reader.hole(event, "a running sum"); }
    let positions = reader.graph.step("positions", &[], Vec::new(), Kind::Int);
    let positions = reader.graph.add(positions);
    let mut term = reader.graph.step("offset", &[positions], Vec::new(), Kind::Int);
    term.set("s", Number::Int(1));
    reader.give(&event.out, term, vec![Axis::One, Axis::Tokens]);
}

/// A convolution of each channel over the tokens before.
fn convolution(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let (Some(rows), Some(weight)) = (args.first().and_then(Operand::value), argument(event, args, 1, "weight").value()) else { return reader.hole(event, "operands are no tensors") };
    let rows = reader.value(rows);
    let weight_value = reader.value(weight);
    let bias = argument(event, args, 2, "bias").value();
    let Some(path) = reader.graph.weight(weight_value.id).map(str::to_owned) else { return reader.hole(event, "a convolution with a computed kernel") };
    let shape = shape(reader, rows.id);
    let tokens_last = rows.axes.last() == Some(&Axis::Tokens) && shape.len() == 1;
    let groups = argument(event, args, 6, "groups");
    let depthwise = matches!(&groups, Operand::Number(number) if number.evaluate(&reader.record.config) == shape.first().map(|dim| dim.size as f64));
    if !tokens_last || !depthwise {
        return reader.hole(event, "a convolution that mixes channels");
    }
    let module = path.rsplit_once('.').map_or("", |(module, _)| module);
    let facts = reader.record.modules.get(module);
    let kernel = facts.and_then(|facts| facts.values.get("bias_switch")).map(Number::parse);
    let size = reader.record.values[weight].shape.last().copied().unwrap_or(1);
    let width = facts.and_then(|facts| facts.values.get("kernel_width")).map(Number::parse).filter(|number| number.evaluate(&reader.record.config) == Some(size as f64)).unwrap_or(Number::Int(size as i64));
    let kind = reader.graph.term(rows.id).kind;
    let root = reader.graph.weight_root(weight_value.id);
    let mut inputs = vec![rows.id, root];
    if let Some(bias) = bias {
        let bias = reader.value(bias);
        inputs.push(bias.id);
    }
    let mut term = reader.graph.step("causal_conv", &inputs, shape, kind);
    term.set("width", width);
    let switch = match kernel {
        Some(Number::Word(text)) => serde_json::from_str(&text).map_or(Number::Bool(bias.is_some()), |json| Number::parse(&json)),
        _ => Number::Bool(bias.is_some()),
    };
    term.set("bias", if switch.is_symbolic() && switch.evaluate(&reader.record.config) == Some(f64::from(u8::from(bias.is_some()))) { switch } else { Number::Bool(bias.is_some()) });
    reader.give(&event.out, term, rows.axes);
}

fn topk(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let Some(first) = args.first().and_then(Operand::value) else { return reader.hole(event, "operand is no tensor") };
    let value = reader.value(first);
    let Operand::Number(count) = argument(event, args, 1, "k") else { return reader.hole(event, "the count is no number") };
    let outs = Operand::parse(&event.out).values();
    let [numbers, places] = outs[..] else { return reader.hole(event, "unexpected results") };
    let size = count.evaluate(&reader.record.config).unwrap_or(1.0) as usize;
    let term = reader.graph.term(value.id);
    let kind = term.kind;
    let mut shape = term.shape.clone();
    if let Some(last) = shape.last_mut() {
        *last = Dim { size, number: count.clone() };
    }
    if shape.len() > 1 {
        for (step, out) in [("top_values", numbers), ("top_places", places)] {
            let mut term = reader.graph.step(step, &[value.id], shape.clone(), if step == "top_values" { kind } else { Kind::Int });
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

fn gather(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let source = args.first().and_then(Operand::value);
    let places = argument(event, args, 2, "index").value();
    let (Some(source), Some(places)) = (source, places) else { return reader.hole(event, "operands are no tensors") };
    let source = reader.value(source);
    let places = reader.value(places);
    let shape = reader.graph.term(places.id).shape.clone();
    let kind = reader.graph.term(source.id).kind;
    let term = reader.graph.step("pick", &[source.id, places.id], shape, kind);
    reader.give(&event.out, term, places.axes);
}

fn scatter(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let (Some(base), Some(places)) = (args.first().and_then(Operand::value), argument(event, args, 2, "index").value()) else { return reader.hole(event, "operands are no tensors") };
    let base = reader.value(base);
    let places = reader.value(places);
    let term = reader.graph.term(base.id);
    let mut step = reader.graph.step("scatter", &[base.id, places.id], term.shape.clone(), term.kind);
    match argument(event, args, 3, "value") {
        Operand::Number(number) => step.set("value", number),
        Operand::Value(source) => { let source = reader.value(source); step.inputs.push(source.id); }
        _ => {}
    }
    reader.give(&event.out, step, base.axes);
}

fn masked_fill(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let values = tensors(reader, args);
    if let Some(tokens) = values.first().filter(|value| reader.graph.term(value.id).op == "tokens").cloned() {
        return reader.bind(&event.out, tokens.id, tokens.axes);
    }
    let [value, mask, ..] = values.as_slice() else { return reader.hole(event, "operands are no tensors") };
    let number = match argument(event, args, 2, "value") {
        Operand::Number(number) => number,
        Operand::Value(other) => { let other = reader.value(other); reader.graph.term(other.id).attribute("number").cloned().unwrap_or(Number::Unknown("tensor".to_owned())) }
        _ => Number::Int(0),
    };
    if value.axes.contains(&Axis::Keys) {
        let shape = shape(reader, value.id);
        let kind = reader.graph.term(value.id).kind;
        let mut step = reader.graph.step("masked_fill", &[value.id, mask.id], shape, kind);
        step.set("value", number);
        return reader.give(&event.out, step, value.axes.clone());
    }
    let Some((inputs, shape, axes)) = binary::broadcast(reader, &[value.clone(), mask.clone()]) else { return reader.hole(event, "shapes that no row has") };
    let kind = reader.graph.term(value.id).kind;
    let mut step = reader.graph.step("masked_fill", &inputs, shape, kind);
    step.set("value", number);
    reader.give(&event.out, step, axes);
}

/// The largest of the last axis; its place is no term.
fn maximum(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let outs = Operand::parse(&event.out).values();
    let Some(first) = args.first().and_then(Operand::value) else { return reader.hole(event, "operand is no tensor") };
    let value = reader.value(first);
    let keep = argument(event, args, 2, "keepdim").int() == Some(1);
    let term = reader.graph.term(value.id);
    let on_keys = value.axes.last() == Some(&Axis::Keys);
    let mut shape = term.shape.clone();
    if !on_keys {
        if let Some(last) = shape.last_mut() { *last = Dim::plain(1); }
    }
    let step = reader.graph.step(if on_keys { "max_keys" } else { "max" }, &[value.id], shape.clone(), term.kind);
    let mut id = reader.graph.add(step);
    let mut axes = value.axes;
    if on_keys {
        if let Some(last) = axes.last_mut() { *last = Axis::One; }
    }
    if !keep {
        axes.pop();
        if !on_keys && shape.len() > 1 { id = axes::merge_row(reader, id, shape.len() - 2, 2); }
    }
    reader.values.insert(outs[0], Value { id, axes });
}

/// Rows of a table of sines and cosines, one for each position; false if the source is none.
pub(crate) fn rotary_rows(reader: &mut Reader<'_>, event: &Event, source: &Value) -> bool {
    let Some(path) = reader.graph.weight(source.id).filter(|path| path.ends_with("embed_positions") && reader.record.buffers.contains_key(*path)).map(str::to_owned) else { return false };
    let Some(out) = Operand::parse(&event.out).value() else { return false };
    let name = "embed_positions".to_owned();
    let _ = path;
    if !reader.tables.contains(&name) {
        reader.tables.push(name.clone());
    }
    let width = Dim::plain(reader.record.values[out].shape.last().copied().unwrap_or(1));
    let mut term = reader.graph.step("rope_both", &[], vec![width], reader.kind(out));
    term.set("table", Number::Word(name));
    let mut axes = vec![Axis::Batch, Axis::Tokens, Axis::Row(0)];
    if reader.record.values[out].shape.first() == Some(&1) { axes[0] = Axis::One; }
    reader.give(&event.out, term, axes);
    true
}

/// Keys and values as a cache gives them back.
fn cached(reader: &mut Reader<'_>, event: &Event, args: &[Operand], name: &str) {
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
        let axes = value.axes.iter().map(|axis| if *axis == Axis::Tokens { Axis::Keys } else { axis.clone() }).collect();
        reader.values.insert(*out, Value { id, axes });
    }
}

fn mask(reader: &mut Reader<'_>, event: &Event, name: &str) {
    if let Some(kinds) = event.out.get("map").and_then(serde_json::Value::as_object) {
        for (kind, out) in kinds {
            let name = if kind.contains("sliding") { "create_sliding_window_causal_mask" } else if kind.contains("chunk") { "create_chunked_causal_mask" } else { "create_causal_mask" };
            bind_mask(reader, out, name);
        }
        return;
    }
    bind_mask(reader, &event.out, name);
}

fn bind_mask(reader: &mut Reader<'_>, out: &serde_json::Value, name: &str) {
    for out in Operand::parse(out).values() {
        let mut term = reader.graph.step("mask", &[], Vec::new(), Kind::Activation);
        term.set("kind", Number::Word(name.to_owned()));
        let id = reader.graph.add(term);
        reader.values.insert(out, Value { id, axes: vec![Axis::Batch, Axis::One, Axis::Tokens, Axis::Keys] });
    }
}

/// Returns the inputs of a call that are tensors, as values.
pub(crate) fn tensors(reader: &mut Reader<'_>, args: &[Operand]) -> Vec<Value> {
    let numbers: Vec<usize> = args.iter().filter_map(Operand::value).collect();
    numbers.into_iter().map(|number| reader.value(number)).collect()
}

/// A flat row as heads.
pub(crate) fn split_heads(reader: &mut Reader<'_>, id: Id, row: &[Dim]) -> Id {
    axes::split_row(reader, id, 0, row)
}

/// Returns the term of a value.
pub(crate) fn shape(reader: &Reader<'_>, id: Id) -> Vec<Dim> {
    reader.graph.term(id).shape.clone()
}
