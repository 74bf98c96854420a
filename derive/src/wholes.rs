//! Modules that are one op as a whole: rotary tables, activations and mixtures of experts.

use crate::graph::{Dim, Kind};
use crate::layout::Axis;
use crate::number::Number;
use crate::operand::Operand;
use crate::read::{Reader, Value};
use crate::record::Event;

/// Activation classes of transformers and the ops that compute them.
const ACTIVATIONS: &[(&str, &str)] = &[
    ("NewGELUActivation", "gelu_new"), ("FastGELUActivation", "gelu_fast"), ("QuickGELUActivation", "quick_gelu"), ("GELUTanh", "gelu_tanh"),
    ("ReLUSquaredActivation", "relu2"), ("SiLUActivation", "silu"), ("PytorchGELUTanh", "gelu_tanh"),
];

/// A module that is read as a whole.
#[derive(Debug)]
pub struct Whole {
    /// Its path.
    pub path: String,
    kind: WholeKind,
    operands: Vec<Operand>,
    words: Vec<String>,
    calls: Vec<String>,
    dtypes: Vec<(String, Vec<Operand>, Vec<usize>)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum WholeKind {
    Rotary,
    Activation(&'static str),
    Experts,
}

impl Whole {
    /// Notes a call inside.
    pub fn inside(&mut self, event: &Event) {
        if let Some(call) = &event.call {
            self.calls.push(call.clone());
            self.dtypes.push((call.clone(), event.args.iter().map(Operand::parse).collect(), Operand::parse(&event.out).values()));
        } else if let Some(class) = &event.module {
            self.calls.push(class.clone());
        }
    }
}

/// Returns the whole that begins with an event.
pub fn enter(reader: &Reader<'_>, event: &Event) -> Option<Whole> {
    let path = event.enter.clone()?;
    let class = event.module.as_deref()?;
    let kind = if reader.record.buffers.keys().any(|name| name.strip_prefix(&path).is_some_and(|tail| tail.starts_with('.') && tail.ends_with("inv_freq") && !tail[1..].contains('.'))) {
        WholeKind::Rotary
    } else if let Some((_, op)) = ACTIVATIONS.iter().find(|(name, _)| *name == class) {
        WholeKind::Activation(op)
    } else if is_experts(reader, &path) && event.args.len() + event.named.len() >= 3 {
        WholeKind::Experts
    } else {
        return None;
    };
    let operands: Vec<Operand> = event.args.iter().chain(event.named.values()).map(Operand::parse).collect();
    let words = operands.iter().filter_map(|operand| match operand { Operand::Number(number) => number.word(&reader.record.config), _ => None }).collect();
    Some(Whole { path, kind, operands, words, calls: Vec::new(), dtypes: Vec::new() })
}

fn is_experts(reader: &Reader<'_>, path: &str) -> bool {
    let shape = |name: &str| reader.record.weights.get(&format!("{path}.{name}")).map(|facts| facts.shape.len());
    shape("down_proj") == Some(3) && (shape("gate_up_proj") == Some(3) || shape("up_proj") == Some(3))
}

/// Binds the results of a whole.
pub fn leave(reader: &mut Reader<'_>, whole: &Whole, event: &Event) {
    match whole.kind {
        WholeKind::Rotary => rotary(reader, whole, event),
        WholeKind::Activation(op) => {
            if let Some(Operand::Value(number)) = whole.operands.first() {
                let value = reader.value(*number);
                let id = reader.graph.unary(op, value.id);
                reader.bind(&event.out, id, value.axes);
            }
        }
        WholeKind::Experts => experts(reader, whole, event),
    }
}

fn rotary(reader: &mut Reader<'_>, whole: &Whole, event: &Event) {
    let table = if let Some(word) = whole.words.first() { format!("{}:{word}", whole.path) } else { whole.path.clone() };
    if !reader.tables.contains(&table) {
        reader.tables.push(table.clone());
    }
    let outs = Operand::parse(&event.out).values();
    let functions: &[&str] = if outs.len() == 1 { &["rotation"] } else { &["cos", "sin"] };
    for (function, out) in functions.iter().zip(outs) {
        let shape = &reader.record.values[out].shape;
        let width = Dim::plain(shape.last().copied().unwrap_or(1));
        let mut term = reader.graph.step(&format!("rope_{function}"), &[], vec![width], reader.kind(out));
        term.set("table", Number::Word(table.clone()));
        let id = reader.graph.add(term);
        let mut axes = vec![Axis::Batch, Axis::Tokens, Axis::Row(0)];
        while axes.len() > shape.len() { axes.remove(0); }
        while axes.len() < shape.len() { axes.insert(1, Axis::One); }
        if shape.first() == Some(&1) { axes[0] = Axis::One; }
        reader.values.insert(out, Value { id, axes });
    }
}

fn experts(reader: &mut Reader<'_>, whole: &Whole, event: &Event) {
    let values: Vec<usize> = whole.operands.iter().filter_map(Operand::value).collect();
    let values: Vec<Value> = values.into_iter().map(|number| reader.value(number)).collect();
    let Some(rows) = values.first().cloned() else { return };
    let is_whole = |value: &Value| matches!(reader.graph.term(value.id).kind, Kind::Int);
    let chosen = values.iter().skip(1).find(|value| is_whole(value)).cloned();
    let weights = values.iter().skip(1).find(|value| !is_whole(value)).cloned();
    let (Some(chosen), Some(weights)) = (chosen, weights) else { return reader.hole(event, "experts without choices and weights") };
    let shape = super::calls::shape(reader, rows.id);
    let mut term = reader.graph.step("experts", &[rows.id, chosen.id, weights.id], shape, reader.graph.term(rows.id).kind);
    term.set("path", Number::Word(whole.path.clone()));
    let facts = &reader.record.weights[&format!("{}.down_proj", whole.path)];
    let values = reader.record.modules.get(&whole.path).map(|facts| &facts.values);
    let known = |size: usize, keys: &[&str]| {
        keys.iter().find_map(|key| values.and_then(|values| values.get(*key)).map(Number::parse).filter(|number| number.evaluate(&reader.record.config) == Some(size as f64)))
    };
    let numbers: Vec<Number> = values.into_iter().flatten().map(|(_, json)| Number::parse(json)).filter(Number::is_symbolic).collect();
    let by_size = |size: usize| numbers.iter().find(|number| number.evaluate(&reader.record.config) == Some(size as f64)).cloned();
    let gated = reader.record.weights.contains_key(&format!("{}.gate_up_proj", whole.path));
    let transposed = facts.shape[2] == reader.graph.term(rows.id).width().size && facts.shape[1] != facts.shape[2];
    let ffn = if transposed { facts.shape[1] } else { facts.shape[2] };
    let count = facts.shape[0];
    if transposed {
        term.set("turned", Number::Bool(true));
    }
    term.set("n", known(count, &["num_experts", "num_local_experts", "n_routed_experts"]).or_else(|| by_size(count)).unwrap_or(Number::Int(count as i64)));
    term.set("ffn", known(ffn, &["intermediate_dim", "intermediate_size", "moe_intermediate_size"]).or_else(|| by_size(ffn)).unwrap_or(Number::Int(ffn as i64)));
    let act = whole.calls.iter().find_map(|call| {
        let class = ACTIVATIONS.iter().find(|(name, _)| name == call).map(|(_, op)| *op);
        class.or_else(|| ["silu", "gelu", "relu", "sigmoid"].iter().copied().find(|name| name == call))
    });
    term.set("act", Number::Word(act.unwrap_or("silu").to_owned()));
    if !gated {
        term.set("form", Number::Word("plain".to_owned()));
    }
    if reader.record.weights.contains_key(&format!("{}.down_proj_bias", whole.path)) {
        term.set("bias", Number::Bool(true));
    }
    // Results in f32 that are rounded once at the end.
    let sums_in_float = whole.dtypes.iter().any(|(call, args, _)| call == "index_add_" && args.first().and_then(Operand::value).is_some_and(|number| reader.kind(number) == Kind::Float));
    if sums_in_float {
        term.set("sum", Number::Word("once".to_owned()));
    }
    reader.give(&event.out, term, rows.axes);
}
