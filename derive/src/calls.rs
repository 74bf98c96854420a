//! Calls of torch as terms.

use crate::graph::{Dim, Id, Kind};
use crate::layout::Axis;
use crate::number::Number;
use crate::operand::Operand;
use crate::read::{Reader, Value};
use crate::record::Event;

mod axes;
mod binary;
mod choices;
mod distances;
mod index;
pub(crate) mod mixture;
mod parts;
mod products;
mod sequences;
mod sorted;

/// Calls that give a tensor with the same numbers.
const SAME: &[&str] = &[
    "contiguous",
    "clone",
    "detach",
    "dropout",
    "requires_grad_",
    "pin_memory",
    "nan_to_num",
    "_set_grad_enabled",
];
/// Functions of one tensor: torch's name, and that of the step.
const UNARY: &[(&str, &str)] = &[
    ("neg", "neg"),
    ("exp", "exp"),
    ("sigmoid", "sigmoid"),
    ("sigmoid_", "sigmoid"),
    ("silu", "silu"),
    ("tanh", "tanh"),
    ("relu", "relu"),
    ("relu_", "relu"),
    ("softplus", "softplus"),
    ("rsqrt", "rsqrt"),
    ("sqrt", "square_root"),
    ("square", "square"),
    ("abs", "absolute"),
    ("log", "log"),
    ("sign", "sign"),
    ("reciprocal", "reciprocal"),
    ("logsigmoid", "log_sigmoid"),
    ("cos", "cos"),
    ("sin", "sin"),
    ("floor", "floor"),
    ("log_sigmoid", "log_sigmoid"),
    ("erf", "erf"),
];
const CASTS: &[(&str, Kind)] = &[
    ("float", Kind::Float),
    ("bfloat16", Kind::Activation),
    ("half", Kind::Activation),
    ("double", Kind::Float),
    ("long", Kind::Int),
    ("int", Kind::Int),
    ("bool", Kind::Bool),
];

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
            let kind =
                Operand::parse(&event.out).value().map_or(Kind::Activation, |out| reader.kind(out));
            cast(reader, event, first, kind);
        }
        "gelu" => {
            let tanh = event.named.get("approximate").is_some_and(|json| {
                Operand::parse(json) == Operand::Number(Number::Word("tanh".to_owned()))
            });
            unary(reader, event, first, if tanh { "gelu_tanh" } else { "gelu" });
        }
        "log1p" => logarithm_above_one(reader, event, first),
        "mean" | "sum" | "amax" => reduce(reader, event, &args, name),
        "softmax" => softmax(reader, event, &args),
        "embedding" => embedding(reader, event, &args),
        "arange" => arange(reader, event),
        "norm" | "linalg_vector_norm" | "vector_norm" => length(reader, event, &args),
        "layer_norm" | "rms_norm" => norm(reader, event, &args, name),
        "clamp" | "clip" | "clamp_min" | "clamp_max" | "clamp_" => {
            clamp(reader, event, &args, name);
        }
        "pad" => padded(reader, event, &args),
        "outer" | "einsum" => outer(reader, event, &args),
        "view_as_complex" => sequences::complex(reader, event, first),
        "view_as_real" => sequences::real(reader, event, first),
        "logsumexp" => sequences::log_sum(reader, event, first),
        "where" if args.len() == 3 => choices::choice(reader, event, &args),
        "where" | "nonzero" if mixture::chosen_rows(reader, event, &args) => {}
        "one_hot" => mixture::one_hot(reader, event, &args),
        "sort" if sorted::sort(reader, event, &args) => {}
        "index_add_" | "index_add" if sorted::added(reader, event, &args) => {}
        "index_add_" | "index_add" => mixture::added(reader, event, &args),
        "baddbmm" => products::added(reader, event, &args),
        "cumsum" => sequences::counted(reader, event, first),
        "conv1d" => sequences::convolution(reader, event, &args),
        "copy_" => index::copied(reader, event, &args),
        "topk" => choices::topk(reader, event, &args),
        "gather" => choices::gather(reader, event, &args),
        "scatter_" | "scatter" => choices::scatter(reader, event, &args),
        "masked_fill" | "masked_fill_" => choices::masked_fill(reader, event, &args),
        "__invert__" | "logical_not" | "bitwise_not" => unary(reader, event, first, "not"),
        "max" if Operand::parse(&event.out).values().len() == 2 => {
            choices::maximum(reader, event, &args);
        }
        "tril" | "triu" => sequences::triangle(reader, event),
        "zeros_like" | "ones_like" | "zeros" | "ones" | "full" | "empty" | "new_empty"
        | "new_zeros" | "empty_like" | "new_ones" | "full_like" => filled(reader, event, name),
        "scaled_dot_product_attention" => products::fused_attention(reader, event, &args),
        _ if name.starts_with("cache.") => sequences::cached(reader, event, &args, name),
        _ if name.starts_with("create_") => sequences::mask(reader, event, name),
        _ if products::call(reader, name, event, &args)
            || binary::call(reader, name, event, &args)
            || axes::call(reader, name, event, &args)
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
    let mut term = reader.graph.term(value.id).clone();
    let out = Operand::parse(&event.out).value().map(|out| reader.kind(out));
    // Functions of whole numbers, as of positions, give fractions.
    if term.kind == Kind::Int && out == Some(Kind::Float) {
        term.kind = Kind::Float;
    }
    let term = reader.graph.step(step, &[value.id], term.shape, term.kind);
    reader.give(&event.out, term, value.axes);
}

