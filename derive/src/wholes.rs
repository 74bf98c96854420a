//! Modules that are one op as a whole: rotary tables, activations and mixtures of experts.

use std::collections::BTreeMap;

use crate::graph::{Dim, Kind};
use crate::layout::Axis;
use crate::number::Number;
use crate::operand::Operand;
use crate::read::{Reader, Value};
use crate::record::Event;
use crate::reference::{Function, REFERENCE};

/// A module that is read as a whole.
#[derive(Debug)]
pub struct Whole {
    /// Its path.
    pub path: String,
    kind: WholeKind,
    operands: Vec<Operand>,
    named: BTreeMap<String, Operand>,
    words: Vec<String>,
    calls: Vec<String>,
    body: Vec<InnerCall>,
}

/// A call inside a whole.
#[derive(Debug)]
struct InnerCall {
    call: String,
    args: Vec<Operand>,
    named: BTreeMap<String, Operand>,
    out: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
enum WholeKind {
    Rotary,
    Activation(&'static str),
    Experts,
    Function(&'static Function),
}

fn function(path: String, event: &Event) -> Option<Whole> {
    let function = REFERENCE.functions.get(&path)?;
    let operands = event.args.iter().map(Operand::parse).collect();
    let named = event
        .named
        .iter()
        .map(|(name, json)| {
            let name = REFERENCE.synonyms.get(name).unwrap_or(name);
            (name.clone(), Operand::parse(json))
        })
        .collect();
    Some(Whole {
        path,
        kind: WholeKind::Function(function),
        operands,
        named,
        words: Vec::new(),
        calls: Vec::new(),
        body: Vec::new(),
    })
}

impl Whole {
    /// An argument of a function.
    fn argument(&self, name: &str) -> Operand {
        let WholeKind::Function(function) = self.kind else { return Operand::None };
        let place = function.parameters.iter().position(|parameter| *parameter == name);
        self.named
            .get(name)
            .cloned()
            .or_else(|| place.and_then(|place| self.operands.get(place).cloned()))
            .unwrap_or(Operand::None)
    }

    /// Notes a call inside.
    pub fn inside(&mut self, event: &Event) {
        if let Some(call) = &event.call {
            self.calls.push(call.clone());
            let named = event
                .named
                .iter()
                .map(|(name, json)| (name.clone(), Operand::parse(json)))
                .collect();
            self.body.push(InnerCall {
                call: call.clone(),
                args: event.args.iter().map(Operand::parse).collect(),
                named,
                out: Operand::parse(&event.out).value(),
            });
        } else if let Some(class) = &event.module {
            self.calls.push(class.clone());
        }
    }
}

/// Returns the whole that begins with an event.
pub fn enter(reader: &Reader<'_>, event: &Event) -> Option<Whole> {
    let path = event.enter.clone()?;
    let Some(class) = event.module.as_deref() else { return function(path, event) };
    let kind = if reader.record.buffers.keys().any(|name| {
        name.strip_prefix(&path).is_some_and(|tail| {
            tail.starts_with('.') && tail.ends_with("inv_freq") && !tail[1..].contains('.')
        })
    }) {
        WholeKind::Rotary
    } else if let Some(op) = REFERENCE.activations.get(class) {
        WholeKind::Activation(op)
    } else if is_experts(reader, &path) && event.args.len() + event.named.len() >= 3 {
        WholeKind::Experts
    } else {
        return None;
    };
    let operands: Vec<Operand> =
        event.args.iter().chain(event.named.values()).map(Operand::parse).collect();
    let words = operands
        .iter()
        .filter_map(|operand| match operand {
            Operand::Number(number) => number.word(&reader.record.config),
            _ => None,
        })
        .collect();
    Some(Whole {
        path,
        kind,
        operands,
        named: BTreeMap::new(),
        words,
        calls: Vec::new(),
        body: Vec::new(),
    })
}

fn is_experts(reader: &Reader<'_>, path: &str) -> bool {
    let shape = |name: &str| {
        reader.record.weights.get(&format!("{path}.{name}")).map(|facts| facts.shape.len())
    };
    shape("down_proj") == Some(3)
        && (shape("gate_up_proj") == Some(3) || shape("up_proj") == Some(3))
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
        WholeKind::Function(function) if function.op == "delta_rule" => {
            delta_rule(reader, whole, event);
        }
        WholeKind::Function(function) if function.op == "wkv" => wkv(reader, whole, event),
        WholeKind::Function(function) => scan(reader, whole, event, &function.op),
    }
}

/// The weights that a rotary module reads, of which one can stretch its frequencies: `frequencies * exp(weight)`.
fn stretched(reader: &Reader<'_>, whole: &Whole) -> Result<Option<String>, &'static str> {
    let path = |operand: &Operand| {
        let facts = &reader.record.values[operand.value()?];
        facts.weight.as_ref()
    };
    let is_learned = |path: &&String| reader.record.weights.contains_key(*path);
    let operands = || whole.body.iter().flat_map(|inner| &inner.args);
    let mut learned = operands().filter_map(path).filter(is_learned);
    let (Some(weight), None) = (learned.next(), learned.next()) else {
        return if operands().filter_map(path).any(|path| is_learned(&path)) {
            Err("a rotary table with several weights")
        } else {
            Ok(None)
        };
    };
    let takes = |inner: &InnerCall, number: Option<usize>| {
        number.is_some() && inner.args.iter().any(|operand| operand.value() == number)
    };
    let power = whole
        .body
        .iter()
        .find(|inner| inner.call == "exp" && inner.args.first().and_then(path) == Some(weight));
    let factor = power.and_then(|power| power.out);
    let stretches = whole.body.iter().any(|inner| {
        let frequencies = inner.args.iter().filter_map(path).any(|path| path.ends_with("inv_freq"));
        inner.call == "mul" && takes(inner, factor) && frequencies
    });
    let alone = whole.body.iter().filter(|inner| takes(inner, factor)).count() == 1;
    if stretches && alone {
        Ok(Some(weight.clone()))
    } else {
        Err("a rotary table with a weight that is no exponent of its frequencies")
    }
}

fn rotary(reader: &mut Reader<'_>, whole: &Whole, event: &Event) {
    let stretch = match stretched(reader, whole) {
        Ok(stretch) => stretch,
        Err(reason) => return reader.hole(event, reason),
    };
    let table = if let Some(word) = whole.words.first() {
        format!("{}:{word}", whole.path)
    } else {
        whole.path.clone()
    };
    if !reader.tables.contains(&table) {
        reader.tables.push(table.clone());
    }
    let outs = Operand::parse(&event.out).values();
    let functions: &[&str] = if outs.len() == 1 { &["rotation"] } else { &["cos", "sin"] };
    for (function, out) in functions.iter().zip(outs) {
        let shape = &reader.record.values[out].shape;
        let width = Dim::plain(shape.last().copied().unwrap_or(1));
        let mut term =
            reader.graph.step(&format!("rope_{function}"), &[], vec![width], reader.kind(out));
        term.set("table", Number::Word(table.clone()));
        if let Some(path) = &stretch {
            term.set("stretch", Number::Word(path.clone()));
        }
        let id = reader.graph.add(term);
        let mut axes = vec![Axis::Batch, Axis::Tokens, Axis::Row(0)];
        while axes.len() > shape.len() {
            axes.remove(0);
        }
        while axes.len() < shape.len() {
            axes.insert(1, Axis::One);
        }
        if shape.first() == Some(&1) {
            axes[0] = Axis::One;
        }
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
    let (Some(mut chosen), Some(weights)) = (chosen, weights) else {
        return reader.hole(event, "experts without choices and weights");
    };
    let with_none = reader.graph.is(chosen.id, "choose_or_none").map(|term| term.inputs[0]);
    if let Some(choose) = with_none {
        chosen.id = choose;
    }
    if let Some(inner) = whole.calls.iter().find(|call| is_further_module(call)) {
        return reader.hole(event, &format!("experts with a module of their own, `{inner}`"));
    }
    let shape = super::calls::shape(reader, rows.id);
    let mut term = reader.graph.step(
        "experts",
        &[rows.id, chosen.id, weights.id],
        shape,
        reader.graph.term(rows.id).kind,
    );
    term.set("path", Number::Word(whole.path.clone()));
    if with_none.is_some() {
        term.set("identities", Number::Int(1));
    }
    let facts = &reader.record.weights[&format!("{}.down_proj", whole.path)];
    let values = reader.record.modules.get(&whole.path).map(|facts| &facts.values);
    let known = |size: usize, keys: &[&str]| {
        keys.iter().find_map(|key| {
            values
                .and_then(|values| values.get(*key))
                .map(Number::parse)
                .filter(|number| number.evaluate(&reader.record.config) == Some(size as f64))
        })
    };
    let numbers: Vec<Number> = values
        .into_iter()
        .flatten()
        .map(|(_, json)| Number::parse(json))
        .filter(Number::is_symbolic)
        .collect();
    let by_size = |size: usize| {
        numbers
            .iter()
            .find(|number| number.evaluate(&reader.record.config) == Some(size as f64))
            .cloned()
    };
    let gated = reader.record.weights.contains_key(&format!("{}.gate_up_proj", whole.path));
    let transposed = !whole.body.iter().any(|inner| inner.call == "linear")
        && whole
            .body
            .iter()
            .any(|inner| ["matmul", "__matmul__", "bmm", "mm"].contains(&inner.call.as_str()));
    let ffn = if transposed { facts.shape[1] } else { facts.shape[2] };
    let count = facts.shape[0];
    if transposed {
        term.set("turned", Number::Bool(true));
    }
    term.set(
        "n",
        known(count, &["num_experts", "num_local_experts", "n_routed_experts"])
            .or_else(|| by_size(count))
            .unwrap_or(Number::Int(count as i64)),
    );
    term.set(
        "ffn",
        known(ffn, &["intermediate_dim", "intermediate_size", "moe_intermediate_size"])
            .or_else(|| by_size(ffn))
            .unwrap_or(Number::Int(ffn as i64)),
    );
    let act = whole.calls.iter().find_map(|call| {
        let class = REFERENCE.activations.get(call).map(String::as_str);
        class.or_else(|| {
            ["silu", "gelu", "relu", "sigmoid"].iter().copied().find(|name| name == call)
        })
    });
    term.set("act", Number::Word(act.unwrap_or("silu").to_owned()));
    if !gated {
        term.set("form", Number::Word("plain".to_owned()));
    }
    if reader.record.weights.contains_key(&format!("{}.down_proj_bias", whole.path)) {
        term.set("bias", Number::Bool(true));
    }
    // Results in f32 that are rounded once at the end.
    let sums_in_float = whole.body.iter().any(|inner| {
        inner.call == "index_add_"
            && inner
                .args
                .first()
                .and_then(Operand::value)
                .is_some_and(|number| reader.kind(number) == Kind::Float)
    });
    if sums_in_float {
        term.set("sum", Number::Word("once".to_owned()));
    }
    // Gates that are multiplied in f32 and rounded once.
    if whole.body.iter().any(|inner| inner.multiplies_in_float(reader, ffn)) {
        term.set("inner", Number::Word("once".to_owned()));
    }
    if whole.body.iter().any(InnerCall::takes_every_second) {
        term.set("interleaved", Number::Bool(true));
    }
    let mut bounds = bounded_gate(&whole.body);
    bounds.retain(|(_, value)| value.evaluate(&reader.record.config).is_none_or(f64::is_finite));
    if is_bounded_late(&whole.calls) && bounds.iter().any(|(name, _)| *name == "limit") {
        return reader.hole(event, "experts whose gates are bounded behind their activation");
    }
    for (name, value) in bounds {
        term.set(name, value);
    }
    reader.give(&event.out, term, rows.axes);
}

/// Is true if the first bound of an expert comes behind its first activation.
fn is_bounded_late(calls: &[String]) -> bool {
    let activates = |call: &String| {
        REFERENCE.activations.contains_key(call)
            || ["silu", "gelu", "relu", "sigmoid"].contains(&call.as_str())
    };
    let bounds = |call: &String| ["clamp", "clamp_", "clip"].contains(&call.as_str());
    match (calls.iter().position(bounds), calls.iter().position(activates)) {
        (Some(bound), Some(activation)) => activation < bound,
        _ => false,
    }
}

/// Is true for the class of a module that is no activation.
fn is_further_module(call: &str) -> bool {
    call.starts_with(char::is_uppercase) && !REFERENCE.activations.contains_key(call)
}

/// First result of a function.
fn first_result(event: &Event) -> serde_json::Value {
    event.out.get(0).cloned().unwrap_or_else(|| event.out.clone())
}

fn operand_value(reader: &mut Reader<'_>, whole: &Whole, name: &str) -> Option<Value> {
    let number = whole.argument(name).value()?;
    Some(reader.value(number))
}

/// A selective scan: its weights lie in one module under their usual names.
fn scan(reader: &mut Reader<'_>, whole: &Whole, event: &Event, op: &str) {
    let mut inputs = Vec::new();
    let mut axes = Vec::new();
    for name in ["x", "dt", "B", "C"] {
        let Some(value) = operand_value(reader, whole, name) else {
            return reader.hole(event, "an operand of the scan is missing");
        };
        if name == "x" {
            axes.clone_from(&value.axes);
        }
        inputs.push(reader.graph.uncast(value.id));
    }
    let matrix =
        operand_value(reader, whole, "A").and_then(|value| exponential_of(reader, value.id));
    let Some(path) = matrix else {
        return reader
            .hole(event, "the decay of the scan is not minus the exponential of a weight");
    };
    let module = path.rsplit_once('.').map_or("", |(module, _)| module).to_owned();
    let row = super::calls::shape(reader, inputs[0]);
    let mut term = reader.graph.step(op, &inputs, row.clone(), Kind::Float);
    term.set("path", Number::Word(module));
    if op == "ssd_scan" {
        if let Operand::List(bounds) = whole.argument("dt_limit") {
            for (name, bound) in ["dt_min", "dt_max"].iter().zip(bounds) {
                if let Operand::Number(number) = bound {
                    let idle = number
                        .evaluate(&reader.record.config)
                        .is_none_or(|value| value <= 0.0 && *name == "dt_min" || value > 1e38);
                    if !idle || number.is_symbolic() {
                        term.set(name, number);
                    }
                }
            }
        }
        let size = reader.graph.term(inputs[2]).width();
        term.set(
            "state",
            Number::Apply(
                "list".to_owned(),
                vec![row[0].number.clone(), row[1].number.clone(), size.number],
            ),
        );
        let flat = Dim::product(&row);
        term.shape = vec![flat];
        let flat = reader.graph.add(term);
        let id = super::calls::split_heads(reader, flat, &row);
        return reader.bind(&first_result(event), id, axes);
    }
    if let Some(bias) = operand_value(reader, whole, "delta_bias") {
        term.inputs.push(reader.graph.uncast(bias.id));
    }
    let size = reader.graph.term(inputs[2]).width();
    term.set("state", Number::Apply("list".to_owned(), vec![row[0].number.clone(), size.number]));
    let mut id = reader.graph.add(term);
    if let Some(gate) = operand_value(reader, whole, "z") {
        let gate = reader.graph.uncast(gate.id);
        let open = reader.graph.unary("silu", gate);
        let product = reader.graph.step("mul", &[id, open], row, Kind::Float);
        id = reader.graph.add(product);
    }
    let out =
        Operand::parse(&first_result(event)).value().map_or(Kind::Float, |out| reader.kind(out));
    if out == Kind::Activation {
        let shape = super::calls::shape(reader, id);
        let cast = reader.graph.step("cast", &[id], shape, out);
        id = reader.graph.add(cast);
    }
    reader.bind(&first_result(event), id, axes);
}

/// The weight W of `-exp(W)`.
fn exponential_of(reader: &Reader<'_>, id: usize) -> Option<String> {
    let graph = &reader.graph;
    let negative = graph.is(graph.uncast(id), "neg")?;
    let power = graph.is(graph.uncast(negative.inputs[0]), "exp")?;
    graph.weight(power.inputs[0]).map(str::to_owned)
}

/// The module of a weight with this name.
fn module_of(reader: &Reader<'_>, id: usize, name: &str) -> Option<String> {
    let path = reader.graph.weight(id)?.strip_suffix(name)?.strip_suffix('.')?;
    Some(path.to_owned())
}

/// A mean of values whose weights decay, by two weights of one module.
fn wkv(reader: &mut Reader<'_>, whole: &Whole, event: &Event) {
    let values =
        ["time_decay", "time_first", "key", "value"].map(|name| operand_value(reader, whole, name));
    let [Some(decay), Some(first), Some(key), Some(value)] = values else {
        return reader.hole(event, "an operand of the mean is missing");
    };
    let path = module_of(reader, decay.id, "time_decay");
    let same = path == module_of(reader, first.id, "time_first");
    let (Some(path), true) = (path, same) else {
        return reader.hole(event, "weights of the mean in several modules");
    };
    let row = super::calls::shape(reader, value.id);
    let mut term = reader.graph.step("wkv", &[key.id, value.id], row, Kind::Activation);
    term.set("path", Number::Word(path));
    let id = reader.graph.add(term);
    reader.bind(&first_result(event), id, value.axes);
}

fn delta_rule(reader: &mut Reader<'_>, whole: &Whole, event: &Event) {
    let mut inputs = Vec::new();
    let mut axes = Vec::new();
    for name in ["query", "key", "value", "g", "beta"] {
        let Some(value) = operand_value(reader, whole, name) else {
            return reader.hole(event, "an operand of the delta rule is missing");
        };
        if name == "value" {
            axes.clone_from(&value.axes);
        }
        let mut id = value.id;
        if name == "query" || name == "key" {
            while ["repeat_each"].contains(&reader.graph.term(id).op.as_str()) {
                id = reader.graph.term(id).inputs[0];
            }
        }
        inputs.push(id);
    }
    let row = super::calls::shape(reader, inputs[2]);
    let size = reader.graph.term(inputs[1]).width();
    let mut term = reader.graph.step("delta_rule", &inputs, row.clone(), Kind::Activation);
    term.set("scale", Number::apply("**", vec![size.number.clone(), Number::Real(-0.5)]));
    if let Operand::Number(Number::Bool(true)) = whole.argument("use_qk_l2norm_in_kernel") {
        term.set("eps", Number::Real(1e-6));
    }
    term.set(
        "state",
        Number::Apply(
            "list".to_owned(),
            vec![row[0].number.clone(), size.number, row[row.len() - 1].number.clone()],
        ),
    );
    let id = reader.graph.add(term);
    reader.bind(&first_result(event), id, axes);
}

impl InnerCall {
    /// Is true for a product of two tensors in f32 with rows of this width.
    fn multiplies_in_float(&self, reader: &Reader<'_>, width: usize) -> bool {
        ["mul", "__mul__"].contains(&self.call.as_str())
            && self.args.iter().all(|operand| {
                operand.value().is_some_and(|number| {
                    reader.kind(number) == Kind::Float
                        && reader.record.values[number].shape.last() == Some(&width)
                })
            })
    }

    /// Is true for a slice with a step of 2.
    fn takes_every_second(&self) -> bool {
        let slices = self.args.iter().flat_map(|argument| match argument {
            Operand::List(items) => items.clone(),
            other => vec![other.clone()],
        });
        self.call == "__getitem__"
            && slices
                .into_iter()
                .any(|item| matches!(item, Operand::Slice(ends) if ends[2].int() == Some(2)))
    }

    /// The number by which a call multiplies or to which it adds.
    fn number(&self, names: &[&str]) -> Option<Number> {
        let first = self.args.iter().skip(1).find_map(|argument| match argument {
            Operand::Number(number) => Some(number.clone()),
            _ => None,
        });
        first.or_else(|| {
            names.iter().find_map(|name| match self.named.get(*name) {
                Some(Operand::Number(number)) => Some(number.clone()),
                _ => None,
            })
        })
    }
}

/// The limit of a gate, and the factor of a gate that is multiplied by its own sigmoid.
fn bounded_gate(body: &[InnerCall]) -> Vec<(&'static str, Number)> {
    let mut result = Vec::new();
    let clamp =
        body.iter().find(|inner| ["clamp", "clamp_", "clip"].contains(&inner.call.as_str()));
    if let Some(limit) = clamp.and_then(|inner| {
        inner
            .named
            .get("max")
            .and_then(|bound| match bound {
                Operand::Number(number) => Some(number.clone()),
                _ => None,
            })
            .or_else(|| inner.number(&["max"]))
    }) {
        result.push(("limit", limit));
    }
    let sigmoid = body.iter().position(|inner| inner.call == "sigmoid");
    if let Some(before) = sigmoid
        .and_then(|place| place.checked_sub(1))
        .map(|place| &body[place])
        .filter(|inner| inner.call == "mul")
        && let Some(alpha) = before.number(&["other"])
    {
        result.push(("alpha", alpha));
        result.push(("act", Number::Word("silu".to_owned())));
    }
    result
}