/// The logarithm of one more than a number.
fn logarithm_above_one(reader: &mut Reader<'_>, event: &Event, first: Option<usize>) {
    let Some(first) = first else { return reader.hole(event, "operand is no tensor") };
    let value = reader.value(first);
    let term = reader.graph.term(value.id);
    let mut sum = reader.graph.step("offset", &[value.id], term.shape.clone(), term.kind);
    sum.set("s", Number::Real(1.0));
    let sum = reader.graph.add(sum);
    let id = reader.graph.unary("log", sum);
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
    args.get(place)
        .cloned()
        .or_else(|| event.named.get(name).map(Operand::parse))
        .unwrap_or(Operand::None)
}

fn reduce(reader: &mut Reader<'_>, event: &Event, args: &[Operand], name: &str) {
    let Some(first) = args.first().and_then(Operand::value) else {
        return reader.hole(event, "operand is no tensor");
    };
    let value = reader.value(first);
    let at = match argument(event, args, 1, "dim") {
        Operand::List(items) if items.len() == 1 => items[0].int(),
        other => other.int(),
    };
    let keep = argument(event, args, 2, "keepdim").int() == Some(1);
    let Some(place) = at.and_then(|at| axis_at(&value, at)) else {
        return reader.hole(event, "the axis is not said");
    };
    let Axis::Row(axis) = value.axes[place] else {
        return reader.hole(event, "reduces an axis that is none of a row");
    };
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
fn reducing(
    reader: &mut Reader<'_>,
    event: &Event,
    value: &Value,
    place: usize,
    axis: usize,
    name: &str,
    keep: bool,
) {
    let mut shape = reader.graph.term(value.id).shape.clone();
    shape.remove(axis);
    let kind = reader.graph.term(value.id).kind;
    let mut step = reader.graph.step(&format!("{name}_axis"), &[value.id], shape, kind);
    step.set("axis", Number::Int(axis as i64));
    let mut axes = value.axes.clone();
    axes.remove(place);
    for other in &mut axes {
        if let Axis::Row(number) = other
            && *number > axis
        {
            *number -= 1;
        }
    }
    if keep {
        axes.insert(place, Axis::One);
    }
    reader.give(&event.out, step, axes);
}

fn softmax(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let Some(first) = args.first().and_then(Operand::value) else {
        return reader.hole(event, "operand is no tensor");
    };
    let value = reader.value(first);
    let at = argument(event, args, 1, "dim").int().unwrap_or(-1);
    let Some(place) = axis_at(&value, at) else { return reader.hole(event, "no such axis") };
    let term = reader.graph.term(value.id);
    let kind = Operand::parse(&event.out).value().map_or(term.kind, |out| reader.kind(out));
    let step = match &value.axes[place] {
        Axis::Keys => "softmax_keys",
        Axis::Row(axis) if axis + 1 == term.shape.len() => "softmax",
        _ => {
            return reader
                .hole(event, "softmax over an axis that is neither keys nor the last of a row");
        }
    };
    let term = reader.graph.step(step, &[value.id], term.shape.clone(), kind);
    reader.give(&event.out, term, value.axes);
}

fn embedding(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let (Some(tokens), Some(weight)) =
        (args.first().and_then(Operand::value), args.get(1).and_then(Operand::value))
    else {
        return reader.hole(event, "operands are no tensors");
    };
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

/// Zeros before the first token, which a convolution over the tokens before begins with.
fn padded(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    if sequences::shifted(reader, event, args) {
        return;
    }
    let behind = axes::flat(args.get(1..).unwrap_or_default()).get(1).and_then(Operand::int);
    let value = args.first().and_then(Operand::value).map(|number| reader.value(number));
    match value.filter(|value| value.axes.last() == Some(&Axis::Tokens) && behind == Some(0)) {
        Some(value) => reader.bind(&event.out, value.id, value.axes),
        None => reader.hole(event, "zeros beside a row"),
    }
}

/// The product of each position with each frequency.
fn outer(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let values = tensors(reader, &axes::flat(args));
    let frequencies = values.iter().find(|value| reader.graph.term(value.id).op == "frequencies");
    let positions = values.iter().find(|value| reader.graph.counts_positions(value.id));
    let (Some(frequencies), Some(_)) = (frequencies, positions) else {
        return reader.hole(event, "a product of sums of products");
    };
    let term = reader.graph.term(frequencies.id).clone();
    let mut angles = reader.graph.step("angles", &[], term.shape.clone(), Kind::Float);
    angles.attributes = term.attributes;
    let rank =
        Operand::parse(&event.out).value().map_or(2, |out| reader.record.values[out].shape.len());
    let mut axes = vec![Axis::One; rank.saturating_sub(2)];
    axes.extend([Axis::Tokens, Axis::Row(0)]);
    reader.give(&event.out, angles, axes);
}

fn arange(reader: &mut Reader<'_>, event: &Event) {
    let Some(out) = Operand::parse(&event.out).value() else { return };
    let ends: Vec<Operand> = event.args.iter().map(Operand::parse).collect();
    if let [start, Operand::Number(end), step] = ends.as_slice()
        && start.int() == Some(0)
        && step.int() == Some(2)
    {
        let size = reader.record.values[out].shape[0];
        let kind = reader.kind(out);
        let mut term = reader.graph.step("evens", &[], vec![Dim::plain(size)], kind);
        term.set("dim", end.clone());
        return reader.give(&event.out, term, vec![Axis::Row(0)]);
    }
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
    if let ("full_like", Some(Operand::Number(number))) =
        (name, event.args.get(1).map(Operand::parse))
    {
        term.set("fill", number);
    }
    term.set("with", Number::Word(name.trim_end_matches("_like").to_owned()));
    reader.give(&event.out, term, axes);
}

fn norm(reader: &mut Reader<'_>, event: &Event, args: &[Operand], name: &str) {
    let Some(first) = args.first().and_then(Operand::value) else {
        return reader.hole(event, "operand is no tensor");
    };
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
    step.set(
        "eps",
        match eps {
            Operand::Number(number) => number,
            _ => Number::Real(1e-5),
        },
    );
    if name == "layer_norm" {
        step.set("bias", Number::Bool(bias.is_some()));
        step.set("weight", Number::Bool(weight.is_some()));
    }
    reader.give(&event.out, step, value.axes);
}

/// The length of the last axis of a row by a power.
fn length(reader: &mut Reader<'_>, event: &Event, args: &[Operand]) {
    let Some(first) = args.first().and_then(Operand::value) else {
        return reader.hole(event, "operand is no tensor");
    };
    let value = reader.value(first);
    let name = if event.call.as_deref() == Some("norm") { "p" } else { "ord" };
    let power = match argument(event, args, 1, name) {
        Operand::None => Operand::Number(Number::Int(2)),
        power => power,
    };
    let at = match argument(event, args, 2, "dim") {
        Operand::List(items) if items.len() == 1 => items[0].int(),
        other => other.int(),
    };
    let row = shape(reader, value.id);
    let place = at.and_then(|at| axis_at(&value, at));
    let is_last = place.is_some_and(|place| value.axes[place] == Axis::Row(row.len().max(1) - 1));
    let keeps = argument(event, args, 3, "keepdim").int() == Some(1);
    let (Operand::Number(power), true, true) = (power, is_last, keeps) else {
        return reader.hole(event, "a length of other numbers than the last axis of a row");
    };
    let mut row = row;
    if let Some(last) = row.last_mut() {
        *last = Dim::plain(1);
    }
    let kind = reader.graph.term(value.id).kind;
    let mut term = reader.graph.step("p_norm", &[value.id], row, kind);
    term.set("p", power);
    reader.give(&event.out, term, value.axes);
}

fn clamp(reader: &mut Reader<'_>, event: &Event, args: &[Operand], name: &str) {
    let Some(first) = args.first().and_then(Operand::value) else {
        return reader.hole(event, "operand is no tensor");
    };
    let value = reader.value(first);
    let term = reader.graph.term(value.id);
    let mut step = reader.graph.step("clamp", &[value.id], term.shape.clone(), term.kind);
    let low = if name == "clamp_max" { Operand::None } else { argument(event, args, 1, "min") };
    let high = if name == "clamp_max" {
        argument(event, args, 1, "max")
    } else {
        argument(event, args, 2, "max")
    };
    for (key, bound) in [("lo", low), ("hi", high)] {
        // A bound without end is none.
        if let Operand::Number(number) = bound
            && number.evaluate(&reader.record.config).is_none_or(f64::is_finite)
        {
            step.set(key, number);
        }
    }
    if step.attributes.is_empty() {
        return reader.bind(&event.out, value.id, value.axes);
    }
    reader.give(&event.out, step, value.axes);
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
